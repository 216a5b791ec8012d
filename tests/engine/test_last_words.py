"""The error that ends a session is seen at the socket before the session's locks are free."""

import socket
import struct

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgleaderlock.postgres._end_message import announce_end
from pgleaderlock.postgres._hangup import HangupProbe
from pgleaderlock.postgres.keys import LockKey
from tests.conftest import Postgres
from tests.support.session import open_session, terminate


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def error(severity: bytes) -> bytes:
    fields = (b"SFATAL" if severity == b"PANIC" else b"S\xc3\xa9", b"V" + severity, b"C57P01", b"Mgone")
    return message(b"E", b"\0".join(fields) + b"\0\0")


def notification(payload: bytes) -> bytes:
    return message(b"A", struct.pack("!I", 7) + b"a channel\0" + payload + b"\0")


END = error(b"FATAL")


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
