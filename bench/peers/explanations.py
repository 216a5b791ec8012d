"""What each of them does when its leader is frozen, whether it gives a token, and why it may be ahead of ours.

The causes are from the peers' documentation and sources where we have read them, and from what they do where not. The
page refuses to be written while a row on which ours is not alone in front has no cause here.
"""

from dataclasses import dataclass

__all__ = ["ABOUT", "About", "why"]


@dataclass(frozen=True)
class About:
    """For a reader who uses it, or thinks of using it."""

    default: str
    """What its documentation says it does if nothing is asked for."""
    freeze: str
    token: str


ABOUT: dict[str, About] = {
    "ours, on every store": About(
        "`lease_s=15`, a renewal every 5 s",
        "the store frees it no earlier than a lease after the last renewal was *sent*; `is_leader` compares with a "
        "clock and is false from 0.9 of it on, thawed or not, without asking anybody",
        "yes, strictly increasing on every store",
    ),
    "pg_advisory_lock, bare": About(
        "psycopg, autocommit, one blocking `SELECT pg_advisory_lock`; no lease",
        "a frozen holder keeps the lock until its session ends; there is nothing that could overlap",
        "none",
    ),
    "tooz lock, postgresql": About(
        "`get_lock(...).acquire()`; the driver has no elections, no lease, and is deprecated",
        "a frozen holder keeps the lock; one whose session was ended is not told: `acquired` is a flag",
        "none; and its keys are 2 bytes of a hash, so that one pair of names in 65,536 is the same lock",
    ),
    "tooz election, redis": About(
        "the loop of its tutorial (heartbeat, `run_watchers`, 0.1 s of sleep); `timeout=30`",
        "**an overlap without end**: who was elected is never told that it is no longer, and cannot ask (`get_leader` "
        "is not implemented for Redis)",
        "none",
    ),
    "tooz election, zookeeper": About(
        "the same loop; `timeout=10`, the ZooKeeper session",
        "no callback reports a loss; `get_leader` asks the server, at a round trip before each act, and is right",
        "none passed on, though ZooKeeper has one (the node's number)",
    ),
    "tooz lock, etcd3gw": About(
        "`get_lock(...).acquire()` with the heart started; the driver has no elections; `timeout=30`",
        "**an overlap without end**: the heart refreshes a lease that is gone, ignores the answer, and `acquired` "
        "stays true",
        "none",
    ),
    "tooz lock, file": About(
        "`get_lock(...).acquire()`, a lock of fcntl(2) polled by fasteners; no lease",
        "a frozen holder keeps the lock, and no other takes over",
        "none",
    ),
    "kazoo Election": About(
        "`client.Election(path).run(work)`, `timeout=10.0`; a listener that stops on SUSPENDED and LOST, as it advises",
        "the session expires; a thawed leader acts until its connection thread has read the news: milliseconds, but "
        "nothing bounds it. No clock is asked",
        "not by the recipe; the lock's node has a sequence number that would do",
    ),
    "etcdctl elect": About(
        "`etcdctl elect NAME VALUE`; its session has 60 s, and there is no flag for it",
        "ends by itself once it learns that its session is gone: until its process has ended, what it started runs",
        "with one more request: the revision of the key that it prints increases from leader to leader",
    ),
    "etcdctl lock": About(
        "`etcdctl lock NAME`, `--ttl=10`",
        "as `etcdctl elect`",
        "as `etcdctl elect`",
    ),
    "redis-py Lock": About(
        "`client.lock(name)`: `timeout=None`, `sleep=0.1`; tuned: `timeout=4`, and `reacquire()` by a thread of the "
        "user's",
        "default: never lost, not by a dead holder either; tuned: `owned()` asks the server before each act, and is "
        "right when it is asked; code that does not ask overlaps",
        "none: its token is random. Redis does not flush, and may forget the lock in a crash",
    ),
    "python-redis-lock": About(
        "`Lock(client, name)`: `expire=None`; tuned: `expire=4, auto_renewal=True`",
        "default: never lost, not by a dead holder either; tuned: its renewal thread dies of the loss and "
        "reports nothing; `get_owner_id()` asks the server before each act, and is right when it is asked",
        "none",
    ),
    "filelock FileLock": About(
        "`with FileLock(path)`: flock(2), polled every 50 ms; no lease",
        "a frozen holder keeps the lock, and no other takes over",
        "none",
    ),
    "filelock SoftFileLease": About(
        "`with SoftFileLease(path)`: `lease_duration=30`, refreshed every third of it",
        "**overlaps until its next heartbeat**, a third of the lease at most; its documentation says so, and to treat "
        "it as a hint",
        'an unordered one, which "does not fence", as it says',
    ),
    "flufl.lock": About(
        "`Lock(path)`: `lifetime=15`, 10 s more for clocks that differ, polled at random within 2 s",
        "`is_locked` reads the file before each act, and is right when it is asked; two who break one stale lock at "
        "once may both have it, as its documentation says",
        "none",
    ),
    "client-go leaderelection": About(
        "LeaseDuration 15 s, RenewDeadline 10 s, RetryPeriod 2 s, ReleaseOnCancel",
        "**overlaps for RenewDeadline**: its deadline begins anew with the first renewal after the thaw, which fails "
        "until it is over; up to 10 s by default",
        "none",
    ),
}

_GRACEFUL_LIMIT = (
    "one session and two statements less: we take the witness lock on a second session, write a token to the disk, and "
    "ask once more whether the lock is still held"
)
_WOKEN = (
    "the server wakes one waiter, which then leads; ours takes the witness lock on a second session, writes a token to "
    "the disk and asks once more whether the lock is still held"
)
_POLL_LUCK = "it polls: two waiters with random phases are sometimes in time; its worst case is its whole interval"
_LEASE_LUCK = "how much of a lease has passed since its last renewal is chance"
_SHORTER = "by default its lease is 10 s and ours 15 s"
_ONE_CONNECTION = "our leader has a second session, the witness, which closes the gap when the server ends one"
_NO_LESS = "one connection is the least that a candidate can have"
_SMALL = "psycopg is most of our memory: a process that has imported it, and nothing else, has 36 MiB"
_SMALL_FILES = "asyncio and the election's engine, which locks in files have too, are most of our memory there"
_GO = "a Go program without an interpreter"
_BLOCKED = (
    "it waits in the server without a word; our next two leaders queue in slices of at most 0.9 s, because a statement "
    "that blocks for hours pins `xmin` and holds up `CREATE INDEX CONCURRENTLY`"
)
_PINGS = (
    "between pings of its session it waits for an event of the server's; our next two leaders queue in slices of at "
    "most 0.9 s"
)
_ASKS = "it asks the server before each act, a round trip that ours does not need: `is_leader` compares with a clock"
_KERNEL = (
    "the kernel frees the lock at once for both; ours reads the record, writes its own with a token, and then leads"
)
_NO_OVERLAP_SEEN = "none of either was seen"

_WHY: dict[tuple[str, str], str] = {
    ("pg_advisory_lock, bare", "graceful"): _GRACEFUL_LIMIT,
    ("pg_advisory_lock, bare", "crash"): _GRACEFUL_LIMIT,
    ("pg_advisory_lock, bare", "requests"): _BLOCKED,
    ("pg_advisory_lock, bare", "wakeups"): _BLOCKED,
    ("pg_advisory_lock, bare", "memory"): "asyncio and the election's engine are all the difference",
    ("tooz lock, file", "memory"): _SMALL_FILES,
    ("filelock FileLock", "memory"): _SMALL_FILES,
    ("filelock SoftFileLease", "memory"): _SMALL_FILES,
    ("flufl.lock", "memory"): _SMALL_FILES,
    ("tooz lock, postgresql", "graceful"): _GRACEFUL_LIMIT,
    ("tooz lock, postgresql", "crash"): _GRACEFUL_LIMIT,
    ("tooz lock, postgresql", "requests"): _BLOCKED,
    ("tooz lock, postgresql", "wakeups"): _BLOCKED,
    ("tooz lock, postgresql", "leader"): "it has a second session too, which it does not use for this",
    ("tooz lock, etcd3gw", "requests"): "it polls once a second, and so takes as long to notice a release",
    ("tooz lock, etcd3gw", "leader"): "it speaks HTTP, and keeps as many connections open as it had requests at once",
    ("tooz election, redis", "graceful"): _POLL_LUCK,
    ("tooz election, zookeeper", "graceful"): _POLL_LUCK,
    ("tooz election, zookeeper", "overlap"): _ASKS,
    ("kazoo Election", "graceful"): _WOKEN,
    ("kazoo Election", "overlap"): _NO_OVERLAP_SEEN,
    ("kazoo Election", "requests"): _PINGS,
    ("kazoo Election", "wakeups"): _PINGS,
    ("etcdctl elect", "graceful"): _WOKEN,
    ("etcdctl lock", "graceful"): _WOKEN,
    ("etcdctl elect", "overlap"): _NO_OVERLAP_SEEN,
    ("etcdctl lock", "overlap"): _NO_OVERLAP_SEEN,
    ("etcdctl elect", "requests"): _PINGS,
    ("etcdctl lock", "requests"): _PINGS,
    ("etcdctl elect", "memory"): _GO,
    ("etcdctl lock", "memory"): _GO,
    ("redis-py Lock", "graceful"): _POLL_LUCK,
    ("redis-py Lock", "overlap"): _ASKS,
    (
        "python-redis-lock",
        "graceful",
    ): "the release wakes one waiter (BLPOP); ours takes the witness lock too, and writes a token to the disk",
    ("python-redis-lock", "overlap"): _ASKS,
    (
        "python-redis-lock",
        "requests",
    ): "BLPOP waits in the server, and asks again when the client's or the lease's time is up",
    (
        "python-redis-lock",
        "wakeups",
    ): "BLPOP waits in the server, and asks again when the client's or the lease's time is up",
    ("tooz lock, file", "graceful"): _POLL_LUCK,
    ("tooz lock, file", "crash"): _KERNEL + "; it polls every 10 to 100 ms, and was in time",
    ("tooz lock, file", "wakeups"): "ours also looks at the record's age, to notice who is frozen",
    ("filelock FileLock", "graceful"): _KERNEL + "; it polls every 50 ms, and was in time",
    ("filelock FileLock", "crash"): _KERNEL + "; it polls every 50 ms, and was in time",
    ("filelock SoftFileLease", "graceful"): _POLL_LUCK,
    ("filelock SoftFileLease", "overlap"): _NO_OVERLAP_SEEN,
    (
        "filelock SoftFileLease",
        "wakeups",
    ): "it looks every 50 ms; ours is woken by inotify, and looks for a cancellation every 20 ms",
    ("flufl.lock", "graceful"): _POLL_LUCK,
    ("flufl.lock", "overlap"): "it reads the lock's file before each act, as ours does",
    ("flufl.lock", "wakeups"): "it looks once in a second, and so takes as long to notice",
    ("client-go leaderelection", "crash"): _LEASE_LUCK,
    ("client-go leaderelection", "memory"): _GO,
    ("client-go leaderelection", "leader"): _NO_LESS,
    (
        "client-go leaderelection",
        "follower",
    ): "it polls on the connection that it has; ours keeps a second one for the watch",
    (
        "client-go leaderelection",
        "requests",
    ): "it polls every RetryPeriod; ours watches, and looks now and then all the same",
}

_SHORTER_BY_DEFAULT = ("kazoo Election", "tooz election, zookeeper", "etcdctl lock")
_FOR_ALL = {"leader": _ONE_CONNECTION, "follower": _NO_LESS, "memory": _SMALL}


def why(peer: str, metric: str) -> str | None:
    """Return why this peer is ahead of ours in this column, or beside it; None if it is not written down."""
    found = _WHY.get((peer, metric)) or _FOR_ALL.get(metric)
    if found is None and metric == "freeze":
        return f"{_LEASE_LUCK}; {_SHORTER}" if peer in _SHORTER_BY_DEFAULT else _LEASE_LUCK
    return found
