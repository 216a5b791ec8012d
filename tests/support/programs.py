"""What tests need of the machine beside Python packages: programs, a library, rights, old commits.

Each need is written here once, with how to have it. A test asks for it with ``@needs("chromium")``, a fixture with
``find_program("chromium")``. Where it is missing the test is skipped, and :func:`summary` has one line per need for the
end of the run. CI=true turns every skip into a failure (``tests/conftest.py``).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

__all__ = ["HISTORY", "find_library", "find_program", "needs", "skip_without", "summary", "was_avoidable"]

HISTORY = "the commits of old versions"

_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))  # which are not in every PATH
_PACKAGES = {
    "amtool": "prometheus-alertmanager",
    "chromium": "chromium",
    "curl": "curl",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "ip": "iproute2",
    "kubectl": "kubernetes-client",
    "libfaketime": "faketime",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "pgbouncer": "pgbouncer",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "promtool": "prometheus",
    "ps": "procps",
    "unshare": "util-linux",
}
_MARK = "needs "


@cache
def find_library() -> Path | None:
    """Return the library that gives a program another time of day, if it is installed."""
    found = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    return found if shutil.which("faketime") and sys.platform == "linux" else None  # the package has both


def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return _succeeds(["mount", "-t", "tmpfs", "none", folder]) and _succeeds(["umount", folder])


def _may_make_networks() -> bool:
    return os.geteuid() == 0 and _succeeds(["unshare", "--net", "true"])


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _has_history() -> bool:
    from proofs.upgrade_torture import HistoryMissing, find_old_commit  # which needs tests.conftest

    try:
        return bool(find_old_commit())
    except HistoryMissing:
        return False


_OTHERS: dict[str, tuple[Callable[[], bool], str]] = {
    HISTORY: (_has_history, "git fetch --unshallow"),
    "root": (lambda: os.geteuid() == 0, "run the tests as root"),
    "the right to mount": (_may_mount, "run the tests as root, with CAP_SYS_ADMIN"),
    "network namespaces": (_may_make_networks, "run the tests as root, with CAP_SYS_ADMIN"),
}


@cache
def _how_to_have(need: str) -> str | None:
    """Return what to do about a need that is not met; None where it is."""
    if need in _OTHERS:
        is_met, advice = _OTHERS[need]
        return None if is_met() else advice
    is_there = find_library() if need == "libfaketime" else shutil.which(need, path=_PATH)
    return None if is_there else f"apt-get install {_PACKAGES[need]}"


def skip_without(*names: str) -> None:
    """Skip the running test where one of these is missing."""
    for name in names:
        if advice := _how_to_have(name):
            pytest.skip(f"{_MARK}{name}: {advice}")


def find_program(name: str) -> str:
    """Return where a program is. Where there is none, skip the running test."""
    skip_without(name)
    found = shutil.which(name, path=_PATH)
    assert found is not None
    return found


def needs(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or a module with ``pytestmark``, that cannot do without these."""
    return pytest.mark.needs(*names)


def was_avoidable(reason: str) -> bool:
    """Whether a test that was skipped for this reason could have been run in CI, whose clone may be a shallow one."""
    return f"{_MARK}{HISTORY}" not in reason


def summary(reasons: Iterable[str]) -> list[str]:
    """Return one line per reason for which tests were skipped: how many tests, and what to do to have them run."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    return [f"skipped {count} test{'s' * (count != 1)}: {reason}" for reason, count in sorted(counts.items())]
