"""The registry: what nodes write down of their elections, on a real PostgreSQL; and that no election waits for it."""

import asyncio
import contextlib
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from pgleaderlock import ConnectionError, Event, EventKind, LeaderLock, LockError, LockKey, LockState
from pgleaderlock.models import LossCause
from pgleaderlock.ops.registry import Registry
from pgleaderlock.ops.registry._outbox import Happening, Outbox
from pgleaderlock.ops.registry._pending_rows import Changes, PendingRows, Standing
from pgleaderlock.ops.registry._server_clock import ServerClock
from pgleaderlock.ops.registry._sql import statements
from pgleaderlock.ops.registry.asking import AskRefused
from pgleaderlock.ops.registry.audit import Line, audit, terms_of
from pgleaderlock.ops.registry.reading import Leader, RegistryReader, open_reader
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.lease import LEASE_S, query
from tests.support.postgres import terminate_holder
from tests.support.registry import BEAT_S, Node, drop, eventually, leader_of, reading, schema

__all__ = ["schema"]  # fixtures

BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%' || %s || '".leaders%%'
"""
HOLDER = """
SELECT pid FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND classid = %s AND objid = %s AND objsubid = 2
"""


async def test_a_registry_that_is_not_there_says_how_to_make_it(postgres: Postgres):
    with pytest.raises(ConnectionError, match=r"no registry in schema nowhere.*schema apply"):
        async with open_reader(postgres.dsn, "nowhere"):
            pass


async def events_of(reader: RegistryReader) -> list[tuple[str, str]]:
    return [(line.node, line.event) for line in await reader.history()]


# --- What it writes ---------------------------------------------------------------------------------------------------


async def test_the_leader_and_the_candidates_can_be_read(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        async with Node(postgres.dsn, schema, key, "two"), reading(postgres.dsn, schema) as reader:

            async def both() -> Any:
                (status,) = await reader.status()
                return status if len(status.candidates) == 2 and status.leader else None

            status = await eventually(both)
            leader = status.leader
            assert (status.role, status.lock) == ("scheduler", str(key))
            assert (leader.node, leader.token, leader.about) == ("one", one.lock.token, {"zone": "eu-1"})
            assert leader.process_id == os.getpid()
            assert leader.is_alive
            assert leader.lease_until > leader.renewed_at >= leader.acquired_at
            assert leader.backend_pid == (await query(postgres.dsn, HOLDER, *key.numbers))[0][0]
            assert [(each.node, each.state, each.is_alive) for each in status.candidates] == [
                ("one", "leader", True),
                ("two", "follower", True),
            ]


async def test_the_heir_and_the_next_heir_can_be_read_and_a_dead_heir_is_none(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one, reading(postgres.dsn, schema) as reader:

        async def places() -> dict[str, str | None]:
            (status,) = await reader.status()
            assert all(each.state == "follower" for each in status.candidates if each.place)
            return {each.node: each.place for each in status.candidates}

        await one.lock.wait_for_leadership()
        async with Node(postgres.dsn, schema, key, "two") as two:
            await until(lambda: two.lock.place == "heir")
            async with Node(postgres.dsn, schema, key, "three") as three:
                await until(lambda: three.lock.place == "next heir")
                async with Node(postgres.dsn, schema, key, "four"):

                    async def are_written() -> bool:
                        return await places() == {"one": None, "two": "heir", "three": "next heir", "four": None}

                    await eventually(are_written)
            async with Node(postgres.dsn, schema, key, "five") as five:
                await until(lambda: five.lock.place == "next heir")
                await one.lock.step_down()
                await two.lock.wait_for_leadership()

                async def is_passed_on() -> bool:
                    found = await places()
                    return (found["two"], found["five"]) == (None, "heir")

                await eventually(is_passed_on)
    name = f'"{schema}"'
    async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
        for table, values in (
            ("nodes", "gen_random_uuid(), 'gone', 'h', 1, '0', '{}', now(), now() - interval '1 hour', 1"),
            ("candidates", f"(SELECT instance FROM {name}.nodes), 'l', 'r', 'heir', now()"),
        ):
            await connection.execute(f"INSERT INTO {name}.{table} VALUES ({values})".encode())
    async with reading(postgres.dsn, schema) as reader:
        ((dead,),) = [each.candidates for each in await reader.status("l")]
        assert (dead.state, dead.place, dead.is_alive) == ("follower", None, False)


async def test_a_renewal_shows(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one") as one, contextlib.AsyncExitStack() as stack:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up)
        reader = await stack.enter_async_context(reading(postgres.dsn, schema))
        first = await eventually(lambda: leader_of(reader))

        async def later() -> Any:
            leader = await leader_of(reader)
            return leader.renewed_at > first.renewed_at and leader.lease_until > first.lease_until

        await eventually(later)


async def test_a_graceful_hand_over_clears_the_row_and_the_history_has_both_terms(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        first = one.lock.token
        async with Node(postgres.dsn, schema, key, "two") as two:
            await until(lambda: two.lock.state is LockState.FOLLOWER)
            await one.lock.shutdown()
            await two.lock.wait_for_leadership()
            async with reading(postgres.dsn, schema) as reader:
                await eventually(lambda: _has(reader, ("one", "released"), ("two", "acquired")))
                assert (await leader_of(reader)).node == "two"
                lines = await reader.history()
                assert {line.token for line in lines if line.node == "one" and line.event != "stopped"} == {first}
                (found,) = audit(lines, since=lines[0].at, until=await reader.now())
                assert [term.node for term in found.terms] == ["one", "two"]
                assert found.overlaps == []
                assert found.failovers == {"released": 1}
    async with reading(postgres.dsn, schema) as reader:
        await eventually(lambda: _has(reader, ("two", "released")))
        (left,) = await reader.status()
        assert (left.role, left.leader, left.last_leader, left.candidates) == ("scheduler", None, None, [])
        assert left.is_closed


async def _has(reader: RegistryReader, *wanted: tuple[str, str]) -> bool:
    return set(wanted) <= set(await events_of(reader))


async def test_a_loss_is_written_with_its_cause(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await terminate_holder(postgres.dsn, key)
        async with reading(postgres.dsn, schema) as reader:
            await eventually(lambda: _has(reader, ("one", "lost")))
            (lost,) = [line for line in await reader.history() if line.event == "lost"]
            assert lost.cause == "session_terminated"


async def test_of_a_leader_that_died_its_successor_writes_when_it_was_seen_last(
    postgres: Postgres, schema: str, key: LockKey
):
    """A process that is killed writes nothing more: here its registry is, before its lock goes."""
    one = Node(postgres.dsn, schema, key, "one")
    await one.registry.start()
    await one.lock.start()
    await one.lock.wait_for_leadership()
    async with Node(postgres.dsn, schema, key, "two") as two:
        await until(lambda: two.registry.is_up)
        async with reading(postgres.dsn, schema) as reader:

            async def one_leads() -> bool:
                leader = await leader_of(reader)
                return leader is not None and leader.node == "one"

            await eventually(one_leads)
            task = one.registry._task
            assert task is not None
            task.cancel()
            await asyncio.wait({task})
            await one.lock.shutdown()
            await two.lock.wait_for_leadership(10)
            await eventually(lambda: _has(reader, ("one", "vanished")))
            (found,) = audit(await reader.history(), since=0, until=await reader.now())
            assert [(term.node, term.end) for term in found.terms[-2:]] == [("one", "vanished"), ("two", None)]
            assert found.overlaps == []
            (status,) = await reader.status()
            states = {each.node: each.state for each in status.current_candidates}
            assert states.get("one") == "follower", "it has not signed off: it is shown, as dead once it is silent"


async def test_that_a_node_leads_is_written_together_with_the_beginning_of_its_term(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """Also if it is elected while the registry is being opened: killed in between, its term would have no beginning."""
    node = Node(postgres.dsn, schema, key, "one")
    open_database, find_work = node.registry._open, node.registry._work_for
    written = []

    async def open_slowly() -> None:
        await open_database()
        await node.lock.start()
        assert await node.lock.wait_for_leadership(20)

    def find_work_and_note(changes: Changes, batch: list[Happening]) -> list[Any]:
        written.append((changes.led, [each.event for each in batch]))
        return find_work(changes, batch)

    monkeypatch.setattr(node.registry, "_open", open_slowly)
    monkeypatch.setattr(node.registry, "_work_for", find_work_and_note)
    await node.registry.start()
    await until(lambda: any(led for led, _ in written), 20)
    monkeypatch.undo()
    assert next(events for led, events in written if led) == ["acquired"]
    await node.lock.shutdown()
    await node.registry.close()


async def test_a_late_writer_does_not_overwrite_its_successor(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "two") as two:
        await two.lock.wait_for_leadership()
        async with reading(postgres.dsn, schema) as reader:
            await eventually(lambda: leader_of(reader))
            late = Registry(postgres.dsn, node="late", schema=schema, heartbeat_s=BEAT_S)
            late.attach(two.lock, role="scheduler")
            standing = late._pending.standings[str(key)]
            standing.acquired_at, standing.token = 1.0, (two.lock.token or 0) - 1
            await late.start()
            await until(lambda: late.is_up)
            assert (await leader_of(reader)).node == "two"
            await late.close()


async def test_a_process_that_comes_back_is_another_instance(postgres: Postgres, schema: str, key: LockKey):
    names = {Registry(postgres.dsn, node="one", schema=schema).instance for _ in range(2)}
    assert len(names) == 2


async def test_an_election_that_is_attached_while_it_leads_is_written_as_it_is(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one, contextlib.AsyncExitStack() as stack:
        await one.lock.wait_for_leadership()
        late = Registry(postgres.dsn, node="late", schema=f"{schema}_late", heartbeat_s=BEAT_S)
        late.attach(one.lock, role="scheduler")
        stack.push_async_callback(asyncio.to_thread, drop, postgres.dsn, late.schema)
        await stack.enter_async_context(late)
        await until(lambda: late.is_up)
        reader = await stack.enter_async_context(reading(postgres.dsn, late.schema))
        (status,) = await reader.status()
        assert (status.leader.node, status.leader.token) == ("late", one.lock.token)  # type: ignore[union-attr]
        assert [each.state for each in status.candidates] == ["leader"]


# --- Whatever happens to it, elections go on --------------------------------------------------------------------------


@pytest.mark.slow
async def test_election_goes_on_while_the_registry_database_is_down_and_the_events_are_written_later(
    postgres: Postgres, own_server: Server, schema: str, key: LockKey, caplog
):
    caplog.set_level(logging.INFO, logger="pgleaderlock")
    registry = Registry(own_server.dsn, node="one", schema=schema, heartbeat_s=BEAT_S)
    lock = LeaderLock(postgres.dsn, key=key, lease_s=LEASE_S, health_interval_s=0.3, settle_s=0)
    registry.attach(lock, role="scheduler")
    async with registry:
        await lock.start()
        await until(lambda: registry.is_up)
        await asyncio.to_thread(own_server.stop, "immediate")
        await until(lambda: not registry.is_up)
        tokens = []
        for _ in range(3):
            await lock.wait_for_leadership()
            tokens.append(lock.token)
            await lock.step_down()
        assert registry.waiting_events > 0
        await asyncio.to_thread(own_server.start)
        await until(lambda: registry.is_up and not registry.waiting_events)
        async with reading(own_server.dsn, schema) as reader:
            acquired = [line.token for line in await reader.history() if line.event == "acquired"]
        assert acquired[-4:-1] == tokens[-3:] or acquired[-3:] == tokens
        assert registry.dropped_events == 0
        await lock.shutdown()
    assert caplog.text.count("registry_down") == 1  # once, however often it is tried
    assert "registry_up" in caplog.text


async def test_tables_that_were_dropped_are_made_again(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        await asyncio.to_thread(drop, postgres.dsn, schema)
        await one.lock.step_down()
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        async with reading(postgres.dsn, schema) as reader:
            assert (await leader_of(reader)).node == "one"
            assert ("one", "acquired") in await events_of(reader)
        assert one.lock.is_leader


async def test_registry_that_never_answers_does_not_keep_an_election_from_stopping(postgres: Postgres, key: LockKey):
    registry = Registry("postgresql://nobody@127.0.0.1:1/x", node="one")
    lock = LeaderLock(postgres.dsn, key=key, lease_s=LEASE_S, health_interval_s=0.3, settle_s=0)
    registry.attach(lock)
    async with asyncio.timeout(10):
        async with registry, lock:
            await lock.wait_for_leadership()
            assert not registry.is_up


async def test_a_password_is_in_no_log_line(postgres: Postgres, key: LockKey, caplog):
    registry = Registry("postgresql://nobody:hush-hush@127.0.0.1:1/x", node="one")
    async with registry:
        await until(lambda: "registry_down" in caplog.text)
    assert "hush" not in caplog.text


async def test_one_lock_is_attached_once(postgres: Postgres, key: LockKey):
    registry = Registry(postgres.dsn)
    lock = LeaderLock(postgres.dsn, key=key)
    registry.attach(lock)
    with pytest.raises(ValueError, match="attached to this registry already"):
        registry.attach(lock)


# --- Asked by an operator ---------------------------------------------------------------------------------------------


async def test_a_leader_that_is_asked_to_hands_over(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up)
        async with Node(postgres.dsn, schema, key, "two") as two, reading(postgres.dsn, schema) as reader:
            await until(lambda: two.registry.is_up and two.lock.state is LockState.FOLLOWER)
            await eventually(lambda: leader_of(reader))
            await reader.ask_to_step_down(str(key), "ops")
            await two.lock.wait_for_leadership(10)
            assert two.lock.is_leader
            await eventually(lambda: _has(reader, ("one", "step_down_asked"), ("one", "released"), ("two", "acquired")))
            with pytest.raises(AskRefused, match="no node leads bigint:5, as far as the registry shows"):
                await reader.ask_to_step_down("bigint:5", "ops")


async def test_leader_that_signs_off_at_this_moment_has_not_vanished_and_stays_a_candidate(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one, reading(postgres.dsn, schema) as reader:
        leader = await eventually(lambda: leader_of(reader))
        await one.registry.close()  # what it would write is written by hand
        row = {"lock": str(key), "role": "scheduler", "state": "follower", "since": leader.acquired_at}
        by = {"instance": leader.instance, "locks": [str(key)], "rows": json.dumps([row])}
        sql = statements(schema)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as old:
            await old.execute(sql["clear"].encode(), by)
            await old.execute(sql["stand"].encode(), by)
            async with Node(postgres.dsn, schema, key, "two"):
                await one.lock.step_down()
                await eventually(lambda: _answers(postgres.dsn, BLOCKED, schema))  # the heir writes, and waits
                await old.commit()
                heir = await eventually(lambda: leader_of(reader))
                assert heir.node == "two"
                assert "vanished" not in {line.event for line in await reader.history()}
                candidates = await query(postgres.dsn, f'SELECT instance::text, state FROM "{schema}".candidates')
                assert (leader.instance, "follower") in candidates


@contextlib.asynccontextmanager
async def _writes_late(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """A registry that writes nothing until the event is set. What it has begun to write is written before."""
    write, may_write, is_held_back = registry._write, asyncio.Event(), asyncio.Event()

    async def write_late() -> None:
        is_held_back.set()
        await may_write.wait()
        await write()

    monkeypatch.setattr(registry, "_write", write_late)
    try:
        await is_held_back.wait()
        yield may_write
    finally:
        may_write.set()


async def test_the_end_that_a_leader_writes_after_its_successor_takes_the_place_of_vanished(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    async with Node(postgres.dsn, schema, key, "one") as one, reading(postgres.dsn, schema) as reader:
        await eventually(lambda: leader_of(reader))
        async with Node(postgres.dsn, schema, key, "two") as two:
            await until(lambda: two.registry.is_up and two.lock.state is LockState.FOLLOWER)
            async with _writes_late(one.registry, monkeypatch) as may_write:
                await one.lock.step_down()
                await two.lock.wait_for_leadership(10)
                await eventually(lambda: _has(reader, ("two", "acquired"), ("one", "vanished")))
                may_write.set()
                await eventually(lambda: _has(reader, ("one", "released")))
            assert ("one", "vanished") not in await events_of(reader)
            (found,) = audit(await reader.history(), since=0, until=await reader.now())
            assert found.failovers == {"released": 1}


@pytest.mark.parametrize("leads_again", [False, True])
async def test_a_leader_that_writes_its_end_while_its_successor_writes_has_not_vanished(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch, leads_again: bool
):
    """What the successor would write is written by hand, and committed when the leader waits for it."""
    async with Node(postgres.dsn, schema, key, "one") as one, reading(postgres.dsn, schema) as reader:
        leader = await eventually(lambda: leader_of(reader))
        async with _writes_late(one.registry, monkeypatch) as may_write:
            await (one.lock.step_down() if leads_again else one.lock.shutdown())
            if leads_again:
                await one.lock.wait_for_leadership(10)
            async with await psycopg.AsyncConnection.connect(postgres.dsn) as successor:
                await _replace_leader(successor, schema, str(key), leader)
                may_write.set()
                await eventually(lambda: _answers(postgres.dsn, BLOCKED, schema))
                assert not await _has(reader, ("one", "released"))
                await successor.commit()
            await eventually(lambda: _has(reader, ("one", "released")))
        assert ("one", "vanished") not in await events_of(reader)


async def _replace_leader(connection: psycopg.AsyncConnection, schema: str, lock: str, leader: Leader) -> None:
    """Write that another node leads now, and do not commit."""
    sql, at = statements(schema), leader.renewed_at
    row = {"lock": lock, "role": "scheduler", "token": leader.token, "at": at, "renewed": at, "until": at}
    node = {"instance": str(uuid.uuid4()), "node": "two", "host": "h", "process_id": 1, "version": "", "about": "{}"}
    await connection.execute(sql["await"].encode(), {"locks": [lock]})
    await connection.execute(sql["lead"].encode(), {**node, "rows": json.dumps([row])})
    rows = await connection.execute(f'SELECT event FROM "{schema}".history WHERE number IS NULL'.encode())
    assert await rows.fetchall() == [("vanished",)]


async def _answers(dsn: str, statement: str, *parameters: Any) -> bool:
    return bool((await query(dsn, statement, *parameters))[0][0])


async def test_an_ask_that_comes_during_a_write_does_not_wait_for_the_next_heartbeat(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    async with Node(postgres.dsn, schema, key, "one") as one, reading(postgres.dsn, schema) as reader:
        await eventually(lambda: leader_of(reader))
        database = one.registry._database
        asked = asyncio.Event()

        async def write_and_be_asked() -> None:
            if not asked.is_set():
                await reader.ask_to_step_down(str(key), "ops")
                while not database._heard:
                    await database.fetch("SELECT 1")
                asked.set()

        monkeypatch.setattr(one.registry, "_heartbeat_s", 3600.0)
        monkeypatch.setattr(one.registry, "_beat", write_and_be_asked)
        assert one.registry._news is not None
        one.registry._news.set()
        await eventually(lambda: _has(reader, ("one", "step_down_asked"), ("one", "released")))


@pytest.mark.parametrize(
    "payload",
    ["", "{", "[]", "7", '{"ask": "step_down"}', '{"ask": 1, "schema": 2, "lock": {}}', "[" * 7990],
)
async def test_step_down_request_that_cannot_be_parsed_is_ignored(
    postgres: Postgres, schema: str, key: LockKey, payload: str
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up)
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_notify('pgleaderlock_ask', %s)", (payload,))
        async with reading(postgres.dsn, schema) as reader:
            before = await eventually(lambda: leader_of(reader))

            async def beaten() -> bool:
                return bool((await leader_of(reader)).renewed_at > before.renewed_at)

            await eventually(beaten)
        assert one.lock.is_leader


@pytest.mark.parametrize("by", ["\0", "\ud800", "\x1b[31m"])
async def test_step_down_request_in_a_hostile_name_is_received_and_recorded(
    postgres: Postgres, schema: str, key: LockKey, by: str
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up)
        async with reading(postgres.dsn, schema) as reader:
            await eventually(lambda: leader_of(reader))
            await reader.ask_to_step_down(str(key), by)
            await eventually(lambda: _has(reader, ("one", "step_down_asked"), ("one", "released")))


@pytest.mark.parametrize(
    "settings",
    [
        {"node": "a\0b"},
        {"node": "a\ud800"},
        {"node": ""},
        {"about": {"x": float("nan")}},
        {"about": {"x": "\0"}},
        {"about": {"x": "\ud800"}},
        {"about": {"x": "y" * 70000}},
        {"about": {"x": object()}},
        {"schema": 'a"; DROP TABLE x; --'},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_could_never_be_written_is_refused_at_once(settings: dict[str, Any]):
    if settings == {"node": ""}:
        assert Registry("postgresql://x/x", **settings).node  # its own name
        return
    with pytest.raises(ValueError, match=r"node|about|schema"):
        Registry("postgresql://x/x", **settings)


async def test_at_most_one_session_waits_for_a_locked_table(postgres: Postgres, schema: str, key: LockKey, monkeypatch):
    limits = "SELECT set_config('lock_timeout', '200ms', false)"
    monkeypatch.setattr("pgleaderlock.ops.registry._database.Database.LIMITS", limits)
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        async with await psycopg.AsyncConnection.connect(postgres.dsn) as somebody:
            await somebody.execute(f'LOCK TABLE "{schema}".history, "{schema}".nodes')
            await one.lock.step_down()
            await until(lambda: not one.registry.is_up)
            await asyncio.sleep(1.5)
            waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
            assert (await query(postgres.dsn, waiting, f'"{schema}".history'))[0][0] <= 1
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)


async def test_silent_leader_is_replaced_in_the_registry_whatever_its_token(
    postgres: Postgres, schema: str, key: LockKey
):
    """As when the cluster of the locks was made anew, and tokens began anew with it."""
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        foreign = "UPDATE \"{}\".leaders SET instance = gen_random_uuid(), node = 'old', token = token + 1000000"
        await query(postgres.dsn, foreign.format(schema) + " RETURNING 1")
        await one.lock.step_down()
        async with reading(postgres.dsn, schema) as reader:

            async def one_leads() -> bool:
                leader = await leader_of(reader)
                return leader is not None and leader.node == "one"

            await eventually(one_leads)


async def test_node_that_does_not_accept_step_down_requests_does_not_listen_for_them(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one", accept_asks=False) as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up)
        async with reading(postgres.dsn, schema) as reader:
            before = await eventually(lambda: leader_of(reader))
            await reader.ask_to_step_down(str(key), "ops")

            async def beaten() -> bool:
                return bool((await leader_of(reader)).renewed_at > before.renewed_at)

            await eventually(beaten)
        assert one.lock.is_leader


# --- Retention --------------------------------------------------------------------------------------------------------


async def test_the_leader_forgets_what_is_too_old(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one", keep_days=2) as one:
        await until(lambda: one.registry.is_up)
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            for days in (1, 3):
                connection.execute(
                    f'INSERT INTO "{schema}".history (lock, role, node, instance, event, at, within_s)'
                    " VALUES (%s, 'x', 'old', gen_random_uuid(), 'acquired', now() - make_interval(days => %s), 0)",
                    (str(key), days),
                )
        one.registry._pruned_at = float("-inf")
        await one.lock.wait_for_leadership()

        async def one_is_left() -> bool:
            rows = await query(postgres.dsn, f"SELECT count(*) FROM \"{schema}\".history WHERE node = 'old'")
            return bool(rows[0][0] == 1)

        await eventually(one_is_left)


# --- The outbox -------------------------------------------------------------------------------------------------------


def happening(event: str) -> Happening:
    return Happening("lock", "role", event, 1.0)


def test_an_outbox_that_is_full_forgets_the_oldest_and_says_how_many():
    outbox = Outbox(3)
    for name in "abcde":
        outbox.put(happening(name))
    batch = outbox.take(2)
    assert [(each.event, each.number, each.missing) for each in batch] == [("c", 3, 2), ("d", 4, 0)]
    assert outbox.dropped == 2
    assert [each.missing for each in outbox.take(2)] == [0]


def test_what_could_not_be_written_is_in_the_outbox_again_and_so_is_what_was_missing():
    outbox = Outbox(3)
    for name in "abcd":
        outbox.put(happening(name))
    outbox.put_back(outbox.take(2))
    outbox.put(happening("e"))
    assert [(each.event, each.missing) for each in outbox.take(9)] == [("c", 2), ("d", 0), ("e", 0)]


# --- The pending
# ---------------------------------------------------------------------------------------------------------


def told(kind: EventKind, at: float, **more: Any) -> Event:
    source, to = more.pop("states", (LockState.LEADER, LockState.FOLLOWER))
    return Event(kind, source, to, more.pop("cause", "cause"), at, token=7, **more)


def written(*events: Event) -> list[tuple[str, float]]:
    pending, standing = PendingRows(100), Standing("lock", "role", None, Mock())
    pending.standings["lock"] = standing
    for event in events:
        pending.hear(standing, event)
    return [(happening.event, happening.at) for happening in pending.outbox.take(100)]


def test_term_of_a_leader_that_slept_past_its_deadline_ends_at_the_deadline_and_not_at_the_wake_up():
    acquired = told(EventKind.ACQUIRED, 10.0)
    lost = told(EventKind.LOST, 90.0, cause=LossCause.STALLED, trusted_until=23.5)
    assert written(acquired, lost) == [("acquired", 10.0), ("lost", 23.5)]


def test_term_of_a_leader_that_was_notified_in_time_ends_at_the_notification():
    acquired = told(EventKind.ACQUIRED, 10.0)
    lost = told(EventKind.LOST, 12.0, cause=LossCause.SESSION_TERMINATED, trusted_until=23.5)
    assert written(acquired, lost) == [("acquired", 10.0), ("lost", 12.0)]


def test_the_history_keeps_its_words_and_has_no_attempts_that_failed():
    failed = told(EventKind.WORK_FAILED, 3.0, cause="work_failed", error=LockError("mine"))
    events = [
        told(EventKind.ATTEMPT_FAILED, 1.0, cause="db_error", error=LockError("away")),
        told(EventKind.CALLBACK_FAILED, 2.0, cause="callback_failed", error=LockError("theirs")),
        failed,
        replace(failed, at=4.0),
        told(EventKind.ERROR, 5.0, cause="health_failed", error=LockError("away")),
        told(EventKind.LOST, 6.0, cause=LossCause.SILENCED),
    ]
    pending, standing = PendingRows(100), Standing("lock", "role", None, Mock())
    pending.standings["lock"] = standing
    for event in events:
        pending.hear(standing, event)
    rows = [(row.event, row.at, row.cause) for row in pending.outbox.take(100)]
    assert rows == [("error", 3.0, "work_failed"), ("error", 5.0, "health_failed"), ("lost", 6.0, "silenced")]


def test_release_counts_from_when_it_began_because_leadership_is_not_valid_from_then_on():
    events = [
        told(EventKind.ACQUIRED, 10.0),
        told(EventKind.STATE_CHANGE, 20.0, states=(LockState.LEADER, LockState.RELEASING), trusted_until=30.0),
        told(EventKind.RELEASED, 21.0, trusted_until=30.0),
    ]
    assert written(*events) == [("acquired", 10.0), ("released", 20.0)]


def test_reconnecting_ends_the_term_no_later_than_its_validity():
    states = (LockState.LEADER, LockState.RECONNECTING)
    events = [told(EventKind.ACQUIRED, 10.0), told(EventKind.STATE_CHANGE, 40.0, states=states, trusted_until=23.5)]
    assert written(*events) == [("acquired", 10.0), ("reconnecting", 23.5)]


# --- The server's clock -----------------------------------------------------------------------------------------------


def test_the_shortest_round_trip_knows_best():
    clock = ServerClock()
    assert not clock.is_known
    clock.note(10.0, 11.0, 1000.0)
    assert clock.at(10.5) == 1000.0
    assert clock.within_s(11.0) == 0.5
    clock.note(12.0, 12.2, 1001.8)
    assert clock.at(12.1) == pytest.approx(1001.8)
    clock.note(13.0, 15.0, 1004.0)
    assert clock.at(12.1) == pytest.approx(1001.8)
    assert clock.within_s(12.2) == pytest.approx(0.1)


def test_server_clock_that_was_set_is_used_as_it_is():
    clock = ServerClock()
    clock.note(10.0, 10.1, 1000.0)
    clock.note(20.0, 21.0, 5000.0)
    assert clock.at(20.5) == 5000.0


def test_older_clock_reading_gives_way_to_a_less_precise_newer_one():
    clock = ServerClock()
    clock.note(10.0, 10.1, 1000.0)
    clock.note(5000.0, 5000.3, 5989.95)
    assert clock.at(5000.15) == pytest.approx(5989.95)


# --- The audit --------------------------------------------------------------------------------------------------------


def line(event: str, at: float, node: str = "a", token: int = 1, **more: Any) -> Line:
    return Line("lock", "role", node, f"instance of {node}", event, more.pop("cause", None), token, at, **more)


HAND_OVER = [line("acquired", 10), line("released", 20), line("acquired", 21, "b", 2)]


def test_a_history_of_hand_overs_has_terms_and_a_gap():
    (found,) = audit(HAND_OVER, since=0, until=31)
    assert [(term.node, term.began_at, term.ended_at) for term in found.terms] == [("a", 10, 20), ("b", 21, None)]
    assert found.leaderless_s == 1
    assert found.failovers == {"released": 1}
    assert found.overlaps == []
    assert found.availability == pytest.approx(1 - 1 / 31)


def test_two_terms_at_once_are_an_overlap_of_as_much_as_is_certain():
    lines = [line("acquired", 10), line("acquired", 15, "b", 2, within_s=1.0), line("lost", 20, within_s=0.5)]
    (found,) = audit(lines, since=0, until=30)
    assert [(each.first.node, each.second.node, each.lasted_s) for each in found.overlaps] == [("a", "b", 3.5)]


def test_what_the_clocks_leave_open_is_no_overlap():
    lines = [line("acquired", 10), line("acquired", 19.999, "b", 2, within_s=0.002), line("released", 20)]
    assert audit(lines, since=0, until=30)[0].overlaps == []


def test_a_short_term_inside_another_is_an_overlap_too():
    lines = [line("acquired", 10), line("acquired", 12, "b", 2), line("lost", 13, "b", 2), line("lost", 20)]
    assert [each.lasted_s for each in audit(lines, since=0, until=30)[0].overlaps] == [1]


def test_a_leader_that_vanished_is_taken_to_have_ended_when_it_was_seen_last():
    lines = [line("acquired", 10), line("vanished", 14), line("acquired", 20, "b", 2)]
    (found,) = audit(lines, since=0, until=30)
    assert found.terms[0].ended_at == 14
    assert found.leaderless_s == 6
    assert found.failovers == {"vanished": 1}


def test_leader_s_own_report_counts_for_more_than_the_report_that_it_vanished():
    lines = [
        line("acquired", 10),
        line("vanished", 14),
        line("lost", 17, cause="stalled"),
        line("acquired", 20, "b", 2),
    ]
    (found,) = audit(lines, since=0, until=30)
    assert (found.terms[0].ended_at, found.terms[0].end) == (17, "lost")
    assert found.failovers == {"lost:stalled": 1}


def test_a_leader_that_comes_back_to_itself_is_no_failover():
    lines = [
        line("acquired", 10),
        line("reconnecting", 12),
        line("recovered", 13, token=2),
        line("released", 20, token=2),
    ]
    (found,) = audit(lines, since=10, until=20)
    assert found.failovers == {}
    assert found.leaderless_s == 1


def test_a_term_that_began_before_the_time_in_question_counts_from_its_beginning():
    (found,) = audit(HAND_OVER, since=15, until=31)
    assert found.leaderless_s == 1
    assert len(found.terms) == 2


def test_missing_events_are_counted():
    (found,) = audit([*HAND_OVER, line("error", 25, missing=7)], since=0, until=30)
    assert found.missing == 7


def test_lock_that_was_never_held_has_no_terms():
    assert terms_of([line("error", 3), line("stopped", 4)]) == []
    (found,) = audit([line("stopped", 4)], since=0, until=10)
    assert found.leaderless_s == 10


# --- A registry that is closed first ----------------------------------------------------------------------------------


async def test_a_registry_that_is_closed_before_its_lock_says_until_when_it_knew(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        token = one.lock.token
        await one.registry.close()
        assert one.lock.is_leader  # the registry does not affect the lock
        await asyncio.sleep(0.3)
    async with Node(postgres.dsn, schema, key, "two") as two:
        await two.lock.wait_for_leadership()
        await until(lambda: two.registry.is_up and not two.registry.waiting_events)
        async with reading(postgres.dsn, schema) as reader:
            lines, now = await reader.lines_for_audit(), await reader.now()
            assert await reader.open_before(since=now)
    assert ("unwatched", token) in [(line.event, line.token) for line in lines]
    (found,) = audit(lines, since=lines[0].at, until=now)
    assert [term.end for term in found.terms] == ["unwatched", None]
    assert found.overlaps == []
    assert found.leaderless_s == 0
    assert found.unknown_s > 0.2
    assert found.availability == 1
    assert found.failovers == {"unwatched": 1}


async def test_a_registry_that_is_started_again_says_how_the_term_ended_after_all(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        await one.registry.close()
        await one.registry.start()
    async with reading(postgres.dsn, schema) as reader:
        lines, now = await reader.lines_for_audit(), await reader.now()
    assert "unwatched" in [line.event for line in lines]
    (found,) = audit(lines, since=lines[0].at, until=now)
    assert [term.end for term in found.terms] == ["released"]
    assert found.unknown_s == 0


def test_unobserved_time_counts_neither_as_led_nor_as_leaderless():
    def line(event: str, at: float, node: str = "a", token: int = 1) -> Line:
        return Line("l", "r", node, node, event, None, token, at)

    lines = [line("acquired", 0), line("unwatched", 10), line("vanished", 12), line("acquired", 20, "b", 2)]
    (found,) = audit([*lines, line("released", 30, "b", 2)], since=0, until=40)
    assert (found.leaderless_s, found.unknown_s, found.overlaps) == (10, 10, [])
    assert found.availability == pytest.approx(2 / 3)
    (found,) = audit(lines[:2], since=0, until=40)
    assert (found.leaderless_s, found.unknown_s, found.availability) == (0, 30, 1)
    (found,) = audit([lines[0], line("unwatched", 25), *lines[3:]], since=0, until=40)
    assert [overlap.lasted_s for overlap in found.overlaps] == [5]  # until then it knew
