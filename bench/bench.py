"""What the library costs beside the driver alone: ratios, both sides measured in turns in one run.

    make bench                      on the embedded PostgreSQL
    make bench ARGS="--dsn ..."     on yours

Then what each store costs beside its floor (``stores.py``), and Kubernetes beside client-go's elector (``k8s.py``);
many roles in a group beside each on its own (``groups.py``); and locks in files beside flufl.lock and filelock
(``file_locks.py``).

The machine's speed cancels out of a ratio; absolute figures are printed to judge the noise by, not to quote.
"""

import argparse
import asyncio
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

from candidates import Candidates, bare_command, our_command, replace_in_turns, url_of
from file_locks import bench_file_locks
from groups import bench_groups
from pgleaderlock import FixedInterval, LeaderLock, LockKey
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.models import Grant
from pgleaderlock.postgres.backend import Connector, Lease, make_backend
from pgleaderlock.postgres.plain import PlainLockBackend
from pgleaderlock.stores.base import Backend
from pgleaderlock.testing.embedded import Server
from reporting import report
from stores import bench_stores

KEY = LockKey.pair(4242, 1)
TRY, UNLOCK = "SELECT pg_try_advisory_lock(%s, %s)", "SELECT pg_advisory_unlock(%s, %s)"


@contextmanager
def some_postgres(dsn: str | None) -> Iterator[str]:
    if dsn is not None:
        yield dsn
        return
    with tempfile.TemporaryDirectory(prefix="pgll-bench-") as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder) / "server", settings={"max_connections": "300"})
        server.start()
        try:
            yield server.dsn
        finally:
            server.stop("immediate")


# --- Acquire and release ---------------------------------------------------------------------------------------------


async def time_rounds(step: Callable[[], Awaitable[object]], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await step()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def _leased(dsn: str, *, witness: bool) -> Backend:
    lease = Lease(15.0, settle_s=0, witness=witness)
    return make_backend(KEY, lease, suspend_aware_clock, Connector(KEY, dsn=dsn, lease=lease))


async def bench_acquire_release(dsn: str, rounds: int) -> None:
    raw = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    sides: dict[str, Backend] = {
        "acquire + release on an open session, plain": PlainLockBackend(KEY, Connector(KEY, dsn=dsn, connect_fn=None)),
        "  with lease and token": _leased(dsn, witness=False),
        "  with lease, token and witness": _leased(dsn, witness=True),
    }
    lock = LeaderLock(dsn, key=KEY, retry_strategy=FixedInterval(1e-6), settle_s=0)

    async def raw_pair() -> None:
        await (await raw.execute(TRY, KEY.numbers)).fetchone()
        await (await raw.execute(UNLOCK, KEY.numbers)).fetchone()

    async def pair(backend: Backend) -> None:
        grant = await backend.try_acquire()
        assert isinstance(grant, Grant)
        await backend.release(grant)

    async def whole_term() -> None:
        await lock.wait_for_leadership()
        await lock.step_down()

    floor: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in sides}
    engine: list[float] = []
    for backend in sides.values():
        await backend.open()
    for _ in range(20):  # in turns, so that a noisy moment falls on both
        floor += await time_rounds(raw_pair, rounds // 20)
        for name, backend in sides.items():
            ours[name] += await time_rounds(partial(pair, backend), rounds // 20)
        async with lock:
            await lock.wait_for_leadership()
            engine += await time_rounds(whole_term, rounds // 20)
    await raw.close()
    median = statistics.median
    notes = iter(["aim: at most 1.3x", "a renewal and a flushed commit more", "and a new connection more"])
    for name, backend in sides.items():
        await backend.close()
        report(name, median(ours[name]), median(floor), "ms", next(notes))
    report("a whole term through the engine, events included", median(engine), median(floor), "ms")


# --- Failover --------------------------------------------------------------------------------------------------------


def bench_failover(dsn: str, rounds: int, followers: int) -> None:
    """End the leader, ours and the bare lock's in turns; each has so many followers."""
    commands, number = (our_command(url_of("postgresql", dsn)), bare_command(dsn)), 1 + followers
    with Candidates(commands[0], number) as ours, Candidates(commands[1], number) as floor:
        for what, by_kill in (("failover by kill -9", True), ("hand-over by shutdown", False)):
            mine, theirs = map(statistics.median, replace_in_turns([ours, floor], rounds, by_kill=by_kill))
            report(f"{what}, {followers} followers", mine, theirs, "ms", "floor: bare pg_advisory_lock")


# --- Noticing a loss -------------------------------------------------------------------------------------------------

HOLDER = "SELECT pid FROM pg_locks WHERE granted AND (classid, objid, objsubid) = (%s, %s, 2)"
TERMINATE = "SELECT pg_terminate_backend(%s)"


async def bench_loss(dsn: str, rounds: int) -> None:
    """End the session, and take the time until ``on_lost``, or until a bare reader of the socket is called."""
    observer = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    lock = LeaderLock(dsn, key=KEY, retry_strategy=FixedInterval(0.01), settle_s=0)
    noticed: asyncio.Queue[float] = asyncio.Queue()

    def notice() -> None:
        noticed.put_nowait(time.perf_counter())

    async def end(pid: int) -> float:
        began = time.perf_counter()
        await observer.execute(TERMINATE, (pid,))
        return (await noticed.get() - began) * 1e3

    async def end_ours() -> float:
        await lock.wait_for_leadership()
        row = await (await observer.execute(HOLDER, KEY.numbers)).fetchone()
        assert row is not None
        return await end(row[0])

    async def end_bare() -> float:
        loop, raw = asyncio.get_running_loop(), await psycopg.AsyncConnection.connect(dsn, autocommit=True)

        def notice_once() -> None:
            loop.remove_reader(raw.fileno())
            notice()

        loop.add_reader(raw.fileno(), notice_once)
        took_ms = await end(raw.info.backend_pid)
        await raw.close()
        return took_ms

    lock.on_lost(notice)
    async with lock:
        times = [(await end_ours(), await end_bare()) for _ in range(rounds)]
    await observer.close()
    ours, floor = (statistics.median(side) for side in zip(*times, strict=True))
    report("loss noticed after pg_terminate_backend", ours, floor, "ms", "floor: a bare add_reader")


# --- Idle CPU --------------------------------------------------------------------------------------------------------

_IDLE = """
import asyncio, resource, sys, time
import psycopg
from pgleaderlock import LeaderLock

async def ours(dsn, seconds):
    async with LeaderLock(dsn, 4242, 2, health_interval_s=1.0, settle_s=0):
        await measure(seconds)

async def floor(dsn, seconds):
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async def ping():
        while True:
            await asyncio.sleep(1.0)
            await (await connection.execute("SELECT 1")).fetchone()
    task = asyncio.create_task(ping())
    await measure(seconds)
    task.cancel()
    await connection.close()

async def measure(seconds):
    await asyncio.sleep(1.0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(used * 1e3 / seconds, flush=True)

asyncio.run(globals()[sys.argv[1]](sys.argv[2], float(sys.argv[3])))
"""


def bench_idle_cpu(dsn: str, seconds: float) -> None:
    """Run the three side by side: a leader, a follower, and a bare connection that pings as often."""

    def begin(side: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _IDLE, side, dsn, str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    leader, bare = begin("ours"), begin("floor")
    time.sleep(0.5)  # the second of ours finds the lock taken
    follower = begin("ours")
    used = [float(child.communicate()[0]) for child in (leader, follower, bare)]
    report("idle CPU of a leader (1 s health interval)", used[0], used[2], "ms/s")
    report("idle CPU of a follower (default back-off)", used[1], used[2], "ms/s")


# --- Idle statements -------------------------------------------------------------------------------------------------

COMMITTED = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


async def bench_idle_statements(dsn: str, number: int, seconds: float) -> None:
    """Let followers wait for a lock that an outsider holds, and count what the server has to do for them."""
    observer = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await observer.execute(TRY, KEY.numbers)

    async def committed() -> int:
        row = await (await observer.execute(COMMITTED)).fetchone()
        assert row is not None
        return int(row[0])

    async def commits(follow: Callable[[], Coroutine[None, None, None]], stay_s: float) -> int:
        before = await committed()
        tasks = [asyncio.create_task(follow()) for _ in range(number)]
        await asyncio.sleep(stay_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(2.0)  # a session's count is complete only when it is gone, after its slice at the latest
        return await committed() - before

    async def rate(follow: Callable[[], Coroutine[None, None, None]]) -> float:
        """Compare a long stay with a short one: what it takes to come and go is not idle."""
        return (await commits(follow, 2.0 + seconds) - await commits(follow, 2.0)) / seconds / number

    async def queue_for_lock() -> None:
        async with LeaderLock(dsn, key=KEY, settle_s=0):
            await asyncio.Event().wait()

    async def poll() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as raw:
            while True:
                await (await raw.execute(TRY, KEY.numbers)).fetchone()
                await asyncio.sleep(1.0)

    ours, floor = await rate(queue_for_lock), await rate(poll)
    await observer.close()
    report("statements of an idle follower", ours, floor, "/s", "floor: a poller that asks once a second")


# --- Memory ----------------------------------------------------------------------------------------------------------


def resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


async def bench_memory(dsn: str, number: int) -> None:
    async def grow(make: Callable[[int], Awaitable[object]]) -> tuple[float, list[object]]:
        before = resident_kib()
        kept = [await make(index) for index in range(number)]
        return (resident_kib() - before) / number, kept

    async def lock(index: int) -> LeaderLock:
        made = LeaderLock(dsn, 4243, index, settle_s=0)
        await made.start()
        await made.wait_for_leadership()
        return made

    async def connection(_: int) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(dsn, autocommit=True)

    await asyncio.gather(*[(await lock(10_000)).shutdown()])  # what is made once only
    floor, connections = await grow(connection)
    ours, locks = await grow(lock)
    report(f"memory per additional lock ({number} locks)", ours, floor, "KiB", "its connection included")
    for each in connections:
        await each.close()  # type: ignore[attr-defined]
    for each in locks:
        await each.shutdown()  # type: ignore[attr-defined]


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def bench_kubernetes(program: str) -> None:
    """Run it with the server that there is, or with one of its own if that is built: building takes minutes."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / program)]
    if "PGLEADERLOCK_K8S_SERVER" not in os.environ:
        command = [sys.executable, str(here.parent / "tools" / "k8s_server.py"), "run", "--if-built", "--", *command]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dsn", default=os.environ.get("PGLEADERLOCK_TEST_DSN"))
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--locks", type=int, default=100)
    parser.add_argument("--failovers", type=int, default=25)
    parser.add_argument("--followers", type=int, nargs="+", default=[2, 50], help="two processes for each of them")
    parser.add_argument("--only-failover", action="store_true", help="failover and hand-over, and nothing else")
    parser.add_argument("--only-stores", action="store_true", help="every store beside its floor, and nothing else")
    options = parser.parse_args()
    logging.getLogger("pgleaderlock").setLevel(logging.ERROR)
    with some_postgres(options.dsn) as dsn:
        print(f"pgleaderlock beside raw psycopg {psycopg.__version__}, Python {sys.version.split()[0]}")
        print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors", flush=True)
        if options.only_stores:
            bench_stores(dsn, options.failovers, 1.5 * options.idle_seconds)
            bench_kubernetes("stores.py")
            return
        for followers in options.followers:
            bench_failover(dsn, options.failovers, followers)
        if options.only_failover:
            return
        asyncio.run(bench_acquire_release(dsn, options.rounds))
        asyncio.run(bench_memory(dsn, options.locks))
        asyncio.run(bench_loss(dsn, options.failovers))
        bench_idle_cpu(dsn, options.idle_seconds)
        asyncio.run(bench_idle_statements(dsn, 10, options.idle_seconds / 2))
        bench_stores(dsn, options.failovers, 1.5 * options.idle_seconds)
    bench_groups()
    bench_file_locks(options.failovers)
    bench_kubernetes("stores.py")
    bench_kubernetes("k8s.py")


if __name__ == "__main__":
    main()
