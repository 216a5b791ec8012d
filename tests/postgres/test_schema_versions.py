"""The version of the schema: upgrades keep the rows, and sessions use what they know or say what to do."""

import asyncio
import itertools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo

from pgleaderlock import ConnectionError
from pgleaderlock.cli.commands import cli
from pgleaderlock.ops.registry._database import Database
from pgleaderlock.postgres import _schema, _schema_versions, lease_table, terms
from pgleaderlock.postgres._schema import Made, make_tables
from pgleaderlock.postgres.doctor import examine
from pgleaderlock.postgres.schema import known_version, schema_sql
from pgleaderlock.testing.embedded import Server, find_binaries
from pgleaderlock.work.schedule._connection import LedgerConnection
from tests.conftest import free_port
from tests.support.servers import QuickServer
from tests.support.table_users import (
    User,
    by_lease_rows,
    by_ledger,
    by_reading,
    by_registry,
    by_term_table,
    execute,
    make_dsn,
)

OLD = Path(__file__).with_name("schema_of_0_1_0.sql").read_text().replace("{schema}", '"pgleaderlock"')
ROWS = """
INSERT INTO pgleaderlock.terms VALUES ('pair:1/2', 'r', 7, 15, 1, 'h', 42, now(), NULL);
INSERT INTO pgleaderlock.leases VALUES ('other', 'h', 8, 15, gen_random_uuid(), now(), now());
INSERT INTO pgleaderlock.history (lock, role, node, instance, event, at, within_s)
     SELECT 'pair:1/2', 'r', 'n', gen_random_uuid(), 'acquired', now(), 0 FROM generate_series(1, 100);
INSERT INTO pgleaderlock.tick_jobs VALUES ('pair:1/2', 'job', 'r', 'every 5m', 7, now(), now());
INSERT INTO pgleaderlock.ticks VALUES ('pair:1/2', 'job', now(), 1, 'done', 7, 'h', now())
"""
KEPT = ("terms", "leases", "history", "tick_jobs", "ticks")
GRANT = """
GRANT USAGE ON SCHEMA pgleaderlock TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgleaderlock TO app
"""
LABEL = "COMMENT ON TABLE pgleaderlock.schema_version IS '{}'"
NEWER = "pgleaderlock: schema version 99, for programs that know version {} or later"
USERS: dict[str, User] = {
    "term table": by_term_table,
    "lease rows": by_lease_rows,
    "registry": by_registry,
    "reading": by_reading,
    "ledger": by_ledger,
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(server_folder_root: Path) -> Iterator[Server]:
    server = QuickServer(server_folder_root / "versions", tcp_port=free_port(), settings={"fsync": "off"})
    server.start()
    try:
        execute(server.dsn, "CREATE ROLE app LOGIN", "CREATE ROLE mallory LOGIN")
        yield server
    finally:
        server.stop("immediate")


@pytest.fixture
def dsn(server: Server) -> str:
    """A database for one test."""
    name = f"versions_{next(_numbers)}"
    execute(server.dsn, f"CREATE DATABASE {name}")
    return server.dsn.replace("/postgres?", f"/{name}?")


@pytest.fixture
def needy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of session needs version 2, as after a change of its tables."""
    monkeypatch.setattr(terms, "_NEEDS_SCHEMA", 2)
    for each in (lease_table._LeaseRows, Database, LedgerConnection):
        monkeypatch.setattr(each, "NEEDS", 2)


def ask(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement.encode()).fetchall()


def version_of(dsn: str, *tables: str) -> object:
    return ask(dsn, f"SELECT ({_schema_versions.version_sql('pgleaderlock', tables)})[1]")[0][0]


def shape_of(dsn: str) -> list[tuple[object, ...]]:
    """Everything in the schema, but for the words of comments."""
    here = "'pgleaderlock'::regnamespace"
    return ask(
        dsn,
        f"SELECT c.relname, c.relkind::text, c.reloptions::text FROM pg_class AS c WHERE relnamespace = {here} "
        "UNION ALL SELECT attrelid::regclass::text || '.' || attname, format_type(atttypid, atttypmod) || attnotnull, "
        "       pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid "
        f"       LEFT JOIN pg_attrdef AS d ON (adrelid, adnum) = (attrelid, attnum) WHERE relnamespace = {here} "
        "UNION ALL SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid), NULL FROM pg_index "
        f"  JOIN pg_class AS c ON c.oid = indexrelid WHERE relnamespace = {here} "
        f"UNION ALL SELECT conname, pg_get_constraintdef(oid), NULL FROM pg_constraint WHERE connamespace = {here} "
        "UNION ALL SELECT 'version', obj_description('pgleaderlock.schema_version'::regclass, 'pg_class'), NULL "
        "ORDER BY 1, 2, 3",
    )


def make_version(dsn: str, version: int) -> None:
    """Make the schema as a program made it that knew no later version."""
    sections = "".join(each.text for each in _schema_versions._sections() if each.version <= version)
    execute(dsn, sections.replace("{schema}", '"pgleaderlock"'))
    if version > 1:
        execute(dsn, LABEL.format(f"pgleaderlock: schema version {version}, for programs that know version 1 or later"))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


# --- The list of versions ---------------------------------------------------------------------------------------------


def test_the_versions_follow_each_other_and_none_asks_for_more_than_itself():
    sections = _schema_versions._sections()
    assert [each.version for each in sections] == list(range(1, known_version() + 1))
    assert all(1 <= each.lowest <= each.version for each in sections)


def test_version_1_is_what_0_1_0_made(dsn: str, server: Server):
    execute(dsn, OLD, "CREATE TABLE pgleaderlock.schema_version ()")
    execute(server.dsn, "CREATE DATABASE first")
    first = server.dsn.replace("/postgres?", "/first?")
    make_version(first, 1)
    execute(first, "CREATE TABLE pgleaderlock.schema_version ()")
    assert shape_of(dsn) == shape_of(first)


@pytest.mark.parametrize("version", range(1, known_version() + 1))
def test_every_version_is_upgraded_to_the_same_schema(dsn: str, server: Server, version: int):
    make_version(dsn, version)
    execute(dsn, schema_sql(from_version=version))
    execute(server.dsn, f"CREATE DATABASE whole_{version}")
    whole = server.dsn.replace("/postgres?", f"/whole_{version}?")
    execute(whole, schema_sql())
    assert shape_of(dsn) == shape_of(whole)
    for _ in range(2):
        execute(dsn, schema_sql(from_version=version), schema_sql())
    assert shape_of(dsn) == shape_of(whole)


# --- schema apply -----------------------------------------------------------------------------------------------------


def test_an_upgrade_from_version_1_keeps_every_row(dsn: str):
    execute(dsn, OLD, ROWS)
    before = [ask(dsn, f"SELECT * FROM pgleaderlock.{table} ORDER BY 1, 2") for table in KEPT]
    result = run("schema", "apply", "--dsn", dsn)
    assert result.output == f"schema pgleaderlock is ready (version {known_version()}, upgraded from version 1)\n"
    after = [ask(dsn, f"SELECT * FROM pgleaderlock.{table} ORDER BY 1, 2") for table in KEPT]
    for rows, old_rows in zip(after, before, strict=True):  # new columns come last
        assert [row[: len(old)] for row, old in zip(rows, old_rows, strict=True)] == old_rows
    assert version_of(dsn) == known_version()


async def test_an_upgrade_says_from_which_version_to_which(dsn: str):
    execute(dsn, OLD)
    assert await make_tables(dsn, "pgleaderlock", None) == Made(1, known_version())
    assert await make_tables(dsn, "pgleaderlock", None) == Made(known_version(), known_version())


@pytest.mark.parametrize("before", [0, 1])
async def test_of_upgrades_at_once_one_does_it_and_the_others_find_it_done(dsn: str, before: int):
    if before:
        execute(dsn, OLD, ROWS)
    made = await asyncio.gather(*(make_tables(dsn, "pgleaderlock", None) for _ in range(6)))
    assert sorted(each.from_version for each in made) == [before, *[known_version()] * 5]
    assert version_of(dsn) == known_version()


async def test_a_table_that_is_missing_in_the_newest_version_is_made_again(dsn: str):
    await make_tables(dsn, "pgleaderlock", None)
    shape = shape_of(dsn)
    execute(dsn, "DROP TABLE pgleaderlock.asks, pgleaderlock.leases")
    assert await make_tables(dsn, "pgleaderlock", None) == Made(known_version(), known_version())
    assert shape_of(dsn) == shape


async def test_a_version_in_other_words_counts_as_none(dsn: str):
    await make_tables(dsn, "pgleaderlock", None)
    execute(dsn, LABEL.format("schema version eleven"))
    assert await make_tables(dsn, "pgleaderlock", None) == Made(1, known_version())


async def test_an_upgrade_that_waits_for_a_lock_gives_up_before_it_holds_up_others(
    dsn: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_schema, "_LIMIT_WAITS", "SELECT set_config('lock_timeout', '50ms', true)")
    execute(dsn, OLD)
    with psycopg.connect(dsn) as busy:
        busy.execute("LOCK TABLE pgleaderlock.history IN ROW EXCLUSIVE MODE")
        with pytest.raises(ConnectionError, match="lock timeout"):
            await make_tables(dsn, "pgleaderlock", None)
    assert version_of(dsn) == 1  # all of it, or nothing
    assert await make_tables(dsn, "pgleaderlock", None) == Made(1, known_version())


def test_schema_apply_leaves_a_newer_schema_alone(dsn: str):
    execute(dsn, schema_sql(), LABEL.format(NEWER.format(1)), "DROP TABLE pgleaderlock.ticks")
    shape = shape_of(dsn)
    result = run("schema", "apply", "--dsn", dsn)
    assert result.exit_code == 3
    assert f"has version 99, and this program knows version {known_version()}" in result.output
    assert shape_of(dsn) == shape


# --- schema show ------------------------------------------------------------------------------------------------------


def test_an_upgrade_can_be_printed_and_run_by_hand(dsn: str):
    execute(dsn, OLD, ROWS)
    printed = run("schema", "show", "--from", "1").output
    assert "CREATE TABLE IF NOT EXISTS" in printed
    assert '"pgleaderlock".terms' not in printed
    execute(dsn, printed)
    assert version_of(dsn) == known_version()


def test_an_upgrade_by_hand_of_another_version_fails(dsn: str):
    execute(dsn, OLD)
    older = (
        r"has version 1, and these statements are for versions 2 to \d\nHINT:  Use pgleaderlock schema show --from 1"
    )
    with pytest.raises(psycopg.errors.RaiseException, match=older):
        execute(dsn, schema_sql(from_version=2))
    execute(dsn, schema_sql(), LABEL.format(NEWER.format(1)))
    for start in (0, 1):
        with pytest.raises(
            psycopg.errors.RaiseException, match=r"has version 99.*\nHINT:  Use a pgleaderlock that knows"
        ):
            execute(dsn, schema_sql(from_version=start))


def test_a_printed_upgrade_of_tables_that_are_not_there_fails(dsn: str):
    missing = r"has no tables yet, or not all, and .* 1 to \d\nHINT:  Use pgleaderlock schema show without --from"
    with pytest.raises(psycopg.errors.RaiseException, match=missing):
        execute(dsn, schema_sql(from_version=1))


def test_a_version_that_is_not_known_is_wrong_usage():
    for version in ("0", "99", "x"):
        assert run("schema", "show", "--from", version).exit_code == 2
    assert f"knows versions 1 to {known_version()}" in run("schema", "show", "--from", "99").output
    with pytest.raises(ValueError, match=f"between 0 and {known_version()}, not 99"):
        schema_sql(from_version=99)


# --- Where the version is ---------------------------------------------------------------------------------------------


def test_the_version_is_read_without_any_grant(dsn: str):
    execute(dsn, schema_sql())
    assert version_of(make_dsn(dsn, "app"), "terms") == known_version()


@pytest.mark.parametrize("part", ["--schema=pgleaderlock", "--table=pgleaderlock.*", "--format=plain"])
def test_the_version_survives_a_dump(dsn: str, server: Server, part: str):
    execute(dsn, schema_sql())
    command = [str(find_binaries() / "pg_dump"), "--schema-only", "--no-owner", part, dsn]
    dumped = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    name = f"restored_{next(_numbers)}"
    execute(server.dsn, f"CREATE DATABASE {name}")
    restored = server.dsn.replace("/postgres?", f"/{name}?")
    execute(restored, *(["CREATE SCHEMA pgleaderlock"] if "table" in part else []))
    execute(restored, re.sub(r"^\\.*$", "", dumped, flags=re.MULTILINE))  # but for what only psql understands
    assert version_of(restored, "terms") == known_version()


# --- Sessions and an older schema -------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
async def test_a_session_works_with_an_older_schema_that_has_what_it_needs(dsn: str, user: str):
    """And leaves it as it is, with all rights too: an election does not wait for an index that it does not need."""
    execute(dsn, OLD, GRANT)
    await USERS[user](make_dsn(dsn, "app"), None)
    await USERS[user](dsn, None)
    assert version_of(dsn) == 1


@pytest.mark.usefixtures("needy")
@pytest.mark.parametrize("user", USERS)
async def test_a_session_that_needs_more_and_may_not_upgrade_is_refused_with_advice(dsn: str, user: str):
    execute(dsn, OLD, GRANT)
    grant = "--grant-asks-to" if user == "reading" else "--grant-to"
    advice = f"As its owner: pgleaderlock schema apply --schema pgleaderlock {grant} app"
    with pytest.raises(ConnectionError) as refused:
        await USERS[user](make_dsn(dsn, "app"), None)
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    assert f"schema pgleaderlock in database {database} has version 1, version 2 is needed" in str(refused.value)
    assert f"may not upgrade it to version {known_version()}" in str(refused.value)
    assert advice in str(refused.value)
    assert version_of(dsn) == 1


@pytest.mark.usefixtures("needy")
@pytest.mark.parametrize("user", ["term table", "lease rows", "registry"])
async def test_a_session_that_needs_more_upgrades_the_schema_where_it_may(dsn: str, user: str):
    execute(dsn, OLD, ROWS)
    await USERS[user](dsn, None)
    assert version_of(dsn) == known_version()
    assert ask(dsn, "SELECT count(*) FROM pgleaderlock.history") == [(100,)]


@pytest.mark.usefixtures("needy")
async def test_who_only_reads_upgrades_nothing(dsn: str):
    execute(dsn, OLD)
    with pytest.raises(ConnectionError, match="has version 1, version 2 is needed"):
        await by_reading(dsn, None)
    assert version_of(dsn) == 1


@pytest.mark.usefixtures("needy")
async def test_who_owns_a_part_of_the_tables_only_does_not_try_to_upgrade(dsn: str, server: Server):
    execute(
        dsn, OLD, GRANT, "GRANT CREATE ON SCHEMA pgleaderlock TO app", "ALTER TABLE pgleaderlock.terms OWNER TO app"
    )
    with pytest.raises(ConnectionError, match="user app may not upgrade it"):
        await by_term_table(make_dsn(dsn, "app"), None)
    assert "must be owner" not in server.log_path.read_text(errors="replace")


# --- Sessions and a newer schema --------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
async def test_a_newer_schema_is_used_if_it_says_that_it_can_be(dsn: str, user: str):
    execute(dsn, schema_sql(), LABEL.format(NEWER.format(known_version())))
    await USERS[user](dsn, None)
    assert version_of(dsn) == 99


@pytest.mark.parametrize("user", USERS)
async def test_a_newer_schema_is_refused_if_it_needs_a_newer_program(dsn: str, user: str):
    execute(dsn, schema_sql(), LABEL.format(NEWER.format(98)))
    with pytest.raises(ConnectionError) as refused:
        await USERS[user](dsn, None)
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    assert f"schema pgleaderlock in database {database} has version 99" in str(refused.value)
    assert f"that know version 98 can use, and this one knows version {known_version()}" in str(refused.value)
    assert "Update pgleaderlock" in str(refused.value)


@pytest.mark.parametrize("user", ["term table", "lease rows", "registry"])
async def test_no_table_is_made_in_a_newer_schema(dsn: str, user: str):
    """It may do without one that this program knows."""
    execute(dsn, "CREATE SCHEMA pgleaderlock; CREATE TABLE pgleaderlock.schema_version ()")
    execute(dsn, LABEL.format(NEWER.format(99)))
    with pytest.raises(ConnectionError, match="Update pgleaderlock"):
        await USERS[user](dsn, None)
    assert ask(dsn, "SELECT count(*) FROM pg_tables WHERE schemaname = 'pgleaderlock'") == [(1,)]


# --- The version of a stranger ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", USERS)
async def test_schema_version_that_a_stranger_wrote_is_refused(dsn: str, user: str):
    execute(dsn, OLD, "GRANT USAGE, CREATE ON SCHEMA pgleaderlock TO mallory")
    stranger = make_conninfo(dsn, user="mallory")
    execute(stranger, "CREATE TABLE pgleaderlock.schema_version ()", LABEL.format(NEWER.format(99)))
    with pytest.raises(ConnectionError, match="table schema_version belongs to role mallory"):
        await USERS[user](dsn, None)


def test_no_upgrade_is_made_beside_a_stranger_s_version(dsn: str):
    execute(dsn, OLD, "GRANT USAGE, CREATE ON SCHEMA pgleaderlock TO mallory")
    execute(make_conninfo(dsn, user="mallory"), "CREATE TABLE pgleaderlock.schema_version ()")
    result = run("schema", "apply", "--dsn", dsn)
    assert result.exit_code == 3
    assert "table schema_version belongs to role mallory" in result.output
    assert ask(dsn, "SELECT to_regclass('pgleaderlock.asks')") == [(None,)]


# --- The doctor -------------------------------------------------------------------------------------------------------


async def test_doctor_names_the_version_and_how_to_upgrade_it(dsn: str):
    async def told() -> tuple[str, str, str]:
        findings = (await examine(dsn, None, 15.0)).findings
        (finding,) = [each for each in findings if each.check == "term table"]
        return finding.verdict.value, finding.found, finding.advice

    execute(dsn, OLD)
    _, found, advice = await told()
    assert "is there (version 1)" in found
    assert f"`pgleaderlock schema apply` upgrades the schema to version {known_version()}" in advice
    execute(dsn, schema_sql())
    assert (await told())[2] == ""
    execute(dsn, LABEL.format(NEWER.format(98)))
    verdict, found, advice = await told()
    assert (verdict, advice) == ("warning", "with term_table=True, update pgleaderlock here")
    assert "has version 99, for programs that know version 98" in found
