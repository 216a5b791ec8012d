"""Starts the guardian as a script (``python -I -S``) without importing the package around it.

The guardian needs the standard library only, and has to start at once.
"""

import sys
from pathlib import Path
from types import ModuleType


def launch() -> None:
    """Register an empty package under the name of the real one, and run the guardian."""
    package = ModuleType("pgleaderlock")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["pgleaderlock"] = package
    from pgleaderlock.work.exec.guardian import main  # noqa: PLC0415 - only now can it be found

    sys.exit(main(sys.argv))


if __name__ == "__main__":  # pragma: no cover - nothing is counted in a process without site
    launch()
