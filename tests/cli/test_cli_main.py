"""The first lines of the command line, in this process: what real processes show too, but cannot always report."""

import json
import sys
from unittest.mock import Mock

import click
import pytest

from pgleaderlock import ConnectionError, cli
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.acquire import acquire_once
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.target import Target
from tests.support.doubles import ScriptedBackend, make_election


def test_an_interrupt_before_anything_is_ready_is_an_exit_code_and_no_traceback(monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "move_secrets_to_environment", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_codes.INTERRUPTED


@pytest.mark.parametrize("missing", ["click", "loguru"])
def test_a_missing_extra_is_answered_with_what_to_install(monkeypatch, capsys, missing):
    monkeypatch.setattr(sys, "argv", ["pgleaderlock", "status"])
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_codes.USAGE
    assert "pip install 'pgleaderlock[cli]'" in capsys.readouterr().err


def test_a_wrong_word_is_wrong_usage(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pgleaderlock", "lead-me"])
    monkeypatch.setattr("pgleaderlock.cli.commands.unwind_on_signal", lambda: None)  # this process keeps its handlers
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_codes.USAGE
    assert "lead-me" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("status", "--role", "x", "--json", "--dsn", "postgresql://127.0.0.1:1/d"),
            exit_codes.UNREACHABLE,
            "127.0.0.1",
        ),
        (("doctor", "--json", "--dsn", "postgresql://127.0.0.1:1/d"), exit_codes.UNREACHABLE, "127.0.0.1"),
        (("history", "--json", "--dsn", "postgresql://127.0.0.1:1/d"), exit_codes.UNREACHABLE, "127.0.0.1"),
        (("status", "--json", "--key1", "1", "--dsn", "postgresql://u:secret@h/d"), exit_codes.USAGE, "--key2"),
        (("step-down", "--json", "--no-such-option"), exit_codes.USAGE, "--no-such-option"),
        (("config", "show", "--json", "--config", "/no/such/file"), exit_codes.USAGE, "/no/such/file"),
    ],
)
def test_failing_command_with_json_prints_one_object_with_the_error(monkeypatch, capsys, words, code, said):
    monkeypatch.setattr("pgleaderlock.cli.commands.unwind_on_signal", lambda: None)  # this process keeps its handlers
    assert invoke(words) == code
    shown = capsys.readouterr()
    record = json.loads(shown.out)  # one object, and nothing else
    assert list(record) == ["error", "exit_code"]
    assert record["exit_code"] == code
    assert said in record["error"]
    assert said in shown.err
    assert "secret" not in shown.out


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--role", "x", "--dsn", "postgresql://127.0.0.1:1/d"),
        ("exec", "--dsn", "postgresql://h/d", "--lease", "0.01", "--", "echo", "--json"),
        ("exec", "--json", "--dsn", "postgresql://h/d", "--lease", "0.01", "--", "echo"),
        ("--json",),
        ("lead-me", "--json"),
    ],
)
def test_failing_command_prints_json_only_where_json_on_stdout_was_asked_for(monkeypatch, capsys, words):
    monkeypatch.setattr("pgleaderlock.cli.commands.unwind_on_signal", lambda: None)
    assert invoke(words) != exit_codes.CLEAN
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Error" in shown.err


def test_interrupted_command_with_json_says_so(monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> int:
        raise click.Abort

    monkeypatch.setattr("pgleaderlock.cli.commands.unwind_on_signal", lambda: None)
    monkeypatch.setattr("pgleaderlock.cli.commands.show_logs", interrupted)
    assert invoke(("status", "--role", "x", "--json", "--dsn", "postgresql://h/d")) == exit_codes.INTERRUPTED
    assert json.loads(capsys.readouterr().out)["exit_code"] == exit_codes.INTERRUPTED


@pytest.mark.virtual_time
async def test_acquire_does_not_call_a_lock_lost_because_an_attempt_before_had_failed(capsys):
    election, _, _ = make_election(ScriptedBackend(try_acquire=[ConnectionError("away")]))
    target = Target("mine", "mine", {"role": "mine"}, look=Mock())
    assert await acquire_once(election, target, hold_s=1, wait_s=60, as_json=True) == exit_codes.CLEAN
    assert [json.loads(line)["outcome"] for line in capsys.readouterr().out.splitlines()] == ["acquired", "released"]
