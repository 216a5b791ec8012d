"""systemd: say when the service is ready, who leads, and that the event loop still turns.

    async with lock, Notifier(lock):
        await stop.wait()

In the unit: ``Type=notify``, and ``WatchdogSec=`` for the watchdog. Elsewhere all of this does nothing.

Pings are sent by the event loop itself, at half the time that systemd allows: a loop that stands still sends none, nor
does an election that has ended. Then systemd restarts the service.

Not promised: delivery. What systemd does not take is dropped; a service must not stand still for its supervisor.
"""

import asyncio
import contextlib
import os
import socket
from typing import Self

from pgleaderlock.engine.election import Election
from pgleaderlock.models import Event, EventKind

__all__ = ["Notifier", "notify", "watchdog_interval_s"]

_TURNS = {EventKind.ACQUIRED, EventKind.LOST, EventKind.RELEASED, EventKind.RECOVERED}


def notify(state: str) -> bool:
    """Send a state, such as ``READY=1``, to $NOTIFY_SOCKET. Return False when there is none, or it is not read."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # the abstract namespace of Linux
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0)  # a supervisor that does not read must not stop us
        try:
            sender.sendto(state.encode(), address)
        except OSError:
            return False
    return True


def watchdog_interval_s() -> float | None:
    """How often to ping: half of what systemd allows. None when it asked for no pings from this process."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    allowed_us = os.environ.get("WATCHDOG_USEC", "")
    return int(allowed_us) / 2_000_000 if allowed_us.isdecimal() and int(allowed_us) > 0 else None


class Notifier:
    """Notifies systemd of the states of an election, from ``READY=1`` to ``STOPPING=1``."""

    def __init__(self, lock: Election) -> None:
        self._lock = lock
        self._pings: asyncio.Task[None] | None = None
        self._is_entered = False
        lock.subscribe(self._hear)

    async def __aenter__(self) -> Self:
        self._is_entered = True
        notify(f"READY=1\n{self._status()}")
        if (interval_s := watchdog_interval_s()) is not None:
            self._pings = asyncio.create_task(self._ping(interval_s), name="pgleaderlock watchdog")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_entered = False
        if self._pings is not None:
            self._pings.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pings
        notify("STOPPING=1")

    async def _ping(self, interval_s: float) -> None:
        while True:
            if not self._lock.state.is_stopped:
                notify("WATCHDOG=1")
            await asyncio.sleep(interval_s)

    def _hear(self, event: Event) -> None:
        if self._is_entered and event.kind in _TURNS:
            notify(self._status())

    def _status(self) -> str:
        names = " ".join(f"{name}={value}" for name, value in self._lock.labels.items())
        return f"STATUS={'leads' if self._lock.is_leader else 'waits to lead'} {names}".replace("\n", " ")
