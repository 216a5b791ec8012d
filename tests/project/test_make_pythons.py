"""What ``make test-pythons`` runs and says, with interpreters and a uv that only write down what they are asked for."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION_MANAGER = "#!/bin/sh\necho 'this version is not chosen' >&2\nexit 127\n"
# `uv sync` and `uv run pytest` are written down; the tests of the version in FAILS fail.
UV = f"""#!{sys.executable}
import json, os, subprocess, sys
words, environment = sys.argv[1:], os.environ.get("UV_PROJECT_ENVIRONMENT", "")
if words == ["--help"]:
    print("--system-certs")
elif "tools/python_matrix.py" in words:
    sys.exit(subprocess.run([sys.executable, *words[words.index("tools/python_matrix.py"):]]).returncode)
elif "pytest" not in words or "--collect-only" not in words:
    with open("calls", "a") as calls:
        calls.write(json.dumps([environment, *words]) + "\\n")
    sys.exit("pytest" in words and bool(environment) and environment.endswith(os.environ["FAILS"]))
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "uv.lock", "tools/python_matrix.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    program(tmp_path / "bin" / "uv", UV)
    return tmp_path


def make(clone: Path, *words: str, fails: str = "none") -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "MAKE", "MFLAGS"))}
    path = os.pathsep.join([str(clone / "shims"), str(clone / "bin"), kept["PATH"]])
    environment = {**kept, "PATH": path, "FAILS": fails}
    command = ["make", "test-pythons", *words]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=50, check=False)
    return done.returncode, done.stdout


def calls(clone: Path) -> list[list[str]]:
    made = [json.loads(line) for line in (clone / "calls").read_text().splitlines()]
    return [words for words in made if words[0]]  # without `make setup`, which is for .venv


def test_each_python_is_tested_in_an_environment_of_its_own_and_gets_one_line(clone: Path):
    for version in ("3.98.1", "3.99.0"):
        program(clone / "bin" / f"python{version[:4]}", f"#!/bin/sh\necho {version}\n")
    code, output = make(clone, "PYTHONS=python3.97 python3.98 python3.99", "ARGS=-k 'one or two'", fails="3.99.0")
    first, second, third = output.splitlines()[-3:]
    assert first == "python3.97: not found"
    assert second.startswith("python3.98: passed (Python 3.98.1, ")
    assert third.startswith("python3.99: FAILED (Python 3.99.0, ")
    assert code != 0
    synced, tested, *_ = calls(clone)
    assert synced[:2] == [".venv-pythons/3.98.1", "sync"]
    assert synced[synced.index("--python") + 1] == str(clone / "bin" / "python3.98")
    assert tested[0] == ".venv-pythons/3.98.1"
    assert tested[-2:] == ["-k", "one or two"], "ARGS go to pytest as they are"
    assert "cache_dir=.pytest_cache/3.98.1" in tested, "what failed with one is not what failed with another"


def test_a_version_manager_that_does_not_run_a_version_does_not_hide_it(clone: Path):
    program(clone / "shims" / "python3.98", VERSION_MANAGER)
    program(clone / "shims" / "python3.99", VERSION_MANAGER)
    program(clone / "bin" / "python3.98", "#!/bin/sh\necho 3.98.1\n")
    code, output = make(clone, "PYTHONS=python3.98 python3.99")
    first, second = output.splitlines()[-2:]
    assert (code, second) == (0, "python3.99: not found")
    assert first.startswith("python3.98: passed")


def test_where_none_is_found_nothing_was_shown(clone: Path):
    code, output = make(clone, f"PYTHONS={clone / 'no' / 'python3.12'}")
    assert output.splitlines()[-1].endswith("no/python3.12: not found")
    assert code != 0
