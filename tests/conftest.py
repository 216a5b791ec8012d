"""Shared by all tests: a real PostgreSQL, virtual time on request, and no skipping in CI."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.testing import VirtualTimeLoop
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.exec import family
from tests.support import event_loops
from tests.support.programs import find_program, skip_without, summary, was_avoidable
from tests.support.servers import QuickServer, folder_in_memory


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL to test against: ours, or the one that was named with --pg-dsn."""

    dsn: str
    tcp_dsn: str


_OF_A_REAL_KUBERNETES = [
    "deploy/test_manifests_server.py",
    "deploy/test_sidecar_server.py",
    "stores/test_kubernetes_interop.py",
    "stores/test_pod_label_interop.py",
]
_OF_HELM = "deploy/test_chart_server.py"
# What needs a Kubernetes API server of its own (make test-k8s), or hosts that share an NFS server (make test-nfs), is
# not skipped elsewhere, but not there at all.
collect_ignore = [
    *([] if os.environ.get("PGLEADERLOCK_K8S_SERVER") else _OF_A_REAL_KUBERNETES),
    *([] if os.environ.get("PGLEADERLOCK_K8S_SERVER") and os.environ.get("PGLEADERLOCK_HELM") else [_OF_HELM]),
    *([] if os.environ.get("PGLEADERLOCK_NFS_HOSTS") else ["stores/test_nfs_hosts.py", "stores/test_nfs_faults.py"]),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pg-dsn",
        default=os.environ.get("PGLEADERLOCK_TEST_DSN"),
        help="run the PostgreSQL tests against this server instead of an embedded one ($PGLEADERLOCK_TEST_DSN)",
    )
    parser.addoption(
        "--event-loop",
        choices=["asyncio", "uvloop"],
        default=os.environ.get(event_loops.VARIABLE, "asyncio"),
        help=f"run the tests, and the programs that they start, on this event loop (${event_loops.VARIABLE})",
    )
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write what the simulated clusters say under the scripts in tests/testing/transcripts, not compare it",
    )


def pytest_configure(config: pytest.Config) -> None:
    event_loops.use(config.getoption("--event-loop"))
    os.environ.pop("PYTHONUNBUFFERED", None)  # it hides what a program fails to write at its end
    gc.disable()  # what is collected, some ten thousand tests, stays: to walk through it again and again finds nothing
    for number in _SIGNALS:  # a shell's & has SIGINT ignored, and nohup SIGHUP: so would all programs that tests start
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def pytest_unconfigure() -> None:
    while _taken_ports:
        _taken_ports.pop().close()


def pytest_asyncio_loop_factories(config, item) -> Mapping[str, type[asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    name = "asyncio" if item.get_closest_marker("asyncio_loop") else config.getoption("--event-loop")
    return {"real": event_loops.loop_factory(name)}


# Files that take long, the longest first: begun last, each would keep one process busy when the others are done.
_SLOW_FILES = """
exec cli doctor simulation operators group succession strangers kubernetes watching lease demo terms contract_rows
kubernetes_contract contract exhaustive file asks contract_can_fail cut_off registry ownership ticks nomination sync
embedded dashboard_page refusals simulated_pairs nfs_lock config schema_versions sidecar migrations standby_shown
supervise dashboard outages node postgres torture scenes django json_shapes http_attacks etcd http lease_rows
nfs_simulation examples nfs failover simulated_clocks registry_past password nfs_use cli_k8s exec_terminal
alerts_prometheus celery record etcd_contract modelled_postgres etcd_simulation hard_fence file_full_disk
"""


# Of the contract, which is part of the package and has no marks of ours: what waits for real leases to run out.
_SLOW_CONTRACT = """
test_of_many_processes_exactly_one_leads_at_any_time
test_tokens_grow_for_one_who_never_saw_the_silent_holder
test_silence_lasts_as_long_as_the_lease_of_the_holder
test_silence_frees_the_lock_after_the_lease_and_not_before_trust_has_ended
test_a_renewal_extends_trust_and_keeps_others_out
test_of_many_who_wait_for_a_silent_holder_one_takes_over
test_an_answer_that_takes_its_time_adds_no_trust
test_a_grant_that_takes_its_time_adds_no_trust
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = [f"test_{name}" for name in _SLOW_FILES.split()]
    quick = list(dict.fromkeys(item.path.stem for item in items if item.path.stem not in slow))
    # What is slow mostly waits and what is quick mostly computes, so a few of each are in progress at any time.
    places = {stem: place / len(files) for files in (slow, quick) for place, stem in enumerate(files)}
    items.sort(key=lambda item: places[item.path.stem])
    for item in items:
        if item.name.partition("[")[0] in _SLOW_CONTRACT.split():
            item.add_marker("slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From here on only what the tests make is looked at for garbage, not the tests themselves."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        skip_without(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each thing that was missing, so that nothing is skipped in silence."""
    skipped = terminalreporter.stats.get("skipped", [])
    for line in summary(str(report.longrepr[2]) for report in skipped):
        terminalreporter.write_line(line, yellow=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A skipped test is a hole in the gate: CI installs whatever the tests need."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:
        return
    if any(was_avoidable(str(report.longrepr[2])) for report in reporter.stats.get("skipped", [])):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("CI=true: a test was skipped, which counts as a failure here", red=True)


@pytest.fixture(autouse=True)
def _loop_of_the_tested_program(request: pytest.FixtureRequest) -> Iterator[None]:
    """For a test with the mark ``asyncio_loop``: also what it runs and starts is on asyncio's own loop."""
    name = request.config.getoption("--event-loop")
    keeps_own = name != "asyncio" and request.node.get_closest_marker("asyncio_loop") is not None
    if keeps_own:
        event_loops.use("asyncio")
    yield
    if keeps_own:
        event_loops.use(name)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """The command line takes the library's logger for itself, which in this process is shared by all tests."""
    logger = logging.getLogger("pgleaderlock")
    before = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """Commands ignore what ends them from their own end on; run in this process, so would every later child of it."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _adopts_no_orphans() -> Iterator[None]:
    """A supervisor in this process makes it the parent of all later orphans, and the kernel does not wake those."""
    yield
    family._prctl(family._PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture(scope="session")
def server_folder_root() -> Iterator[Path]:
    """A folder that the unprivileged account of an embedded server can enter, which pytest's own is not for root."""
    root = Path(tempfile.mkdtemp(prefix="pgll-", dir=folder_in_memory()))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest, server_folder_root: Path) -> Iterator[Postgres]:
    """One server for all tests that leave it as they found it."""
    if dsn := request.config.getoption("--pg-dsn"):
        yield Postgres(dsn, dsn)
        return
    server = QuickServer(server_folder_root / "shared", tcp_port=free_port(), settings={"max_connections": "200"})
    server.start()
    try:
        yield Postgres(server.dsn, server.tcp_dsn)
    finally:
        server.stop("immediate")


@pytest.fixture
def own_server(server_folder_root: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server for one test alone, to be stopped, crashed and restarted. Always embedded."""
    server = QuickServer(server_folder_root / f"own-{next(_numbers)}", tcp_port=free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture
def server_with_a_clock(server_folder_root: Path) -> Iterator[tuple[Server, Path]]:
    """A server whose time of day is what a file says: ``+3600`` is an hour ahead."""
    from pgleaderlock.testing.torture import WallClock, why_clocks_cannot_jump

    skip_without("libfaketime")
    if why := why_clocks_cannot_jump(server_folder_root):
        pytest.skip(why)
    number = next(_numbers)
    offset = server_folder_root / f"clock-{number}"
    environment = WallClock(offset).environment(at_once=True)
    folder = server_folder_root / f"clocked-{number}"
    server = QuickServer(folder, tcp_port=free_port(), environment=environment)
    server.start()
    try:
        yield server, offset
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
        _remove_what_faketime_leaves()


def _remove_what_faketime_leaves() -> None:
    """A process that is killed leaves the clock that it shared with its children, for the next that gets its id."""
    for left in (*Path("/dev/shm").glob("faketime_shm_*"), *Path("/dev/shm").glob("sem.faketime_sem_*")):
        pid = left.name.rpartition("_")[2]
        if not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):  # of another user
                left.unlink()


_numbers = count(1)


@pytest.fixture
def key() -> LockKey:
    """A key that no other test uses, in this process or another."""
    return LockKey.pair(os.getpid(), next(_numbers))


_PORTS = range(12_000, 32_000)  # below those that a kernel gives to connections, and to servers that ask for any
_taken_ports: list[socket.socket] = []


def free_port() -> int:
    """Return a port for a server that cannot listen on port 0 and say which it got, as PostgreSQL.

    No other test gets it, in this process or another: the UDP port of the same number is held until the process ends.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        mark, probe = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
        with probe:
            try:
                mark.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                mark.close()
                continue
        _taken_ports.append(mark)
        return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for a server and one for a client, each signed by itself and trusted by the other."""
    program, folder = find_program("openssl"), tmp_path_factory.mktemp("pki")
    for name in ("server", "me"):
        words = (
            f"{program} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} "
            f"-addext subjectAltName=DNS:api.example,IP:127.0.0.1 -keyout {name}.key -out {name}.crt"
        )
        subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    return folder
