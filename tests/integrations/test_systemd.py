"""systemd's side is a datagram socket, and that is what these tests have."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgleaderlock import ConnectionError, LockState
from pgleaderlock.integrations.systemd import Notifier, notify, watchdog_interval_s
from tests.support.doubles import ScriptedBackend, make_election, until, until_state


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


def heard(supervisor: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(supervisor.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_notification_arrives_at_the_supervisor(supervisor: socket.socket):
    assert notify("READY=1")
    assert heard(supervisor) == ["READY=1"]


def test_the_abstract_namespace_is_understood(monkeypatch: pytest.MonkeyPatch):
    name = f"pgll-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        assert notify("READY=1")
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "vsock:1:2", "/nowhere/at/all"])
def test_without_a_supervisor_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [("4000000", None, 2.0), ("4000000", "1", None), ("", None, None), ("0", None, None), ("soon", None, None)],
)
def test_pings_are_due_at_half_the_time_allowed(monkeypatch, usec: str, pid: str | None, expected: float | None):
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))
    assert watchdog_interval_s() == expected


@pytest.mark.virtual_time
async def test_supervisor_is_notified_of_an_election_from_its_start_to_its_end(supervisor: socket.socket, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    election, _, words = make_election(ScriptedBackend(renew=[ConnectionError("gone")]), health_interval_s=5.0)
    async with election, Notifier(election):
        await until(lambda: words.words.count("on_acquired") == 2)
    said = heard(supervisor)
    assert said[0] == "READY=1\nSTATUS=waits to lead key1=1 key2=2"
    assert said[-1] == "STOPPING=1"
    statuses = [line for line in said if line.startswith("STATUS")]
    assert statuses[:3] == [f"STATUS={what} key1=1 key2=2" for what in ("leads", "waits to lead", "leads")]
    assert said.count("WATCHDOG=1") == 3  # at 0, 2 and 4 seconds


@pytest.mark.virtual_time
async def test_an_election_that_has_ended_is_not_healthy(supervisor: socket.socket, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    election, _, _ = make_election()
    async with Notifier(election):
        await election.start()
        await election.shutdown()
        await until_state(election, LockState.STOPPED)
        heard(supervisor)
        await asyncio.sleep(20)
        assert heard(supervisor) == []
