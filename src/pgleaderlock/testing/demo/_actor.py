"""One node of the demo, as the stage sees it: a name, a relay to PostgreSQL, and its current process."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pgleaderlock.testing.demo._node import DSN_VARIABLE
from pgleaderlock.testing.demo._relay import Relay

_LOG_LINES = 15

OnReport = Callable[["Actor", int, dict[str, Any]], None]


class Actor:
    """A node: started, frozen, killed, repaired and stopped by its process id."""

    def __init__(self, name: str, relay: Relay, log_path: Path, settings: dict[str, Any], on_report: OnReport) -> None:
        self.name = name
        self.relay = relay
        self._log_path = log_path
        self._settings = {**settings, "node": name}
        self._on_report = on_report
        self._process: asyncio.subprocess.Process | None = None
        self.is_frozen = False
        self.is_ready = False
        """Whether it leads or is queued, by its own reports since its last fault."""

    @property
    def pid(self) -> int | None:
        """The id of its current process; None between two."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def last_pid(self) -> int:
        """The id of its current process, or of the last one."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_well(self) -> bool:
        """Whether it runs without a fault, and leads or is queued."""
        return self.pid is not None and self.is_ready and not self.is_frozen and not self.relay.is_cut

    async def run(self) -> None:
        """Start a process and pass on its reports until it ends. After a cancellation, call :meth:`stop`."""
        self.is_ready = self.is_frozen = False
        with self._log_path.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                # A group of its own: Ctrl-C is not for it. In our session: if we are killed while it is frozen, its
                # group is an orphan, and the kernel wakes it up and hangs up on it.
                process_group=0,
            )
        assert process.stdout is not None  # noqa: S101 - it was asked for
        async for line in process.stdout:
            with contextlib.suppress(ValueError):  # the last line of a killed process may be half a line
                self._on_report(self, process.pid, json.loads(line))
        await process.wait()

    def _command(self) -> list[str]:
        """Return the command of the next process. -P: do not import modules from the current folder."""
        return [sys.executable, "-P", "-m", "pgleaderlock.testing.demo._node", json.dumps(self._settings)]

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {
            DSN_VARIABLE: self.relay.dsn
        }

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop its process with SIGSTOP, as a host that swaps or a paused guest would."""
        self.is_frozen, self.is_ready = True, False
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its process run again (SIGCONT)."""
        self.is_frozen = False
        self._signal(signal.SIGCONT)

    def cut_off(self) -> None:
        self.is_ready = False
        self.relay.cut()

    def ask_to_end(self) -> None:
        """Undo its faults, and close its stdin, upon which it shuts down in order."""
        self.relay.heal()
        self.thaw()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self, timeout_s: float) -> None:
        """Wait until its process has ended; kill it if that takes longer than ``timeout_s``."""
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await process.communicate()
        except TimeoutError:
            self.kill()
            await process.communicate()

    def last_words(self) -> str:
        """Return the end of its log, which shows why it does not start."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
