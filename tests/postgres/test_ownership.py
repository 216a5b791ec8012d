"""Tables of a stranger are refused before anything of theirs runs: in whatever way it is hung on them."""

import ast
import contextlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

import pgleaderlock
from pgleaderlock import ConnectionError, LockKey
from pgleaderlock.cli.commands import cli
from pgleaderlock.options import check_owner
from pgleaderlock.postgres.schema import schema_sql
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.schedule.reading import open_ledger
from tests.conftest import free_port
from tests.support.doubles import until
from tests.support.lease import make_leased
from tests.support.planted import CAUGHT, STRANGER
from tests.support.pooler import pgbouncer
from tests.support.servers import QuickServer
from tests.support.table_users import (
    User,
    by_lease_rows,
    by_reading,
    by_registry,
    by_scheduled_work,
    by_term_table,
    execute,
    make_dsn,
)

_numbers = itertools.count(1)
TABLES = ("terms", "leases", "nodes", "candidates", "leaders", "history", "tick_jobs", "ticks")
TRAP = f"""
CREATE FUNCTION public.ran() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
    RAISE LOG '{CAUGHT} %', current_user;
    BEGIN ALTER ROLE {STRANGER} SUPERUSER; EXCEPTION WHEN OTHERS THEN NULL; END;
    RETURN true;
END $$;
CREATE FUNCTION public.fired() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.ran(); RETURN new; END $$
"""

WAYS = {
    "schema": "ALTER SCHEMA pgleaderlock OWNER TO mallory",
    "table": "ALTER TABLE {table} OWNER TO mallory",
    "trigger": "CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION public.fired()",
    "trigger's condition": "CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW WHEN (public.ran()) "
    "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "right to add triggers": "GRANT TRIGGER ON {table} TO mallory",
    "right of everybody": "GRANT TRIGGER ON {table} TO PUBLIC",
    "right to refer to it": "GRANT REFERENCES ON {table} TO mallory",
    "rule": "CREATE RULE r AS ON INSERT TO {table} DO ALSO SELECT public.ran()",
    "default": "ALTER TABLE {table} ADD COLUMN extra bool DEFAULT public.ran()",
    "constraint": "ALTER TABLE {table} ADD CONSTRAINT c CHECK (public.ran()) NOT VALID",
    "policy": "ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {table} USING (public.ran())",
    "index": "CREATE INDEX ON {table} (public.same({column}))",
    "view": "ALTER TABLE {table} RENAME TO hidden; CREATE VIEW {table} AS SELECT * FROM pgleaderlock.hidden",
    "child": "CREATE TABLE pgleaderlock.child () INHERITS ({table})",
    "type": "CREATE DOMAIN public.odd AS text CHECK (public.ran()); ALTER DOMAIN public.odd OWNER TO mallory; "
    "ALTER TABLE {table} ADD COLUMN extra public.odd",
}


@pytest.fixture(scope="module")
def server(server_folder_root: Path) -> Iterator[Server]:
    server = QuickServer(server_folder_root / "owners", tcp_port=free_port(), settings={"fsync": "off"})
    server.start()
    try:
        execute(server.dsn, f"CREATE ROLE {STRANGER} LOGIN", "CREATE ROLE dba LOGIN", "CREATE ROLE app LOGIN")
        yield server
    finally:
        server.stop("immediate")


@pytest.fixture
def dsn(server: Server) -> str:
    """A database for one test, where mallory may create schemas, and has a function that is never called."""
    name = f"owned_{next(_numbers)}"
    execute(server.dsn, f"CREATE DATABASE {name}", f"GRANT CREATE ON DATABASE {name} TO {STRANGER}, dba")
    dsn = server.dsn.replace("/postgres?", f"/{name}?")
    execute(dsn, f"GRANT CREATE ON SCHEMA public TO {STRANGER}", f"ALTER ROLE {STRANGER} NOSUPERUSER")
    execute(make_conninfo(dsn, user=STRANGER), TRAP)
    same = "CREATE FUNCTION public.same(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1'"
    execute(make_conninfo(dsn, user=STRANGER), same, same.replace("text", "uuid"))
    return dsn


def assert_nothing_ran(server: Server) -> None:
    assert f"LOG:  {CAUGHT}" not in server.log_path.read_text(errors="replace")


# --- Any user of the tables -------------------------------------------------------------------------------------------


USERS: dict[str, tuple[User, str, str]] = {
    "term table": (by_term_table, "terms", "lock"),
    "lease rows": (by_lease_rows, "leases", "role"),
    "registry": (by_registry, "leaders", "lock"),
    "reading": (by_reading, "leaders", "lock"),
    "reading, the last table": (by_reading, "candidates", "instance"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("user", USERS)
async def test_what_a_stranger_could_use_is_refused_and_none_of_it_runs(server: Server, dsn: str, user: str, way: str):
    use, table, column = USERS[user]
    execute(dsn, schema_sql())
    execute(dsn, WAYS[way].format(table=f"pgleaderlock.{table}", column=column))
    with pytest.raises(ConnectionError, match=r"refused.*rights of user postgres.*schema_owner"):
        await use(dsn, None)
    assert_nothing_ran(server)


@pytest.mark.parametrize("table", ["ticks", "tick_jobs"])
async def test_scheduled_work_refuses_a_stranger_s_ledger(server: Server, dsn: str, table: str):
    execute(dsn, schema_sql(), WAYS["trigger"].format(table=f"pgleaderlock.{table}"))
    with pytest.raises(
        ConnectionError, match=rf"trigger t of {table} \(function fired\).* belongs? to role {STRANGER}"
    ):
        async with open_ledger(dsn):
            pass
    assert_nothing_ran(server)


@pytest.mark.parametrize("use", [by_term_table, by_lease_rows, by_registry, by_scheduled_work])
async def test_a_schema_that_a_stranger_made_first_is_refused(server: Server, dsn: str, use: User):
    """As it was seen: with a trigger on the table, its owner became superuser."""
    stranger = make_conninfo(dsn, user=STRANGER)
    trigger = "CREATE TRIGGER t BEFORE INSERT ON pgleaderlock.{} FOR EACH ROW EXECUTE FUNCTION public.fired()"
    execute(stranger, schema_sql(), *(trigger.format(table) for table in TABLES))
    with pytest.raises(ConnectionError, match=f"schema pgleaderlock.* belongs? to role {STRANGER}"):
        await use(dsn, None)
    assert_nothing_ran(server)


@pytest.mark.parametrize("use", [by_term_table, by_lease_rows, by_registry])
async def test_nothing_is_made_in_a_stranger_s_empty_schema(dsn: str, use: User):
    execute(make_conninfo(dsn, user=STRANGER), "CREATE SCHEMA pgleaderlock")
    with pytest.raises(ConnectionError, match=f"schema pgleaderlock.* belongs? to role {STRANGER}"):
        await use(dsn, None)
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'pgleaderlock'").fetchone()
    assert row == (0,)


def test_schema_apply_refuses_to_add_to_a_stranger_s_schema(dsn: str):
    execute(make_conninfo(dsn, user=STRANGER), "CREATE SCHEMA pgleaderlock")
    result = CliRunner().invoke(cli, ["schema", "apply", "--dsn", dsn])
    assert re.search(f"schema pgleaderlock.* belongs? to role {STRANGER}", result.output)
    assert CliRunner().invoke(cli, ["schema", "apply", "--dsn", dsn, "--schema-owner", STRANGER]).exit_code == 0


# --- Whom we trust ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [by_term_table, by_lease_rows, by_registry, by_scheduled_work])
async def test_tables_of_a_named_owner_are_used(dsn: str, use: User):
    grant = "GRANT USAGE ON SCHEMA pgleaderlock TO app; GRANT ALL ON ALL TABLES IN SCHEMA pgleaderlock TO app"
    execute(make_conninfo(dsn, user="dba"), schema_sql(), grant)
    with pytest.raises(ConnectionError, match=r"belongs? to role dba"):
        await use(make_dsn(dsn, "app"), None)
    await use(make_dsn(dsn, "app"), "dba")
    with pytest.raises(ConnectionError, match="role app has the privilege"):  # which could add a trigger for us
        await use(dsn, "dba")


@pytest.mark.parametrize("use", [by_term_table, by_lease_rows, by_registry, by_scheduled_work])
async def test_tables_of_our_own_are_used_whichever_role_owns_the_database(dsn: str, use: User):
    await use(make_dsn(dsn, "dba"), None)


async def test_a_trigger_of_the_owner_s_own_is_fine(dsn: str):
    audit = "CREATE FUNCTION public.audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN new; END $$"
    trigger = "CREATE TRIGGER a BEFORE INSERT ON pgleaderlock.terms FOR EACH ROW EXECUTE FUNCTION public.audited()"
    execute(dsn, schema_sql(), audit, trigger)
    await by_term_table(dsn, None)


async def test_a_foreign_key_from_a_stranger_s_table_is_refused(dsn: str):
    refer = "CREATE TABLE public.mine (lock text REFERENCES pgleaderlock.terms ON DELETE CASCADE)"
    execute(dsn, schema_sql(), f"GRANT USAGE ON SCHEMA pgleaderlock TO {STRANGER}")
    execute(dsn, f"GRANT REFERENCES ON pgleaderlock.terms TO {STRANGER}")
    execute(make_conninfo(dsn, user=STRANGER), refer)
    execute(dsn, f"REVOKE REFERENCES ON pgleaderlock.terms FROM {STRANGER}")
    with pytest.raises(ConnectionError, match=r"a foreign key to terms \(table mine\).* belongs? to role"):
        await by_term_table(dsn, None)


async def test_a_superuser_who_took_a_role_on_does_not_trust_that_role(dsn: str):
    """Code of that role could take the superuser's rights back with RESET ROLE."""
    execute(make_conninfo(dsn, user="dba"), schema_sql())
    with pytest.raises(ConnectionError, match=r"belongs? to role dba"):
        await by_reading(f"{dsn}&options=-crole%3Ddba", None)


def test_a_name_that_could_end_its_quotes_is_no_owner():
    for name in ("a'b", "a\\b", "", "a\nb"):
        with pytest.raises(ValueError, match="schema_owner"):
            check_owner(name)
    assert check_owner("an app {x} %s") == "an app {x} %s"


async def test_an_owner_of_a_strange_name_can_be_named(dsn: str):
    execute(
        dsn, 'CREATE ROLE "an {app} %s" LOGIN', schema_sql(), 'ALTER TABLE pgleaderlock.terms OWNER TO "an {app} %s"'
    )
    await by_term_table(dsn, "an {app} %s")


# --- Poolers, and the only place --------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("status", "--key1", "1", "--key2", "2"), ("doctor",), ("status",), ("ticks",)])
def test_nothing_is_left_on_a_session_of_a_pooler(own_server: Server, words: tuple[str, ...]):
    execute(own_server.tcp_dsn, schema_sql(), "CREATE TABLE public.theirs ()")
    with pgbouncer(own_server, "transaction") as dsn:
        result = CliRunner().invoke(cli, [*words, "--dsn", dsn])
        assert result.exit_code in (0, 5), result.output  # the doctor finds a pooler
        with contextlib.ExitStack() as stack:  # clients in transactions are lent every session that there is
            for _ in range(3):
                client = stack.enter_context(psycopg.connect(dsn, prepare_threshold=None))
                client.execute("SELECT FROM theirs")


async def test_a_session_that_is_refused_behind_a_pooler_is_left_as_it_was(own_server: Server):
    with pgbouncer(own_server, "transaction") as dsn:
        lock, heard = make_leased(dsn, LockKey.bigint(next(_numbers)))
        async with lock:
            await until(lambda: bool(heard.errors))
        assert "pooler" in str(heard.errors[0])
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as client:
            assert client.execute("SHOW search_path").fetchone() == ('"$user", public',)


@pytest.mark.slow
def test_connections_are_opened_in_one_place_only():
    """It pins. A module that connects by itself would run other people's functions."""
    folder = Path(pgleaderlock.__file__).parent
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "connect"
        and ast.unparse(node.value).removeprefix("psycopg.") in ("psycopg", "AsyncConnection", "Connection")
    }  # fmt: skip
    assert found == {"postgres/connection.py"}
