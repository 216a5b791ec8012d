"""What the command line says of itself: help that fits, examples that work, exit codes that are the command's own."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from pgleaderlock import __version__
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import cli, invoke
from pgleaderlock.cli.words import WORDS


def commands(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield " ".join([*words, name]), command
        if isinstance(command, click.Group):
            yield from commands(command, *words, name)


ALL = dict(commands(cli))
LEAVES = sorted(name for name, command in ALL.items() if not isinstance(command, click.Group))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert invoke([*words, "--help"]) == exit_codes.CLEAN
    return capsys.readouterr().out


def test_every_command_has_words_and_all_words_a_command():
    assert set(WORDS) == set(ALL)


@pytest.mark.parametrize("name", LEAVES)
def test_help_ends_with_an_example_that_can_be_parsed_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PG_DSN", raising=False)
    text = shown(capsys, *name.split())
    assert max(map(len, text.splitlines())) <= 80
    example, codes = text.partition("Example:\n")[2].split("Exit codes:\n")
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["pgleaderlock", *name.split()]
    arguments = words[1 + len(name.split()) :]
    with ALL[name].make_context(name, arguments) as context:
        assert context.params
    assert codes.split()[0] in {str(exit_codes.CLEAN), "*"}
    assert f" {exit_codes.USAGE} " in codes


def codes_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.partition("Exit codes:\n")[2].splitlines() if line.strip()]


def test_exit_codes_are_those_of_the_command(capsys: pytest.CaptureFixture[str]):
    """Not the same twelve lines everywhere."""
    assert codes_of(shown(capsys, "acquire")) == ["0", "1", "2", "3", "4", "130"]
    assert codes_of(shown(capsys, "history")) == ["0", "1", "2", "3", "130"]
    assert codes_of(shown(capsys, "doctor")) == ["0", "2", "3", "5", "130"]
    assert codes_of(shown(capsys, "config", "check")) == ["0", "2"]
    assert codes_of(shown(capsys, "exec"))[-1] == "128+N"


def test_commands_are_listed_in_groups_each_once_and_on_one_line(capsys: pytest.CaptureFixture[str]):
    _usage, *lines = shown(capsys).splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(name for name in listed if name in cli.commands) == sorted(cli.commands)
    assert [line for line in lines if line.endswith("...")] == []
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options:", "Take part:", "Look:", "Operate:", "Set up:", "Try it:"]
    for name in ("nfs", "schema", "config", "k8s", "alerts"):
        assert not any(line.endswith("...") for line in shown(capsys, name).splitlines()[1:])


@pytest.mark.parametrize("module", ["pgleaderlock", "pgleaderlock.cli"])
def test_the_package_can_be_run_as_a_module(module: str):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pgleaderlock, version {__version__}\n"


def test_a_password_is_moved_out_of_the_arguments_of_the_module_too():
    """It is executed anew as it was started."""
    words = ["status", "--role", "x", "--embedded", "--dsn", "postgresql://u:secret@h/db"]
    done = subprocess.run([sys.executable, "-m", "pgleaderlock", *words], capture_output=True, text=True, check=False)
    assert done.returncode == exit_codes.USAGE
    assert "--embedded and --dsn name the store twice" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.slow
def test_shells_can_complete_commands(shell: str):
    def ask(instruction: str, **variables: str) -> str:
        environment = {**os.environ, "_PGLEADERLOCK_COMPLETE": f"{shell}_{instruction}", **variables}
        command = [sys.executable, "-m", "pgleaderlock"]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout

    assert "_PGLEADERLOCK_COMPLETE" in ask("source")
    # Which word is to be completed: bash and zsh number it, fish repeats it.
    place = "st" if shell == "fish" else "1"
    offered = ask("complete", COMP_WORDS="pgleaderlock st", COMP_CWORD=place).replace(",", "\n").split()
    assert {"status", "step-down"} <= set(offered)


def test_help_names_every_kind_of_store(capsys: pytest.CaptureFixture[str]):
    assert "etcd" in shown(capsys).partition("Options:")[0]
    for command in ("run", "exec", "leader", "status"):
        text = " ".join(shown(capsys, command).split())
        for scheme in ("file://", "nfs://", "k8s://", "etcd://", "postgresql+lease://"):
            assert scheme in text, (command, scheme)


def test_help_of_dashboard_says_once_which_urls_it_accepts(capsys: pytest.CaptureFixture[str]):
    text = " ".join(shown(capsys, "dashboard").split())
    assert "a postgresql:// URL of a registry; or one lock, as file:///path" in text
    assert "whatever the elections are on" not in text


def test_help_of_exec_says_what_differs_with_cron(capsys: pytest.CaptureFixture[str]):
    text = " ".join(shown(capsys, "exec").split())
    assert "[default: forever; with --cron 60]" in text
    assert "with --cron also PGLEADERLOCK_SLOT" in text
    assert "(--lease, --takeover, --term-table, ...) have no effect there and are refused" in text
