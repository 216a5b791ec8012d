"""Many roles on one pair of sessions, on a real PostgreSQL."""

import asyncio
import contextlib
import itertools
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from pgleaderlock import (
    ConnectionError,
    EventKind,
    FixedInterval,
    LeaderGroup,
    LeaderLock,
    LockKey,
    LockState,
    PgLeaderLockError,
    RetryContext,
)
from pgleaderlock.models import Event, LossCause
from pgleaderlock.ops.metrics import Metrics
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres._unclaimed_roles import Unclaimed
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.group import CHANNEL, Group
from pgleaderlock.postgres.leader_group import GroupPatience, GroupRole
from pgleaderlock.postgres.lease import Lease, witness_key
from pgleaderlock.postgres.pair import SessionPair
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres, free_port
from tests.support.doubles import until
from tests.support.group import END_HOLDER, make_group
from tests.support.lease import LEASE_S, query
from tests.support.model_session import LEASE_S as MODEL_LEASE_S
from tests.support.model_session import ModelSession
from tests.support.servers import QuickServer
from tests.support.silent_proxy import SilentProxy

_numbers = itertools.count(1)
SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgleaderlock %%' AND pid <> pg_backend_pid()"
)


@pytest.fixture
def names() -> list[str]:
    """Three roles that no other test uses."""
    return [f"group/{os.getpid()}/{next(_numbers)}" for _ in range(3)]


async def terminate_holder(dsn: str, key: LockKey) -> None:
    """End the session that holds this lock."""
    rows = await query(dsn, END_HOLDER, *lock_columns(key))
    assert rows == [(True,)]


def stop_when_lost(group: LeaderGroup) -> set["asyncio.Task[None]"]:
    """Keep a group from taking back at once what it has lost."""
    tasks: set[asyncio.Task[None]] = set()

    @group.on_lost
    def stop(role: GroupRole) -> None:
        tasks.add(asyncio.get_running_loop().create_task(role.shutdown()))

    return tasks


def leads(group: LeaderGroup, count: int) -> Any:
    return lambda: len(group.leading) == count


# --- Leading ----------------------------------------------------------------------------------------------------------


async def test_all_roles_are_led_over_two_connections(own_server: Server, names: list[str]):
    async with make_group(own_server.dsn, names) as group:
        await until(leads(group, 3))
        assert (await query(own_server.dsn, SESSIONS))[0][0] == 2
        assert [role.state for role in group.values()] == [LockState.LEADER] * 3
        assert all(role.token for role in group.values())
    assert (await query(own_server.dsn, SESSIONS))[0][0] == 0


async def test_without_a_witness_one_connection_is_enough(own_server: Server, names: list[str]):
    async with make_group(own_server.dsn, names, witness=False) as group:
        await until(leads(group, 3))
        assert (await query(own_server.dsn, SESSIONS))[0][0] == 1


async def test_any_key_is_a_role(postgres: Postgres, key: LockKey, names: list[str]):
    async with make_group(postgres.dsn, [key, names[0], LockKey.bigint(-7 - next(_numbers))]) as group:
        await until(leads(group, 3))
        assert group[str(key)].key == key


@pytest.mark.slow
async def test_leadership_outlives_many_leases_without_an_event_of_the_elections(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names, lease_s=1.2, health_interval_s=0.3)
    heard: list[EventKind] = []
    group.subscribe(lambda _, event: heard.append(event.kind))
    async with group:
        await until(lambda: heard.count(EventKind.ACQUIRED) == 3)
        said = len(heard)
        tokens = [role.token for role in group.values()]
        await asyncio.sleep(2.7)
        assert [role.token for role in group.values()] == tokens
        assert len(heard) == said


async def test_a_second_group_waits_and_takes_each_role_as_it_is_released(postgres: Postgres, names: list[str]):
    async with make_group(postgres.dsn, names) as first, make_group(postgres.dsn, names, poll_s=30) as second:
        await until(leads(first, 3))
        await until(lambda: all(role.state is LockState.FOLLOWER for role in second.values()))
        before = first[names[0]].token
        await first[names[0]].step_down()
        assert await second[names[0]].wait_for_leadership(10)  # told of it: the next poll is half a minute away
        assert (second[names[0]].token or 0) > (before or 0)
        assert len(first.leading) == 2
        await first.shutdown()
        await until(leads(second, 3))


async def test_a_group_and_a_single_candidate_meet_on_the_same_lock(postgres: Postgres, names: list[str]):
    lock = LeaderLock(
        postgres.dsn,
        role=names[0],
        lease_s=LEASE_S,
        health_interval_s=LEASE_S / 3,
        settle_s=0,
        retry_strategy=FixedInterval(0.1),
    )
    async with lock, contextlib.AsyncExitStack() as stack:
        await lock.wait_for_leadership()
        group = await stack.enter_async_context(make_group(postgres.dsn, names))
        await until(leads(group, 2))
        assert not group[names[0]].is_leader
        await lock.shutdown()
        await until(leads(group, 3))
        await lock.start()
        await until(lambda: lock.state is LockState.FOLLOWER)
        await group.shutdown()
        assert await lock.wait_for_leadership(10)


async def test_callbacks_get_the_role(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    acquired: list[str] = []
    released: list[str] = []

    @group.on_acquired
    def begin(role: GroupRole) -> None:
        acquired.append(role.name)

    @group.on_released
    async def end(role: GroupRole) -> None:
        released.append(role.name)

    async with group:
        await until(lambda: len(acquired) == 3)
        await group[names[1]].step_down()
        await until(lambda: released == [names[1]])
    assert sorted(acquired[:3]) == sorted(names)
    assert sorted(set(released)) == sorted(names)


async def test_on_lost_of_a_group_leaves_out_attempts_where_that_is_asked_for(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    all_of_them: list[str] = []
    lost: list[str] = []
    group.on_lost(lambda role: all_of_them.append(role.name))

    @group.on_lost(attempts=False)
    def stop(role: GroupRole) -> None:
        lost.append(role.name)

    role = group[names[0]]
    attempt = Event(EventKind.ATTEMPT_FAILED, LockState.ACQUIRING, LockState.FOLLOWER, "db_error", 0.0)
    for event in (attempt, replace(attempt, kind=EventKind.LOST)):
        for listener in role._listeners:
            listener(event)
    assert (all_of_them, lost) == ([names[0]] * 2, [names[0]])


async def test_the_work_of_a_role_is_finished_before_it_is_released(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    finished: list[str] = []

    @group.before_release
    async def finish(role: GroupRole) -> None:
        await asyncio.sleep(0.05)
        assert role.is_leader
        finished.append(role.name)

    async with group:
        await until(leads(group, 3))
    assert sorted(finished) == sorted(names)


async def test_a_renewal_of_the_group_is_one_of_each_role_that_it_leads(postgres: Postgres, names: list[str]):
    registry = CollectorRegistry()
    group = make_group(postgres.dsn, names, lease_s=0.6, health_interval_s=0.2)
    Metrics("g", registry).watch_group(group, node="n")

    def renewals(name: str) -> float:
        return registry.get_sample_value("g_leader_renew_seconds_count", {"role": name, "node": "n"}) or 0.0

    async with group:
        await until(lambda: all(renewals(name) >= 2 for name in names))
        await group[names[0]].shutdown()
        before = renewals(names[0])
        later = renewals(names[1]) + 2
        await until(lambda: renewals(names[1]) >= later)
        assert renewals(names[0]) == before


async def test_a_group_can_be_started_again(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    tokens = []
    for _ in range(2):
        async with group:
            await until(leads(group, 3))
            tokens.append(group[names[0]].token or 0)
    assert tokens[1] > tokens[0]


# --- Spreading --------------------------------------------------------------------------------------------------------


async def test_roles_spread_over_groups_that_are_limited(postgres: Postgres, names: list[str]):
    async with make_group(postgres.dsn, names, max_roles=2) as one, make_group(postgres.dsn, names, max_roles=2) as two:
        await until(lambda: len(one.leading) + len(two.leading) == 3)
        assert {len(one.leading), len(two.leading)} == {1, 2}
        assert not {role.name for role in one.leading} & {role.name for role in two.leading}


async def test_a_limited_group_takes_another_role_when_it_gives_one_up(postgres: Postgres, names: list[str]):
    async with make_group(postgres.dsn, names, max_roles=1) as group:
        await until(leads(group, 1))
        (first,) = group.leading
        await first.step_down()
        await until(leads(group, 1))
        assert group.leading[0].name != first.name


async def test_a_group_stands_only_for_what_it_names(postgres: Postgres, names: list[str]):
    async with make_group(postgres.dsn, names[:1]) as one, make_group(postgres.dsn, names) as all_of_them:
        await until(lambda: len(one.leading) + len(all_of_them.leading) == 3)
        await all_of_them.shutdown()
        await until(leads(one, 1))
        assert [*one] == names[:1]


async def test_each_node_warns_once_of_a_role_for_which_no_node_has_capacity(
    postgres: Postgres, names: list[str], caplog: pytest.LogCaptureFixture
):
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "role_unclaimed" in record.getMessage()]

    settings = {"max_roles": 1, "poll_s": 0.05}
    async with make_group(postgres.dsn, names, **settings) as one, make_group(postgres.dsn, names, **settings) as two:
        await until(lambda: len(one.leading) + len(two.leading) == 2)
        await until(lambda: len(warnings()) == 2)  # one of each
        (orphan,) = set(names) - {role.name for role in (*one.leading, *two.leading)}
        assert f"roles={orphan} count=1 max_roles=1" in warnings()[0]
        async with make_group(postgres.dsn, names) as three:
            assert await three[orphan].wait_for_leadership(10)
            await asyncio.sleep(0.5)
    assert len(warnings()) == 2


def test_a_role_is_unclaimed_when_it_was_free_every_time():
    a, b = LockKey.named("a"), LockKey.named("b")
    seen = Unclaimed(poll_s=0.25)
    assert seen.is_due(0.0)
    assert [seen.saw(free, now) for now, free in enumerate([{a, b}, {a}, {a, b}, {a, b}, {b}])] == [
        [],
        [],
        [a],
        [],
        [b],
    ]
    assert not seen.is_due(4.5)
    assert seen.is_due(5.0)
    assert seen.saw((), 5.0) == []
    assert not seen.is_due(14.0)  # everything is held: there is no hurry
    seen.saw({a}, 15.0)
    seen.saw({a}, 16.0)
    seen.forget()
    assert seen.saw({a}, 17.0) == []


# --- Loss -------------------------------------------------------------------------------------------------------------


async def test_end_of_the_session_is_the_loss_of_every_role_with_its_cause_and_another_group_takes_over(
    postgres: Postgres, names: list[str]
):
    said: list[tuple[str, str, str]] = []

    def note(who: str) -> Any:
        return lambda role, event: said.append((who, f"{event.kind.value} {role.name}", event.cause))

    first, second = make_group(postgres.dsn, names), make_group(postgres.dsn, names)
    first.subscribe(note("first"))
    stopping = stop_when_lost(first)
    second.subscribe(note("second"))
    async with first, second:
        await until(leads(first, 3))
        await terminate_holder(postgres.dsn, LockKey.named(names[0]))
        await until(leads(second, 3))
        for name in names:
            lost = said.index(("first", f"on_lost {name}", LossCause.SESSION_TERMINATED))
            assert lost < said.index(("second", f"on_acquired {name}", "acquire_succeeded"))
        assert first.leading == []
        await asyncio.wait(stopping)


async def test_a_slow_on_lost_keeps_the_successor_waiting_but_no_longer_than_the_trust(
    postgres: Postgres, names: list[str]
):
    first, second = make_group(postgres.dsn, names), make_group(postgres.dsn, names)
    stopping = stop_when_lost(first)
    told = asyncio.Event()

    @first.on_lost
    async def be_slow(role: GroupRole) -> None:
        await asyncio.sleep(0.3)
        if role.name == names[0]:
            assert not second[names[0]].is_leader
            told.set()

    async with first, second:
        await until(leads(first, 3))
        await terminate_holder(postgres.dsn, LockKey.named(names[0]))
        await told.wait()
        await until(leads(second, 3))
        await asyncio.wait(stopping)


@pytest.mark.slow
async def test_lost_witness_session_is_replaced_and_no_role_loses_its_term(postgres: Postgres, names: list[str]):
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        tokens = [role.token for role in group.values()]
        for _ in range(3):
            await terminate_holder(postgres.dsn, witness_key(LockKey.named(names[0])))
            await asyncio.sleep(LEASE_S)
            assert [role.token for role in group.values()] == tokens


@pytest.mark.parametrize("which", ["_lock", "_witness"])
async def test_a_session_that_falls_silent_is_closed_only_when_no_role_is_valid_any_more(
    postgres: Postgres, names: list[str], monkeypatch, which: str
):
    valid_at_close: list[bool] = []
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        session = getattr(group._group.pair, which).session
        assert isinstance(session, Connection)
        tokens, shut = {role.token for role in group.values()}, session._shut

        def look_and_shut() -> None:
            valid_at_close.append(any(role.is_leader for role in group.values()))
            shut()

        monkeypatch.setattr(session, "_shut", look_and_shut)
        os.kill(session.facts.session_pid, signal.SIGSTOP)
        try:
            await until(lambda: bool(valid_at_close))
        finally:
            os.kill(session.facts.session_pid, signal.SIGCONT)
        assert not valid_at_close[0]
        await until(lambda: leads(group, 3)() and not tokens & {role.token for role in group.values()})


async def test_silent_lock_session_leaves_time_to_notify_every_role(postgres: Postgres, names: list[str], monkeypatch):
    told, told_before_the_witnesses_went = [], []
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        for role in group.values():

            @role.on_lost
            async def take_time(name: object = role) -> None:
                await asyncio.sleep(0.05 * LEASE_S)
                told.append(name)

        lock, witness = group._group.pair.lock_session, group._group.pair._witness
        assert witness is not None
        close = witness.session.close

        async def look_and_close() -> None:
            told_before_the_witnesses_went.append(len(told))
            await close()

        monkeypatch.setattr(witness.session, "close", look_and_close)
        os.kill(lock.facts.session_pid, signal.SIGSTOP)
        try:
            await until(lambda: bool(told_before_the_witnesses_went))
        finally:
            os.kill(lock.facts.session_pid, signal.SIGCONT)
        assert told_before_the_witnesses_went[0] == 3


async def test_a_group_whose_server_is_restarted_leads_again(own_server: Server, names: list[str]):
    async with make_group(own_server.dsn, names) as group:
        await until(leads(group, 3))
        tokens = [role.token or 0 for role in group.values()]
        await asyncio.to_thread(own_server.restart)
        await until(lambda: len(group.leading) == 3 and all(role.token not in tokens for role in group.values()))
        assert min(role.token or 0 for role in group.values()) > max(tokens)


async def test_a_group_that_finds_no_server_goes_on_trying(names: list[str]):
    group = make_group(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres", names)
    async with group:
        await until(lambda: all(role.state is LockState.FOLLOWER for role in group.values()))
        assert group.leading == []


async def test_a_server_that_just_started_is_settled_first(own_server: Server, names: list[str]):
    await asyncio.to_thread(own_server.restart)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with make_group(own_server.dsn, names, settle_s=1.5) as group:
        await until(leads(group, 3))
        assert loop.time() - began > 0.5


# --- Thousands --------------------------------------------------------------------------------------------------------


@pytest.mark.proof
async def test_five_thousand_roles_on_one_connection(server_folder_root):
    server = QuickServer(server_folder_root / f"large-{next(_numbers)}", settings={"max_locks_per_transaction": "256"})
    server.start()
    try:
        async with make_group(server.dsn, [f"r{number}" for number in range(5000)], lease_s=60) as group:
            await until(leads(group, 5000))
            assert (await query(server.dsn, SESSIONS))[0][0] == 2
            assert len({role.token for role in group.values()}) == 1  # of one round, and greater than all before
    finally:
        server.stop("immediate")


async def test_a_lock_table_that_is_too_small_is_named_before_it_is_full(server_folder_root):
    settings = {"max_locks_per_transaction": "10", "max_connections": "20"}
    server = QuickServer(server_folder_root / f"small-{next(_numbers)}", settings=settings)
    server.start()
    errors: list[str] = []
    try:
        group = make_group(server.dsn, [f"r{number}" for number in range(200)])
        group.subscribe(lambda _, event: errors.append(str(event.error)) if event.error else None)
        async with group:
            await until(lambda: bool(errors))
        assert "200 roles need 400 locks" in errors[0]
        assert "raise max_locks_per_transaction, now 10," in errors[0]
        async with make_group(server.dsn, [f"r{number}" for number in range(200)], max_roles=50) as limited:
            await until(leads(limited, 50))
    finally:
        server.stop("immediate")


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "error"),
    [
        ([], ValueError),
        (["a", "a"], ValueError),
        ("abc", TypeError),
        ([7], TypeError),
        (["a", LockKey.named("a")], ValueError),
    ],
)
def test_roles_are_different_and_there_are_some(roles: Any, error: type[Exception]):
    with pytest.raises(error):
        LeaderGroup("postgresql://", roles)


@pytest.mark.parametrize("settings", [{"max_roles": 0}, {"poll_s": 0}, {"lease_s": 1, "health_interval_s": 1}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]):
    with pytest.raises(ValueError, match=r"max_roles|poll_s|health_interval_s"):
        LeaderGroup("postgresql://", ["a"], **settings)


def test_patience_rests_once_then_waits_long_and_after_errors_comes_again_soon():
    patience = GroupPatience(rest_s=2, long_s=600, longest_error_s=10)
    assert patience.next_delay_s(RetryContext(1, 0.0)) == 2
    assert patience.next_delay_s(RetryContext(2, 0.0)) == 600
    delays = [patience.next_delay_s(RetryContext(attempt, 0.0, last_error=OSError())) for attempt in range(1, 40)]
    assert delays[0] <= 0.2
    assert max(delays) <= 10


# --- What attacks have found ------------------------------------------------------------------------------------------


async def end_all_sessions(dsn: str) -> None:
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgleaderlock %%'"
    await query(dsn, statement)


async def held_on_server(dsn: str, names: list[str]) -> int:
    """How many of these locks are held by any session."""
    rows = await query(
        dsn, "SELECT classid::text::bigint, objid::text::bigint FROM pg_locks WHERE locktype = 'advisory'"
    )
    return sum(lock_columns(LockKey.named(name))[:2] in rows for name in names)


async def test_a_group_that_leads_nothing_stands_again_after_its_session_has_ended(
    own_server: Server, names: list[str]
):
    """Either of them: a busy machine may stand still for a lease, and the other leads then."""
    async with make_group(own_server.dsn, names) as first, make_group(own_server.dsn, names) as second:
        await until(lambda: len(first.leading) + len(second.leading) == 3)
        await until(lambda: len(first._group._waiting) + len(second._group._waiting) == 3)
        await end_all_sessions(own_server.dsn)
        await until(lambda: len(first.leading) + len(second.leading) == 3)
        for group in (first, second):
            await group.shutdown()
            other = second if group is first else first
            if group is first:
                await until(leads(other, 3))


@pytest.mark.slow
async def test_role_that_is_cancelled_during_its_request_returns_the_lock_that_is_granted(
    postgres: Postgres, names: list[str]
):
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        for _ in range(60):
            role = group[names[0]]
            async with asyncio.timeout(10):
                await role.shutdown()
                await role.start()
                for _ in range(next(_numbers) % 5):
                    await asyncio.sleep(0)
                await role.shutdown()
            await role.start()
        await until(leads(group, 3))


async def test_a_start_that_is_cancelled_leaves_nothing_held(postgres: Postgres, names: list[str], monkeypatch):
    group, real = make_group(postgres.dsn, names), Group._hand_out
    starting: list[asyncio.Task[None]] = []

    def hand_out_and_cancel(self: Group, key: LockKey, grant: Any) -> None:
        real(self, key, grant)
        starting[0].cancel()

    monkeypatch.setattr(Group, "_hand_out", hand_out_and_cancel)
    starting.append(asyncio.create_task(group.start()))
    await asyncio.wait(starting)
    assert starting[0].cancelled()
    monkeypatch.undo()
    async with asyncio.timeout(10):
        while await held_on_server(postgres.dsn, names):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)
    async with group:
        await until(leads(group, 3))


async def test_two_who_start_one_group_start_it_once(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    await asyncio.gather(group.start(), group.start())
    await until(leads(group, 3))
    await group.shutdown()
    assert await held_on_server(postgres.dsn, names) == 0


async def test_a_start_during_a_shutdown_waits_for_it(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    for role in group.values():
        role.on_stopped(lambda: asyncio.sleep(0.2))
    await group.start()
    stopping = asyncio.create_task(group.shutdown())
    await until(lambda: all(role.state is LockState.STOPPED for role in group.values()))
    await group.start()
    await until(leads(group, 3))
    await asyncio.wait_for(stopping, 10)
    assert len(group.leading) == 3
    await group.shutdown()


async def test_a_role_that_stopped_alone_is_started_with_the_others(postgres: Postgres, names: list[str]):
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        await group[names[1]].shutdown()
        await group.start()
        await until(leads(group, 3))


def test_a_group_goes_on_in_another_event_loop(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)

    async def lead_and_leave() -> None:
        await group.start()
        await until(leads(group, 3))

    async def lead_again() -> float:
        async with group:
            await until(leads(group, 3))
            used = time.process_time()
            await asyncio.sleep(0.5)
            return time.process_time() - used

    asyncio.run(lead_and_leave())
    assert group._group.pair.is_closed
    assert asyncio.run(lead_again()) < 0.3  # and does not spin there


async def test_a_bug_in_the_group_s_task_is_a_loss_and_not_silence(postgres: Postgres, names: list[str], monkeypatch):
    lost: list[str] = []
    group = make_group(postgres.dsn, names)
    group.on_lost(lambda role: lost.append(role.name))
    async with group:
        await until(leads(group, 3))

        async def fail(self: SessionPair) -> bool:
            monkeypatch.undo()
            raise RuntimeError("too many open files")

        monkeypatch.setattr(SessionPair, "renew", fail)
        await until(lambda: len(lost) == 3)
        await until(leads(group, 3))


async def test_a_lock_that_was_won_for_a_role_that_could_not_begin_is_given_back(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    await group.start()
    for role in group.values():
        assert role._running is not None
        role._running.task.cancel()
    async with asyncio.timeout(10):
        while await held_on_server(postgres.dsn, names):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)
    await group.shutdown()


async def test_a_witness_session_that_ends_in_the_middle_of_a_release_costs_no_other_role_anything(
    postgres: Postgres, names: list[str], monkeypatch
):
    lost: list[str] = []
    group = make_group(postgres.dsn, names)
    group.on_lost(lambda role: lost.append(role.name))
    async with group:
        await until(leads(group, 3))
        real = SessionPair.free_witness_locks

        async def end_it_first(self: SessionPair) -> None:
            monkeypatch.undo()
            await terminate_holder(postgres.dsn, witness_key(LockKey.named(names[0])))
            await real(self)

        monkeypatch.setattr(SessionPair, "free_witness_locks", end_it_first)
        await group[names[1]].step_down()
        await until(leads(group, 3))
        assert lost == []


async def test_successor_does_not_flood_the_server_when_its_predecessor_is_slow_to_release(
    postgres: Postgres, names: list[str]
):
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as slow:
        number = witness_key(LockKey.named(names[0])).numbers[0]
        await slow.execute("SELECT pg_advisory_lock(%s)", (number,))
        async with make_group(postgres.dsn, names[:1]) as group:
            await until(lambda: bool(group._group._waiting))
            before = (await query(postgres.dsn, "SELECT pg_current_xact_id()::text::bigint"))[0][0]
            await asyncio.sleep(1.0)
            after = (await query(postgres.dsn, "SELECT pg_current_xact_id()::text::bigint"))[0][0]
            assert after - before < 60
            await slow.execute("SELECT pg_advisory_unlock(%s)", (number,))
            await until(leads(group, 1))


async def test_sessions_are_closed_when_every_role_has_stopped_by_itself(own_server: Server, names: list[str]):
    stop = asyncio.Event()
    group = make_group(own_server.dsn, names, shutdown_event=stop)
    await group.start()
    await until(leads(group, 3))
    stop.set()
    async with asyncio.timeout(10):
        while (await query(own_server.dsn, SESSIONS))[0][0]:  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)


async def test_a_lock_table_that_is_full_after_all_is_an_error_that_names_the_setting(
    postgres: Postgres, names: list[str]
):
    errors: list[str] = []
    group = make_group(postgres.dsn, names)
    group.on_error(lambda _, error: errors.append(str(error)))
    async with group:
        await until(leads(group, 3))
        group._group._fail(ConnectionError("out of shared memory; HINT: ..."))
        await until(lambda: len(errors) == 3)
        assert "the server's lock table is full: raise max_locks_per_transaction" in errors[0]
        await until(leads(group, 3))


async def test_without_a_witness_lock_no_role_begins_to_lead(postgres: Postgres, names: list[str], monkeypatch):
    async def never(*_: Any) -> bool:
        return False

    monkeypatch.setattr(SessionPair, "_try_witness", never)
    monkeypatch.setattr(SessionPair, "_replace_witness", never)
    async with make_group(postgres.dsn, names) as group:
        await until(lambda: all(role.state is LockState.FOLLOWER for role in group.values()))
        await asyncio.sleep(0.3)
        assert group.leading == []
        monkeypatch.undo()
        await until(leads(group, 3))


@pytest.mark.slow
async def test_a_witness_session_that_cannot_be_replaced_in_time_is_a_loss(
    postgres: Postgres, names: list[str], monkeypatch
):
    lost: list[str] = []
    group = make_group(postgres.dsn, names, lease_s=4.5, health_interval_s=1.5)
    group.on_lost(lambda role: lost.append(role.name))

    causes: list[str] = []
    group.subscribe(lambda _, event: causes.append(event.cause) if event.kind is EventKind.LOST else None)

    async def fail(self: SessionPair) -> Any:
        raise ConnectionError("too many clients already")

    async with group:
        await until(leads(group, 3))
        monkeypatch.setattr(SessionPair, "open_witness", fail)
        await terminate_holder(postgres.dsn, witness_key(LockKey.named(names[0])))
        await until(lambda: len(lost) >= 3)
        monkeypatch.undo()
        await until(leads(group, 3))
    assert causes[:3] == [LossCause.WITNESS_LOST] * 3


async def test_a_witness_that_another_has_got_hold_of_is_tried_for_again(
    postgres: Postgres, names: list[str], monkeypatch
):
    real, refusals = SessionPair._take_witness_locks, [1]

    async def refuse_once(self: SessionPair, keys: Any) -> set[LockKey]:
        if self.held and refusals:
            refusals.clear()
            return set(keys)
        return await real(self, keys)

    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        tokens = [role.token for role in group.values()]
        monkeypatch.setattr(SessionPair, "_take_witness_locks", refuse_once)
        await terminate_holder(postgres.dsn, witness_key(LockKey.named(names[0])))
        await until(lambda: not refusals)
        await asyncio.sleep(LEASE_S)
        assert [role.token for role in group.values()] == tokens


async def test_a_group_names_its_locks_and_refuses_to_have_one_twice(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    assert repr(group) == "<LeaderGroup of 3 roles, leading 0>"
    assert f"{names[0]!r} stopped" in repr(group[names[0]])
    assert await group[names[0]]._backend.holder() is None
    with pytest.raises(ValueError, match="in this group twice"):
        group._group.member(LockKey.named(names[0]), {})
    assert list(make_group(postgres.dsn, {"x": LockKey.pair(1, 2)})) == ["x"]


async def test_request_without_a_session_gets_an_error_and_the_loop_goes_on(postgres: Postgres, names: list[str]):
    group = make_group(postgres.dsn, names)
    async with asyncio.timeout(10):
        with pytest.raises(ConnectionError, match="has no session"):
            await group._group.ask(LockKey.named(names[0]))
        assert not await group._group.leave(LockKey.named(names[0]))
        async with group:
            await until(leads(group, 3))


async def test_an_error_while_the_group_rests_is_a_loss_and_not_the_silent_end_of_its_task(
    postgres: Postgres, names: list[str], monkeypatch
):
    group = make_group(postgres.dsn, names)
    lost: list[str] = []
    group.on_lost(lambda role: lost.append(role.name))
    async with group:
        await until(leads(group, 3))

        async def fail(self: Group) -> None:
            monkeypatch.undo()
            raise OSError("too many open files")

        monkeypatch.setattr(Group, "_rest", fail)
        await until(lambda: len(lost) == 3)
        await until(leads(group, 3))


async def test_a_start_that_is_cancelled_before_its_answer_leaves_nothing_held(
    own_server: Server, names: list[str], monkeypatch
):
    group, real = make_group(own_server.dsn, names), Group._win
    starting: list[asyncio.Task[None]] = []

    async def win_and_cancel(self: Group, wanted: Any, limit: Any) -> Any:
        won = await real(self, wanted, limit)
        starting[0].cancel()
        await asyncio.wait(starting)
        return won

    monkeypatch.setattr(Group, "_win", win_and_cancel)
    starting.append(asyncio.create_task(group.start()))
    await asyncio.wait(starting)
    assert starting[0].cancelled()
    async with asyncio.timeout(10):
        while (await query(own_server.dsn, SESSIONS))[0][0]:  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)
    monkeypatch.undo()
    async with group:
        await until(leads(group, 3))


async def test_a_start_that_is_cancelled_while_it_waits_for_the_last_role_stops_the_others(
    postgres: Postgres, names: list[str]
):
    group, heard = make_group(postgres.dsn, names), asyncio.Event()
    group[names[0]].on_stopped(heard.wait)
    await group.start()
    stopping = asyncio.create_task(group.shutdown())
    await until(lambda: all(group[name]._running is None for name in names[1:]))
    await until(lambda: group[names[0]].state is LockState.STOPPED)
    starting = asyncio.create_task(group.start())
    await until(leads(group, 2))
    starting.cancel()
    await asyncio.wait({starting})
    await until(lambda: all(role.state is LockState.STOPPED for role in group.values()))
    heard.set()
    await asyncio.wait_for(stopping, 10)
    assert await held_on_server(postgres.dsn, names) == 0


async def test_a_shutdown_keeps_its_time_on_a_server_that_has_fallen_silent(postgres: Postgres, names: list[str]):
    with SilentProxy(postgres.tcp_dsn) as proxy:
        group = make_group(proxy.dsn, names, lease_s=30, health_interval_s=10)
        await group.start()
        await until(leads(group, 3))
        proxy.mute()
        began = time.monotonic()
        await group.shutdown(timeout_s=0.5)
        assert time.monotonic() - began < 5  # an answer is waited for four times as long
        assert all(role.state is LockState.STOPPED for role in group.values())


async def test_a_slow_on_lost_keeps_only_its_own_successor_waiting(postgres: Postgres, names: list[str]):
    first = make_group(postgres.dsn, names, lease_s=9, health_interval_s=3)
    second = make_group(postgres.dsn, names, lease_s=9, health_interval_s=3)
    stopping, done = stop_when_lost(first), asyncio.Event()

    @first.on_lost
    async def be_slow(role: GroupRole) -> None:
        if role.name == names[0]:
            await done.wait()

    async with first, second:
        await until(leads(first, 3))
        await terminate_holder(postgres.dsn, LockKey.named(names[0]))
        await until(leads(second, 2))
        assert not second[names[0]].is_leader
        done.set()
        await until(leads(second, 3))
        await asyncio.wait(stopping)


async def test_release_that_could_not_be_announced_is_a_release_all_the_same(
    postgres: Postgres, names: list[str], monkeypatch
):
    group = make_group(postgres.dsn, names)
    said: list[tuple[str, EventKind]] = []
    group.subscribe(lambda role, event: said.append((role.name, event.kind)))

    real = SessionPair.ask_lock

    async def fail(self: SessionPair, statement: str, *given: Any, **more: Any) -> Any:
        if "pg_notify" not in statement:
            return await real(self, statement, *given, **more)
        monkeypatch.undo()
        raise ConnectionError("the session failed")

    async with group:
        await until(leads(group, 3))
        monkeypatch.setattr(SessionPair, "ask_lock", fail)
        await group[names[0]].step_down()
        await until(lambda: (names[1], EventKind.LOST) in said)  # whose session that was
        assert (names[0], EventKind.RELEASED) in said
        assert (names[0], EventKind.ERROR) not in said
        assert (names[0], EventKind.LOST) not in said


_CLOSED_LOOP = """
import asyncio, sys
from pgleaderlock import LeaderGroup, LockError

group, loop = LeaderGroup(sys.argv[1], ["role"], settle_s=0), asyncio.new_event_loop()

async def lead():
    await group.start()
    await group["role"].wait_for_leadership()

loop.run_until_complete(lead())
loop.close()
assert not group["role"].is_leader
try:
    asyncio.run(group.start())
except LockError as error:
    print(error)
"""


def test_a_group_whose_loop_was_closed_while_it_led_is_refused_on_another(postgres: Postgres):
    """In a process of its own, because asyncio complains of the tasks that died with that loop, and rightly so."""
    command = [sys.executable, "-c", _CLOSED_LOOP, postgres.dsn]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert "was closed while it ran: make a new election" in done.stdout, done.stderr


# --- A lock that is led is held -------------------------------------------------------------------------------------


async def held_names(dsn: str, names: Iterable[str]) -> set[str]:
    """Return those of these roles whose lock some session holds."""
    columns = {lock_columns(LockKey.named(name)): name for name in names}
    held = "FROM pg_locks WHERE locktype = 'advisory' AND granted"
    rows = await query(dsn, f"SELECT classid::text::bigint, objid::text::bigint, objsubid {held}")
    return {columns[row] for row in rows if row in columns}


async def test_a_release_that_is_asked_for_twice_does_not_free_the_next_term(own_server: Server, names: list[str]):
    """Found by an attack: the session stood still, a step-down ran out of time, and two led the role for good."""
    settings = {"lease_s": 15, "health_interval_s": 5, "retry_strategy": FixedInterval(0.1)}
    async with make_group(own_server.dsn, names, **settings) as group:
        await until(leads(group, 3))
        role, pid = group[names[0]], group._group.pair.lock_session.facts.session_pid
        token = role.token
        os.kill(pid, signal.SIGSTOP)
        try:
            stepping = asyncio.create_task(role.step_down(0.1))
            await until(lambda: names[0] in {key.name for key in group._group._asking})  # it has given up waiting
        finally:
            os.kill(pid, signal.SIGCONT)
        await stepping
        await until(lambda: role.is_leader and role.token != token)
        for _ in range(20):  # rounds of the group: whatever it still has to unlock, it unlocks in them
            await asyncio.sleep(0.02)
            assert not role.is_leader or names[0] in await held_names(own_server.dsn, names)


async def test_of_a_release_that_is_asked_for_twice_both_hear_that_the_lock_is_free(
    postgres: Postgres, names: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Asked for by the second alone, it was not held any more, which is a release that has failed."""
    free = SessionPair.free
    asks_again: list[asyncio.Task[bool]] = []

    async def free_and_ask_again(self: SessionPair, keys: Any, **settings: Any) -> set[LockKey]:
        if not asks_again:
            asks_again.append(asyncio.create_task(group._group.leave(key)))
            await asyncio.sleep(0)
        return await free(self, keys, **settings)

    key = LockKey.named(names[0])
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        monkeypatch.setattr(SessionPair, "free", free_and_ask_again)
        assert await group._group.leave(key)
        assert await asks_again[0]


@pytest.mark.parametrize("seed", range(4))
async def test_a_start_while_the_last_run_still_notifies_its_listeners_leads_only_what_is_held(
    own_server: Server, seed: int
):
    """Found by an attack: the end of a run that was stopped gave back what the next run led with."""
    draw = random.Random(seed)
    names = [f"again/{seed}/{number}" for number in range(20)]
    group = make_group(own_server.dsn, names, lease_s=15, health_interval_s=5)

    async def tidy_up() -> None:
        await asyncio.sleep(draw.uniform(0, 0.02))

    for role in list(group.values())[1:]:
        role.on_stopped(tidy_up)
    await group.start()
    stopping = asyncio.create_task(group.shutdown())
    await until(lambda: all(role.state is LockState.STOPPED for role in group.values()))
    await group.start()
    await stopping
    await until(leads(group, 20))
    await asyncio.sleep(0.1)
    assert {role.name for role in group.leading} <= await held_names(own_server.dsn, names)
    await until(leads(group, 20))
    await group.shutdown()


# --- Its task, and its end --------------------------------------------------------------------------------------------


async def test_cancelled_task_of_the_group_is_the_loss_of_all_roles_at_once(postgres: Postgres, names: list[str]):
    """Otherwise the roles would be led until their validity ends, two thirds of a lease later, without a renewal."""
    group = make_group(postgres.dsn, names, lease_s=300, health_interval_s=100)
    losses: list[Any] = []
    group.on_lost(lambda role: losses.append(role.name))
    errors: list[str] = []
    group.on_error(lambda _, error: errors.append(str(error)))
    async with group:
        await until(leads(group, 3))
        task = group._group._task
        assert task is not None
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: sorted(losses) == sorted(names), 20)
        assert all("the task of the group was cancelled" in error for error in errors)
        await until(leads(group, 3), 20)  # and a new task takes them back


WITNESS_HOLDER = """
SELECT pid FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND classid::text::bigint = %s AND objid::text::bigint = %s AND objsubid = %s
"""


@contextlib.asynccontextmanager
async def witness_that_does_not_answer(
    server: Server, key: LockKey, pair: SessionPair
) -> AsyncIterator[Callable[[], bool]]:
    """Stop the server's process behind the witness session; yield whether a call waits for it."""
    ((pid,),) = await query(server.dsn, WITNESS_HOLDER, *lock_columns(witness_key(key)))
    os.kill(pid, signal.SIGSTOP)
    try:
        session = pair._witness_session
        assert isinstance(session, Connection)
        yield lambda: session._bound is not None
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("is_group", [True, False])
async def test_orderly_shutdown_that_cuts_a_renewal_short_does_not_warn_of_a_lost_witness(
    own_server: Server, key: LockKey, caplog: pytest.LogCaptureFixture, is_group: bool
):
    times: dict[str, Any] = {"lease_s": 60.0, "health_interval_s": 0.3, "settle_s": 0.0}
    if is_group:
        group = make_group(own_server.dsn, [key], **times)
        async with group:
            await until(leads(group, 1))
            async with witness_that_does_not_answer(own_server, key, group._group.pair) as is_asked:
                group._group._renew_at = 0.0  # it would be due after a third of the lease
                group._group._news.set()
                await until(is_asked, 20)
                await group._group.close()  # as shutdown() does
    else:
        lock = LeaderLock(own_server.dsn, key=key, **times)
        async with lock:
            await until(lambda: lock.is_leader)
            backend: Any = lock._backend
            async with witness_that_does_not_answer(own_server, key, backend._pair) as is_asked:
                await until(is_asked, 20)
                await lock.shutdown(timeout_s=0.1)
    warned = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert not any("witness" in message for message in warned)


async def test_role_that_asks_only_after_the_next_session_was_opened_gets_the_cause_of_the_last_end(
    postgres: Postgres, names: list[str]
):
    """With thousands of roles some get to ask so late: their losses had no cause."""
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        member = group._group._members[LockKey.named(names[0])]
        late, held_then = member._held, group._group.pair.validity
        await terminate_holder(postgres.dsn, LockKey.named(names[0]))
        await until(lambda: len(group.leading) == 3 and group._group.pair.validity is not held_then)
        member._held, held_now = late, member._held
        told = await member.lost()
        member._held = held_now
    assert told is not None
    assert told.cause is LossCause.SESSION_TERMINATED


async def test_unread_notifications_do_not_hide_the_end_of_the_lock_session(postgres: Postgres, names: list[str]):
    """Any user of the database may notify, and the end lay unread behind what came before."""
    async with make_group(postgres.tcp_dsn, names, lease_s=15, health_interval_s=5) as group:
        await until(leads(group, 3))
        pids = [
            each.session.facts.session_pid for each in (group._group.pair._lock, group._group.pair._witness) if each
        ]
        with psycopg.connect(postgres.dsn, autocommit=True) as stranger:  # and the event loop is busy with all of this
            for number in range(1500):
                stranger.execute("SELECT pg_notify(%s, %s)", [CHANNEL, f"{number}".ljust(7900, "x")])
            stranger.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [pids])
            deadline = time.monotonic() + 5
            while group.leading and time.monotonic() < deadline:
                pass
        assert group.leading == []
        await until(leads(group, 3))


async def test_what_a_run_that_ended_has_left_is_not_handed_out_to_the_next(postgres: Postgres, names: list[str]):
    """Found by the simulation: a lock came after its run had left it; the next run led with it, and it was freed."""
    async with make_group(postgres.dsn, names) as group:
        await until(leads(group, 3))
        inner, key = group._group, LockKey.named(names[0])
        won = inner._members[key]._held
        inner._asking[key] = asked = asyncio.get_running_loop().create_future()
        inner._leaving[key] = asyncio.get_running_loop().create_future()
        inner._hand_out(key, won)
        assert asked.result() is None


class GroupSession(ModelSession):
    async def fetch(self, statement: str, parameters: Any = (), *, bound_s: float) -> Any:
        if "max_locks_per_transaction" in statement:
            return (1e9, 1)
        if "pg_notify" in statement:
            return ("",)
        return await super().fetch(statement, parameters, bound_s=bound_s)


@pytest.mark.virtual_time
async def test_a_group_whose_lock_session_ends_while_it_takes_witness_locks_back_says_so_at_once():
    """It leads one role and takes another, its witness session ends, and no new one answers."""
    lock, witness = GroupSession(), GroupSession(pid=101)
    sessions: list[GroupSession | None] = [lock, witness, None]

    async def open_session() -> GroupSession:
        session = sessions.pop(0)
        if session is None:
            await asyncio.get_running_loop().create_future()
        assert session is not None
        return session

    clock = asyncio.get_running_loop().time
    group = Group(open_session, Lease(MODEL_LEASE_S), clock, "the model", poll_s=1.0, renew_every_s=5.0)
    first, second = (group.member(LockKey.pair(1, number), {}) for number in (1, 2))
    await first.open()
    assert await first.try_acquire() is not None
    await second.open()
    await asyncio.sleep(0.1)
    lock.delay_s = 0.2
    asked = asyncio.ensure_future(second.try_acquire())
    await asyncio.sleep(0.1)
    witness.end(ConnectionError("gone", cause=LossCause.SESSION_TERMINATED))
    await asyncio.sleep(1)
    ended_at = clock()
    lock.end(ConnectionError("ended by hand", cause=LossCause.SESSION_TERMINATED))
    with pytest.raises(PgLeaderLockError, match="ended by hand"):
        await asked
    assert clock() < ended_at + 0.1
    await first.close()
    await second.close()
