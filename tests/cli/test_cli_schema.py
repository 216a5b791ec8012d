"""``pgleaderlock schema``: printed, made, granted."""

import json

import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.postgres.schema import known_version
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres
from tests.support.silent_proxy import SilentProxy

TABLES = "SELECT to_regclass('elections.terms')::text"


def test_the_statements_are_printed_under_the_schema_s_name(capsys: pytest.CaptureFixture[str]):
    assert invoke(["schema", "show", "--schema", "elections"]) == exit_codes.CLEAN
    shown = capsys.readouterr().out
    assert 'CREATE TABLE IF NOT EXISTS "elections".terms' in shown
    assert "{schema}" not in shown


def test_the_table_is_made_and_granted_and_this_may_be_repeated(own_server: Server, capsys: pytest.CaptureFixture[str]):
    import psycopg

    with psycopg.connect(own_server.dsn, autocommit=True) as owner:
        owner.execute('CREATE ROLE "an app" LOGIN')
        words = ["schema", "apply", "--dsn", own_server.dsn, "--schema", "elections", "--grant-to", "an app"]
        for _ in range(2):
            assert invoke(words) == exit_codes.CLEAN
            assert (
                capsys.readouterr().out
                == f"schema elections is ready (version {known_version()}), and an app may use it\n"
            )
        assert owner.execute(TABLES).fetchone() == ("elections.terms",)
        owner.execute("CREATE TABLE elections.salaries ()")
        invoke(words)
        allowed = "SELECT has_table_privilege('an app', 'elections.salaries', 'SELECT')"
        assert owner.execute(allowed).fetchone() == (False,)  # not ours to grant
        owner.execute('SET ROLE "an app"')
        assert owner.execute("SELECT count(*) FROM elections.terms").fetchone() == (0,)


@pytest.mark.parametrize("option", ["--grant-to", "--grant-asks-to"])
def test_a_grant_to_a_role_that_does_not_exist_is_refused_after_the_tables_are_made(
    own_server: Server, capsys: pytest.CaptureFixture[str], option: str
):
    words = ["schema", "apply", "--dsn", own_server.dsn, "--schema", "elections"]
    assert invoke([*words, option, "no such"]) == exit_codes.UNREACHABLE
    said = capsys.readouterr().err
    assert said.startswith("Error: schema elections is there (host=")
    assert said.endswith("), but nothing was granted to no such: there is no such database role. Create it first\n")
    assert invoke(words) == exit_codes.CLEAN
    assert f"is ready (version {known_version()})" in capsys.readouterr().out


def test_programs_get_json(own_server: Server, capsys: pytest.CaptureFixture[str]):
    assert invoke(["schema", "show", "--schema", "elections", "--json"]) == exit_codes.CLEAN
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["from_version"], shown["version"]) == ("elections", None, known_version())
    assert 'CREATE TABLE IF NOT EXISTS "elections".terms' in shown["sql"]
    words = ["schema", "apply", "--dsn", own_server.dsn, "--schema", "elections", "--grant-to", "postgres", "--json"]
    assert invoke(words) == exit_codes.CLEAN
    expected = {"schema": "elections", "granted_to": "postgres", "asks_granted_to": None, "version": known_version()}
    assert json.loads(capsys.readouterr().out) == {**expected, "from_version": None}
    assert invoke(words) == exit_codes.CLEAN
    assert json.loads(capsys.readouterr().out) == {**expected, "from_version": known_version()}


def test_user_without_permission_gets_an_error_without_a_traceback(
    own_server: Server, capsys: pytest.CaptureFixture[str]
):
    import psycopg

    with psycopg.connect(own_server.dsn, autocommit=True) as owner:
        owner.execute("CREATE ROLE nobody LOGIN PASSWORD 'a-secret'")
    dsn = psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="nobody", password="a-secret")
    assert invoke(["schema", "apply", "--dsn", dsn]) == exit_codes.UNREACHABLE
    said = capsys.readouterr().err
    assert "permission denied for database" in said
    assert "a-secret" not in said


@pytest.mark.parametrize("name", ["a b", "", 'a"; DROP TABLE x'])
def test_a_name_that_cannot_be_a_schema_s_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]):
    for word in ("show", "apply"):
        assert invoke(["schema", word, "--schema", name]) == exit_codes.USAGE
        assert "plain name" in capsys.readouterr().err


def test_missing_database_is_reported_as_unreachable(postgres: Postgres, capsys: pytest.CaptureFixture[str]):
    assert invoke(["schema", "apply", "--dsn", "postgresql://u@127.0.0.1:1/db"]) == exit_codes.UNREACHABLE
    assert "cannot connect for schema pgleaderlock" in capsys.readouterr().err


def test_strict_without_the_table_is_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert invoke(["run", "--role", "x", "--takeover", "strict"]) == exit_codes.USAGE
    assert "add --term-table" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run"], ["acquire"], ["exec", "--", "true"]])
@pytest.mark.parametrize("flag", ["--schema", "--schema-owner"])
def test_a_schema_without_the_table_is_wrong_usage(command: list[str], flag: str, capsys: pytest.CaptureFixture[str]):
    """It would have no effect."""
    word, *rest = command
    dsn = "postgresql://u@127.0.0.1:1/db"
    words = [word, "--dsn", dsn, "--role", "x", flag, "other", *(["--wait", "0"] if word == "exec" else []), *rest]
    assert invoke(words) == exit_codes.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert flag in told
    assert "Add --term-table" in told


def test_a_database_that_does_not_answer_is_not_waited_for(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("pgleaderlock.postgres._schema._ANSWER_S", 0.1)
    with SilentProxy(postgres.tcp_dsn) as proxy:
        proxy.mute()
        assert invoke(["schema", "apply", "--dsn", proxy.dsn]) == exit_codes.UNREACHABLE
    assert "no answer within 0.1 s" in capsys.readouterr().err
