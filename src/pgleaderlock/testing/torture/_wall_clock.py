"""Wall clocks that are stepped, where libfaketime is installed: those of the nodes, and that of a server of our own.

A node measures leadership with a monotonic clock, so a step of its wall clock must change nothing. PostgreSQL measures
its own age and idle sessions with its wall clock: there a step changes something, and must not make two leaders. The
monotonic clock cannot be stepped, and is not: a machine on which it is breaks every promise of every lease. libfaketime
replaces the wall clock of one process and its children; whether it leaves the monotonic clock alone is tried first.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PROBE = """
import sys, time
from pathlib import Path
clocks = [time.CLOCK_MONOTONIC, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]
wall, steady = time.time(), [time.clock_gettime(clock) for clock in clocks]
Path(sys.argv[1]).write_text("+86400")
print(int(time.time() - wall), *(int(time.clock_gettime(clock) - at) for clock, at in zip(clocks, steady)))
"""
_TRIAL_S = 20.0


class WallClock:
    """The wall clock of one process and its children: how far it is ahead of the true time is written in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.jump(0)

    def jump(self, ahead_s: float) -> None:
        """Set the clock this many seconds ahead of the true time, or behind it if negative."""
        new = self._path.with_name(f"{self._path.name}.new")  # a reader finds the whole of the old or of the new one
        new.write_text(f"{round(ahead_s, 3):+}")
        new.chmod(0o644)  # a server that was started by root runs as another user
        new.replace(self._path)

    def environment(self, *, at_once: bool = False) -> dict[str, str]:
        """Return the environment variables that the process has to be started with.

        With ``at_once`` a step is seen at once, because the file is read each time; otherwise within a second.
        """
        return {
            "LD_PRELOAD": _library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            **({"FAKETIME_NO_CACHE": "1"} if at_once else {"FAKETIME_CACHE_DURATION": "1"}),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # what older versions call it
        }


def _library() -> str:
    """Return the path of libfaketime as the ``faketime`` program sets it; empty if it is not installed."""
    program = shutil.which("faketime")
    if program is None:
        return ""
    words = [program, "-f", "+0s", "printenv", "LD_PRELOAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_TRIAL_S)  # noqa: S603 - ours
    return done.stdout.strip()


def why_clocks_cannot_jump(folder: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why wall clocks cannot jump here; None if they can and the monotonic clock is left alone."""
    if not _library():
        return "faketime is not installed"
    trial = folder / "clock-trial"
    words = [sys.executable, "-P", "-c", _PROBE, str(trial)]
    env = {**environment, **WallClock(trial).environment(at_once=True)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_TRIAL_S)  # noqa: S603
    trial.unlink()
    if done.stdout.split() != ["86400", "0", "0"]:
        return "the faketime that is installed here does not leave the monotonic clock alone"
    return None
