"""The first lines of the command line, in this process: what real processes show too, but cannot always report."""

import sys

import pytest

from pgleaderlock import cli
from pgleaderlock.cli import exit_codes


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
