"""How long it takes until another leads, and what the others cost meanwhile: the figures of the README, as tests.

Each candidate is a process of its own, so that it can be killed and frozen. All are forked from one that has imported
everything, which makes fifty of them cheap. Times are medians, because the machine has other things to do.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple, Self

import psycopg
import pytest

from pgleaderlock import EventKind, FixedInterval, LeaderLock, LockKey
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.models import LossCause
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.lease import LEASE_S, QUEUED, make_leased, query, succession_columns, until_queued
from tests.support.postgres import holders
from tests.support.processes import Process

_CROWD = """
import asyncio, json, os, signal, sys, traceback
import psycopg
from pgleaderlock import EventKind, FixedInterval, LeaderLock, LockKey
from pgleaderlock._base.clock import suspend_aware_clock

def tell(token):
    os.write(1, f"leads {os.getpid()} {suspend_aware_clock()} {token}\\n".encode())  # at once, so that no lines mix

async def bare(dsn, key):  # the least that any two-session protocol does
    asyncio.get_running_loop().add_reader(lifeline, os._exit, 0)
    lock = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await lock.execute("SELECT pg_advisory_lock(%s, %s)", LockKey.parse(key).numbers)
    witness = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    await witness.execute("SELECT pg_advisory_lock(-%s, -%s)", LockKey.parse(key).numbers)
    tell(0)
    await asyncio.Event().wait()

async def contend(dsn, key, interval_s, settings):
    lock = LeaderLock(dsn, key=LockKey.parse(key), retry_strategy=FixedInterval(interval_s), settle_s=0, **settings)
    lock.subscribe(lambda event: event.kind is EventKind.ACQUIRED and tell(event.token))
    loop, over, tasks = asyncio.get_running_loop(), asyncio.Event(), set()
    loop.add_reader(lifeline, over.set)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.add(loop.create_task(lock.step_down())))
    async with lock:
        await over.wait()

lifeline, held = os.pipe()  # at an end when the process that forks is gone, however that went
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed
for line in sys.stdin:
    if os.fork() == 0:
        try:
            os.close(held)
            order = json.loads(line)
            asyncio.run(bare(*order) if len(order) == 2 else contend(*order))
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)
"""


class Term(NamedTuple):
    """What a new leader said of itself: who, when on the machine's one clock, with which token."""

    pid: int
    at: float
    token: int


class Crowd:
    """Candidates for one lock in processes of their own, which end with their block at the latest."""

    def __init__(
        self, dsn: str, key: LockKey, retry_interval_s: float = 5.0, *, bare: bool = False, **settings: float
    ) -> None:
        self._key = key
        self._order = json.dumps([dsn, str(key)] if bare else [dsn, str(key), retry_interval_s, settings])
        self._forker = Process(sys.executable, "-c", _CROWD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._forker.__exit__(*exc)  # it reads their output to its end, which is when all of them are gone

    def add(self, number: int = 1) -> None:
        for _ in range(number):
            self._forker.say(self._order)

    def next_leader(self) -> Term:
        pid, at, token = self._forker.wait_for("leads ").split()[1:]
        return Term(int(pid), float(at), int(token))

    def until_queued(self, observer: psycopg.Connection[Any], number: int) -> None:
        deadline = time.monotonic() + 20
        while observer.execute(QUEUED, succession_columns(self._key)).rowcount < min(number, 2):
            assert time.monotonic() < deadline, f"fewer than {number} are queued"
            time.sleep(0.01)  # the server has no notification for this


@contextlib.contextmanager
def observing(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        yield connection


class Succession:
    """A crowd whose leader is ended again and again."""

    def __init__(self, crowd: Crowd, followers: int) -> None:
        self._crowd, self._followers = crowd, followers
        self.times_ms: list[float] = []
        crowd.add(1 + followers)
        self._leader = crowd.next_leader()

    def go_on(self, ending: signal.Signals, observer: psycopg.Connection[Any]) -> None:
        """End the leader, and note how long it took from just before that until another led."""
        self._crowd.until_queued(observer, self._followers)
        began = suspend_aware_clock()
        os.kill(self._leader.pid, ending)
        self._leader = self._crowd.next_leader()
        self.times_ms.append((self._leader.at - began) * 1e3)
        self._crowd.add()


def assert_replaced_within_ms(limit_ms: float, dsn: str, key: LockKey, followers: int, ending: signal.Signals) -> None:
    """In the median of twenty. A busy machine is given more: two and a half times what the bare driver needs on it."""
    other = LockKey.pair(*reversed(key.numbers))
    with observing(dsn) as observer, Crowd(dsn, key) as crowd, Crowd(dsn, other, bare=True) as bare_crowd:
        ours, bare = Succession(crowd, followers), Succession(bare_crowd, 2)
        for _ in range(20):
            ours.go_on(ending, observer)
            bare.go_on(ending, observer)
    given_ms = max(limit_ms, 2.5 * statistics.median(bare.times_ms))
    assert statistics.median(ours.times_ms) < given_ms, (ours.times_ms, bare.times_ms)


# --- How long it takes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("followers", [2, 50])
@pytest.mark.slow
def test_a_killed_leader_is_replaced_in_milliseconds(postgres: Postgres, key: LockKey, followers: int):
    assert_replaced_within_ms(50, postgres.dsn, key, followers, signal.SIGKILL)


@pytest.mark.slow
def test_a_leader_that_shuts_down_is_replaced_in_milliseconds(postgres: Postgres, key: LockKey):
    assert_replaced_within_ms(25, postgres.dsn, key, 2, signal.SIGTERM)


async def test_the_end_of_a_session_is_noticed_in_milliseconds(postgres: Postgres, key: LockKey):
    """Without a health check, the next of which would be seconds later."""
    lock, heard = make_leased(postgres.dsn, key, health_interval_s=5, lease_s=15, retry_strategy=FixedInterval(0.05))
    killed_at: list[float] = []
    lost_at: list[float] = []
    still_led: list[bool] = []
    lock.on_lost(lambda: lost_at.append(suspend_aware_clock()))
    lock.on_lost(lambda: still_led.append(lock.is_leader))
    async with lock, await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as observer:
        for number in range(1, 16):
            assert await lock.wait_for_leadership(10)
            (pid,) = await holders(postgres.dsn, key)
            killed_at.append(suspend_aware_clock())
            await observer.execute("SELECT pg_terminate_backend(%s)", (pid,))
            await until(lambda: len(lost_at) == number, timeout_s=3)  # noqa: B023 - called here only
    assert statistics.median(lost - killed for lost, killed in zip(lost_at, killed_at, strict=True)) < 0.05
    assert not any(still_led)
    assert {event.cause for event in heard.events if event.kind is EventKind.LOST} == {LossCause.SESSION_TERMINATED}


# --- What fifty queued followers cost -------------------------------------------------------------------------------


@pytest.mark.slow
async def test_fifty_queued_followers_write_nothing_into_the_log_and_hold_back_nothing(
    own_server: Server, key: LockKey
):
    slice_s = 0.9  # with the usual deadlock_timeout
    await query(own_server.dsn, "CREATE TABLE heap AS SELECT generate_series(1, 1000) AS number")
    written = own_server.log_path.stat().st_size
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(51):
            lock, _ = make_leased(own_server.dsn, key, health_interval_s=5, lease_s=15)
            await stack.enter_async_context(lock)
        await until_queued(own_server.dsn, key, 50)
        index = asyncio.create_task(query(own_server.dsn, "CREATE INDEX CONCURRENTLY ON heap (number)"))
        oldest_s = await oldest_snapshot_s(own_server.dsn, 3 * slice_s)
        await asyncio.wait_for(index, 10)
        await until_queued(own_server.dsn, key, 50)
        # Here, because closing a queued session adds a line to the log: "connection to client lost".
        log = own_server.log_path.read_bytes()[written:].decode()
    assert slice_s / 2 < oldest_s < slice_s + 0.2  # more than nothing, or no session was observed
    assert [line for line in log.splitlines() if "LOG:" not in line] == []


async def oldest_snapshot_s(dsn: str, seconds: float) -> float:
    """Look on for so long: what was the longest that one of our sessions held back vacuum?"""
    statement = """
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float
          FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND application_name LIKE 'pgleaderlock%'
    """
    oldest_s = 0.0
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as observer:
        async for _ in moments(seconds):
            ((age_s,),) = await (await observer.execute(statement)).fetchall()
            oldest_s = max(oldest_s, age_s)
    return oldest_s


async def moments(seconds: float) -> AsyncIterator[float]:
    """Now and every few milliseconds for so long."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        yield now
        await asyncio.sleep(0.005)


# --- No room for a witness ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [1, 3])
async def test_no_candidate_keeps_the_lock_while_a_witness_session_is_impossible_and_one_leads_once_it_is_possible(
    own_server: Server, key: LockKey, candidates: int
):
    await query(own_server.dsn, "CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
    locks, errors = narrow_candidates(own_server, key, candidates)
    async with contextlib.AsyncExitStack() as stack:
        for lock in locks:
            await stack.enter_async_context(lock)
        assert await idle_hold_s(own_server.dsn, key, locks, 2.0) < LEASE_S / 2
        assert not any(lock.is_leader for lock in locks)
        assert_the_limit_is_named(errors)
        await query(own_server.dsn, "ALTER ROLE narrow CONNECTION LIMIT 2")
        assert await idle_hold_s(own_server.dsn, key, locks, 5.0) < LEASE_S / 2
        assert [lock.is_leader for lock in locks].count(True) == 1


async def test_of_five_queued_followers_that_fill_their_limit_one_makes_room_and_another_leads(
    own_server: Server, key: LockKey
):
    """Each of them has its one connection and none could have a second, until the first that is granted releases."""
    await query(own_server.dsn, "CREATE ROLE narrow LOGIN CONNECTION LIMIT 5")
    locks, errors = narrow_candidates(own_server, key, 5)
    async with contextlib.AsyncExitStack() as stack:
        async with await psycopg.AsyncConnection.connect(own_server.dsn, autocommit=True) as outsider:
            await outsider.execute("SELECT pg_advisory_lock(%s, %s)", key.numbers)
            for lock in locks:
                await stack.enter_async_context(lock)
            await until_queued(own_server.dsn, key, 5)
        assert await idle_hold_s(own_server.dsn, key, locks, 5.0) < LEASE_S / 2
        assert [lock.is_leader for lock in locks].count(True) == 1
        assert_the_limit_is_named(errors)


def narrow_candidates(server: Server, key: LockKey, number: int) -> tuple[list[LeaderLock], list[Exception]]:
    """Candidates who are not superusers, for whom no limit holds; and everything that goes wrong with them."""
    dsn = psycopg.conninfo.make_conninfo(server.tcp_dsn, user="narrow")
    locks = [make_leased(dsn, key, retry_strategy=FixedInterval(0.1))[0] for _ in range(number)]
    errors: list[Exception] = []
    for lock in locks:
        lock.on_error(errors.append)
    return locks, errors


async def idle_hold_s(dsn: str, key: LockKey, locks: list[LeaderLock], timeout_s: float) -> float:
    """Look on until one leads or the time is up. How long did one session hold the lock without leading?"""
    statement = "SELECT pid FROM pg_locks WHERE granted AND (classid, objid, objsubid) = (%s, %s, 2)"
    held_since: dict[int, float] = {}
    longest_s = 0.0
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as observer:
        async for now in moments(timeout_s):
            holding = {pid for (pid,) in await (await observer.execute(statement, key.numbers)).fetchall()}
            if any(lock.is_leader for lock in locks):
                break
            held_since = {pid: held_since.get(pid, now) for pid in holding}
            longest_s = max([longest_s, *(now - since for since in held_since.values())])
    return longest_s


def assert_the_limit_is_named(errors: list[Exception]) -> None:
    assert errors
    for error in errors:
        assert "too many connections" in str(error)
        assert "CONNECTION LIMIT" in str(error)


# --- Tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_tokens_grow_over_two_hundred_elections_whatever_ended_the_term_before(own_server: Server, key: LockKey):
    """Crashes come straight after the grant: a token that had not reached the disk would be handed out again."""
    deeds = ["kill"] * 60 + ["step down"] * 118 + ["freeze"] * 4 + ["restart"] * 4 + ["crash"] * 7 + ["recovery"] * 7
    random.shuffle(deeds)
    assert tokens_that_did_not_grow(own_server, key, deeds) == []


@pytest.mark.slow
def test_without_a_witness_too_a_crash_straight_after_the_grant_does_not_repeat_a_token(
    own_server: Server, key: LockKey
):
    """Granted in the queue after a step-down, at the first try after a crash. The witness's commit is flushed last."""
    assert tokens_that_did_not_grow(own_server, key, ["step down", "crash", "recovery"] * 4, witness=False) == []


def tokens_that_did_not_grow(
    server: Server, key: LockKey, deeds: list[str], *, witness: bool = True
) -> list[tuple[str, int, int]]:
    """End term after term; what ended it, its token and the next, wherever that is not greater."""
    with Crowd(server.dsn, key, retry_interval_s=0.05, lease_s=1.0, health_interval_s=0.3, witness=witness) as crowd:
        crowd.add(4)
        terms = [crowd.next_leader()]
        for deed in deeds:
            terms.append(end_term(deed, terms[-1], crowd, server))
    pairs = zip(deeds, pairwise(term.token for term in terms), strict=True)
    return [(deed, before, after) for deed, (before, after) in pairs if after <= before]


def end_term(deed: str, leader: Term, crowd: Crowd, server: Server) -> Term:
    """Do this to the leader, or to the server under it, and return who leads next."""
    match deed:
        case "kill":
            os.kill(leader.pid, signal.SIGKILL)
            crowd.add()
        case "step down":
            os.kill(leader.pid, signal.SIGUSR1)
        case "freeze":
            os.kill(leader.pid, signal.SIGSTOP)
            try:
                return crowd.next_leader()
            finally:
                os.kill(leader.pid, signal.SIGCONT)
        case "restart":
            server.restart("fast")
        case "crash":
            server.restart("immediate")
        case "recovery":
            with observing(server.dsn) as victim:  # the server ends all sessions and starts over
                os.kill(victim.info.backend_pid, signal.SIGKILL)
    return crowd.next_leader()
