"""How many followers wait, what the others cost, and who leads when the next ones are hit too.

Candidates that are killed or frozen are processes (``proofs/succession_crowd.py``); the scenarios are those of
``proofs/succession_torture.py``, which measures them. The bounds are generous here: the machine has other things to do.
"""

import asyncio
import contextlib
import dataclasses
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgleaderlock import ExponentialBackoff, FixedInterval, LeaderLock, LockKey
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.lease import heir_key
from pgleaderlock.testing.embedded import Server
from proofs import exec_torture
from proofs.succession_crowd import Crowd, Observer, Places
from proofs.succession_torture import SCENARIOS, Scenario, play
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.pooler import pgbouncer
from tests.support.processes import Process
from tests.support.terminals import until as until_so

_FOLLOWERS = 50
_PREFIX = "one-of-many-"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@contextlib.contextmanager
def observing(dsn: str, key: LockKey, prefix: str = _PREFIX) -> Iterator[Observer]:
    with contextlib.closing(Observer(dsn, key, prefix)) as observer:
        yield observer


# --- Fifty followers ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def many(dsn: str, key: LockKey, number: int = 1 + _FOLLOWERS) -> AsyncIterator[list[LeaderLock]]:
    """Candidates in this process, with the default lease; each has a name that the server shows.

    The delay between attempts is the one to which the default strategy grows within a minute.
    """
    retry = FixedInterval(ExponentialBackoff().max_s)
    locks = [
        LeaderLock(make_conninfo(dsn, application_name=f"{_PREFIX}{each}"), key=key, settle_s=0, retry_strategy=retry)
        for each in range(number)
    ]
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(lock) for lock in locks))
        yield locks


async def until_settled(observer: Observer, number: int = 1 + _FOLLOWERS) -> Places:
    """Look until there are a leader, a ready heir and a next heir, no session too many, and none in a statement."""

    def is_so(places: Places) -> bool:
        at_rest = all(session.waits or session.state == "idle" for session in places.sessions)
        return places.is_settled and len(places.sessions) == number + 2 and at_rest

    places = observer.look()
    async with asyncio.timeout(30):
        while not is_so(places):
            await asyncio.sleep(0.01)
            places = observer.look()
    return places


@pytest.mark.slow
async def test_two_of_fifty_followers_wait_for_a_lock_and_the_others_are_idle(postgres: Postgres, key: LockKey):
    """While they come, while they wait and during a hand-over."""
    samples: list[Places] = []
    with observing(postgres.dsn, key) as observer:

        async def sample() -> None:
            while True:
                samples.append(observer.look())
                await asyncio.sleep(0.01)

        sampling = asyncio.create_task(sample())
        async with many(postgres.dsn, key) as locks:
            await until_settled(observer)
            for _ in range(3):
                await until(lambda: any(lock.is_leader for lock in locks), timeout_s=20)
                (leader,) = [lock for lock in locks if lock.is_leader]
                await leader.step_down()
            places = await until_settled(observer)  # all but those who wait are idle
            heir, next_heir = places.heir, places.next_heir
            await until(lambda: len(samples) >= 50, timeout_s=60)
            sampling.cancel()
    assert max(len(each.waiting) for each in samples) <= 3
    assert [session.name for session in places.waiting] in ([heir, next_heir], [next_heir, heir])


@pytest.mark.slow
async def test_leader_and_heir_have_two_sessions_and_every_other_follower_one(postgres: Postgres, key: LockKey):
    with observing(postgres.dsn, key) as observer:
        async with many(postgres.dsn, key):
            places = await until_settled(observer)
    sessions = Counter(session.name for session in places.sessions)
    assert sessions.pop(str(places.leader)) == 2
    assert sessions.pop(str(places.heir)) == 2
    assert set(sessions.values()) == {1}
    assert len(sessions) == _FOLLOWERS - 1


@pytest.mark.slow
async def test_a_quiet_follower_sends_less_than_one_statement_in_two_seconds(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """Counted over a whole lease, for all of them together: they differ, because their tries are spread."""
    sent: Counter[str] = Counter()
    fetch = Connection.fetch

    async def count(connection: Connection, *arguments: object, **settings: object) -> object:
        sent[connection.info.parameter_status("application_name") or ""] += 1
        return await fetch(connection, *arguments, **settings)  # type: ignore[arg-type]

    with observing(postgres.dsn, key) as observer:
        async with many(postgres.dsn, key) as locks:
            places = await until_settled(observer)
            monkeypatch.setattr(Connection, "fetch", count)
            before, lease_s = asyncio.get_running_loop().time(), locks[0].lease_s or 0.0
            await asyncio.sleep(lease_s)  # what is counted is what happens in this time
            took_s = asyncio.get_running_loop().time() - before
            busy = {places.leader, places.heir, places.next_heir}
            quiet = [name for name in {session.name for session in places.sessions} if name not in busy]
            rates = sorted(sent[name] / took_s for name in quiet)
    assert len(quiet) == _FOLLOWERS - 2
    assert sent[str(places.heir)] > 0  # or nothing was counted
    assert rates[0] > 0
    assert sum(rates) / len(rates) < 0.5, rates


# --- Who leads when the next followers are hit too ------------------------------------------------------------------

_GENEROUS_S = 4.0
_LONG_LEASE_S = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_another_candidate_leads_in_time_and_never_two(
    own_server: Server, key: LockKey, folder: Path, scenario: Scenario
):
    """The lease is long where its length does not matter: within a third of a short one, any follower tries."""
    if scenario.lease_s > scenario.promised_s + _GENEROUS_S:
        scenario = dataclasses.replace(scenario, lease_s=_LONG_LEASE_S)
    outcome = play(scenario, own_server, folder, 1, key)
    assert outcome.times_s[0] < scenario.promised_s + _GENEROUS_S
    assert outcome.terms > 0
    assert outcome.overlaps == 0


# --- What is missing, or different ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_room_for_a_second_session_the_heir_logs_it_once_and_leads_all_the_same(
    own_server: Server, key: LockKey, folder: Path
):
    """Three connections: two of the leader, one of the heir. What the killed leader had is room enough."""
    with contextlib.closing(psycopg.connect(own_server.dsn, autocommit=True)) as connection:
        connection.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 3")
    narrow = make_conninfo(own_server.tcp_dsn, user="narrow")
    with Crowd(own_server.dsn, key, folder, lease_s=1.5) as crowd:
        leader = crowd.add(dsn=narrow)
        assert crowd.next_leader().name == leader
        heir = crowd.add(dsn=narrow)
        crowd.observer.until(lambda now: now.heir == heir, "an heir")
        refused = "too many connections for role"
        seen = own_server.log_path.read_text().count(refused)
        until_so(lambda: own_server.log_path.read_text().count(refused) >= seen + 3)
        assert len(crowd.observer.look().of(heir)) == 1
        crowd.kill(leader)
        assert crowd.next_leader().name == heir
        said = [line for line in crowd.lines if "warm_session_missing" in line]
        assert crowd.overlaps() == []
    assert len(said) == 1, said


@pytest.mark.slow
def test_candidates_that_poll_take_no_place_and_lead_when_no_one_else_is_there(
    own_server: Server, key: LockKey, folder: Path
):
    with Crowd(own_server.dsn, key, folder, retry_s=0.2) as crowd:
        leader = crowd.add()
        assert crowd.next_leader().name == leader
        poller = crowd.add("poller", wake="poll")
        crowd.observer.until(lambda now: bool(now.of(poller)), "the session of the poller")
        heir, next_heir = crowd.add(), crowd.add()
        places = crowd.observer.until(lambda now: now.is_settled, "all places")
        assert {places.heir, places.next_heir} == {heir, next_heir}
        crowd.kill(places.leader, places.heir, places.next_heir)
        assert crowd.next_leader().name == poller
        newcomer = crowd.add()
        crowd.observer.until(lambda now: now.heir == newcomer and now.waits(newcomer, key), "an heir of the poller")
        crowd.signal(poller, signal.SIGUSR1)
        assert crowd.next_leader().name == newcomer
        assert crowd.overlaps() == []


@pytest.mark.slow
def test_behind_a_pooler_in_session_mode_the_heir_is_ready_and_leads(own_server: Server, key: LockKey, folder: Path):
    allowed = {"allow_pooler": True}
    with pgbouncer(own_server, "session") as dsn, Crowd(own_server.dsn, key, folder) as crowd:
        leader = crowd.add(dsn=dsn, settings=allowed)
        assert crowd.next_leader().name == leader
        heir = crowd.add(dsn=dsn, settings=allowed)
        crowd.observer.until(lambda now: now.heir == heir and now.waits(heir, key), "an heir")
        next_heir = crowd.add(dsn=dsn, settings=allowed)
        crowd.observer.until(
            lambda now: now.next_heir == next_heir and now.waits(next_heir, heir_key(key)), "a next heir"
        )
        began = crowd.kill(leader)
        term = crowd.next_leader()
        assert term.name == heir
        assert term.at - began < _GENEROUS_S
        crowd.observer.until(lambda now: now.heir == next_heir, "the next heir as the heir")
        assert crowd.overlaps() == []


@pytest.mark.slow
def test_an_heir_of_exec_takes_over_only_when_the_processes_of_the_command_are_dead(
    postgres: Postgres, key: LockKey, folder: Path
):
    """The guardian keeps the sessions of a killed wrapper open until the command has ended."""
    role = f"succession-{key.numbers[0]}-{key.numbers[1]}"
    program = str(Path(exec_torture.__file__).with_name("exec_family.py"))
    command = (sys.executable, "-I", "-S", program, str(folder))

    def words(name: str) -> tuple[str, ...]:
        dsn = make_conninfo(postgres.dsn, application_name=f"{_PREFIX}{name}")
        times = ("--settle", "0", "--lease", "15", "--health-interval", "5")
        return (sys.executable, "-m", "pgleaderlock.cli", "exec", "--dsn", dsn, "--role", role, *times, "--", *command)

    with observing(postgres.dsn, LockKey.named(role)) as observer, Process(*words("leader")) as leader:
        until_so(lambda: len(exec_torture.starts(folder)) == 1)
        with Process(*words("heir")):
            heir = f"{_PREFIX}heir"
            observer.until(lambda now: now.heir == heir and len(now.of(heir)) == 2, "an heir with two sessions")
            leader.signal(signal.SIGKILL)
            until_so(lambda: len(exec_torture.starts(folder)) == 2)
            assert exec_torture.starts(folder)[1].found == "alone"
