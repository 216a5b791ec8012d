"""What the command line prints for a newcomer: that it is true, and that it helps."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import MOVED_VARIABLE, STORE_VARIABLES
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.target import Target
from pgleaderlock.engine.election import Election
from pgleaderlock.ops.config import Config
from tests.conftest import Postgres
from tests.support.cli_words import COMMANDS, WITHOUT_STORE, words_for

BACKEND = 'backend = "postgresql://db/app"\n'
ROLES = 'roles = [{ name = "x", key = "pair:1/100" }, "y"]\nlease_duration = "9s"\nrefresh_interval = "2s"\n'
ELECTION = "[cluster.leader_election]\n"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in (*STORE_VARIABLES, MOVED_VARIABLE, "PGLEADERLOCK_CONFIG", "PGLEADERLOCK_SCHEMA_OWNER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PGLEADERLOCK_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "node.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must be refused, and returns what it says on one line."""

    def run(*words: str, code: int = exit_codes.USAGE) -> str:
        capsys.readouterr()
        assert invoke(list(words)) == code, capsys.readouterr().err
        return " ".join(capsys.readouterr().err.split())

    return run


# --- A configuration, for candidates and for the doctor -------------------------------------------------------------


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Election, Target]]:
    """The elections that ``acquire`` and ``exec`` were to take part in."""
    taken: list[tuple[Election, Target]] = []

    async def acquire_once(lock: Election, target: Target, **_: Any) -> int:
        taken.append((lock, target))
        return exit_codes.CLEAN

    async def supervise(lock: Election, target: Target, *_: Any) -> Any:
        from pgleaderlock.work.exec.supervisor import Ending, How

        taken.append((lock, target))
        return Ending(How.COMMAND, 0)

    monkeypatch.setattr("pgleaderlock.cli.commands.acquire_once", acquire_once)
    monkeypatch.setattr("pgleaderlock.cli.exec._supervise", supervise)
    return taken


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations of the nodes that ``run`` was to run."""
    ran: list[Config] = []

    def run_configured(config: Config, **_: Any) -> int:
        ran.append(config)
        return exit_codes.CLEAN

    monkeypatch.setattr("pgleaderlock.cli.commands.run_configured", run_configured)
    return ran


def words_of(command: str, *words: str) -> list[str]:
    return [command, *words, *(["--", "true"] if command == "exec" else [])]


TAKING_PART = pytest.mark.parametrize("command", ["acquire", "exec"])


@TAKING_PART
def test_a_role_of_a_configuration_has_its_key_its_times_and_its_store(
    command: str, taken: list[tuple[Election, Target]], write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    file = write(ELECTION + BACKEND + ROLES)
    assert invoke(words_of(command, "--config", file, "--role", "x")) == exit_codes.CLEAN
    monkeypatch.setenv("PGLEADERLOCK_CONFIG", file)
    assert invoke(words_of(command, "--role", "x")) == exit_codes.CLEAN
    for lock, target in taken:
        assert target.fields == {"key": "pair:1/100", "key1": 1, "key2": 100, "role": "x"}
        assert (lock.lease_s, lock.health_interval_s) == (9.0, 2.0)


@TAKING_PART
def test_an_option_wins_over_the_configuration(
    command: str, taken: list[tuple[Election, Target]], write: Callable[[str], str], tmp_path: Path
):
    file = write(ELECTION + BACKEND + 'roles = ["x"]\nlease_duration = "9s"\n')
    assert invoke(words_of(command, "--config", file, "--lease", "30")) == exit_codes.CLEAN
    assert invoke(words_of(command, "--config", file, "--key", "bigint:7")) == exit_codes.CLEAN
    assert invoke(words_of(command, "--config", file, "--url", f"file://{tmp_path}/{{role}}")) == exit_codes.CLEAN
    (only, only_target), (_, numbered), (_, elsewhere) = taken
    assert (only.lease_s, only_target.name) == (30.0, "x")  # the only role needs no --role
    assert numbered.fields == {"key": "bigint:7", "role": None}
    assert elsewhere.fields["url"] == f"file://{tmp_path}/x"


@TAKING_PART
def test_a_store_that_only_a_variable_of_nodes_names_counts(
    command: str, taken: list[tuple[Election, Target]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGLEADERLOCK_BACKEND", f"file://{tmp_path}/{{role}}")
    assert invoke(words_of(command, "--role", "z")) == exit_codes.CLEAN
    assert taken[0][1].fields["url"] == f"file://{tmp_path}/z"


def test_run_takes_the_store_of_a_variable_of_nodes(ran: list[Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PGLEADERLOCK_BACKEND", f"file://{tmp_path}/{{role}}")
    assert invoke(["run", "--role", "z"]) == exit_codes.CLEAN
    assert [role.name for role in ran[0].election.roles] == ["z"]


@TAKING_PART
def test_a_role_that_the_configuration_does_not_have_is_refused(
    command: str, taken: list[Any], write: Callable[[str], str], error: Callable[..., str]
):
    """By its name alone it would be a lock of its own: a slip away from two leaders."""
    file = write(ELECTION + BACKEND + ROLES)
    assert "--role is one of x, y" in error(*words_of(command, "--config", file, "--role", "xx"))
    assert "--role is one of x, y" in error(*words_of(command, "--config", file))
    numbers = error(*words_of(command, "--config", file, "--url", "file:///tmp/{role}", "--key", "bigint:7"))
    assert "key" in numbers
    assert taken == []


def test_the_doctor_examines_the_database_of_a_configuration(
    write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, error: Callable[..., str]
):
    seen: list[Any] = []

    async def show_doctor(dsn: str, key: Any, lease_s: float, **settings: Any) -> bool:
        seen.append((dsn, str(key), lease_s, settings["schema"], settings["allow_pooler"]))
        return True

    monkeypatch.setattr("pgleaderlock.cli.doctor.show_doctor", show_doctor)
    file = write(ELECTION + BACKEND + ROLES + 'term_table = true\nschema = "mine"\nallow_pooler = true\n')
    assert invoke(["doctor", "--config", file, "--role", "x"]) == exit_codes.CLEAN
    assert invoke(["doctor", "--config", file, "--role", "x", "--lease", "30", "--schema", "s"]) == exit_codes.CLEAN
    db = "postgresql://db/app"
    assert seen == [(db, "pair:1/100", 9.0, "mine", True), (db, "pair:1/100", 30.0, "s", True)]
    other = write(ELECTION + 'backend = "file:///tmp/x"\nroles = ["x"]\n')
    assert "doctor examines a PostgreSQL" in error("doctor", "--config", other)


# --- Two ways to name a store ----------------------------------------------------------------------------------------

NAMING = {"embedded": ["--embedded"], "dsn": ["--dsn", "host=a"], "url": ["--url", "postgresql://b/c"]}
PAIRS = [("embedded", "dsn"), ("embedded", "url"), ("url", "dsn"), ("embedded", "config")]


def takes(name: str) -> set[str]:
    named = {"config_file": "config"}
    return {named.get(str(option.name), str(option.name)) for option in COMMANDS[name].params}


@pytest.mark.parametrize(
    ("name", "pair"),
    [(name, pair) for name in sorted(set(COMMANDS) - WITHOUT_STORE) for pair in PAIRS if set(pair) <= takes(name)],
)
def test_two_stores_are_refused_by_every_command_in_either_order(
    pair: tuple[str, str], name: str, write: Callable[[str], str], error: Callable[..., str]
):
    ways = NAMING | {"config": ["--config", write(ELECTION + BACKEND + 'roles = ["x"]\n')]}
    length = len(name.split())
    head, rest = words_for(name)[:length], words_for(name)[length:]
    for one, other in (pair, pair[::-1]):
        said = error(*head, *ways[one], *ways[other], *rest)
        assert "twice" in said
        for each in pair:
            assert {"config": "configuration"}.get(each, f"--{each}") in said


def test_embedded_wins_over_variables_beside_a_configuration_without_a_store(
    ran: list[Config], write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PG_DSN", "postgresql://db/app")
    assert invoke(["run", "--config", write(ELECTION + 'roles = ["x"]\n'), "--embedded"]) == exit_codes.CLEAN
    assert ran[0].election.url is None


def test_a_page_of_one_store_beside_a_configuration_is_refused(write: Callable[[str], str], error: Callable[..., str]):
    file = write(ELECTION + BACKEND + 'roles = ["x"]\n')
    assert "--config" in error("dashboard", "--url", "file:///tmp/x", "--config", file, "--port", "0")


# --- config check ----------------------------------------------------------------------------------------------------


def test_an_empty_file_names_nothing_to_run(write: Callable[[str], str], error: Callable[..., str]):
    said = error("config", "check", "--config", write(""))
    assert "cluster.leader_election.roles: name at least one role" in said
    assert "nothing to run" in said


def test_a_file_of_alerts_alone_is_for_alerts_export(write: Callable[[str], str], capsys: pytest.CaptureFixture[str]):
    alert = '[[alerts]]\nname = "a"\nseverity = "info"\ncondition = "up == 0"\nfor = "1m"\nsummary = "s"\n'
    assert invoke(["config", "check", "--config", write(alert)]) == exit_codes.CLEAN
    assert "Roles: none" in capsys.readouterr().out


# --- What to do where the server answered ----------------------------------------------------------------------------

CHECK = "that the server is up"


@pytest.mark.parametrize("command", ["status", "history", "audit", "watch", "ticks", "step-down"])
def test_error_about_a_missing_registry_does_not_ask_the_operator_to_check_whether_the_server_is_up(
    command: str, postgres: Postgres, error: Callable[..., str]
):
    role = ["--role", "x"] if command == "step-down" else []
    said = error(command, "--dsn", postgres.dsn, "--schema", "nowhere", *role, code=exit_codes.UNREACHABLE)
    assert "in schema nowhere" in said
    assert "--schema" in said.partition("nowhere")[2]
    assert "schema apply" in said
    assert ("status --role NAME" in said) is (command != "ticks")
    assert CHECK not in said


def test_where_no_server_answers_the_address_is_to_be_checked(error: Callable[..., str]):
    for words in (["status"], ["status", "--role", "x"], ["acquire", "--role", "x"], ["doctor"]):
        said = error(*words, "--dsn", "host=127.0.0.1 port=1", code=exit_codes.UNREACHABLE)
        assert CHECK in said


@pytest.mark.parametrize("words", [["status"], ["acquire", "--role", "x"], ["doctor"]], ids=" ".join)
def test_server_that_refuses_a_connection_is_reported_as_answering(
    words: list[str], postgres: Postgres, error: Callable[..., str]
):
    said = error(*words, "--dsn", make_conninfo(postgres.dsn, dbname="not_there"), code=exit_codes.UNREACHABLE)
    assert "not_there" in said
    assert "the server answered" in said
    assert CHECK not in said


# --- Names of options ------------------------------------------------------------------------------------------------


# The others look a role up in the registry, by its lock as well.
@pytest.mark.parametrize("name", ["run", "acquire", "exec", "status", "doctor", "ticks"])
def test_a_key_in_place_of_a_role_is_answered_with_an_option_that_the_command_has(name: str, error: Callable[..., str]):
    options = {flag for option in COMMANDS[name].params for flag in option.opts}
    flag = "--key" if "--key" in options else "--lock"
    words = [*name.split(), "--dsn", "host=a", "--role", "bigint:7", *(["--", "true"] if name == "exec" else [])]
    said = error(*words).partition("Error: ")[2]
    assert f"write {flag} bigint:7" in said
    assert set(re.findall(r"--[a-z-]+", said)) <= options


SUGGESTED = {
    "doctor --confg x": "--config",
    "acquire --rol x": "--role",
    "acquire --dns x": "--dsn",
    "run --interval 4": "--health-interval",
    "exec --lock x -- true": "--key",
    "step-down --key x": "--lock",
    "statsu": "status",
}
NOTHING_LIKE_IT = ["schema show --confi x", "audit --until 3", "acquire --set x", "acquire --timeout 3", "start"]


@pytest.mark.parametrize("line", SUGGESTED)
def test_a_slip_is_answered_with_what_was_meant_alone(line: str, error: Callable[..., str]):
    assert error(*line.split()).endswith(f"Did you mean {SUGGESTED[line]}?")


@pytest.mark.parametrize("line", NOTHING_LIKE_IT)
def test_what_resembles_nothing_is_answered_with_no_guess(line: str, error: Callable[..., str]):
    said = error(*line.split())
    assert "No such" in said
    assert "Did you mean" not in said


# --- Help ------------------------------------------------------------------------------------------------------------


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert invoke([*words, "--help"]) == exit_codes.CLEAN
    return " ".join(capsys.readouterr().out.split())


def test_help_of_the_doctor_offers_no_store_that_it_refuses(capsys: pytest.CaptureFixture[str]):
    said = help_of(capsys, "doctor")
    assert "a postgresql:// URL" in said
    assert "file://" not in said


def test_help_of_schema_names_all_that_has_tables(capsys: pytest.CaptureFixture[str]):
    said = help_of(capsys, "schema")
    for word in ("--term-table", "registry", "scheduled jobs", "postgresql+lease://", "--grant-to"):
        assert word in said
    assert "term table" not in help_of(capsys, "schema", "apply")


def test_the_readme_says_what_a_configuration_file_needs():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "pgleaderlock[cli,config]" in readme
