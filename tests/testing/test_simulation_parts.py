"""What the simulation is made of: statements that are read, a loop that can stand still, sessions and their ends."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.models import LossCause
from pgleaderlock.postgres import _keys_sql, _sql, terms
from pgleaderlock.postgres._activity import holder_query
from pgleaderlock.postgres._schema_versions import create_sql
from pgleaderlock.postgres._session_setup import SessionSetup
from pgleaderlock.postgres.group import CHANNEL
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import Session
from pgleaderlock.postgres.terms import Terms
from pgleaderlock.testing import SimulationFailed, simulate
from pgleaderlock.testing.simulation._loop import NodeLoop
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation._statements import Ask, read
from pgleaderlock.testing.simulation.network import Cable
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres
from pgleaderlock.testing.simulation.world import World

T = TypeVar("T")

LEASE = Lease(1.5, term_table=True)
PAIR, BIGINT = LockKey.pair(-(2**31), 7), LockKey.bigint(-(2**63))
TERMS = Terms(PAIR, LEASE, "nowhere")

# --- Statements ----------------------------------------------------------------------------------------------------


UNLOCK_ONE, _ = _keys_sql.unlock_all([PAIR], are_all=True, is_enforced=True)
UNLOCK_BOTH, _ = _keys_sql.unlock_all([PAIR, BIGINT], are_all=False, is_enforced=True)


def of(key: LockKey, *, is_enforced: bool = True) -> _sql.LockStatements:
    return _sql.LockStatements(key, LEASE, is_enforced=is_enforced)


HEIR = _sql.LockStatements(BIGINT, LEASE, is_enforced=True, granted="heir")
WITHOUT_A_LOOK = of(PAIR).slice(1.0).replace("FROM pg_locks", "FROM pg_class")
LAST_TRY = Ask("try", _sql.numbers(BIGINT), granted="heir")
SLICE = Ask("wait", _sql.numbers(PAIR), 1500, 250, "lock", looks_for_race=True)


class Recorder:
    """A session that only writes down what it is asked."""

    def __init__(self) -> None:
        self.asked = ""

    async def fetch(self, statement: str, _: Sequence[Any] = (), **__: Any) -> tuple[Any, ...] | None:
        self.asked = statement
        if "pg_control_system() AS s" in statement:
            return "1", "1 5", None
        return ([1, 1], True, True, "", "", [], False) if "has_schema_privilege" in statement else (1, 1.0, 1, False, 1)


async def asked_by(ask: Callable[[Any], Coroutine[Any, Any, object]]) -> str:
    recorder = Recorder()
    await ask(recorder)
    return recorder.asked


UNDERSTOOD: dict[str, tuple[str | Callable[[Any], Coroutine[Any, Any, object]], Ask]] = {
    "PING": (_sql.PING, Ask("ping")),
    "REHEARSAL": (_sql.REHEARSAL, Ask("ping")),
    "END_BACKEND": (_sql.END_BACKEND, Ask("end_backend")),
    "STUCK_HOLDERS": (_sql.STUCK_HOLDERS, Ask("stuck_holders")),
    "_SET_UP": (_sql.set_up(LEASE, 180000, with_facts=False), Ask("set_up", idle_ms=0)),
    "_FACTS": (_sql.set_up(LEASE, 140000), Ask("set_up", idle_ms=0, with_facts=True, counts_recovery=True)),
    "an old server": (_sql.set_up(LEASE, 130000), Ask("set_up", with_facts=True, counts_recovery=True)),
    "_TRY": (of(PAIR).attempt(), Ask("try", _sql.numbers(PAIR), 1500, granted="lock")),
    "another key space": (of(BIGINT).attempt(), Ask("try", _sql.numbers(BIGINT), 1500, granted="lock")),
    "no lease": (of(PAIR, is_enforced=False).attempt(), Ask("try", _sql.numbers(PAIR), None, granted="lock")),
    "the same, and then another": (
        of(PAIR).attempt(HEIR),
        Ask("try", _sql.numbers(PAIR), 1500, granted="lock", otherwise=replace(LAST_TRY, idle_ms=1500)),
    ),
    "_WAIT_SLICE": (of(PAIR).slice(0.25), SLICE),
    "the same, with another try": (
        of(PAIR).slice(0.25, HEIR),
        replace(SLICE, otherwise=LAST_TRY),
    ),
    "_DRAW": (
        _sql.LockStatements(PAIR, replace(LEASE, term_table=False), is_enforced=True).slice(0.25, begins_term=True),
        replace(SLICE, announces=True, draws_token=True, is_flushed=True),
    ),
    "_ANNOUNCE": (
        of(PAIR).slice(0.25, begins_term=True),
        replace(SLICE, announces=True),
    ),
    "_LEAVE_PLACE": (
        HEIR.leave("channel") + of(PAIR).slice(0.25),
        replace(SLICE, first=(Ask("unlock", _sql.numbers(BIGINT)), Ask("notify", "channel"))),
    ),
    "_NOTIFY_FIRST": (
        _sql.notify_first("channel") + of(PAIR).slice(0.25),
        replace(SLICE, first=(Ask("notify", "channel"),)),
    ),
    "END_LEASE": (
        HEIR.unlock + _sql.END_LEASE,
        Ask("end_lease", idle_ms=0, first=(Ask("unlock", _sql.numbers(BIGINT)),)),
    ),
    "HOLDER_AND_OWN_NAME": (_sql.HOLDER_AND_OWN_NAME, Ask("holder_and_own_name")),
    "SESSION_NAMES": (_sql.SESSION_NAMES, Ask("session_names")),
    "SESSIONS_AT": (_sql.SESSIONS_AT, Ask("sessions_at")),
    "NOTIFY_OF_NOMINEE": (_sql.NOTIFY_OF_NOMINEE, Ask("notify_of_nominee", commits_locally=False)),
    "STOP_LISTENING": (
        _sql.STOP_LISTENING + HEIR.unlock + _sql.NEXT_TOKEN,
        Ask("token", is_flushed=True, first=(Ask("unlisten"), Ask("unlock", _sql.numbers(BIGINT)))),
    ),
    "_FOR_ONE": (UNLOCK_ONE, Ask("unlock", _sql.numbers(PAIR), 0, frees_all=True)),
    "the same, to take": (_keys_sql.take_all([PAIR], 1500)[0], Ask("try_one", _sql.numbers(PAIR), 1500)),
    "_MARK_RELEASED": (
        TERMS.mark_released_sql(7) + UNLOCK_ONE,
        Ask("unlock", _sql.numbers(PAIR), 0, frees_all=True, marks=(str(PAIR), 7)),
    ),
    "NEXT_TOKEN": (_sql.NEXT_TOKEN, Ask("token", is_flushed=True)),
    "CAPACITY": (_keys_sql.CAPACITY, Ask("capacity")),
    "a heartbeat with another name": (_keys_sql.ping_as("pgl:7 http://a:1"), Ask("ping")),
    "a heartbeat with the first name": (_keys_sql.ping_as(None), Ask("ping")),
    "a short wait": (
        of(PAIR).slice(0.25, more=_keys_sql.rename("pgl:7 http://a:1")),
        SLICE,
    ),
    "_FOR_EACH": (_keys_sql.take_all([PAIR, BIGINT], 1500)[0], Ask("try_all", idle_ms=1500)),
    "the same, to unlock": (UNLOCK_BOTH, Ask("unlock_all")),
    "a group's news": (f"SELECT pg_notify('{CHANNEL}', '')", Ask("notify", CHANNEL)),
    "who hears it": (f'LISTEN "{CHANNEL}"', Ask("listen", CHANNEL)),
    "_QUERY": (holder_query(PAIR)[0], Ask("holder")),
    "_LOOK_FOR_TABLE": (TERMS.make_ready, Ask("look_for_table")),
    "_LOOK_FOR_RUN": (TERMS._look_for_run, Ask("look_for_run")),
    "_NOTE_RUN": (create_sql("pgleaderlock", note=terms.note_sql("pgleaderlock")), Ask("make_table")),
    "_READ": (TERMS.read_sql(), Ask("read_term", lock=str(PAIR))),
    "_CLAIM": (lambda session: TERMS.claim(session, 0.5), Ask("claim", lock=str(PAIR), lease_s=1.5)),
}
PARTS = {
    "_TIMELINE",
    "PINNED",
    "FLUSHED",
    "_START",
    "_FILE",
    "_NOTE",
    "_MAY_TELL_RUN",
    "_FLUSH",
    "_CLEAR_DRAWN",
    "_REHEARSE_DRAW",
    "_DRAWN",
}
NOT_ASKED = {
    "_FENCE": "it is for transactions of users",
    "LIMIT_IDLENESS": "so is this",
    "FREE": "the simulated group has no limit of roles",
}


@pytest.mark.parametrize(("statement", "ask"), UNDERSTOOD.values(), ids=UNDERSTOOD)
async def test_a_statement_of_the_protocol_is_understood(statement: Any, ask: Ask):
    assert read(statement if isinstance(statement, str) else await asked_by(statement)) == ask


@pytest.mark.parametrize("module", [_sql, terms, _keys_sql], ids=["_sql", "terms", "_keys_sql"])
def test_there_are_no_statements_that_were_forgotten_above(module: ModuleType):
    texts = {
        name for name, value in vars(module).items() if isinstance(value, str) and re.search("[Ss]elect|[(]", value)
    }
    statements = {name for name in texts if name.strip("_").isupper()}
    assert statements <= UNDERSTOOD.keys() | PARTS | NOT_ASKED.keys()
    assert len(statements) > 3


@pytest.mark.parametrize(
    "statement",
    ["SELECT 2", "", create_sql("pgleaderlock"), TERMS.fence_sql(7), "DO $claim$ $claim$"],
    ids=["another", "nothing", "tables for others than candidates", "_FENCE", "a claim of nothing"],
)
def test_what_cannot_be_read_is_an_error_of_the_model(statement: str):
    with pytest.raises(LookupError, match="teach it"):
        read(statement)


# --- One process ---------------------------------------------------------------------------------------------------


class Process:
    """A loop in a world, and its uncaught exceptions."""

    def __init__(self, rate: float = 1.0) -> None:
        self.world = World(1)
        self.failures: list[dict[str, Any]] = []
        self.steps = 0
        self.loop = NodeLoop(  # type: ignore[abstract]
            self.world, rate, after_step=self._count, failed=self.failures.append
        )

    def _count(self) -> None:
        self.steps += 1

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        task = self.loop.create_task(main)
        self.world.run(1000.0, unless=task.done)
        return task.result()


def test_its_second_may_be_longer_than_that_of_the_world():
    process = Process(rate=0.5)
    process.run(asyncio.sleep(10))
    assert 20 <= process.world.now < 20.1


def test_a_process_that_stands_still_takes_no_step_and_then_all():
    process = Process()
    task = process.loop.create_task(asyncio.sleep(1))
    process.loop.freeze()
    process.world.run(10.0)
    assert process.steps == 0
    process.loop.thaw()
    process.world.run(20.0)
    assert task.done()


def test_a_process_may_freeze_between_the_decision_to_go_on_and_the_step():
    process = Process()
    task = process.loop.create_task(asyncio.sleep(0))
    process.world.at(0.0, process.loop.freeze)  # the turn was arranged already, for a little later
    process.world.run(10.0)
    assert process.steps == 0
    process.loop.thaw()
    process.world.run(20.0)
    assert task.done()


def test_a_process_that_dies_does_not_even_finish_its_turn():
    process = Process()
    done: list[str] = []
    process.loop.call_soon(process.loop.close)
    process.loop.call_soon(done.append, "after its death")
    process.world.run(10.0)
    assert process.loop.is_closed()
    assert not process.loop.is_running()
    assert not done
    assert process.steps == 1


def test_what_a_process_left_behind_is_buried_quietly():
    process = Process()
    task = process.loop.create_task(asyncio.sleep(100))
    process.world.run(1.0)
    process.loop.close()
    assert not process.loop.is_empty
    process.loop.bury()
    process.world.run(2.0)
    assert process.loop.is_empty
    assert task.cancelled()


def test_work_of_threads_is_done_at_once_and_brings_its_result_or_its_error():
    process = Process()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="bad"):
            await loop.run_in_executor(None, int, "bad")
        return await asyncio.to_thread(int, "7")

    assert process.run(main()) == 7


def test_a_call_from_another_thread_is_a_call():
    process = Process()
    called: list[int] = []
    process.loop.call_soon_threadsafe(called.append, 1)
    process.loop.call_soon(called.append, 2).cancel()
    process.loop.call_later(1.0, called.append, 3).cancel()
    process.world.run(10.0)
    assert called == [1]


def test_uncaught_exception_is_reported_while_the_process_is_alive():
    process = Process()

    def fail() -> None:
        raise ValueError("nobody catches this")

    process.loop.call_soon(fail)
    process.world.run(1.0)
    assert [str(context["exception"]) for context in process.failures] == ["nobody catches this"]
    process.loop.close()
    process.loop.call_exception_handler({"message": "too late"})
    assert len(process.failures) == 1


# --- Sessions ------------------------------------------------------------------------------------------------------


class Place(Process):
    """One process at the end of a cable, and a server at the other."""

    def __init__(self, **server: Any) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.server = ModelledPostgres(self.world, lambda who, what: self.notes.append(f"{who} {what}"), **server)
        self.cable = Cable(self.world)

    async def open(self) -> Session:
        session = SimulatedSession("somebody", self.cable, self.server)
        await session.connect()
        return session


def test_a_standby_is_refused_and_nothing_is_set_on_it():
    place = Place(is_standby=True)

    async def main() -> None:
        setup = SessionSetup(place.open, LEASE, asyncio.get_running_loop().time, "a lock", "a model")
        with pytest.raises(ConnectionError, match="is a standby"):
            await setup.set_up(1.0)
        session = await place.open()
        row = await session.fetch(_sql.set_up(LEASE, 170000), (session.facts.session_pid, "1"), bound_s=1.0)
        assert row is not None
        assert row[0] is None

    place.run(main())


def test_a_silent_server_is_given_up_within_the_bound_and_the_connection_with_it():
    place = Place()

    async def main() -> None:
        session = await place.open()
        place.cable.pull()
        with pytest.raises(ConnectionError, match=r"no answer within 0\.5 s") as raised:
            await session.fetch(_sql.PING, bound_s=0.5)
        assert raised.value.cause is LossCause.RENEW_TIMEOUT
        assert session.closed
        assert place.server.sessions  # a client that receives nothing knows nothing
        place.cable.plug_in()
        await asyncio.sleep(1)
        assert not place.server.sessions

    place.run(main())


def test_a_call_that_is_cut_short_closes_its_session():
    place = Place()

    async def main() -> None:
        holder, session = await place.open(), await place.open()
        await holder.fetch(of(PAIR).attempt(), bound_s=1.0)
        waiting = asyncio.ensure_future(session.fetch(of(PAIR).slice(5.0), bound_s=9.0))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert session.closed
        assert session.descriptor is None

    place.run(main())


def test_a_connection_that_is_given_up_before_it_is_made_leaves_nothing_behind():
    place = Place()

    async def main() -> None:
        place.cable.pull()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(place.open(), 1.0)
        place.cable.plug_in()
        await asyncio.sleep(1)
        assert not place.server.sessions

    place.run(main())


def test_request_on_a_session_that_vanished_without_notice_is_answered_by_a_reset():
    place = Place()

    async def main() -> LossCause:
        session = await place.open()
        place.server.lose_power(1.0)
        await asyncio.sleep(2)
        with pytest.raises(ConnectionError) as raised:
            await session.fetch(_sql.PING, bound_s=1.0)
        return raised.value.cause

    assert place.run(main()) is LossCause.CONNECTION_LOST
    assert place.notes == ["server is up"]


def test_request_while_the_server_is_down_gets_no_answer():
    place = Place()

    async def main() -> LossCause:
        session = await place.open()
        place.server.lose_power(10.0)
        with pytest.raises(ConnectionError) as raised:
            await session.fetch(_sql.PING, bound_s=1.0)
        return raised.value.cause

    assert place.run(main()) is LossCause.RENEW_TIMEOUT


@pytest.mark.parametrize(("statement", "answer"), [(of(PAIR).slice(1.0), "lock"), (WITHOUT_A_LOOK, "")])
def test_a_time_out_that_races_with_its_grant_leaves_a_lock_which_only_a_look_finds(statement: str, answer: str):
    place = Place(race_share=1.0)

    async def main() -> None:
        told_no, other = await place.open(), await place.open()
        assert await told_no.fetch(statement, bound_s=2.0) == (answer,)
        assert await other.fetch(of(PAIR).attempt(), bound_s=1.0) == (None,)
        row = await told_no.fetch(UNLOCK_ONE, bound_s=1.0)
        assert row is not None
        assert row[0] == [0]

    place.run(main())


def test_a_promotion_begins_a_timeline_and_keeps_what_was_written():
    place = Place()

    async def main() -> None:
        token = await TERMS.claim(await place.open(), 1.0)
        place.server.promote(1.0)
        await asyncio.sleep(2)
        past = TERMS.past(await (await place.open()).fetch(TERMS.read_sql(), bound_s=1.0))
        assert (past.token, past.timeline, past.timeline_here) == (token, 1, 2)

    place.run(main())


# --- Checks --------------------------------------------------------------------------------------------------------


def test_uncaught_exception_in_a_node_fails_the_simulation():
    def fail() -> None:
        raise ValueError("nobody catches this")

    with pytest.raises(SimulationFailed, match="nobody catches this") as raised:
        simulate(1, profile="calm", hours=0.05, build=lambda node: node.loop.call_later(1.0, fail))
    assert raised.value.kind == "raised"


def test_who_acts_without_leading_fails_the_simulation():
    with pytest.raises(SimulationFailed, match="'writes', and has never led") as raised:
        simulate(1, profile="calm", hours=0.05, build=lambda node: node.loop.call_soon(node.act, "writes"))
    assert raised.value.kind == "acted"


def test_a_loss_that_has_no_cause_fails_the_simulation():
    def lose_without_a_cause(node: SimulatedNode) -> None:
        node.lock.subscribe(lambda event: node._watcher.heard(node, replace(event, cause=LossCause.UNKNOWN)))

    with pytest.raises(SimulationFailed, match="without a known cause") as raised:
        for seed in range(10):
            simulate(seed, profile="storm", hours=0.1, build=lose_without_a_cause)
    assert raised.value.kind == "cause"
