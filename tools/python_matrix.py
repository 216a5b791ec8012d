"""Run ``make test-all`` with each of several Python interpreters, in an environment of its own for each.

    python3 tools/python_matrix.py --uv uv python3.12 python3.13                    those that are on PATH
    python3 tools/python_matrix.py --uv uv /opt/python/bin/python3.13 -- -k name    another; the rest goes to pytest

The environments are under ``.venv-pythons``. The last lines say for each interpreter whether the tests passed, failed,
or the interpreter was not found. Exit code 1 when tests failed with one of them, 2 when none of them was found.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["find", "main"]

ROOT = Path(__file__).parents[1]
_VERSION = "import platform; print(platform.python_version())"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that runs."""

    path: str
    version: str


def find(name: str) -> Interpreter | None:
    """Return the first interpreter of this name on PATH that runs, or the one at this path.

    A version manager puts a file on PATH for each version that it has, which fails if that version is not chosen.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    for path in filter(None, (shutil.which(name, path=folder) for folder in folders)):
        done = subprocess.run([path, "-c", _VERSION], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Interpreter(path, done.stdout.strip())
    return None


def _test(interpreter: Interpreter, uv: str, pytest_arguments: Sequence[str]) -> bool:
    """Install everything for the interpreter and run the tests with it; return whether all of them passed."""
    folder = f".venv-pythons/{interpreter.version}"
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": folder}
    environment.pop("VIRTUAL_ENV", None)
    sync = [uv, "sync", "--frozen", "--quiet", "--all-extras", "--python", interpreter.path]
    # With a cache of its own, so that `--last-failed` runs what failed with this interpreter.
    words = shlex.join(["-o", f"cache_dir=.pytest_cache/{interpreter.version}", *pytest_arguments])
    steps = (sync, ["make", "test-all", f"ARGS={words}"])
    return all(subprocess.run(step, cwd=ROOT, env=environment, check=False).returncode == 0 for step in steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Test with each interpreter, say what came of it, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    ours, pytest_arguments = (words[: (at := words.index("--"))], words[at + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description="Run the tests with each of several Python interpreters.")
    parser.add_argument("--uv", default="uv", help="the uv that installs (default: the one on PATH)")
    parser.add_argument("interpreters", nargs="+", help="names on PATH, or paths")
    options = parser.parse_args(ours)
    lines, passed = [], []
    for name in options.interpreters:
        interpreter = find(name)
        if interpreter is None:
            lines.append(f"{name}: not found")
            continue
        began = time.monotonic()
        passed.append(_test(interpreter, options.uv, pytest_arguments))
        verdict = "passed" if passed[-1] else "FAILED"
        lines.append(f"{name}: {verdict} (Python {interpreter.version}, {time.monotonic() - began:.0f} s)")
    print("\n" + "\n".join(lines), flush=True)
    return 2 if not passed else 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
