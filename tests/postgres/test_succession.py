"""How many followers wait, what the others cost, and who leads when the next ones are hit too.

Candidates that are killed or frozen are processes (``proofs/succession_crowd.py``); the scenarios are those of
``proofs/succession_torture.py``, which measures them. The bounds are generous here: the machine has other things to do.
"""

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgleaderlock import FixedInterval, LeaderLock, LockKey
from pgleaderlock.options import LockOptions
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
    """Candidates in this process, with the default settings; each has a name that the server shows."""
    locks = [
        LeaderLock(make_conninfo(dsn, application_name=f"{_PREFIX}{each}"), key=key, settle_s=0)
        for each in range(number)
    ]
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(lock) for lock in locks))
        yield locks


async def until_settled(observer: Observer, number: int = 1 + _FOLLOWERS) -> Places:
    """Look until there are a leader, a ready heir and a next heir, and each candidate has the sessions it is to have."""
    places = observer.look()
    async with asyncio.timeout(30):
        while not (places.is_settled and len(places.sessions) == number + 2):
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
                (leader,) = [lock for lock in locks if lock.is_leader]
                await leader.step_down()
                await until(lambda: any(lock.is_leader for lock in locks), timeout_s=20)
                places = await until_settled(observer)
            sampling.cancel()
    assert len(samples) > 20
    assert max(len(each.waiting) for each in samples) <= 3
    waiting = {session.pid for session in places.waiting}
    assert len(waiting) == 2
    assert {session.state for session in places.sessions if session.pid not in waiting} == {"idle"}


@pytest.mark.slow
async def test_leader_and_heir_have_two_sessions_and_every_other_follower_one(postgres: Postgres, key: LockKey):
    with observing(postgres.dsn, key) as observer:
        async with many(postgres.dsn, key):
            places = await until_settled(observer)
    sessions = Counter(session.name for session in places.sessions)
    assert sessions.pop(places.leader) == 2
    assert sessions.pop(places.heir) == 2
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
            before, lease_s = asyncio.get_running_loop().time(), locks[0].lease_s
            await asyncio.sleep(lease_s)  # what is counted is what happens in this time
            took_s = asyncio.get_running_loop().time() - before
            busy = {places.leader, places.heir, places.next_heir}
            quiet = [name for name in {session.name for session in places.sessions} if name not in busy]
            rates = sorted(sent[name] / took_s for name in quiet)
    assert len(quiet) == _FOLLOWERS - 2
    assert sent[str(places.heir)] / took_s > 1  # or nothing was counted
    assert rates[0] > 0
    assert sum(rates) / len(rates) < 0.5, rates


# --- Who leads when those who are next are hit too ------------------------------------------------------------------

_GENEROUS_S = 4.0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_another_candidate_leads_in_time_and_never_two(
    own_server: Server, key: LockKey, folder: Path, scenario: Scenario
):
    outcome = play(scenario, own_server, folder, 1, key)
    assert outcome.times_s[0] < scenario.promised_s + _GENEROUS_S
    assert outcome.terms > 0
    assert outcome.overlaps == 0
