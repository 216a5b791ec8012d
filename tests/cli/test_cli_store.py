"""No store, no answer: what a command does that was given no store, or two."""

from pathlib import Path

import pytest

from pgleaderlock.cli import exit_codes, operators
from pgleaderlock.cli.argv_secrets import MOVED_VARIABLE, STORE_VARIABLES
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.shown_roles import ShownRoles
from tests.support.cli_words import COMMANDS, WITHOUT_STORE, words_for


@pytest.fixture(autouse=True)
def state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where an embedded server would go, and an environment that names no store."""
    for variable in (*STORE_VARIABLES, MOVED_VARIABLE, "PGLEADERLOCK_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PGLEADERLOCK_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_every_command_is_known_to_these_tests():
    assert set(COMMANDS) >= WITHOUT_STORE


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_STORE))
def test_a_command_without_a_store_is_refused_and_says_how_to_name_one(
    name: str, state_folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert invoke(words_for(name)) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "no store was named" in error
    assert "--dsn" in error
    assert "--embedded" in error
    assert not state_folder.exists()


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_STORE))
def test_a_store_beside_embedded_is_refused(name: str, state_folder: Path, capsys: pytest.CaptureFixture[str]):
    _, *rest = words_for(name)
    words = [*name.split(), "--embedded", "--dsn", "postgresql://db/app", *rest[len(name.split()) - 1 :]]
    assert invoke(words) == exit_codes.USAGE
    assert "--embedded and --dsn name the store twice" in capsys.readouterr().err
    assert not state_folder.exists()


def test_a_store_whose_password_was_moved_to_the_environment_counts_as_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PG_DSN", "postgresql://u:p@db/app")
    monkeypatch.setenv(MOVED_VARIABLE, "PG_DSN")
    assert invoke(["status", "--role", "x", "--embedded"]) == exit_codes.USAGE
    assert "--embedded and --dsn name the store twice" in capsys.readouterr().err


def test_embedded_on_the_command_line_wins_over_a_variable(monkeypatch: pytest.MonkeyPatch):
    places: list[ShownRoles] = []
    monkeypatch.setenv("PG_DSN", "postgresql://db/app")
    monkeypatch.setenv("PGLEADERLOCK_URL", "file:///tmp/x")
    monkeypatch.setattr("pgleaderlock.cli.commands.show_all_roles", lambda place, **_: places.append(place))
    assert invoke(["status", "--embedded"]) == exit_codes.CLEAN
    assert [place.dsn for place in places] == [None]


def test_a_configuration_without_a_backend_names_no_store(
    tmp_path: Path, state_folder: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "node.toml"
    file.write_text('[cluster.leader_election]\nroles = ["x"]\n')
    for words in (["run"], ["status"], ["status", "--role", "x"], ["history"], ["dashboard"]):
        assert invoke([*words, "--config", str(file)]) == exit_codes.USAGE, words
        assert "no store was named" in capsys.readouterr().err
    assert not state_folder.exists()


def test_operators_look_at_the_embedded_registry_when_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Beside a configuration that names none: what else it says counts."""
    file = tmp_path / "node.toml"
    opened: list[str | None] = []

    class OpenedError(Exception):
        pass

    def open_database(dsn: str | None) -> None:
        opened.append(dsn)
        raise OpenedError

    monkeypatch.setattr(operators, "open_database", open_database)
    for store, extra in (('backend = "postgresql://db/app"', []), ("", ["--embedded"])):
        file.write_text(f'[cluster.leader_election]\nroles = ["x"]\n{store}\n')
        with pytest.raises(OpenedError):
            invoke(["history", "--config", str(file), *extra])
    assert opened == ["postgresql://db/app", None]
