"""The error that ends a session is seen at the socket before the session's locks are free."""

import asyncio
import contextlib
import os
import select
import socket
import struct
import time
from types import SimpleNamespace
from typing import Self

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pgleaderlock
from pgleaderlock.postgres import _hangup
from pgleaderlock.postgres._end_message import announce_end
from pgleaderlock.postgres._hangup import HangupProbe
from pgleaderlock.postgres.keys import LockKey
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.session import open_session, terminate


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def error(severity: bytes) -> bytes:
    fields = (b"SFATAL" if severity == b"PANIC" else b"S\xc3\xa9", b"V" + severity, b"C57P01", b"Mgone")
    return message(b"E", b"\0".join(fields) + b"\0\0")


def notification(payload: bytes) -> bytes:
    return message(b"A", struct.pack("!I", 7) + b"a channel\0" + payload + b"\0")


END = error(b"FATAL")
READABLE = SimpleNamespace(register=lambda *_: None, poll=lambda _: [(0, select.POLLIN)])


@pytest.mark.parametrize("words", [END, error(b"PANIC"), notification(b"hello") + END, END + END, END + b"E\0"])
def test_an_error_that_ends_the_session_is_found_among_other_messages(words: bytes):
    assert announce_end(words)


@pytest.mark.parametrize(
    "words",
    [b"", b"E", END[:-1], error(b"ERROR"), notification(b"VFATAL"), b"\x17\x03\x03\x00\x20" + END, b"E\0\0\0\0"],
)
def test_whatever_else_is_no_end(words: bytes):
    assert not announce_end(words)


@given(st.binary(max_size=100))
def test_any_bytes_are_looked_at_without_a_complaint(unread: bytes):
    announce_end(unread)


def test_the_end_shows_when_it_was_announced_and_the_socket_is_still_open():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        probe = HangupProbe(ours.fileno())
        theirs.sendall(notification(b"hello"))
        assert not probe.has_ended
        theirs.sendall(END)
        assert probe.has_ended
        assert ours.recv(4096) == notification(b"hello") + END  # it was left there
        assert not probe.has_ended
        probe.close()
        assert probe.has_ended


def test_a_look_never_waits_whatever_the_default_timeout_of_sockets_is(monkeypatch: pytest.MonkeyPatch):
    """Another thread, the event loop of pgleaderlock.sync say, may read what was announced to be there."""
    ours, theirs = socket.socketpair()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60)
    try:
        with ours, theirs:
            probe = HangupProbe(ours.fileno())
            monkeypatch.setattr(_hangup, "_poll", lambda: READABLE)
            began = time.monotonic()
            assert not probe.has_ended  # it was notified that there is something to read, and there is nothing
            assert time.monotonic() - began < 30
            probe.close()
    finally:
        socket.setdefaulttimeout(before)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_the_copy_of_an_earlier_socket_has_a_higher_number(monkeypatch: pytest.MonkeyPatch):
    """Linux closes the highest number first: so the lock session of a killed leader ends before its witness session."""
    free = [number for number in _hangup._DOWNWARDS if not is_open(number)]
    monkeypatch.setattr(_hangup, "_NUMBERS", iter(free))
    lock, witness = socket.socketpair()
    with lock, witness:
        probes = [HangupProbe(each.fileno()) for each in (lock, witness)]
        try:
            assert probes[0].number > probes[1].number > max(lock.fileno(), witness.fileno())
        finally:
            for each in probes:
                each.close()


@pytest.mark.parametrize("way", ["dsn", "tcp_dsn"])
async def test_when_the_lock_of_an_ended_session_is_free_its_end_shows(postgres: Postgres, key: LockKey, way: str):
    with psycopg.connect(postgres.dsn, autocommit=True) as rival:
        for _ in range(20):
            session = await open_session(getattr(postgres, way), key)
            await session.fetch("SELECT pg_advisory_lock(4711, 4712)", bound_s=5)
            terminate(postgres.dsn, session.facts.session_pid)
            rival.execute("SELECT pg_advisory_lock(4711, 4712)")
            assert session.has_ended
            rival.execute("SELECT pg_advisory_unlock(4711, 4712)")
            await session.close()


class LateClose:
    """A relay to a server that passes all bytes on, and the server's close only when it may."""

    def __init__(self, dsn: str) -> None:
        info = conninfo_to_dict(dsn)
        self._host, self._port = str(info["host"]), int(info["port"] or 0)
        self.may_close = asyncio.Event()
        self._serving: list[asyncio.Task[None] | None] = []

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_close.set()
        self._listening.close()
        await asyncio.wait([each for each in self._serving if each is not None])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.current_task())
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        to = asyncio.ensure_future(self._pass_on(reader, to_server))
        await self._pass_on(from_server, writer)
        await self.may_close.wait()
        to.cancel()
        await asyncio.wait({to})
        for each in (writer, to_server):
            each.close()
            with contextlib.suppress(ConnectionError, OSError):
                await each.wait_closed()

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()


async def test_an_end_that_is_announced_during_a_call_shows_before_the_close(postgres: Postgres, key: LockKey):
    """libpq reads the announcement, and the socket shows nothing; psycopg raises at the close. The locks are free."""
    async with LateClose(postgres.tcp_dsn) as relay:
        session = await open_session(make_conninfo(postgres.tcp_dsn, host="127.0.0.1", port=relay.port), key)
        call = asyncio.ensure_future(session.fetch("SELECT pg_sleep(3600)", bound_s=3600.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(terminate, postgres.dsn, session.facts.session_pid)
        await until(lambda: session.has_ended)
        assert not call.done()
        relay.may_close.set()
        with pytest.raises(pgleaderlock.ConnectionError):
            await call
        await session.close()


async def test_an_end_that_is_announced_between_calls_shows_while_it_is_read(postgres: Postgres, key: LockKey):
    """libpq takes it off the socket: until the close, another thread's look at ``is_leader`` must see it elsewhere."""
    shown: list[bool] = []
    async with LateClose(postgres.tcp_dsn) as relay:
        session = await open_session(make_conninfo(postgres.tcp_dsn, host="127.0.0.1", port=relay.port), key)
        session.watch(lambda _: shown.append(session.has_ended))
        await asyncio.to_thread(terminate, postgres.dsn, session.facts.session_pid)
        await until(lambda: bool(shown))
        await session.close()
    assert shown == [True]
