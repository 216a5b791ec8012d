"""A leader hands over to the candidate that it names, on a real PostgreSQL; and nothing else brings that about."""

import asyncio
import contextlib
import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgleaderlock import Election, FixedInterval, LeaderGroup, LeaderLock, LockError, LockKey
from pgleaderlock.models import EventKind
from pgleaderlock.postgres import nomination
from pgleaderlock.postgres._dsn import default_application_name, is_named
from pgleaderlock.postgres.lease import place_channel
from pgleaderlock.stores import open_backend
from pgleaderlock.sync import LeaderLock as SyncLock
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.postgres import look_at_lock
from tests.support.processes import candidate

LEASE_S = 20.0  # a busy machine does not lose it
FOLLOWERS = ("b", "c", "d", "e", "f")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine has time: what is tested ends when it is done, and not when the time is over."""
    monkeypatch.setattr(nomination, "_PATIENCE_S", 60.0)


class Crowd:
    """Candidates for one lock, each with a name of its own, and who led in which order."""

    def __init__(self, dsn: str, key: LockKey) -> None:
        self._dsn, self._key = dsn, key
        self.locks: dict[str, LeaderLock] = {}
        self.led: list[str] = []

    def add(self, name: str) -> LeaderLock:
        lock = LeaderLock(
            make_conninfo(self._dsn, application_name=name),
            key=self._key,
            lease_s=LEASE_S,
            settle_s=0,
            retry_strategy=FixedInterval(LEASE_S),
        )
        lock.subscribe(lambda event: self.led.append(name) if event.kind is EventKind.ACQUIRED else None)
        self.locks[name] = lock
        return lock

    @property
    def places(self) -> dict[str, str]:
        return {name: lock.place for name, lock in self.locks.items()}

    def state_of(self, name: str) -> Any:
        backend: Any = self.locks[name]._backend
        return backend._succession._nominations


@contextlib.asynccontextmanager
async def crowd_of(dsn: str, key: LockKey, followers: tuple[str, ...] = FOLLOWERS) -> AsyncIterator[Crowd]:
    """A leader ``a``, its heir ``b``, the next heir ``c``, and quiet followers."""
    crowd = Crowd(dsn, key)
    async with contextlib.AsyncExitStack() as stack:
        leader = await stack.enter_async_context(crowd.add("a"))
        assert await leader.wait_for_leadership(20)
        for name, place in zip(followers, ("heir", "next heir", "", "", ""), strict=False):
            await stack.enter_async_context(crowd.add(name))
            await until(lambda name=name, place=place: crowd.locks[name].place == place)  # type: ignore[misc]
        for name in followers[2:]:
            await until(lambda name=name: bool(crowd.locks[name]._backend._succession._is_listening))  # type: ignore[misc, attr-defined]
        yield crowd


# --- The nominee leads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["b", "c", "e"], ids=["the heir", "the next heir", "a quiet follower"])
@pytest.mark.usefixtures("patient")
async def test_the_nominee_leads_next_and_the_others_have_places_again(postgres: Postgres, key: LockKey, to: str):
    async with crowd_of(postgres.dsn, key) as crowd:
        await crowd.locks["a"].step_down(to=to)
        assert await crowd.locks[to].wait_for_leadership(20)
        assert crowd.led == ["a", to]
        await until(lambda: sorted(filter(None, crowd.places.values())) == ["heir", "next heir"])


@pytest.mark.usefixtures("patient")
async def test_a_nominee_is_the_heir_before_the_leader_releases(postgres: Postgres, key: LockKey):
    async with crowd_of(postgres.dsn, key) as crowd:
        await crowd.locks["a"].nominate("e")
        shown = await look_at_lock(postgres.dsn, key)
        assert crowd.places["e"] == "heir"
        assert [each.holder.name for each in shown if each.place == "heir"] == ["e"]
        assert crowd.locks["a"].is_leader
        assert crowd.led == ["a"]
        pair: Any = crowd.locks["b"]._backend._pair  # type: ignore[attr-defined]
        assert crowd.places["b"] != "heir"
        assert not pair.warm.is_open, "the former heir needs no second session"


@pytest.mark.usefixtures("patient")
async def test_a_process_is_named_by_host_and_pid_and_one_that_dies_meanwhile_is_replaced(
    postgres: Postgres, key: LockKey
):
    async with crowd_of(postgres.dsn, key, ("b",)) as crowd:
        with candidate(postgres.dsn, key, lease_s=LEASE_S) as process:
            name = f"{socket.gethostname()}:{process.pid}"
            shown = await look_at_lock(postgres.dsn, key)
            while not any(is_named(each.holder.name, name) and each.place for each in shown):
                shown = await look_at_lock(postgres.dsn, key)
            await crowd.locks["a"].nominate(name)
            process.signal(signal.SIGKILL)
            process.wait()
            await crowd.locks["a"].step_down()
            assert await crowd.locks["b"].wait_for_leadership(20)


@pytest.mark.usefixtures("patient")
def test_a_blocking_lock_hands_over_by_name(postgres: Postgres, key: LockKey):
    settings: dict[str, Any] = {"key": key, "lease_s": LEASE_S, "settle_s": 0, "retry_strategy": FixedInterval(LEASE_S)}
    names = ("one", "two")
    one, two = (SyncLock(make_conninfo(postgres.dsn, application_name=name), **settings) for name in names)
    with one:
        assert one.wait_for_leadership(20)
        with two:
            with pytest.raises(LockError, match="no session of three is connected"):
                one.step_down(to="three")
            while two.place != "heir":
                pass
            one.step_down(to="two")
            assert two.wait_for_leadership(20)


# --- Refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "why"), [("nobody:1", r"no session of nobody:1 is connected"), ("a", r"a leads already: lock pair:")]
)
async def test_a_name_that_cannot_lead_next_is_refused_and_changes_nothing(
    postgres: Postgres, key: LockKey, to: str, why: str
):
    async with crowd_of(postgres.dsn, key, ("b", "c")) as crowd:
        token = crowd.locks["a"].token
        with pytest.raises(LockError, match=why):
            await crowd.locks["a"].step_down(to=to)
        assert crowd.locks["a"].token == token is not None
        assert crowd.places == {"a": "", "b": "heir", "c": "next heir"}


@pytest.mark.slow
async def test_who_is_connected_and_is_no_candidate_is_refused_and_places_are_taken_again(
    postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nomination, "_PATIENCE_S", 0.2)
    async with crowd_of(postgres.dsn, key, ("b", "c")) as crowd:
        name = make_conninfo(postgres.dsn, application_name="pgleaderlock elsewhere:7 20s wf")
        async with await psycopg.AsyncConnection.connect(name):
            with pytest.raises(
                LockError, match=r"elsewhere:7 did not answer within .* s\. It may be frozen, .* leads on"
            ):
                await crowd.locks["a"].step_down(to="elsewhere:7")
        assert crowd.locks["a"].is_leader
        assert crowd.led == ["a"]
        await until(lambda: sorted(filter(None, crowd.places.values())) == ["heir", "next heir"])


async def test_a_forged_nomination_is_checked_and_ignored(postgres: Postgres, key: LockKey):
    async with crowd_of(postgres.dsn, key) as crowd:
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as stranger:
            payload = f"{nomination._PREFIX}e"
            while not all(crowd.state_of(name)._checked_at > -math.inf for name in FOLLOWERS):
                # Again and again: the heir receives nothing before its second session is open.
                await stranger.execute("SELECT pg_notify(%s, %s)", (place_channel(key), payload))
                await asyncio.sleep(0.05)
        assert all(crowd.state_of(name).lasts_until == -math.inf for name in FOLLOWERS)
        assert (crowd.places["b"], crowd.places["c"]) == ("heir", "next heir")


async def test_a_flood_of_forged_nominations_is_checked_a_few_times_a_second(postgres: Postgres, key: LockKey):
    async with crowd_of(postgres.dsn, key, ("b", "c", "d")) as crowd:
        quiet = crowd.state_of("d")
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as stranger:
            flood = "SELECT pg_notify(%s, %s || n) FROM generate_series(1, 5000) AS n"
            await stranger.execute(flood, (place_channel(key), nomination._PREFIX))
            await until(lambda: quiet._checked_at > -math.inf)
            assert len(quiet._heard) <= nomination._MOST_HEARD
        assert quiet.lasts_until == -math.inf


async def test_only_one_lock_on_postgresql_sessions_has_a_succession(postgres: Postgres, key: LockKey):
    election = Election(open_backend("memory://nominations"))
    group = LeaderGroup(postgres.dsn, roles=[f"nominations/{key}"], settle_s=0)
    async with election, group:
        for each in (election, group[f"nominations/{key}"]):
            assert await each.wait_for_leadership(20)
            with pytest.raises(LockError, match=r"it cannot be chosen that web-2 leads next: only candidates for one"):
                await each.step_down(to="web-2")
            assert each.is_leader


@pytest.mark.parametrize(("to", "error"), [("", ValueError), (" ", ValueError), ("a\0", ValueError), (7, TypeError)])
async def test_what_is_no_name_is_refused_at_once(to: Any, error: type[Exception]):
    election = Election(open_backend("memory://names"))
    with pytest.raises(error, match="to must be"):
        await election.step_down(to=to)
    with pytest.raises(error, match="to must be"):
        await election.nominate(to)


async def test_candidate_that_does_not_lead_nominates_no_successor():
    election = Election(open_backend("memory://idle"))
    await election.nominate("web-2")
    await election.step_down(to="web-2")


async def test_a_leader_task_that_names_a_stranger_goes_on_leading(postgres: Postgres, key: LockKey, caplog: Any):
    async with crowd_of(postgres.dsn, key, ()) as crowd:
        lock, asked = crowd.locks["a"], asyncio.Event()

        @lock.while_leader
        async def work(_: object) -> None:
            await lock.step_down(to="nobody:1")
            asked.set()
            await asyncio.Event().wait()

        await asked.wait()
        await until(lambda: "nomination_refused" in caplog.text)
        assert lock.is_leader


@pytest.mark.usefixtures("patient")
async def test_a_leader_task_hands_over_by_name(postgres: Postgres, key: LockKey):
    async with crowd_of(postgres.dsn, key, ("b", "c")) as crowd:
        lock = crowd.locks["a"]

        @lock.while_leader
        async def work(_: object) -> None:
            await lock.step_down(to="c")
            await asyncio.Event().wait()

        assert await crowd.locks["c"].wait_for_leadership(20)
        assert crowd.led == ["a", "c"]


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("application_name", "name", "is_so"),
    [
        ("pgleaderlock host-2:18 15s wf", "host-2:18", True),
        ("pgleaderlock host-2:18", "host-2:18", True),
        ("pgleaderlock host-2:18 15s wft-12ab", "host-2:18", True),
        ("my worker", "my worker", True),
        ("host-2:18", "host-2:18", True),
        ("pgleaderlock host-2:18 15s wf", "host-2:1", False),
        ("pgleaderlock host-2:18 15s wf", "2:18", False),
        ("pgleaderlock host-2:18 15s wf", ":18", False),
        ("pgleaderlock host-2:18 15s wf", "other-host-2:18", False),
        ("pgleaderlock :18", ":18", False),
        ("", "host-2:18", False),
    ],
)
def test_a_candidate_is_called_what_its_session_shows(application_name: str, name: str, is_so: bool):
    assert is_named(application_name, name) is is_so


def test_a_long_host_name_is_known_by_its_end(monkeypatch: pytest.MonkeyPatch):
    host = "a-pod-with-a-very-long-name-of-a-deployment-7d9f8b6c5-x2x4z"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    shown = default_application_name("15s wf")
    assert host not in shown
    assert is_named(shown, f"{host}:{os.getpid()}")
    assert not is_named(shown, f"{host}-2:{os.getpid()}")
