"""The HTTP server of the dashboard and the metrics: its thread, its limits, and who gives way to whom."""

import asyncio
import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from pgleaderlock import LockState
from pgleaderlock._logging import get_logger
from pgleaderlock.ops.dashboard import Dashboard
from pgleaderlock.ops.dashboard._security import classify
from pgleaderlock.ops.http import HttpLimits, HttpServer, Visit, limits_for, listen
from pgleaderlock.ops.http._acceptor import Acceptor
from pgleaderlock.ops.http._processor_time import ProcessorTime
from pgleaderlock.ops.http._rare_log import FailedRequestFilter, RareLog
from pgleaderlock.ops.http._waiting_room import WaitingRoom
from pgleaderlock.ops.registry.reading import RoleStatus
from tests.support.dashboard import TOKEN, FixedSource, leader
from tests.support.doubles import make_election, until, until_state

FEW = replace(limits_for(8, 1024), processor_share=100.0)
ANSWER = b"pgleaderlock test"  # the name of the server's thread
QUICK = replace(FEW, request_s=0.2, stall_s=0.2)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answer after the whole body; a request for /endless is answered without an end, one for /broken not at all."""
    if scope["path"] == "/broken":
        raise ZeroDivisionError
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while scope["path"] == "/endless":
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await asyncio.sleep(0)
    if scope["path"] == "/stream":
        await receive()  # until the client is gone
    await send({"type": "http.response.body", "body": threading.current_thread().name.encode()})


def whose(head: bytes) -> Visit:
    if b"operator" in head:
        return Visit.OPERATOR
    return Visit.ANONYMOUS_STREAM if b"/stream" in head else Visit.ANONYMOUS


@contextlib.contextmanager
def serving(limits: HttpLimits = FEW) -> Iterator[HttpServer]:
    server = HttpServer(hello, listen("127.0.0.1", 0), limits, name="test", classify=whose)
    server.start()
    until_true(lambda: server._server.started)
    try:
        yield server
    finally:
        server.close()


def until_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connect(server: HttpServer, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(sent)
    return client


def request(path: str = "/", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


def answer_to(client: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := client.recv(65536):
            received += chunk
    client.close()
    return received


# --- Limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 20_000, 1 << 20])
def test_a_server_leaves_most_descriptors_to_the_rest_of_the_process(descriptors: int):
    limits = limits_for(1000, descriptors)
    assert limits.most_connections <= max(8, descriptors // 4)
    assert limits.most_connections <= 1000
    assert limits.highest_descriptor <= descriptors * 3 // 4
    assert limits.most_streams < limits.most_anonymous < limits.most_connections


def test_an_infinite_limit_of_descriptors_is_no_error(monkeypatch: pytest.MonkeyPatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert limits_for(1000).most_connections == 1000


def test_processor_time_is_used_up_and_comes_back():
    clock, used = [0.0], [0.0]
    account = ProcessorTime(0.25, lambda: clock[0], lambda: used[0])
    assert account.is_left
    used[0] = 0.6  # half a second was saved up
    assert not account.is_left
    clock[0] = 0.8
    assert account.is_left
    used[0] = 1000.0
    assert not account.is_left
    clock[0] += 2.1  # a debt is bounded, or one long answer would close the server for hours
    assert account.is_left


# --- The thread ---------------------------------------------------------------------------------------------------


def test_requests_are_answered_on_a_thread_of_their_own_and_the_port_is_free_afterwards():
    with serving() as server:
        assert ANSWER in answer_to(connect(server, request()))
        port = server.port
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_source_and_actions_run_where_they_belong_and_a_stuck_caller_delays_no_page():
    threads: dict[str, int] = {}

    class Source(FixedSource):
        async def follow(self):
            threads["source"] = threading.get_ident()
            async for each in super().follow():
                yield each

    async def act(_body: Any) -> str:
        threads["action"] = threading.get_ident()
        return "done"

    source = Source(RoleStatus("l", "role", leader()))
    async with Dashboard(source, port=0, token=TOKEN, actions={"act": act}) as dashboard:
        await until(lambda: dashboard.board.has_seen)
        assert httpx.get(dashboard.url, timeout=20).status_code == 200  # noqa: ASYNC210 - the caller's loop is stuck
        async with httpx.AsyncClient(base_url=dashboard.url, timeout=20) as client:
            await client.post("/api/demo/act", json={}, headers={"X-Pgleaderlock-Token": TOKEN})
    assert threads["action"] == threading.get_ident()
    assert threads["source"] != threading.get_ident()


async def test_a_handler_that_blocks_does_not_keep_an_election_from_renewing():
    has_begun, may_end, ended_in_time = threading.Event(), threading.Event(), list[bool]()

    async def block(scope: Any, receive: Any, send: Any) -> None:
        has_begun.set()
        ended_in_time.append(may_end.wait(20))
        await hello(scope, receive, send)

    election, backend, _ = make_election(health_interval_s=0.01)
    server = HttpServer(block, listen("127.0.0.1", 0), FEW, name="test")
    server.start()
    async with election:
        await until_state(election, LockState.LEADER)
        with connect(server, request()):
            assert await asyncio.to_thread(has_begun.wait, 20)
            renewed = len(backend.times("renew"))
            await until(lambda: len(backend.times("renew")) > renewed)
            may_end.set()
            await until(lambda: bool(ended_in_time))
    await asyncio.wrap_future(server.ask_to_end())
    assert ended_in_time == [True]


# --- Clients that keep the server waiting ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"GET /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["silent", "head", "body", "stream"],
)
def test_a_connection_without_a_complete_request_is_closed_in_time(sent: bytes):
    with serving(QUICK) as server:
        assert ANSWER not in answer_to(connect(server, sent))


def test_bytes_that_come_one_by_one_extend_no_deadline():
    with serving(QUICK) as server:
        client = connect(server, b"GET / HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            while time.monotonic() < began + 20:
                client.sendall(b"x")
                time.sleep(0.01)  # one byte now and then is what the attack consists of
        client.close()


def test_a_client_that_does_not_read_its_answer_is_disconnected():
    with serving(QUICK) as server:
        client = connect(server, request("/endless"))
        until_true(lambda: len(room_of(server)) == 1)
        until_true(lambda: len(room_of(server)) == 0)
        client.close()


def test_one_connection_carries_one_request():
    with serving() as server:
        answer = answer_to(connect(server, request() + request()))
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer.lower()


def test_a_head_that_is_too_large_or_nonsense_is_answered_and_not_logged(caplog):
    with serving() as server:
        assert b"400" in answer_to(connect(server, b"nonsense\r\n\r\n"))
        assert b" 400 " in answer_to(connect(server, b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000))
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        assert b" 101 " not in answer_to(connect(server, request("/", upgrade)))
    assert not caplog.records


# --- Too many -----------------------------------------------------------------------------------------------------


def room_of(server: HttpServer) -> WaitingRoom:
    return server._server._room


def test_a_newcomer_takes_the_place_of_the_longest_silent_one_and_that_is_logged_once(caplog):
    with serving(replace(FEW, request_s=1000.0)) as server:
        silent = [connect(server) for _ in range(3 * FEW.most_connections)]
        assert ANSWER in answer_to(connect(server, request()))
        assert answer_to(silent[0]) == b""
        for client in silent[1:]:
            client.close()
    assert [record.event for record in caplog.records] == ["http_connections_exhausted"]


def test_anonymous_streams_have_fewer_places_than_there_are_and_an_operator_has_one():
    with serving() as server:
        streams = [connect(server, request("/stream")) for _ in range(FEW.most_streams)]
        for client in streams:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert b" 503 " in answer_to(connect(server, request("/stream")))
        assert ANSWER in answer_to(connect(server, request()))
        with connect(server, request("/stream", "X: operator\r\n")) as operator:
            assert operator.recv(100).startswith(b"HTTP/1.1 200")
            for client in streams:
                client.close()


def test_anonymous_answers_that_the_client_does_not_read_give_way_and_never_keep_an_operator_out():
    with serving() as server:
        lazy = [connect(server, request("/endless")) for _ in range(FEW.most_anonymous)]
        until_true(lambda: len(room_of(server)._anonymous) == FEW.most_anonymous)
        assert ANSWER in answer_to(connect(server, request("/", "X: operator\r\n")))
        assert ANSWER in answer_to(connect(server, request()))
        for client in lazy:
            client.close()


@pytest.mark.slow
def test_without_processor_time_an_anonymous_request_waits_and_an_operators_does_not():
    with serving(replace(FEW, processor_share=-1e6)) as server:
        until_true(lambda: not room_of(server)._time.is_left)
        anonymous = connect(server, request())
        assert ANSWER in answer_to(connect(server, request("/", "X: operator\r\n")))
        anonymous.settimeout(0)
        with pytest.raises(BlockingIOError):
            anonymous.recv(1)
        anonymous.settimeout(20)
        assert b" 503 " in answer_to(anonymous)  # after request_s


# --- Descriptors that run out -----------------------------------------------------------------------------------------


class Listening:
    """A listening socket whose accept() always fails."""

    def __init__(self) -> None:
        self._real = socket.create_server(("127.0.0.1", 0))
        self.accepts = 0
        self.connected = socket.create_connection(self._real.getsockname())

    def fileno(self) -> int:
        return self._real.fileno()

    def accept(self) -> Any:
        self.accepts += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def close(self) -> None:
        self._real.close()
        self.connected.close()


@asynccontextmanager
async def accepting(listening: Any, limits: HttpLimits) -> AsyncIterator[WaitingRoom]:
    log = RareLog(get_logger())
    room = WaitingRoom(limits, log, whose, lambda *_: pytest.fail("no request was sent"))
    acceptor = Acceptor(listening, room, limits, log)
    room.open()
    acceptor.open()
    try:
        yield room
    finally:
        acceptor.close()
        room.close()


async def test_a_failure_to_accept_is_logged_once_and_does_not_spin(caplog):
    listening = Listening()
    async with accepting(listening, FEW):
        await until(lambda: listening.accepts > 1)
        assert listening.accepts == 2
    assert [record.event for record in caplog.records] == ["http_accept_failed"]


async def test_the_last_descriptors_are_not_given_to_clients(caplog):
    listening = listen("127.0.0.1", 0)
    async with accepting(listening, replace(FEW, highest_descriptor=3)) as room:
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await reader.read() == b""
        writer.close()
        assert len(room) == 0
    assert [record.event for record in caplog.records] == ["http_descriptors_reserved"]


# --- The log ------------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_is_logged_once_a_minute(caplog):
    now = [0.0]
    rare = FailedRequestFilter(lambda: now[0])
    error = logging.LogRecord("x", logging.ERROR, "", 0, "", None, None)
    warning = logging.LogRecord("x", logging.WARNING, "", 0, "", None, None)
    assert [rare.filter(error), rare.filter(error), rare.filter(warning)] == [True, False, False]
    now[0] = 61.0
    assert rare.filter(error)
    with serving() as server:
        for _ in range(5):
            assert b" 500 " in answer_to(connect(server, request("/broken")))
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) <= 1


def test_a_log_line_about_clients_comes_once_a_minute_with_a_count(caplog):
    now = [0.0]
    log = RareLog(get_logger(), lambda: now[0])
    for _ in range(1000):
        log.warning("http_accept_failed", error="no")
    now[0] = 60.0
    log.warning("http_accept_failed", error="no")
    assert [record.fields["count"] for record in caplog.records] == [1, 1000]


# --- Operators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"X-Pgleaderlock-Token: {TOKEN}", Visit.OPERATOR),
        (f"x-pgleaderlock-TOKEN:{TOKEN}  ", Visit.OPERATOR),
        (f"X-Pgleaderlock-Token: {TOKEN}x", Visit.ANONYMOUS_STREAM),
        (f"X-Other: X-Pgleaderlock-Token: {TOKEN}", Visit.ANONYMOUS_STREAM),
        ("X-Pgleaderlock-Token:", Visit.ANONYMOUS_STREAM),
    ],
)
def test_an_operator_is_who_sends_the_token_as_its_header(line: str, expected: Visit):
    assert classify(TOKEN)(request("/events", line + "\r\n")) is expected
    assert classify(None)(request("/events?x", line + "\r\n")) is Visit.ANONYMOUS_STREAM
    assert classify(None)(request("/", line + "\r\n")) is Visit.ANONYMOUS


def test_a_client_that_reads_slower_than_the_server_writes_gets_all_it_reads():
    wanted = 32 * 2**20
    with serving() as server:
        client, received = connect(server, request("/endless")), 0
        while received < wanted:
            chunk = client.recv(16384)
            assert chunk, "the server closed the connection of a client that was reading"
            received += len(chunk)
        client.close()
