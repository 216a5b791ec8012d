"""Accepts connections, as many as there is room for. The rest waits in the kernel's queue."""

import asyncio
import socket
from typing import Final

from pgleaderlock.ops.http._limits import HttpLimits
from pgleaderlock.ops.http._rare_log import RareLog
from pgleaderlock.ops.http._waiting_room import WaitingRoom

_PER_TURN: Final = 32  # then those that were accepted are looked at
_FULL_PAUSE_S: Final = 0.02
_FAILURE_PAUSE_S: Final = 1.0


class Acceptor:
    """The accept loop of one listening socket, on the event loop of its server."""

    def __init__(self, listening: socket.socket, room: WaitingRoom, limits: HttpLimits, log: RareLog) -> None:
        self._listening, self._room = listening, room
        self._limits, self._log = limits, log
        self._loop = asyncio.get_running_loop()
        self._next: socket.socket | None = None  # accepted, and there is no room for it yet
        self._resume: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listening)
        if self._resume is not None:
            self._resume.cancel()
        if self._next is not None:
            self._next.close()
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_PER_TURN):
            if self._next is None:
                self._next = self._accept_one()
            if self._next is None:
                return
            if not self._room.make_room():
                self._pause(_FULL_PAUSE_S)
                return
            self._room.add(self._next)
            self._next = None

    def _accept_one(self) -> socket.socket | None:
        try:
            client, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        except OSError as error:  # no descriptor, no memory: asking again at once would only spin
            self._log.warning("http_accept_failed", error=error.strerror or error)
            self._pause(_FAILURE_PAUSE_S)
            return None
        if client.fileno() < self._limits.highest_descriptor:
            client.settimeout(0)
            return client
        self._log.warning("http_descriptors_reserved", limit=self._limits.highest_descriptor)
        client.close()
        self._pause(_FULL_PAUSE_S)
        return None

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._resume = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        self.open()
        self._accept()
