"""Cut off: a pulled cable, a socket that acknowledges and never answers, a frozen process, a server that starts anew.

In all of them two processes know different things for a while. What is promised is an order of events, and it is
measured here on the one clock that all processes of a machine share.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgleaderlock import ConnectionError, Event, EventKind, LeaderLock, LockKey, LockState, RetryContext, ShutdownError
from pgleaderlock.models import LossCause
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres, free_port
from tests.support.doubles import Witness, until
from tests.support.lease import make_leased, until_queued
from tests.support.processes import Process
from tests.support.programs import needs
from tests.support.silent_proxy import SilentProxy

LEASE_S = 1.5
LOSS_S = LEASE_S * 2 / 3
SLICE_S = LEASE_S / 3
SLACK_S = 0.4  # a machine may have other things to do; less than the third of a lease that lies between its times
AT_ONCE_S = 0.5  # less than any answer is waited for


class InLine:
    """A candidate that is refused queues from then on: nothing is quick here by polling. After an error, soon again."""

    def next_delay_s(self, context: RetryContext) -> float:
        return 600.0 if context.last_error is None else 0.05


# Candidates for several locks in one process. What happens is said with the clock's reading when it happened.
_CANDIDATES = """
import asyncio, sys, time
from pgleaderlock import LeaderLock, LockKey

class InLine:
    def next_delay_s(self, context):
        return 600.0 if context.last_error is None else 0.05

def contend(dsn, lease_s, key):
    timing = {"lease_s": float(lease_s), "health_interval_s": float(lease_s) / 3}
    lock = LeaderLock(dsn, key=LockKey.parse(key), retry_strategy=InLine(), **timing)
    lock.on_acquired(lambda: print("acquired", key, time.monotonic(), flush=True))
    lock.on_lost(lambda: print("lost", key, time.monotonic(), flush=True))
    lock.on_acquire_failed(lambda: print("refused", key, time.monotonic(), flush=True))
    return lock

async def main(dsn, lease_s, *keys):
    locks = [contend(dsn, lease_s, key) for key in keys]
    deeds = {"start": LeaderLock.start, "stop": LeaderLock.shutdown}
    print("ready", flush=True)
    while word := (await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)).strip():
        await asyncio.gather(*map(deeds[word], locks))

asyncio.run(main(*sys.argv[1:]))
"""


def candidates(dsn: str, keys: Iterable[str], *prefix: str) -> Process:
    return Process(*prefix, sys.executable, "-c", _CANDIDATES, dsn, str(LEASE_S), *keys)


def hear(process: Process, word: str, keys: Iterable[str]) -> dict[str, float]:
    """Wait until the process has said this of every key, and return when it came about."""
    times: dict[str, float] = {}
    while set(keys) - times.keys():
        said, *rest = process.wait_for(f"{word} ").split()
        if said == word:  # and not a log line that has the word in it
            times.setdefault(rest[0], float(rest[1]))
    return times


# --- A pulled cable -------------------------------------------------------------------------------------------------


class Cable:
    """A cable between the networks of two processes, each in a namespace of its own. It vanishes with either."""

    def __init__(self, server_pid: int, leader_pid: int) -> None:
        self._pids = {"server": server_pid, "leader": leader_pid}
        server, leader = str(server_pid), str(leader_pid)
        _run("ip", "link", "add", "server", "netns", server, "type", "veth", "peer", "name", "leader", "netns", leader)
        for end, address in (("server", SERVER_ADDRESS), ("leader", LEADER_ADDRESS)):
            self._at(end, "address", "add", f"{address}/30", "dev", end)
            self.plug(end)

    def pull(self, end: str) -> None:
        self._at(end, "link", "set", end, "down")

    def plug(self, end: str) -> None:
        self._at(end, "link", "set", end, "up")

    def _at(self, end: str, *command: str) -> None:
        _run("nsenter", f"--target={self._pids[end]}", "--net", "ip", *command)


SERVER_ADDRESS, LEADER_ADDRESS = "198.18.0.1", "198.18.0.2"  # for benchmarks, says RFC 2544; seen by these two only


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"


_START_SERVER = """
import sys
from pathlib import Path
from pgleaderlock.testing.embedded import Server

class ReachableServer(Server):
    def _options(self):  # an embedded server listens on 127.0.0.1 only, and there is no setting for that
        return super()._options() + " -c 'listen_addresses=*'"

ReachableServer(Path(sys.argv[1]), tcp_port=int(sys.argv[2])).start()
"""


@pytest.fixture
def distant_server(server_folder_root) -> Iterator[Server]:
    """A server whose network is its own. Its socket in the file system can be reached from everywhere."""
    port = free_port()
    server = Server(server_folder_root / "distant", tcp_port=port)
    server.init()
    with (server.data / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {LEADER_ADDRESS}/32 trust\n")
    try:
        # With a loopback of its own: the statistics of PostgreSQL 14 go through it.
        with_loopback = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        _run("unshare", "--net", *with_loopback, sys.executable, "-c", _START_SERVER, str(server.folder), str(port))
        yield server
    finally:
        server.stop("immediate")


@pytest.mark.proof
@needs("ip", "unshare", "nsenter", "network namespaces")
def test_a_leader_whose_cable_is_pulled_knows_before_another_leads(distant_server: Server):
    """Twenty rounds: four locks, five cuts. Pulled at its own end a host sees it; at the far end there is silence."""
    keys = [str(LockKey.pair(1, number)) for number in range(4)]
    rounds: list[tuple[float, float]] = []
    dsn = make_conninfo(distant_server.tcp_dsn, host=SERVER_ADDRESS)
    with candidates(dsn, keys, "unshare", "--net") as leader, candidates(distant_server.dsn, keys) as follower:
        leader.wait_for("ready")
        assert distant_server.pid is not None
        cable = Cable(distant_server.pid, leader.pid)
        for end in ("leader", "server", "leader", "server", "leader"):
            leader.say("start")
            hear(leader, "acquired", keys)
            follower.say("start")
            hear(follower, "refused", keys)
            pulled_at = time.monotonic()
            cable.pull(end)
            lost, acquired = hear(leader, "lost", keys), hear(follower, "acquired", keys)
            rounds += [(lost[key] - pulled_at, acquired[key] - pulled_at) for key in keys]
            cable.plug(end)
            leader.say("stop")
            follower.say("stop")
    assert len(rounds) == 20
    assert [(lost, acquired) for lost, acquired in rounds if not lost < acquired] == []
    assert max(lost for lost, _ in rounds) < LOSS_S + SLACK_S
    assert max(acquired for _, acquired in rounds) < LEASE_S + 2 * SLACK_S


# --- A socket that acknowledges and never answers --------------------------------------------------------------------


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[SilentProxy]:
    with SilentProxy(postgres.tcp_dsn) as proxy:
        yield proxy


async def took_s(what: Awaitable[object]) -> float:
    """Wait for it, in bounded time, and return how long it took."""
    began = time.monotonic()
    await asyncio.wait_for(what, 10)
    return time.monotonic() - began


def make_lock(dsn: str, key: LockKey, **settings) -> tuple[LeaderLock, Witness]:
    return make_leased(dsn, key, retry_strategy=InLine(), **settings)


async def until_renewed(lock: LeaderLock) -> float:
    """Wait until a renewal has just been answered, so that none is under way; return what it is worth."""
    before = lock.trusted_until
    await until(lambda: lock.trusted_until != before, timeout_s=5)
    assert lock.trusted_until is not None
    return lock.trusted_until


def only(heard: Witness, kind: EventKind) -> Event:
    (event,) = [event for event in heard.events if event.kind is kind]
    return event


async def test_a_leader_that_gets_no_answer_has_lost_by_two_thirds_of_its_lease(proxy: SilentProxy, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key)
    async with lock:
        assert await lock.wait_for_leadership(10)
        trusted_until = await until_renewed(lock)
        proxy.mute()
        await until(lambda: "on_lost" in heard.words, timeout_s=5)
        lost = only(heard, EventKind.LOST)
        lost_at = trusted_until - 0.9 * LEASE_S + LOSS_S
        assert lost_at - 0.01 < lost.at < lost_at + SLACK_S
        assert lost.cause is LossCause.RENEW_TIMEOUT
        assert not lock.is_leader
        assert await took_s(lock.shutdown()) < AT_ONCE_S


async def test_a_connection_that_is_never_answered_is_given_up_and_tried_again(proxy: SilentProxy, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key)
    proxy.mute()
    began = time.monotonic()
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=5)
        assert time.monotonic() - began < LEASE_S + SLACK_S
        assert "no answer within 1.5 s" in str(heard.errors[0])
        proxy.let_pass()
        assert await lock.wait_for_leadership(10)


async def test_a_question_for_the_lock_that_is_never_answered_is_given_up(proxy: SilentProxy, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key)
    muted_at = mute_when(lock, LockState.ACQUIRING, proxy)
    async with lock:
        await until(lambda: bool(heard.errors), timeout_s=5)
        assert time.monotonic() - muted_at[0] < LOSS_S + SLACK_S
        assert "no answer within 1 s" in str(heard.errors[0])
        assert not lock.is_leader
        proxy.let_pass()
        assert await lock.wait_for_leadership(10)


async def test_a_witness_that_is_never_answered_is_given_up(proxy: SilentProxy, postgres: Postgres, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key)
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as predecessor:
        await predecessor.execute("SELECT pg_advisory_lock(%s::bigint)", witness_key(key).numbers)
        async with lock:
            await until_waited_for(predecessor)
            proxy.mute()
            muted_at = time.monotonic()
            await until(lambda: bool(heard.errors), timeout_s=5)
            assert time.monotonic() - muted_at < SLICE_S + LOSS_S + SLACK_S
            assert lock.state is not LockState.LEADER
            await predecessor.close()
            proxy.let_pass()
            assert await lock.wait_for_leadership(10)


async def test_queued_request_that_is_never_answered_is_given_up(proxy: SilentProxy, postgres: Postgres, key: LockKey):
    leader, _ = make_lock(postgres.dsn, key)
    lock, heard = make_lock(proxy.dsn, key)
    async with leader:
        assert await leader.wait_for_leadership(10)
        async with lock:
            await until_queued(postgres.dsn, key)
            proxy.mute()
            muted_at = time.monotonic()
            await until(lambda: bool(heard.errors), timeout_s=5)
            assert time.monotonic() - muted_at < SLICE_S + LOSS_S + SLACK_S
            assert lock.state is LockState.FOLLOWER
            proxy.let_pass()
            await leader.shutdown()
            assert await lock.wait_for_leadership(10)


async def test_a_stop_does_not_wait_for_a_connection_that_is_never_answered(proxy: SilentProxy, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key)
    proxy.mute()
    async with lock:
        await asyncio.to_thread(proxy.wait_for, "accepted")
        assert await took_s(lock.shutdown()) < AT_ONCE_S
    assert heard.errors == []


async def test_a_stop_does_not_wait_for_a_question_that_is_never_answered(proxy: SilentProxy, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key)
    muted_at = mute_when(lock, LockState.ACQUIRING, proxy)
    async with lock:
        await until(lambda: bool(muted_at) and time.monotonic() > muted_at[0] + 0.05)  # by then it was asked
        assert await took_s(lock.shutdown()) < AT_ONCE_S
    assert heard.errors == []


async def test_stop_does_not_wait_for_a_queued_request(proxy: SilentProxy, postgres: Postgres, key: LockKey):
    leader, _ = make_lock(postgres.dsn, key)
    lock, heard = make_lock(proxy.dsn, key)
    async with leader:
        assert await leader.wait_for_leadership(10)
        async with lock:
            await until_queued(postgres.dsn, key)
            proxy.mute()
            assert await took_s(lock.shutdown()) < AT_ONCE_S
    assert heard.errors == []


async def test_a_stop_does_not_wait_for_a_reconnection_that_is_never_answered(proxy: SilentProxy, key: LockKey):
    lock, heard = make_lock(proxy.dsn, key, reconnect_grace_s=20.0)
    async with lock:
        assert await lock.wait_for_leadership(10)
        proxy.mute()
        await until(lambda: lock.state is LockState.RECONNECTING, timeout_s=5)
        assert not lock.is_leader
        assert await took_s(lock.shutdown()) < AT_ONCE_S
    assert [type(error) for error in heard.errors] == [ConnectionError]


@pytest.mark.parametrize("renewing", [False, True], ids=["idle", "renewing"])
@pytest.mark.slow
async def test_a_release_that_is_never_answered_ends_with_the_lease(proxy: SilentProxy, key: LockKey, renewing: bool):
    lock, heard = make_lock(proxy.dsn, key)
    async with lock:
        await lead_in_silence(lock, proxy, renewing=renewing)
        assert await took_s(lock.shutdown()) < LEASE_S + SLACK_S
    assert lock.state is LockState.STOPPED
    assert [type(error) for error in heard.errors] == [ConnectionError]


@pytest.mark.parametrize("renewing", [False, True], ids=["idle", "renewing"])
async def test_a_step_down_that_is_never_answered_ends_when_asked(proxy: SilentProxy, key: LockKey, renewing: bool):
    lock, heard = make_lock(proxy.dsn, key)
    async with lock:
        await lead_in_silence(lock, proxy, renewing=renewing)
        assert 0.2 <= await took_s(lock.step_down(timeout_s=0.2)) < 0.2 + AT_ONCE_S
        assert lock.state is LockState.FOLLOWER
        assert heard.words == ["on_acquired", "on_released"]


@pytest.mark.parametrize("renewing", [False, True], ids=["idle", "renewing"])
async def test_a_shutdown_that_is_never_answered_ends_when_asked(proxy: SilentProxy, key: LockKey, renewing: bool):
    lock, heard = make_lock(proxy.dsn, key)
    async with lock:
        await lead_in_silence(lock, proxy, renewing=renewing)
        assert 0.2 <= await took_s(lock.shutdown(timeout_s=0.2)) < 0.2 + AT_ONCE_S
    assert [type(error) for error in heard.errors] == [ShutdownError]


async def until_waited_for(holder: psycopg.AsyncConnection[Any]) -> None:
    """Wait until another session is queued for the lock that this one holds."""
    statement = "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    deadline = time.monotonic() + 20
    while await (await holder.execute(statement)).fetchone() is None:
        assert time.monotonic() < deadline, "no session is queued"


def mute_when(lock: LeaderLock, state: LockState, proxy: SilentProxy) -> list[float]:
    """Cut the lock off the first time it comes into a state, before its first word there; return when it was."""
    muted_at: list[float] = []

    @lock.on_state_change
    def mute(_, to_state: LockState) -> None:
        if to_state is state and not muted_at:
            proxy.mute()
            muted_at.append(time.monotonic())

    return muted_at


async def lead_in_silence(lock: LeaderLock, proxy: SilentProxy, *, renewing: bool) -> None:
    """Have a leader that is cut off and does not know it: with nothing under way, or with a renewal."""
    assert await lock.wait_for_leadership(10)
    await until_renewed(lock)
    proxy.mute()
    if renewing:
        await until(lambda: lock.time_left_s < 0.9 * LEASE_S - LEASE_S / 3 - 0.1)
    assert lock.is_leader


# --- A frozen process -----------------------------------------------------------------------------------------------

# The sampler waits for a renewal, so that as much of the lease is left as can be. Then it keeps the interpreter to
# itself: what it sees after the freeze, it sees before the event loop has run once.
_FREEZABLE = """
import asyncio, ctypes, json, sys, time
from pgleaderlock import FixedInterval, LeaderLock, LockKey

GAP_S = 0.3

class Loop:
    ticks = 0

    async def tick(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0.002)

def sample(lock, loop):
    began = time.monotonic()
    leads, state, ticks = lock.is_leader, lock.state.value, loop.ticks
    return {"began": began, "leads": leads, "state": state, "ticks": ticks, "ended": time.monotonic()}

def watch(lock, loop):
    before = lock.trusted_until
    while lock.trusted_until == before:
        time.sleep(0.001)
    valid_until = time.monotonic() + lock.time_left_s
    sys.setswitchinterval(60)
    began = time.monotonic()
    while time.monotonic() < began + 0.05:
        pass  # who waited for the interpreter when it was still shared is given it once more
    last = sample(lock, loop)
    line = f"alone {valid_until}\\n".encode()
    ctypes.PyDLL(None).write(1, line, len(line))  # unlike os.write(), it does not release the interpreter
    while (now := sample(lock, loop))["began"] - last["ended"] < GAP_S:
        if now["ended"] - now["began"] < GAP_S:  # or it was frozen within, and the answer may be of either side
            last = now
    sys.setswitchinterval(0.005)
    return last, now

async def main(dsn, key, lease_s):
    loop, losses = Loop(), asyncio.Queue()
    timing = {"lease_s": float(lease_s), "health_interval_s": float(lease_s) / 3}
    lock = LeaderLock(dsn, key=LockKey.parse(key), retry_strategy=FixedInterval(0.05), settle_s=0, **timing)
    lock.on_lost(lambda: losses.put_nowait(time.monotonic()))
    ticking = asyncio.create_task(loop.tick())
    async with lock:
        while await lock.wait_for_leadership():
            print("leading", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            last, first = await asyncio.to_thread(watch, lock, loop)
            print("thawed", json.dumps([last, first, await losses.get()]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_frozen_leader_is_replaced_and_when_thawed_its_first_answer_is_no(postgres: Postgres, key: LockKey):
    delays_s: list[float] = []
    with (
        Process(sys.executable, "-c", _FREEZABLE, postgres.dsn, str(key), str(LEASE_S)) as leader,
        candidates(postgres.dsn, [str(key)]) as follower,
    ):
        while min(delays_s, default=LEASE_S) >= 0.1:
            assert len(delays_s) < 3, delays_s  # a machine with other things to do is late once, and not every time
            delays_s.append(freeze(leader, follower, str(key)) - LEASE_S)


def freeze(leader: Process, follower: Process, key: str) -> float:
    """Freeze the leader until the other leads, and thaw it. Return how long the other took."""
    leader.wait_for("leading")
    follower.say("start")
    hear(follower, "refused", [key])
    leader.say()
    valid_until = float(leader.wait_for("alone ").split()[1])
    frozen_at = time.monotonic()
    leader.signal(signal.SIGSTOP)
    acquired_at = hear(follower, "acquired", [key])[key]
    leader.signal(signal.SIGCONT)
    last, first, lost_at = json.loads(leader.wait_for("thawed ").removeprefix("thawed "))
    follower.say("stop")
    assert valid_until < acquired_at < frozen_at + LEASE_S + SLACK_S
    assert acquired_at < first["began"]
    assert (last["leads"], first["leads"]) == (True, False)
    assert acquired_at < lost_at
    return acquired_at - frozen_at


# --- A server that starts anew --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.slow
async def test_after_a_restart_no_candidate_leads_while_a_leader_that_is_cut_off_may_still_be_valid(
    own_server: Server, key: LockKey, how: str
):
    async with cut_off_from_a_restart(own_server, key, how, lease_s=2.0) as (_, trusted_until, acquired_at):
        assert acquired_at > trusted_until


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.slow
async def test_without_settling_there_would_be_two_leaders(own_server: Server, key: LockKey, how: str):
    """A restart frees every lock at once. This is what settling is for, and shows that the test of it can fail."""
    settings = {"lease_s": 15.0, "settle_s": 0}  # long enough for any restart
    async with cut_off_from_a_restart(own_server, key, how, **settings) as (leader, trusted_until, acquired_at):
        assert leader.is_leader
        assert acquired_at < trusted_until


@contextlib.asynccontextmanager
async def cut_off_from_a_restart(
    server: Server, key: LockKey, how: str, *, lease_s: float, settle_s: float | None = None
) -> AsyncIterator[tuple[LeaderLock, float, float]]:
    """Cut a leader off, start the server anew, and wait for a successor: the leader, its validity, and when."""
    timing = {"lease_s": lease_s, "health_interval_s": 0.5}
    with SilentProxy(server.tcp_dsn) as proxy:
        leader, _ = make_lock(proxy.dsn, key, **timing)
        follower, heard = make_lock(server.dsn, key, settle_s=settle_s, **timing)
        async with leader:
            assert await leader.wait_for_leadership(10)
            async with follower:
                await until(lambda: "on_acquire_failed" in heard.words)
                trusted_until = await until_renewed(leader)
                proxy.mute()
                await start_anew(server, how)
                assert await follower.wait_for_leadership(20)
                acquired_at = only(heard, EventKind.ACQUIRED).at
                yield leader, trusted_until, acquired_at
                await leader.shutdown(timeout_s=0)  # there is no candidate to release it to


async def start_anew(server: Server, how: str) -> None:
    if how == "restart":
        await asyncio.to_thread(server.restart)
        return
    async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            await victim.execute("SELECT pg_sleep(10)")
