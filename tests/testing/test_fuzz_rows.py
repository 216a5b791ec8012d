"""Rows of other programs, of a newer version of ours, or edited by hand: shown and judged, whatever is in them."""

import contextlib
import io
import json
import math
import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from hypothesis import example
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from pgleaderlock.cli import audit as cli_audit
from pgleaderlock.cli import history as cli_history
from pgleaderlock.cli import roles as cli_roles
from pgleaderlock.cli import ticks as cli_ticks
from pgleaderlock.cli.commands import cli
from pgleaderlock.cli.times import fields_of
from pgleaderlock.ops.dashboard._board import dumps
from pgleaderlock.ops.dashboard._picture import node_records, past_record, shown_events, standing_record
from pgleaderlock.ops.registry.audit import Line, audit
from pgleaderlock.ops.registry.reading import Candidate, Leader, RoleStatus
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.terms import Past, past_s
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.lease_observation import LeaseObservation, Record
from pgleaderlock.work.schedule.reading import RecordedTick
from tests.conftest import Postgres
from tests.support.fuzzing import LEASE_S, asked, fuzzed, texts, values

pytestmark = pytest.mark.proof

TEXTS = texts("acquired").map(lambda text: text.replace("\0", "").encode("utf-8", "replace").decode())  # as a server's
NUMBERS = st.sampled_from([0, 1, -1, 2**31 - 1, 2**63 - 1, -(2**63)])
TIMES = st.sampled_from([0.0, 1.7e9, 1.7e9 + 5, -2e11, 9.2e12, math.inf, -math.inf])
SPANS = st.sampled_from([0.0, 0.001, -5.0, 1e300, math.inf, math.nan])
EVENTS = st.sampled_from(["acquired", "recovered", "released", "lost", "reconnecting", "stopped", "vanished"]) | TEXTS
LOCKS = st.sampled_from(["named:a", "named:b"]) | TEXTS
INSTANCES = st.sampled_from(["i-1", "i-2"])
SOME = st.none() | TEXTS
LINES = st.builds(
    Line, LOCKS, TEXTS, TEXTS, INSTANCES, EVENTS, SOME, st.none() | NUMBERS, TIMES, SPANS, st.integers(-5, 2**31), SOME
)
LEADERS = st.builds(
    *(Leader, TEXTS, INSTANCES, st.none() | NUMBERS, TIMES, TIMES, st.none() | TIMES, st.none() | NUMBERS, TEXTS),
    *(NUMBERS, TEXTS, values(), st.booleans(), TIMES),
)
CANDIDATES = st.builds(Candidate, TEXTS, INSTANCES, TEXTS, TIMES, TIMES, TEXTS, NUMBERS, TEXTS, values(), st.booleans())
ROLES = st.builds(RoleStatus, LOCKS, TEXTS, st.none() | LEADERS, st.lists(CANDIDATES, max_size=2))
TICKS = st.builds(
    *(RecordedTick, LOCKS, SOME, TEXTS, SOME, TIMES, NUMBERS, st.sampled_from(["done", "failed"]) | TEXTS, NUMBERS),
    *(TEXTS, TIMES, st.none() | TIMES, st.none() | TIMES, SOME),
)


def check_json(text: str) -> None:
    """Whatever reads JSON must be able to read it: the standard has no infinity."""
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def check_table(table: Table) -> None:
    """A terminal receives nothing but text to show."""
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(table)
    assert all(character.isprintable() or character == "\n" for character in out.getvalue())


def check_record(record: dict[str, Any]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli_roles.print_record(record)
    check_json(out.getvalue())


@fuzzed(st.lists(LINES, max_size=5), TIMES, TIMES, examples=12)
def test_any_history_is_judged_and_shown(lines: Sequence[Line], since: float, until: float) -> None:
    audits = audit(lines, since=since, until=until)
    for each in audits:
        assert 0 <= each.availability <= 1
        check_record(cli_audit._audit_fields(each))
        for overlap in each.overlaps:
            assert cli_audit._sentence(each, overlap).isprintable()
    check_table(cli_audit._table(audits, 100))
    check_table(cli_history._table(lines, 100))
    for line in lines:
        check_record(fields_of(line, *cli_history._FIELDS))
    check_json(dumps(shown_events(lines)))


@fuzzed(st.lists(ROLES, max_size=3), st.lists(LINES, max_size=3), TIMES, TIMES, examples=12)
def test_any_roles_are_shown(roles: list[RoleStatus], lines: list[Line], since: float, at: float) -> None:
    for role in roles:
        check_json(dumps([standing_record(role), past_record(role, lines, since=since, at=at)]))
        check_record(cli_roles.role_fields(role))
    check_json(dumps(node_records(roles)))
    check_table(cli_roles.roles_table(roles, 100))


@fuzzed(st.lists(TICKS, max_size=3), examples=12)
def test_any_ticks_are_shown(ticks: list[RecordedTick]) -> None:
    for tick in ticks:
        check_record(cli_ticks._fields(tick))
    check_table(cli_ticks._table(ticks, 100))


# --- What is decided by rows ------------------------------------------------------------------------------------------


@fuzzed(SPANS, NUMBERS, examples=15)
@example(0.0, 1)
def test_a_lease_that_makes_no_sense_is_taken_to_be_as_long_as_ours(lease_s: float, token: int) -> None:
    observation = LeaseObservation(LEASE_S)
    observation.note(Record("somebody", token, lease_s, "v"), 100.0)
    assert not observation.is_free(100.0), "held, and taken for free"
    if not 0 < lease_s < math.inf:
        assert not observation.is_free(100.0 + LEASE_S - 0.001)
        assert observation.is_free(100.0 + LEASE_S)


@fuzzed(SPANS, st.booleans(), examples=15)
@example(math.nan, False)
def test_a_past_that_makes_no_sense_is_waited_for_as_long_as_ours(lease_s: float, was_promoted: bool) -> None:
    past = Past(7, lease_s, 1, was_released=False, timeline_here=2 if was_promoted else 1)
    waited_s = past_s(past, Lease(LEASE_S, takeover="strict", term_table=True), ours=None)
    assert waited_s is not None
    assert waited_s >= (LEASE_S if was_promoted or not 0 < lease_s < math.inf else lease_s)
    assert waited_s < math.inf


HARM = [
    "holder = E'\\x1b[31m' || repeat('x', 100000)",
    "lease_s = 'NaN'",
    "lease_s = 'Infinity'",
    "lease_s = 0",
    "lease_s = -5",
    "acquired_at = 'infinity', renewed_at = '-infinity'",
    "token = 9223372036854775807",
    "token = -9223372036854775808",
    "version = gen_random_uuid()",
]


@pytest.mark.parametrize("harm", HARM)
async def test_a_lease_row_that_is_damaged_while_it_is_held_is_neither_free_nor_ours(postgres: Postgres, harm: str):
    role = f"fuzz/{uuid.uuid4()}"
    url = postgres.dsn.replace("postgresql://", "postgresql+lease://", 1)
    holder, follower, newcomer = (open_backend(url, role=role, lease_s=LEASE_S) for _ in range(3))
    try:
        grant = await holder.try_acquire()
        assert grant is not None
        assert await follower.try_acquire() is None
        async with await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True) as connection:
            await connection.execute(f"UPDATE pgleaderlock.leases SET {harm} WHERE role = %s".encode(), [role])
        for other in (follower, newcomer):
            assert await asked(other.try_acquire()) is None, "what is damaged was taken for free"
            await asked(other.holder())  # type: ignore[arg-type]
        renewed = await asked(holder.renew(grant))
        assert renewed is None or renewed.token == grant.token
    finally:
        for backend in (holder, follower, newcomer):
            await backend.close()


ROW = {"text": "E'\\x1b[31m<script>\\u2028' || repeat('x', 3000)", "time": "'infinity'", "far": "'290000-01-01'"}


@pytest.fixture
def hostile_schema(postgres: Postgres):
    """A registry and a ledger in a schema of their own, with rows that pgleaderlock would never write."""
    schema = f"fuzz_{uuid.uuid4().hex[:8]}"
    assert CliRunner().invoke(cli, ["schema", "apply", "--dsn", postgres.dsn, "--schema", schema]).exit_code == 0
    text, time, far = ROW["text"], ROW["time"], ROW["far"]
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for statement in (
            f"""INSERT INTO {schema}.nodes
                SELECT gen_random_uuid(), {text}, {text}, -1, {text}, '[1]', {far}, {time}, 'NaN'""",
            f"""INSERT INTO {schema}.candidates
                SELECT instance, 'no lock', {text}, {text}, {time} FROM {schema}.nodes""",
            f"""INSERT INTO {schema}.leaders
                SELECT 'no lock', {text}, instance, {text}, -1, {time}, {far}, {time}, -1, {text}, -1, {text}, '"x"'
                  FROM {schema}.nodes""",
            f"""INSERT INTO {schema}.history
                       (lock, role, node, instance, event, cause, token, at, within_s, missing, detail)
                SELECT 'no lock', {text}, {text}, gen_random_uuid(), event, {text}, -1, at::timestamptz, 'NaN', -1,
                       {text}
                  FROM unnest(array['acquired', 'lost', 'from the future', 'acquired']) AS event,
                       unnest(array['-infinity', '4000-01-01', 'infinity', '290000-01-01']) AS at""",
            f"""INSERT INTO {schema}.ticks
                       (lock, job, slot, attempt, state, token, holder, claimed_at, ended_at, detail)
                VALUES ('no lock', {text}, {time}, 2147483647, 'done', -1, {text}, '-infinity', {time}, {text})""",
        ):
            connection.execute(statement.encode())
    yield schema
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize("command", ["status", "history", "audit", "ticks"])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_commands_show_rows_that_pgleaderlock_would_never_write(
    postgres: Postgres, hostile_schema: str, command: str, form: list[str]
):
    result = CliRunner().invoke(cli, [command, "--dsn", postgres.dsn, "--schema", hostile_schema, *form])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1), result.output
    assert all(character.isprintable() or character == "\n" for character in result.output), ascii(result.output)
    for line in result.stdout.splitlines() if form else []:
        check_json(line)
