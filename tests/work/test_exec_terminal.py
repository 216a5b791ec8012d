"""``pgleaderlock exec`` on a terminal: as a job of a real shell, and without one. As the bare command would do."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgleaderlock import LockKey
from pgleaderlock.work.exec import family
from tests.conftest import Postgres
from tests.support.postgres import look_at_lock
from tests.support.terminals import Session, Shell, ended, state, until

READS = 'echo ready; while read -r line; do echo "got $line"; done'
DEAF = "trap '' TERM HUP; echo ready; exec sleep 1000"  # and reads nothing: a read would fail, and end it


class Wrapped:
    """The words that wrap a command, for one role of a real server. The lease is longer than any test."""

    def __init__(self, postgres: Postgres, role: str) -> None:
        self._postgres, self._role = postgres, role

    def __call__(self, *command: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        store = ("--dsn", self._postgres.dsn, "--role", self._role, "--settle", "0", "--lease", "120")
        return (sys.executable, "-m", "pgleaderlock.cli", "exec", *store, *(options or ("-q",)), "--", *command)

    def reading(self, *options: str) -> tuple[str, ...]:
        return self("sh", "-c", READS, options=options)

    @property
    def is_free(self) -> bool:
        return asyncio.run(look_at_lock(self._postgres.dsn, LockKey.named(self._role))) == []


@pytest.fixture
def wrapped(postgres: Postgres, key: LockKey, monkeypatch: pytest.MonkeyPatch) -> Wrapped:
    monkeypatch.delenv("PG_DSN", raising=False)
    return Wrapped(postgres, f"exec-{key.numbers[0]}-{key.numbers[1]}")


@pytest.fixture
def shell() -> Iterator[Shell]:
    made = Shell()
    with ended(made):
        yield made


# --- A job of a shell -------------------------------------------------------------------------------------------


def test_in_the_foreground_the_command_has_the_terminal_and_ctrl_c_is_its(shell: Shell, wrapped: Wrapped):
    shell.run(*wrapped.reading())
    shell.wait_for("ready")
    shell.type("hello\n")
    shell.wait_for("got hello")
    shell.type("\x03")
    assert shell.code() == 128 + signal.SIGINT


def test_a_background_command_that_reads_is_a_stopped_job_and_fg_gives_it_the_terminal(shell: Shell, wrapped: Wrapped):
    shell.run(*wrapped.reading(), background=True)
    shell.wait_for("ready")
    shell.wait_for("Stopped")
    shell.type("fg\n")
    shell.type("hello\n")
    shell.wait_for("got hello")
    shell.type("\x04")
    assert shell.code() == 0


def test_fg_of_a_command_that_runs_in_the_background_gives_it_the_terminal(
    shell: Shell, wrapped: Wrapped, tmp_path: Path
):
    """No signal reports that: the shell has no reason to continue what runs."""
    may_read = tmp_path / "may read"
    program = f"echo ready; while [ ! -e '{may_read}' ]; do sleep 0.02; done; {READS}"
    shell.run(*wrapped("sh", "-c", program), background=True)
    shell.wait_for("ready")
    shell.type("fg\n")
    # The wrapper's, or the command's already: a busy wrapper looks whether it may lend the terminal after this.
    until(lambda: shell.foreground != os.getpgid(shell.pid))
    may_read.touch()
    shell.type("hello\n")
    shell.wait_for("got hello")
    shell.type("\x03")
    assert shell.code() == 128 + signal.SIGINT


def test_ctrl_z_then_bg_then_fg(shell: Shell, wrapped: Wrapped):
    shell.run(*wrapped.reading())
    shell.wait_for("ready")
    for turn in range(2):
        shell.type("\x1a")
        shell.wait_for("Stopped")
        shell.type("bg\n")  # where it reads
        shell.wait_for("Stopped")
        shell.type("fg\n")
        shell.type(f"hello {turn}\n")
        shell.wait_for(f"got hello {turn}")


@pytest.mark.slow
def test_ctrl_z_before_it_leads_and_after_fg_of_what_runs(shell: Shell, wrapped: Wrapped, tmp_path: Path):
    """The foreground is the wrapper's then, and it passes the signal on."""
    shell.run(*wrapped("sh", "-c", "echo ready; while :; do sleep 0.02; done"), background=True)
    shell.wait_for("ready")
    job = shell.job()
    shell.run(*wrapped.reading())  # which waits: another leads
    until(lambda: shell.foreground not in (os.getpgid(shell.pid), os.getpgid(job)))
    until(lambda: state(shell.foreground) == "S")
    waiting = shell.foreground
    shell.type("\x1a")
    shell.wait_for("Stopped")
    shell.type("kill -9 %2; fg %1\n")
    until(lambda: shell.foreground not in (os.getpgid(shell.pid), waiting))
    shell.stop(job)
    shell.type("kill %1\n")
    until(lambda: state(job) == "" and wrapped.is_free)


def test_a_pipeline_stops_as_a_whole(shell: Shell, wrapped: Wrapped):
    shell.type(f"{' '.join(map(repr, wrapped.reading()))} | cat\n")
    shell.wait_for("ready")
    shell.type("\x1a")
    shell.wait_for("Stopped")
    shell.type("fg\n")
    shell.type("hello\n")
    shell.wait_for("got hello")


def test_a_job_that_is_stopped_ends_when_the_shell_kills_it(shell: Shell, wrapped: Wrapped):
    shell.run(*wrapped.reading(), background=True)
    shell.wait_for("Stopped")
    job = shell.job()
    shell.type("kill %1\n")
    until(lambda: state(job) == "" and wrapped.is_free)


# --- The terminal is closed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("option", ["-q", "--json", "--restart"])
@pytest.mark.slow
def test_a_wrapper_whose_terminal_is_closed_ends(shell: Shell, wrapped: Wrapped, option: str, *, background: bool):
    """Also one that has something to say, and nowhere to say it."""
    shell.run(*wrapped.reading(option), background=background)
    shell.wait_for("Stopped" if background else "ready")
    pids = [member.pid for member in family.descendants(shell.pid)]
    shell.close_terminal()
    until(lambda: not any(map(state, pids)) and wrapped.is_free)


def test_a_command_that_ignores_the_hang_up_is_killed_in_time(shell: Shell, wrapped: Wrapped):
    shell.run(*wrapped("sh", "-c", DEAF, options=("--kill-after", "0.5")), background=True)
    shell.wait_for("ready")
    pids = [member.pid for member in family.descendants(shell.pid)]
    shell.close_terminal()
    try:
        until(lambda: not any(map(state, pids)) and wrapped.is_free)
    finally:
        for pid in filter(state, pids):  # which nothing else would end, if this is missed
            os.kill(pid, signal.SIGKILL)


# --- No shell that could continue it ----------------------------------------------------------------------------


def test_without_a_shell_ctrl_z_does_not_stop_the_command_for_good(wrapped: Wrapped):
    """The leader of a session is not stopped by it, as in a container: no process could continue it."""
    session = Session(*wrapped.reading())
    with ended(session):
        session.wait_for("ready")
        session.type("\x1a")
        session.type("hello\n")
        session.wait_for("got hello")
        session.type("\x03")
        assert os.waitstatus_to_exitcode(session.wait()) == 128 + signal.SIGINT


def test_an_orphan_in_the_background_that_reads_the_terminal_ends(shell: Shell, wrapped: Wrapped):
    """The bare command would read an error."""
    words = " ".join(map(repr, wrapped.reading()))
    shell.type(f"({words} </dev/tty & echo pid-$!-)\n")
    shell.wait_for("pid-")
    wrapper = int(shell.wait_for("-"))
    shell.wait_for("ready")
    until(lambda: state(wrapper) in ("", "Z") and wrapped.is_free)
