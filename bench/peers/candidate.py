"""One candidate of any kind in a process of its own: prints "waiting", "acquired", and "acting" while it is leader.

    python bench/peers/candidate.py KIND '{"port": 6379, "name": "x", "folder": "/tmp/y", "lease_s": 4, "act": true}'

Each kind is used as its own documentation shows it, with its defaults where ``lease_s`` is null. It imports only what
it needs, so that its memory is its own. With ``act`` a leader says every 5 ms that it acts, if the cheapest thing that
its library documents for "do I still hold it" says yes; where there is no such thing, it acts until told to stop,
as its users' code does. The time in that line was read *before* asking: a process that is frozen between asking and
printing is not counted, which favours all candidates alike.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACT_EVERY_S = 0.005
TOOZ_LOOP_S = 0.1  # as in the example of its documentation


@dataclass(frozen=True)
class Options:
    """Where the store is, and what is wanted of it."""

    port: int = 0
    name: str = "bench-peers"
    folder: str = ""
    lease_s: float | None = None
    act: bool = False
    url: str = ""


stop = threading.Event()


def say(word: str) -> None:
    """In one write, because threads and loggers speak too."""
    os.write(1, f"{word}\n".encode())


def act(believes: Callable[[], bool]) -> None:
    asked = time.monotonic()
    if believes():
        say(f"acting {asked}")


def lead(options: Options, believes: Callable[[], bool]) -> None:
    """Lead until SIGTERM."""
    say("acquired")
    if not options.act:
        stop.wait()
    while not stop.wait(ACT_EVERY_S):
        act(believes)


def renew_in_background(renew: Callable[[], object], lease_s: float, lost: threading.Event) -> None:
    """Do what the library leaves to its user; a renewal that fails is a loss, as its exception says."""

    def work() -> None:
        while not stop.wait(lease_s / 3):
            try:
                renew()
            except Exception as error:  # noqa: BLE001 - whatever it is, the lock cannot be relied upon
                say(f"renewal failed: {type(error).__name__}")
                lost.set()
                return

    threading.Thread(target=work, daemon=True).start()


# --- Ours ------------------------------------------------------------------------------------------------------------


def ours(options: Options) -> None:
    import asyncio

    asyncio.run(_ours(options))


async def _ours(options: Options) -> None:
    import asyncio

    from pgleaderlock import Election, open_backend

    role = options.name if options.url.startswith("postgresql") else None
    settle: dict[str, Any] = {"settle_s": 0} if options.url.startswith("postgresql://") else {}
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    backend = open_backend(options.url, role=role, lease_s=options.lease_s or 15.0, **settle)
    election = Election(backend, health_interval_s=(options.lease_s or 15.0) / 3, shutdown_event=stopped)
    election.on_acquire_failed(lambda: say("waiting"))
    election.on_acquired(lambda: say("acquired"))
    async with election:
        while options.act and not stopped.is_set():
            await asyncio.sleep(ACT_EVERY_S)
            act(lambda: election.is_leader)
        await stopped.wait()


# --- PostgreSQL alone ------------------------------------------------------------------------------------------------


def bare(options: Options) -> None:
    import psycopg

    with psycopg.connect(f"host=127.0.0.1 port={options.port} user=postgres dbname=postgres", autocommit=True) as raw:
        say("waiting")
        raw.execute("SELECT pg_advisory_lock(hashtext(%s))", (options.name,))
        lead(options, lambda: True)
        raw.execute("SELECT pg_advisory_unlock(hashtext(%s))", (options.name,))


# --- Redis -----------------------------------------------------------------------------------------------------------


def redis_py(options: Options) -> None:
    import redis

    lock = redis.Redis(port=options.port).lock(options.name, timeout=options.lease_s, thread_local=False)
    say("waiting")
    lock.acquire()
    lost = threading.Event()
    if options.lease_s is not None:
        renew_in_background(lock.reacquire, options.lease_s, lost)
    lead(options, lambda: not lost.is_set() and lock.owned())
    lock.release()


def python_redis_lock(options: Options) -> None:
    import redis
    import redis_lock

    tuned = {} if options.lease_s is None else {"expire": int(options.lease_s), "auto_renewal": True}
    lock = redis_lock.Lock(redis.StrictRedis(port=options.port), options.name, **tuned)
    say("waiting")
    lock.acquire()
    lead(options, lambda: lock.get_owner_id() == lock.id)
    lock.release()


# --- ZooKeeper -------------------------------------------------------------------------------------------------------


def kazoo(options: Options) -> None:
    from kazoo.client import KazooClient, KazooState

    lost = threading.Event()
    tuned = {} if options.lease_s is None else {"timeout": options.lease_s}
    client = KazooClient(hosts=f"127.0.0.1:{options.port}", **tuned)
    client.add_listener(lambda state: lost.set() if state != KazooState.CONNECTED else None)
    client.start()
    say("waiting")
    client.Election(f"/{options.name}").run(lead, options, lambda: not lost.is_set())
    client.stop()


# --- Files -----------------------------------------------------------------------------------------------------------


def filelock(options: Options) -> None:
    import filelock as library

    lock = library.FileLock(Path(options.folder) / "lock")
    say("waiting")
    with lock:
        lead(options, lambda: lock.is_locked)


def filelock_lease(options: Options) -> None:
    import filelock as library

    tuned: dict[str, Any] = {} if options.lease_s is None else {"lease_duration": options.lease_s}
    lease = library.SoftFileLease(Path(options.folder) / "lock", **tuned)
    say("waiting")
    with lease:
        lead(options, lambda: lease.compromise is None)


def flufl(options: Options) -> None:
    from flufl.lock import Lock

    _folder_lock(options, Lock)


def our_folder_lock(options: Options) -> None:
    from pgleaderlock.stores.nfs import Lock

    _folder_lock(options, Lock)


def _folder_lock(options: Options, make: Callable[..., Any]) -> None:
    """The two have one API. A caller that asks whether it has the lock renews it; one that does not must refresh it."""
    tuned = {} if options.lease_s is None else {"lifetime": int(options.lease_s)}
    lock = make(str(Path(options.folder) / "lock"), **tuned)
    say("waiting")
    lock.lock()
    if options.act:
        lead(options, lambda: bool(lock.is_locked))
    else:
        say("acquired")
    while not stop.wait(lock.lifetime.total_seconds() / 3):
        lock.refresh()
    lock.unlock()


# --- tooz ------------------------------------------------------------------------------------------------------------


def tooz_lock(options: Options) -> None:
    coordinator = _coordinator(options, start_heart=True)
    lock = coordinator.get_lock(options.name.encode())
    say("waiting")
    lock.acquire()
    lead(options, lambda: bool(lock.acquired))
    lock.release()
    coordinator.stop()


def tooz_election(options: Options) -> None:
    """The loop of its documentation; a member who was elected is never told that it is no more, so it asks."""
    coordinator = _coordinator(options, start_heart=False)
    group, elected = options.name.encode(), threading.Event()
    _join(coordinator, group)

    def when_elected(_: object) -> None:
        if not elected.is_set():
            say("acquired")
        elected.set()

    coordinator.watch_elected_as_leader(group, when_elected)
    coordinator.run_watchers()
    if not elected.is_set():
        say("waiting")
    if options.act:
        threading.Thread(target=_act_if_elected, args=(_asker(coordinator, group), elected), daemon=True).start()
    while not stop.wait(TOOZ_LOOP_S):
        coordinator.heartbeat()
        coordinator.run_watchers()
    coordinator.stop()


def _coordinator(options: Options, *, start_heart: bool) -> Any:
    from tooz import coordination

    warnings.simplefilter("ignore")  # its PostgreSQL driver is deprecated: the page says so
    coordinator = coordination.get_coordinator(options.url, f"candidate-{os.getpid()}".encode())
    coordinator.start(start_heart=start_heart)
    return coordinator


def _join(coordinator: Any, group: bytes) -> None:
    from tooz import coordination

    with contextlib.suppress(coordination.GroupAlreadyExist):
        coordinator.create_group(group).get()
    coordinator.join_group(group).get()


def _asker(coordinator: Any, group: bytes) -> Callable[[], bool]:
    """Ask the store who leads, where the driver can; Redis's cannot, and its user has nothing else to go by."""
    import tooz

    try:
        coordinator.get_leader(group)
    except tooz.NotImplemented:
        return lambda: True
    return lambda: bool(coordinator.get_leader(group).get() == coordinator._member_id)  # noqa: SLF001


def _act_if_elected(believes: Callable[[], bool], elected: threading.Event) -> None:
    elected.wait()
    while not stop.wait(ACT_EVERY_S):
        try:
            act(believes)
        except Exception as error:  # noqa: BLE001 - ownership is unknown, so it does not act
            say(f"cannot tell: {type(error).__name__}")


KINDS = {
    "bare": bare,
    "filelock": filelock,
    "filelock-lease": filelock_lease,
    "flufl": flufl,
    "kazoo": kazoo,
    "our-folder-lock": our_folder_lock,
    "ours": ours,
    "python-redis-lock": python_redis_lock,
    "redis-py": redis_py,
    "tooz-election": tooz_election,
    "tooz-lock": tooz_lock,
}


def main(kind: str, options: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    KINDS[kind](Options(**json.loads(options)))


if __name__ == "__main__":
    main(*sys.argv[1:])
