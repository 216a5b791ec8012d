"""Wall clocks that jump, where libfaketime is installed.

Leadership is measured with a monotonic clock, so a wall clock that jumps must change nothing: that is what is shown
here. The monotonic clock itself cannot jump, and is not made to: a machine on which it did would break every promise of
every lease. libfaketime replaces the wall clock of one process; whether it leaves the other clock alone is tried first.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["WallClock", "why_clocks_cannot_jump"]

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
    """The wall clock of one node, which shows another time whenever it is told to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("+0")

    def jump(self, by_s: int) -> None:
        """Show the time of so many seconds later than it is, or earlier."""
        self._path.write_text(f"{by_s:+d}")

    def environment(self) -> dict[str, str]:
        """What the node's process has to be started with."""
        return {
            "LD_PRELOAD": _library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_CACHE_DURATION": "1",  # in seconds: without it, each look at any clock would read the file
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # what older versions call it
        }


def _library() -> str:
    """Where the library is, in the program's own words; empty if there is none."""
    program = shutil.which("faketime")
    if program is None:
        return ""
    words = [program, "-f", "+0s", "printenv", "LD_PRELOAD"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_TRIAL_S)  # noqa: S603 - ours
    return done.stdout.strip()


def why_clocks_cannot_jump(folder: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Say why wall clocks cannot jump here; None if they can, and the other clock does not."""
    if not _library():
        return "faketime is not installed"
    trial = folder / "clock-trial"
    words = [sys.executable, "-P", "-c", _PROBE, str(trial)]
    env = {**environment, **WallClock(trial).environment(), "FAKETIME_NO_CACHE": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_TRIAL_S)  # noqa: S603
    trial.unlink()
    if done.stdout.split() != ["86400", "0", "0"]:
        return "the faketime that is installed here does not leave the monotonic clock alone"
    return None
