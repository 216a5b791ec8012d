"""``LeaderElectionService``: asking once, standing for election, and the five requirements that it was written to."""

import asyncio
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgleaderlock import ConnectionError, FixedInterval, LeaderElectionService, LockError
from pgleaderlock.postgres._dsn import statement_timeout_s
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.testing.embedded import Server
from tests.conftest import Postgres, free_port
from tests.support.processes import Process
from tests.support.silent_proxy import SilentProxy
from tests.support.sync import until

_ids = count(1)


@pytest.fixture
def lock_id() -> int:
    """A lock that no other test uses."""
    return (os.getpid() << 32) + next(_ids)


@pytest.fixture
def node(postgres: Postgres, lock_id: int) -> Iterator[Callable[..., LeaderElectionService]]:
    """Nodes of one cluster, all stopped at the end."""
    made: list[LeaderElectionService] = []

    def one(url: str = postgres.dsn, **settings: Any) -> LeaderElectionService:
        settings = {"settle_s": 0, "retry_strategy": FixedInterval(0.05), **settings}
        made.append(LeaderElectionService(url, lock_id, **settings))
        return made[-1]

    yield one
    for service in made:
        service.release()


@pytest.fixture
def plain(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """A session of a program that knows nothing of us."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        yield connection


def try_lock(connection: psycopg.Connection, lock_id: int) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s::bigint)", [lock_id]).fetchone()
    return row == (True,)


def end_session_of(lock_id: int, connection: psycopg.Connection) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
        "AND (classid::bigint << 32) + objid::bigint = %s",
        [lock_id],
    )


# --- The five requirements -------------------------------------------------------------------------------------


def test_requirement_1_single_node_acquires_leadership(node):
    service = node()
    assert not service.is_leader()
    assert service.try_acquire_leadership() is True
    assert service.is_leader()
    assert service.token is not None
    assert service.try_acquire_leadership() is True  # again: it leads already


def test_requirement_2_second_node_is_refused_without_waiting(node):
    first, second = node(), node()
    assert first.try_acquire_leadership()
    before = time.monotonic()
    assert second.try_acquire_leadership() is False
    assert time.monotonic() - before < 5
    assert not second.is_leader()
    assert first.is_leader()


def test_requirement_3_release_makes_the_lock_available_again(node, plain: psycopg.Connection, lock_id: int):
    first, second = node(), node()
    assert first.try_acquire_leadership()
    assert not second.try_acquire_leadership()
    first.release()
    assert not first.is_leader()
    assert second.try_acquire_leadership()
    second.release()
    assert try_lock(plain, lock_id)
    second.release()  # may be repeated


def test_requirement_4_scheduler_services_start_only_on_the_leader(node):
    running: dict[str, list[str]] = {}

    def start_up(name: str, service: LeaderElectionService) -> None:
        running[name] = []
        service.on_acquired(lambda: running[name].append("scheduler"))
        service.on_lost(lambda: running[name].remove("scheduler"))
        service.try_acquire_leadership()
        running[name].append("queries")  # on every node

    services = {name: node() for name in ("a", "b", "c")}
    for name, service in services.items():
        start_up(name, service)
    assert running == {"a": ["scheduler", "queries"], "b": ["queries"], "c": ["queries"]}
    services["a"].release()
    assert running["a"] == ["queries"]
    assert services["b"].try_acquire_leadership()
    assert running["b"] == ["queries", "scheduler"]


_NODE = """
import logging, sys, threading
from pgleaderlock import FixedInterval, LeaderElectionService

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
logging.getLogger("pgleaderlock").setLevel(logging.WARNING)
log = logging.getLogger("node")

service = LeaderElectionService(sys.argv[1], int(sys.argv[2]), settle_s=0, retry_strategy=FixedInterval(0.05))
service.on_acquired(lambda: log.info("Acquired leadership, starting schedulers"))
service.on_lost(lambda: log.info("stopping schedulers"))
if not service.try_acquire_leadership():
    log.info("Not leader, skipping scheduler startup")
service.start()  # whoever was not lucky keeps trying, and stands in for the leader
log.info("serving queries")
sys.stdin.readline()
service.stop()
log.info("stopped")
"""


def test_requirement_5_of_two_real_nodes_one_runs_the_schedulers_and_the_other_takes_over_when_it_is_killed(
    postgres: Postgres, lock_id: int
):
    command = sys.executable, "-c", _NODE, postgres.dsn, str(lock_id)
    with Process(*command) as leader:
        leader.wait_for("serving queries")
        assert leader.lines == ["Acquired leadership, starting schedulers", "serving queries"]
        with Process(*command) as follower:
            follower.wait_for("serving queries")
            assert follower.lines == ["Not leader, skipping scheduler startup", "serving queries"]
            leader.signal(signal.SIGKILL)
            follower.wait_for("Acquired leadership, starting schedulers", timeout_s=10)
            follower.say()
            follower.wait_for("stopped")
            assert follower.wait() == 0
            assert follower.lines[-2:] == ["stopping schedulers", "stopped"]


# --- With others -----------------------------------------------------------------------------------------------


def test_a_plain_session_that_holds_the_lock_is_respected(node, plain: psycopg.Connection, lock_id: int):
    service = node()
    assert try_lock(plain, lock_id)
    assert service.try_acquire_leadership() is False
    plain.execute("SELECT pg_advisory_unlock(%s::bigint)", [lock_id])
    assert service.try_acquire_leadership() is True


def test_a_plain_session_is_refused_while_we_lead(node, plain: psycopg.Connection, lock_id: int):
    service = node()
    assert service.try_acquire_leadership()
    assert not try_lock(plain, lock_id)
    service.release()
    assert try_lock(plain, lock_id)


def test_a_subclass_has_its_own_lock(postgres: Postgres, lock_id: int):
    class Schedulers(LeaderElectionService):
        LOCK_ID = lock_id

    ours, theirs = Schedulers(postgres.dsn, settle_s=0), LeaderElectionService(postgres.dsn, lock_id, settle_s=0)
    other = LeaderElectionService(postgres.dsn, lock_id + (1 << 20), settle_s=0)
    try:
        assert ours.try_acquire_leadership()
        assert not theirs.try_acquire_leadership()
        assert other.try_acquire_leadership()
    finally:
        ours.release()
        other.release()
    assert str(lock_id) in repr(ours)


@pytest.mark.parametrize("bad", [1 << 63, "x", True])
def test_a_lock_id_that_is_no_bigint_is_refused(postgres: Postgres, bad: Any):
    with pytest.raises((ValueError, TypeError)):
        LeaderElectionService(postgres.dsn, bad)


# --- What goes wrong -------------------------------------------------------------------------------------------


def test_a_database_that_is_not_there_is_an_error_that_says_so(node):
    service = node(f"postgresql://app:s3cret@127.0.0.1:{free_port()}/app")
    for _ in range(2):
        with pytest.raises(ConnectionError, match="cannot connect for lock") as raised:
            service.try_acquire_leadership()
        assert "s3cret" not in str(raised.value)
    assert not service.is_leader()


def test_a_database_that_does_not_answer_is_an_error_in_bounded_time(
    node, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pgleaderlock.compat.election_service._ATTEMPT_S", 1.5)
    with SilentProxy(postgres.tcp_dsn) as proxy:
        proxy.say("mute")
        proxy.wait_for("mute")
        service = node(proxy.dsn)
        before = time.monotonic()
        with pytest.raises(ConnectionError, match=r"no answer within 1\.5 s"):
            service.try_acquire_leadership()
        assert time.monotonic() - before < 10  # and not the 15 s that opening a session may take


@pytest.mark.slow
def test_of_three_nodes_that_ask_once_after_a_server_start_one_runs_the_schedulers(
    own_server: Server, node, caplog: pytest.LogCaptureFixture
):
    """The lease is longer than an answer is waited for: only the node that holds the lock waits for it."""
    own_server.restart()
    services = [node(own_server.dsn, settle_s=None, lease_s=7.0) for _ in range(3)]
    answers: queue.Queue[tuple[bool, LeaderElectionService]] = queue.Queue()
    with caplog.at_level(logging.WARNING):
        for service in services:
            ask = partial(lambda service: answers.put((service.try_acquire_leadership(), service)), service)
            threading.Thread(target=ask, daemon=True).start()
        told = [answers.get(timeout=50) for _ in services]
    assert [is_leader for is_leader, _ in told] == [False, False, True]  # the losers do not wait for the one
    assert [service.is_leader() for _, service in told] == [False, False, True]
    assert "settling" in caplog.text
    assert "the server started less than a lease ago" in caplog.text


@pytest.mark.parametrize("stands", [False, True])
def test_a_leader_whose_session_ends_knows_and_only_who_stands_leads_again(
    node, plain: psycopg.Connection, lock_id: int, stands: bool
):
    service, heard = node(), []
    service.on_acquired(lambda: heard.append("acquired"))
    service.on_lost(lambda: heard.append(f"lost {service.is_leader()}"))
    assert service.try_acquire_leadership()
    if stands:
        service.start()
    end_session_of(lock_id, plain)
    until(lambda: "lost False" in heard)
    if stands:
        until(lambda: service.is_leader() and len(heard) == 3)
        assert heard == ["acquired", "lost False", "acquired"]
    else:
        until(lambda: "stopped" in repr(service))
        assert not service.is_leader()
        assert heard == ["acquired", "lost False"]
        assert try_lock(plain, lock_id)


def test_leadership_is_not_valid_after_its_deadline(node):
    now = [1000.0]
    service = node(clock=lambda: now[0])
    assert service.try_acquire_leadership()
    now[0] += 14  # of 15, and nothing else has happened
    assert not service.is_leader()


# --- Standing for election -------------------------------------------------------------------------------------


def test_a_node_that_stands_takes_over(node):
    first, second = node(), node()
    acquired = threading.Event()
    second.on_acquired(acquired.set)
    with first:
        until(first.is_leader)
        with second as entered:
            assert entered is second
            assert second.try_acquire_leadership() is False  # it only answers
            first.stop()
            assert acquired.wait(20)
            assert second.try_acquire_leadership() is True
    assert not second.is_leader()


def test_a_node_that_starts_while_it_leads_goes_on_leading(node):
    service = node()
    assert service.try_acquire_leadership()
    token = service.token
    service.start()
    assert service.token == token


def test_on_lost_is_called_once_and_before_another_candidate_can_lead(node, plain, lock_id: int):
    service, heard = node(), []

    @service.on_lost
    def stop() -> None:
        heard.append((service.is_leader(), try_lock(plain, lock_id)))

    service.start()
    until(service.is_leader)
    service.stop()
    assert heard == [(True, False)]


def test_a_release_in_a_callback_only_asks(node):
    service = node()
    service.on_acquired(service.release)
    service.start()
    until(lambda: "stopped" in repr(service))
    assert not service.is_leader()


@pytest.mark.slow
def test_leadership_counts_although_on_acquired_takes_its_time(node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.compat.election_service._ATTEMPT_S", 0.5)
    service, go_on = node(), threading.Event()
    service.on_acquired(lambda: go_on.wait(20))
    assert service.try_acquire_leadership() is True
    go_on.set()


def test_a_callback_that_fails_keeps_no_other_from_being_called(node, caplog: pytest.LogCaptureFixture):
    service = node()
    heard: list[object] = []
    for _ in range(2):
        service.on_acquired(lambda: heard.append(1 / 0))
    service.on_acquired(lambda: heard.append("called"))
    service.on_lost(lambda: heard.append(1 / 0))
    assert service.try_acquire_leadership()
    assert heard == ["called"]
    assert "several callbacks failed" in caplog.text
    service.release()
    assert "division by zero" in caplog.text
    with pytest.raises(TypeError, match="callable"):
        service.on_lost(3)


def test_forked_child_gets_an_error_that_says_what_to_do(node):
    service = node()
    assert service.try_acquire_leadership()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            service.try_acquire_leadership()
            answer = "not refused"
        except LockError as error:
            answer = f"{service.is_leader()} {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        assert answers.read().startswith("False this lock (")
    assert service.is_leader()


# --- The connection --------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[psycopg.AsyncConnection, dict[str, Any]]]:
    """The connections that are opened, and with what."""
    found: list[tuple[psycopg.AsyncConnection, dict[str, Any]]] = []
    connect = psycopg.AsyncConnection.connect

    async def note(conninfo: str, **settings: Any) -> psycopg.AsyncConnection:
        connection = await connect(conninfo, **settings)
        found.append((connection, conninfo_to_dict(conninfo)))
        return connection

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", note)
    return found


def show(service: LeaderElectionService, connection: psycopg.AsyncConnection, setting: str) -> str:
    """Ask on the service's own session; on its event loop, because no connection is for two threads."""

    async def ask(_: object) -> str:
        await asyncio.sleep(0)
        answer = connection.pgconn.exec_(f"SHOW {setting}".encode()).get_value(0, 0)
        return (answer or b"").decode()

    return service._election._call(ask)


def test_the_connection_is_dedicated_kept_alive_and_limited(node, postgres: Postgres, opened):
    service = node(postgres.tcp_dsn)
    assert service.try_acquire_leadership()
    connection, parts = opened[0]
    assert connection.autocommit
    assert [parts[name] for name in ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count")] == [
        "1",
        "10",
        "5",
        "3",
    ]
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as its:
        assert its.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert its.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
    assert show(service, connection, "statement_timeout") == "5s"


def test_what_the_url_says_wins(node, postgres: Postgres, opened):
    service = node(make_conninfo(postgres.tcp_dsn, keepalives_idle=33, options="-c statement_timeout=700"))
    assert service.try_acquire_leadership()
    connection, parts = opened[0]
    assert (parts["keepalives_idle"], parts["keepalives_interval"]) == ("33", "5")
    assert show(service, connection, "statement_timeout") == "700ms"


def test_queued_node_is_not_cut_short_by_a_small_statement_timeout(node, postgres: Postgres, caplog):
    first, second = node(), node(make_conninfo(postgres.dsn, options="-c statement_timeout=100"))
    assert first.try_acquire_leadership()
    with caplog.at_level(logging.WARNING), second:
        time.sleep(0.5)  # several slices
        assert caplog.text == ""
        first.release()
        until(second.is_leader)


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [
        ("", None),
        ("-c work_mem=1MB", None),
        ("-c statement_timeout=2500", 2.5),
        ("-cstatement_timeout=2s -c work_mem=1MB", 2.0),
        ("--statement-timeout=1min", 60.0),
        ("-c statement_timeout=1 -c statement_timeout=3h", 10800.0),
        ("-c statement_timeout=0", None),
        ("-c statement_timeout=soon", None),
    ],
)
def test_a_statement_timeout_is_read_from_the_options(
    options: str, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
):
    assert statement_timeout_s({"options": options}) == limit_s
    monkeypatch.setenv("PGOPTIONS", options)
    assert statement_timeout_s({}) == limit_s


def test_a_slice_is_shorter_than_a_statement_may_be():
    assert Lease(15.0, statement_timeout_s=0.5).slice_for(1.0) == 0.25
    assert Lease(15.0, statement_timeout_s=5.0, slice_s=4.0).slice_for(1.0) == 2.5
    assert Lease(15.0, statement_timeout_s=5.0).statement_ms == 5000
    assert Lease(15.0).statement_ms == 16000
    assert Lease(1.5).slice_for(1.0) == 0.5
