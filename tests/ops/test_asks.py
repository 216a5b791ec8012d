"""Who may ask a leader to step down, on a real PostgreSQL with roles that may and roles that may not."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgleaderlock import ConnectionError, Event, EventKind, LeaderLock, LockError, LockKey, LockState
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.ops.dashboard import RegistrySource
from pgleaderlock.ops.registry import Registry
from pgleaderlock.ops.registry._ask_inbox import MARK, Ask, SessionInbox, TableInbox, nominee_in, read_claim
from pgleaderlock.ops.registry._asks import Verdict, judge
from pgleaderlock.ops.registry._database import Database, Notification
from pgleaderlock.ops.registry._sql import ASK_CHANNEL
from pgleaderlock.ops.registry.asking import Answer, AskRefused, Target
from pgleaderlock.ops.registry.reading import RegistryReader, open_reader
from pgleaderlock.postgres import nomination
from pgleaderlock.postgres._dsn import one_line
from pgleaderlock.postgres._schema import make_tables
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.json_shapes import assert_shape, documented
from tests.support.operators import records, run_beside
from tests.support.registry import Node, eventually, leader_of, reading, schema

__all__ = ["schema"]  # the fixture

_numbers = itertools.count(1)
NASTY = "ops\nCRITICAL forged line\x1b[2J\u202eecila\x00"


class Roles:
    """Database roles for one test alone."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._made: list[str] = []
        self.owner = psycopg.connect(dsn, autocommit=True)

    def make(self, name: str, more: str = "") -> str:
        """Make a role that may log in; return its connection string."""
        role = f"{name}_{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'secret-of-{role}' {more}")
        self._made.append(role)
        return make_conninfo(self._dsn, user=role, password=f"secret-of-{role}")

    def execute(self, statement: str) -> None:
        self.owner.execute(statement.encode())

    def drop(self) -> None:
        with self.owner:
            for role in reversed(self._made):
                self.execute(f'DROP OWNED BY "{role}" CASCADE')
                self.execute(f'DROP ROLE "{role}"')


def name_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["user"])


@pytest.fixture
def roles(postgres: Postgres) -> Iterator[Roles]:
    made = Roles(postgres.tcp_dsn)
    yield made
    made.drop()


UNDISTURBED_S = 20.0
"""A lease that a busy machine does not lose: for tests in which nothing must happen."""


@contextlib.asynccontextmanager
async def leading(dsn: str, schema: str, key: LockKey, **settings: Any) -> AsyncIterator[tuple[Node, RegistryReader]]:
    """A node that leads, and its registry as its own database role sees it."""
    async with Node(dsn, schema, key, "one", **settings) as one, reading(dsn, schema) as reader:
        await eventually(lambda: leader_of(reader))
        yield one, reader


async def granted(postgres: Postgres, schema: str, roles: Roles, *, operator: str | None = None) -> str:
    """Return the connection string of a role that may take part in elections, and owns nothing."""
    app = roles.make("app")
    await make_tables(postgres.dsn, schema, name_of(app), None if operator is None else name_of(operator))
    return app


async def granted_by_an_earlier_version(postgres: Postgres, schema: str, roles: Roles) -> str:
    app = await granted(postgres, schema, roles)
    roles.execute(f'DROP TABLE "{schema}".asks')
    return app


def forged(schema: str, key: LockKey, **more: Any) -> str:
    """What 0.1.0 obeyed, from any sender."""
    return json.dumps({"ask": "step_down", "schema": schema, "lock": str(key), "by": "the boss", **more})


async def notify(connection: psycopg.AsyncConnection[Any], payload: str) -> None:
    await connection.execute("SELECT pg_notify(%s, %s)", (ASK_CHANNEL, payload))


async def beaten(reader: RegistryReader, count: int = 3) -> None:
    """Wait for so many signs of life of the leader's registry."""
    for _ in range(count):
        before = await eventually(lambda: leader_of(reader))

        async def is_newer(before: Any = before) -> bool:
            leader = await leader_of(reader)
            return leader is not None and leader.renewed_at > before.renewed_at

        await eventually(is_newer)


async def asked_in(reader: RegistryReader, event: str = "step_down_asked") -> list[str | None]:
    return [line.detail for line in await reader.history() if line.event == event]


async def answer_of(dsn: str, schema: str, key: LockKey, **more: Any) -> tuple[str, Answer]:
    """Ask, and stay until it is answered; return also the role that asked."""
    async with open_reader(dsn, schema) as asker:
        leader = await leader_of(asker)
        asked = await asker.ask_to_step_down(str(key), "ops@laptop", **{"leader": leader, **more})
        answer = await asker.wait_for_answer(asked, 20)
        assert answer is not None
        return asked.by, answer


# --- With the table ---------------------------------------------------------------------------------------------------


async def test_stranger_who_can_only_notify_cannot_depose_a_leader(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    stranger = roles.make("stranger")
    async with leading(postgres.dsn, schema, key, lease_s=UNDISTURBED_S) as (one, reader):
        token = one.lock.token
        async with await psycopg.AsyncConnection.connect(stranger, autocommit=True) as connection:
            for number in range(50):
                await notify(connection, forged(schema, key, n=number))
                await asyncio.sleep(0.01)
            await beaten(reader)
        assert (one.lock.is_leader, one.lock.token) == (True, token)
        assert await asked_in(reader) == []


async def test_operator_is_obeyed_and_the_server_says_who_asked(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    operator = roles.make("operator")
    app = await granted(postgres, schema, roles, operator=operator)
    async with leading(app, schema, key) as (one, reader):
        token = one.lock.token
        by, answer = await answer_of(operator, schema, key, reason="kernel update")
        assert (by, answer) == (name_of(operator), Answer(is_obeyed=True, node="one"))
        await until(lambda: one.lock.is_leader and one.lock.token != token)

        async def told() -> list[str | None]:
            return await asked_in(reader)

        assert await eventually(told) == [f"by {by}, who says: ops@laptop; reason: kernel update"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO S.asks (lock, asked_by) VALUES ('x', 'the boss')",
        "INSERT INTO S.asks (lock, asked_at) VALUES ('x', 'infinity')",
        "INSERT INTO S.asks (lock, answer) VALUES ('x', 'obeyed')",
        "INSERT INTO S.asks OVERRIDING SYSTEM VALUE VALUES (1, 'x')",
        "UPDATE S.asks SET asked_by = 'the boss'",
        "UPDATE S.asks SET answer = 'obeyed'",
        "DELETE FROM S.asks",
        "DELETE FROM S.history",
    ],
)
async def test_operator_cannot_write_in_another_name(postgres: Postgres, schema: str, roles: Roles, statement: str):
    operator = roles.make("operator")
    await make_tables(postgres.dsn, schema, None, name_of(operator))
    with psycopg.connect(operator, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.replace("S.", f'"{schema}".').encode())
        connection.execute(f"INSERT INTO \"{schema}\".asks (lock) VALUES ('x')".encode())
        row = connection.execute(f'SELECT asked_by FROM "{schema}".asks'.encode()).fetchone()
    assert row == (name_of(operator),)


async def test_operator_who_acts_as_another_role_is_named_by_the_role_that_logged_in(
    postgres: Postgres, schema: str, roles: Roles
):
    team = roles.make("team")
    await make_tables(postgres.dsn, schema, None, name_of(team))
    alice = roles.make("alice", f'IN ROLE "{name_of(team)}"')
    with psycopg.connect(alice, autocommit=True) as connection:
        connection.execute(f'SET ROLE "{name_of(team)}"'.encode())
        connection.execute(f"INSERT INTO \"{schema}\".asks (lock) VALUES ('x')".encode())
        row = connection.execute(f'SELECT asked_by FROM "{schema}".asks'.encode()).fetchone()
    assert row == (name_of(alice),)


async def test_row_that_was_inserted_by_hand_is_an_ask_too(postgres: Postgres, schema: str, key: LockKey, roles: Roles):
    async with leading(postgres.dsn, schema, key) as (one, reader):
        token = one.lock.token
        with roles.owner.transaction():
            roles.execute(f"INSERT INTO \"{schema}\".asks (lock) VALUES ('{key}')")
            roles.execute(f"NOTIFY {ASK_CHANNEL}")
        await until(lambda: one.lock.is_leader and one.lock.token != token)
        await eventually(lambda: asked_in(reader))


async def test_error_names_the_right_that_a_read_only_role_lacks(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    watcher = roles.make("watcher")
    async with leading(postgres.dsn, schema, key, lease_s=UNDISTURBED_S) as (one, _):
        roles.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{name_of(watcher)}"')
        roles.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{name_of(watcher)}"')
        words = ("step-down", "--dsn", watcher, "--schema", schema, "--role", "scheduler")
        result, shown = await run_beside(*words, "--json"), await run_beside(*words)
        assert one.lock.is_leader
    (record,) = records(result)
    assert_shape(record, documented("step-down"))
    assert (record["outcome"], result.exit_code, shown.exit_code) == ("refused", 1, 1)
    for text in (record["why"], shown.stderr):
        assert f"{name_of(watcher)} may not ask leaders to step down" in text
        assert f"--grant-asks-to {name_of(watcher)}" in text


@pytest.mark.parametrize("command", ["status", "step-down", "history"])
async def test_error_names_the_right_to_look_and_ask_for_a_stranger_and_the_right_to_take_part_for_a_node(
    postgres: Postgres, schema: str, roles: Roles, command: str
):
    stranger = roles.make("stranger")
    await granted(postgres, schema, roles)
    words = ("--role", "scheduler") if command == "step-down" else ()
    told = (await run_beside(command, "--dsn", stranger, "--schema", schema, *words)).stderr
    assert f"pgleaderlock schema apply --schema {schema} --grant-asks-to {name_of(stranger)}" in told
    node = Database(stranger, schema, suspend_aware_clock)
    with pytest.raises(ConnectionError, match=f"--schema {schema} --grant-to {name_of(stranger)}"):
        await node.open()
        await node.fetch(f'SELECT 1 FROM "{schema}".leaders')
    await node.close()


@pytest.mark.slow
async def test_one_ask_per_lease_is_obeyed_and_the_next_has_to_wait(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pgleaderlock.engine.election.Election.lease_s", 60.0)
    async with leading(postgres.dsn, schema, key) as (one, reader):
        token = one.lock.token
        assert (await answer_of(postgres.dsn, schema, key))[1].is_obeyed
        await until(lambda: one.lock.is_leader and one.lock.token != token)
        await eventually(lambda: asked_in(reader))
        now = Target(one.registry.instance, one.lock.token)
        _, hasty = await answer_of(postgres.dsn, schema, key, leader=now, wait_s=20)
        assert not hasty.is_obeyed
        assert "at most one per lease (60 s) is: ask again in" in (hasty.why or "")
        monkeypatch.setattr("pgleaderlock.engine.election.Election.lease_s", 4.0)
        _, patient = await answer_of(postgres.dsn, schema, key, leader=now, wait_s=30)
        assert patient.is_obeyed
        await eventually(lambda: _has_two(reader))
        first, second = [line.at for line in await reader.history() if line.event == "step_down_asked"]
        assert second - first >= 3.95


async def _has_two(reader: RegistryReader) -> bool:
    return len(await asked_in(reader)) == 2


@contextlib.asynccontextmanager
async def three_nodes(dsn: str, schema: str, key: LockKey) -> AsyncIterator[tuple[list[Node], RegistryReader]]:
    """A leader, its heir and the next heir, whose sessions are called one:1, two:1 and three:1.

    They try seldom: a try for the lock in the moment in which the nominee is between two wait slices would get it.
    """
    nodes = [
        Node(
            make_conninfo(dsn, application_name=f"{name}:1"),
            schema,
            key,
            name,
            lease_s=UNDISTURBED_S,
            retry_s=UNDISTURBED_S,
        )
        for name in ("one", "two", "three")
    ]
    async with contextlib.AsyncExitStack() as stack:
        for node, place in zip(nodes, ("", "heir", "next heir"), strict=True):
            await stack.enter_async_context(node)
            assert place or await node.lock.wait_for_leadership(20)
            await until(lambda node=node, place=place: node.lock.place == place)  # type: ignore[misc]
        reader = await stack.enter_async_context(reading(dsn, schema))
        await eventually(lambda: leader_of(reader))
        yield nodes, reader


async def test_ask_that_names_the_next_leader_is_obeyed_when_that_is_the_heir(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nomination, "_PATIENCE_S", 60.0)
    async with three_nodes(postgres.dsn, schema, key) as (nodes, reader):
        asked = await reader.ask_to_step_down(str(key), "ops", reason="kernel update", to="three:1")
        assert await reader.wait_for_answer(asked, 60) == Answer(is_obeyed=True, node="one")
        assert await nodes[2].lock.wait_for_leadership(20)
        assert not nodes[1].lock.is_leader

        async def written() -> list[str | None]:
            return [line.detail for line in await reader.history() if line.event == "step_down_asked"]

        assert str((await eventually(written))[0]).endswith("; reason: to three:1; kernel update")


async def test_ask_that_names_a_stranger_is_refused_and_the_leader_goes_on(
    postgres: Postgres, schema: str, key: LockKey
):
    async with leading(postgres.dsn, schema, key, lease_s=UNDISTURBED_S) as (one, reader):
        token = one.lock.token
        asked = await reader.ask_to_step_down(str(key), "ops", to="elsewhere:7")
        answer = await reader.wait_for_answer(asked, 20)
        assert answer is not None
        assert (answer.is_obeyed, answer.node) == (False, "one")
        assert str(answer.why).startswith("no session of elsewhere:7 is connected, so it cannot lead: lock ")
        assert one.lock.token == token
        with pytest.raises(ValueError, match=r"web-2 is no host and process id, such as host-2:18"):
            await reader.ask_to_step_down(str(key), "ops", to="web-2")


@pytest.mark.parametrize(
    ("reason", "to"),
    [
        ("to host-2:18", "host-2:18"),
        ("to host-2:18; kernel\nupdate", "host-2:18"),
        ("to host-2:18 and back", None),
        ("to host-2", None),
        ("move to host-2:18", None),
        (None, None),
        (7, None),
    ],
)
def test_the_next_leader_is_read_from_a_reason(reason: Any, to: str | None):
    assert nominee_in(reason) == to


async def test_ask_to_an_earlier_term_is_refused(postgres: Postgres, schema: str, key: LockKey):
    async with leading(postgres.dsn, schema, key) as (one, reader):
        earlier = await leader_of(reader)
        await one.lock.step_down()
        await until(lambda: one.lock.is_leader)
        token = one.lock.token

        async def is_known() -> bool:
            leader = await leader_of(reader)
            return leader is not None and leader.token == token

        await eventually(is_known)
        _, answer = await answer_of(postgres.dsn, schema, key, leader=earlier)
        assert not answer.is_obeyed
        assert answer.why == f"it was meant for the leader with token {earlier.token}, and the token is {token} now"
        assert one.lock.token == token


async def flood(connection: psycopg.AsyncConnection[Any], count: int) -> None:
    statement = "SELECT count(pg_notify(%s, 'x' || n)) FROM generate_series(1, %s) AS n"
    await connection.execute(statement, (ASK_CHANNEL, count))


@pytest.mark.parametrize("count", [10, 2000])
@pytest.mark.slow
async def test_flood_of_notifications_costs_one_look_a_second_and_one_line_a_minute(
    postgres: Postgres, schema: str, roles: Roles, count: int, request: pytest.FixtureRequest
):
    monkeypatch, caplog, key = (request.getfixturevalue(name) for name in ("monkeypatch", "caplog", "key"))
    looks: list[float] = []
    read = TableInbox.read

    async def counted(self: TableInbox, *words: Any) -> list[Ask]:
        looks.append(suspend_aware_clock())
        return await read(self, *words)

    monkeypatch.setattr(TableInbox, "read", counted)
    stranger = roles.make("stranger")
    async with leading(postgres.dsn, schema, key) as (one, reader):
        token = one.lock.token
        async with await psycopg.AsyncConnection.connect(stranger, autocommit=True) as connection:
            for number in range(10):
                await flood(connection, count)
                await notify(connection, forged(schema, key, n=number))
                await asyncio.sleep(0.3)
            assert one.lock.token == token
            assert (await answer_of(postgres.dsn, schema, key))[1].is_obeyed  # a permitted request is among them
        await until(lambda: one.lock.token not in (None, token))
        await beaten(reader)
    assert all(later - earlier >= 0.99 for earlier, later in itertools.pairwise(looks)), looks
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert len([event for event in events if event in ("step_down_refused", "asks_flooded")]) == 1


async def test_after_a_flood_it_is_listened_again(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pgleaderlock.ops.registry._asks._UNLISTENED_S", 1.5)
    monkeypatch.setattr("pgleaderlock.ops.registry._asks._FLOOD", 100)
    async with leading(postgres.dsn, schema, key) as (one, _):
        asks = one.registry._asks
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
            await flood(connection, 200)
            await until(lambda: asks._listen_at is not None)
            before = one.registry._database.heard_count
            await until(lambda: asks._listen_at is None)
            await notify(connection, "x")
            await until(lambda: one.registry._database.heard_count > before)


async def test_hostile_texts_stay_on_one_line_in_history_and_log(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    operator = roles.make("ops\n\u202e")
    app = await granted(postgres, schema, roles, operator=operator)
    async with leading(app, schema, key) as (_, reader):
        by, answer = await answer_of(operator, schema, key, reason=NASTY)
        assert answer.is_obeyed
        assert by.isprintable()
        (detail,) = await eventually(lambda: asked_in(reader))
    assert detail.isprintable()
    assert r"reason: ops\nCRITICAL forged line\x1b[2J\u202eecila" in detail
    (line,) = [text for text in caplog.messages if text.startswith("step_down_asked")]
    assert line.isprintable()


# --- In a schema of an earlier version, without the table -------------------------------------------------------------


@pytest.mark.slow
async def test_without_a_table_own_role_and_members_are_obeyed_and_strangers_are_not(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    app = await granted_by_an_earlier_version(postgres, schema, roles)
    member = roles.make("member", f'IN ROLE "{name_of(app)}"')
    stranger = roles.make("stranger")
    roles.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{name_of(stranger)}"')
    roles.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{name_of(stranger)}"')
    async with leading(app, schema, key) as (one, reader):

        async def is_shown() -> bool:
            leader = await leader_of(reader)
            return leader is not None and leader.token == one.lock.token

        assert [line.split()[0] for line in caplog.messages].count("asks_table_missing") == 1
        assert "pgleaderlock schema apply" in caplog.text
        words = ("step-down", "--dsn", stranger, "--schema", schema, "--role", "scheduler")
        token = one.lock.token
        refused = await run_beside(*words)
        assert (refused.exit_code, one.lock.token) == (1, token)
        assert f"role {name_of(stranger)} is not a member of {name_of(app)}, the leader's own" in refused.stderr
        for asker in (member, app):
            await eventually(is_shown)  # the registry is written after the term has begun
            before = one.lock.token
            by, answer = await answer_of(asker, schema, key)
            assert answer.is_obeyed
            assert by.startswith(f"{name_of(asker)} (session ")
            await until(lambda: one.lock.is_leader and one.lock.token != before)  # noqa: B023 - awaited here


@pytest.mark.slow
async def test_without_a_table_forged_notifications_cannot_depose_a_leader(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    app = await granted_by_an_earlier_version(postgres, schema, roles)
    stranger = roles.make("stranger")
    async with leading(app, schema, key, lease_s=UNDISTURBED_S) as (one, reader):
        token = one.lock.token
        async with await psycopg.AsyncConnection.connect(stranger, autocommit=True) as connection:
            for number in range(30):
                await notify(connection, forged(schema, key, n=number, mark=f"{MARK}{number}"))
                await asyncio.sleep(0.05)
            await beaten(reader)
        async with await psycopg.AsyncConnection.connect(stranger, autocommit=True) as connection:
            await notify(connection, forged(schema, key))  # and is gone before anything can be looked up
        await beaten(reader)
        assert (one.lock.is_leader, one.lock.token) == (True, token)
        assert await asked_in(reader) == []
        assert len(await asked_in(reader, "step_down_refused")) == 1


async def test_session_that_got_the_pid_of_one_that_is_gone_is_not_taken_for_it(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    """A pid that is given anew cannot be arranged: the session of another notification stands in for it."""
    app = await granted_by_an_earlier_version(postgres, schema, roles)
    member = roles.make("member", f'IN ROLE "{name_of(app)}"')
    database = Database(app, schema, suspend_aware_clock)
    await database.open(makes_tables=False)
    before = suspend_aware_clock() - 100  # the notification came before either session began
    objections = {}
    try:
        for dsn in (app, member):
            inbox = SessionInbox(database, schema, suspend_aware_clock)
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                await connection.execute("SELECT set_config('application_name', %s, false)", (f"{MARK}mine",))
                for mark, at in ((f"{MARK}mine", before), (f"{MARK}other", before), ("psql", suspend_aware_clock())):
                    sent = Notification(connection.info.backend_pid, forged(schema, key, mark=mark, wait_s=1000), at)
                    claim = read_claim(sent, schema)
                    assert claim is not None
                    (ask,) = await inbox.read([str(key)], [claim])
                    objections[dsn, mark] = ask.objection
    finally:
        await database.close()
    gone = "the session that asked is gone: it has to stay connected until it is answered"
    assert [objections[app, mark] for mark in (f"{MARK}mine", f"{MARK}other", "psql")] == [gone, gone, None]
    assert [objections[member, mark] for mark in (f"{MARK}mine", f"{MARK}other", "psql")] == [None, gone, gone]


async def test_member_that_may_not_end_the_leader_s_session_may_not_ask_either(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    app = await granted_by_an_earlier_version(postgres, schema, roles)
    member = roles.make("member", f'NOINHERIT IN ROLE "{name_of(app)}"')
    roles.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{name_of(member)}"')
    roles.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{name_of(member)}"')
    async with leading(app, schema, key, lease_s=UNDISTURBED_S) as (one, _):
        _, answer = await answer_of(member, schema, key)
        assert not answer.is_obeyed
        assert one.lock.is_leader


async def test_table_that_is_made_meanwhile_is_used_without_a_restart(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    app = await granted_by_an_earlier_version(postgres, schema, roles)
    operator = roles.make("operator")
    async with leading(app, schema, key) as (one, reader):
        await until(lambda: one.registry.is_up and one.registry._asks._inbox is not None)
        assert isinstance(one.registry._asks._inbox, SessionInbox)
        await make_tables(postgres.dsn, schema, name_of(app), name_of(operator))
        by, answer = await answer_of(operator, schema, key)
        assert (by, answer.is_obeyed) == (name_of(operator), True)
        await eventually(lambda: asked_in(reader))


async def test_node_that_owns_the_schema_makes_the_table_itself(postgres: Postgres, schema: str, key: LockKey):
    await make_tables(postgres.dsn, schema, None)
    with psycopg.connect(postgres.dsn, autocommit=True) as owner:
        owner.execute(f'DROP TABLE "{schema}".asks'.encode())
    async with leading(postgres.dsn, schema, key):
        by, answer = await answer_of(postgres.dsn, schema, key)
        assert answer.is_obeyed
        assert "session" not in by  # by a row, then


async def test_node_that_may_not_read_asks_says_so_once_and_its_registry_goes_on(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles, caplog: pytest.LogCaptureFixture
):
    app = await granted(postgres, schema, roles)
    roles.execute(f'REVOKE ALL ON "{schema}".asks FROM "{name_of(app)}"')
    async with leading(app, schema, key) as (one, reader):
        for _ in range(3):
            roles.execute(f"NOTIFY {ASK_CHANNEL}, '{forged(schema, key)}'")
            await beaten(reader)
        assert one.registry.is_up
    told = [line for line in caplog.messages if line.startswith("asks_unreadable")]
    assert len(told) == 1
    assert f"--grant-to {name_of(app)}" in told[0]


# --- The dashboard ----------------------------------------------------------------------------------------------------


async def test_dashboard_asks_with_the_rights_of_its_own_role(
    postgres: Postgres, schema: str, key: LockKey, roles: Roles
):
    operator, watcher = roles.make("operator"), roles.make("watcher")
    app = await granted(postgres, schema, roles, operator=operator)
    roles.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{name_of(watcher)}"')
    roles.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{name_of(watcher)}"')
    async with leading(app, schema, key) as (one, reader):
        leader = Target(one.registry.instance, one.lock.token)
        with pytest.raises(AskRefused, match="may not ask leaders to step down"):
            await RegistrySource(watcher, schema, where="x", window_s=60).ask_to_step_down(str(key), leader)
        await RegistrySource(operator, schema, where="x", window_s=60).ask_to_step_down(str(key), leader)
        details = await eventually(lambda: asked_in(reader))
        assert details == [f"by {name_of(operator)}, who says: dashboard token"]


# --- What is decided, and what is forgotten ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, Verdict()),
        ({"instance": "i", "token": 7}, Verdict()),
        ({"since_obeyed_s": 15.0}, Verdict()),
        ({"since_obeyed_s": 10.0}, Verdict(in_s=5.0)),
        ({"objection": "no"}, Verdict("no")),
        ({"left_s": 0.0}, Verdict("it was read too late: the asker had stopped waiting")),
        ({"instance": "j"}, Verdict("it was meant for the leader with token None, and the token is 7 now")),
        ({"token": 6}, Verdict("it was meant for the leader with token 6, and the token is 7 now")),
        (
            {"since_obeyed_s": 10.0, "left_s": 4.0},
            Verdict("an ask was obeyed 10.0 s ago, and at most one per lease (15 s) is: ask again in 5.0 s"),
        ),
    ],
)
def test_verdicts(more: dict[str, Any], verdict: Verdict):
    ask = Ask(**{"lock": "l", "by": "ops", "left_s": 30.0, "since_obeyed_s": None, **more})
    assert judge(ask, "i", 7, 15.0, is_leaving=False) == verdict


def test_second_ask_while_the_leader_steps_down_is_refused():
    ask = Ask("l", "ops", 30.0, None)
    refusal = judge(ask, "i", 7, 15.0, is_leaving=True).refusal
    assert refusal == "another step-down is under way: the leader was asked before, and steps down"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"wait_s": float("nan")}, (None, None, None, 130.0)),
        ({"wait_s": 1e300, "token": 2**80, "instance": []}, (None, None, 2**80, 130.0)),
        ({"wait_s": 5, "mark": "psql", "token": "7"}, (None, None, None, 105.0)),
        ({"mark": f"{MARK}1", "instance": "i", "token": 7}, (f"{MARK}1", "i", 7, 130.0)),
        ({"mark": f"{MARK}\0"}, (None, None, None, 130.0)),
    ],
)
def test_what_a_notification_claims_is_read_with_care(key: LockKey, more: dict[str, Any], expected: tuple[Any, ...]):
    claim = read_claim(Notification(17, forged("s", key, **more), 100.0), "s")
    assert claim is not None
    assert (claim.mark, claim.instance, claim.token, claim.until) == expected


async def test_leader_forgets_asks_that_are_too_old(postgres: Postgres, schema: str, key: LockKey, roles: Roles):
    await make_tables(postgres.dsn, schema, None)
    old = f"INSERT INTO \"{schema}\".asks (lock, asked_at) VALUES ('x', now() - interval '{{}} days')"
    for days in (1, 3):
        roles.execute(old.format(days))
    async with leading(postgres.dsn, schema, key, keep_days=2) as (one, _):

        async def left() -> bool:
            one.registry._pruned_at = float("-inf")
            one.registry._news.set()  # type: ignore[union-attr]
            rows = roles.owner.execute(f'SELECT count(*) FROM "{schema}".asks'.encode()).fetchone()
            return rows == (1,)

        await eventually(left)


# --- What others wrote stays on one line ------------------------------------------------------------------------------


async def test_names_and_errors_of_others_stay_on_one_line_in_the_history(
    postgres: Postgres, schema: str, key: LockKey
):
    registry = Registry(postgres.dsn, schema=schema, node="web\n\u202e1")
    lock = LeaderLock(postgres.dsn, key=key, settle_s=0)
    registry.attach(lock, role="a\x1b[2Jrole")
    async with registry, lock:
        await lock.wait_for_leadership()
        event = Event(
            EventKind.ERROR, LockState.LEADER, LockState.LEADER, "x", suspend_aware_clock(), LockError("1\r2\u2028")
        )
        registry._hear(registry._pending.standings[str(key)], event)
        await until(lambda: registry.is_up and not registry.waiting_events)
        async with reading(postgres.dsn, schema) as reader:
            lines = await reader.history()
            leader = await leader_of(reader)
    assert leader.node == r"web\n\u202e1"
    assert {line.role for line in lines} == {r"a\x1b[2Jrole"}
    assert r"1\r2\u2028" in {line.detail for line in lines}


def test_error_of_a_server_that_quotes_a_name_is_one_line_without_secrets():
    said = 'permission denied for table "a\nb\x1b[2J"\u202e\nLINE 1: s3cr3t-word\n'
    shown = one_line(said, {"password": "s3cr3t-word"})
    assert shown == 'permission denied for table "a; b\\x1b[2J"\\u202e; LINE 1: ***'
