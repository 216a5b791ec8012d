"""Waiting for a change of the folder: one thread looks at it now and then, and at once after a release on this host.

A file system notifies of changes by this host only, by inotify, on NFS too. Changes by other hosts are found by
looking. So candidates of the same host notice a release at once, and others at their next look.

The thread sleeps between two looks, which costs one wake-up for each. An event loop that starts a thread for each look
wakes up five times. It is one thread for as long as a candidate waits, from one change to the next; it ends after a
pause in which none has waited, and when it is stopped.

Nothing here decides. A look may be outdated when the event loop gets it: a candidate looks again before it takes the
lock.
"""

import asyncio
import contextlib
import os
import random
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from pgleaderlock._base import threads
from pgleaderlock._base.files.descriptor import Descriptor
from pgleaderlock._base.files.watch import Watch
from pgleaderlock.stores.lease_observation import Record

_SPREAD = (0.75, 1.25)  # so that candidates that started together do not look together


@dataclass(eq=False, slots=True)
class _Waiter:
    """A coroutine that waits for another version than the one that it has seen."""

    seen: object
    answer: "asyncio.Future[Record | None]"

    def settle(self, record: Record | None, error: Exception | None) -> None:
        """Give the answer to its event loop. Called by the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.answer.get_loop().call_soon_threadsafe(self._settle, record, error)

    def _settle(self, record: Record | None, error: Exception | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(record)
        else:
            self.answer.set_exception(error)


@dataclass(eq=False)
class _Desk:
    """What the event loop and one thread share."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    waiter: _Waiter | None = None
    is_due: bool = True
    """Whether something has happened since the last look: the next waiter does not wait for a pause to end."""
    is_closed: bool = False
    bell: "_Bell | None" = None

    def ring(self) -> None:
        """End the pause of the thread, if it has begun its first."""
        if self.bell is not None:
            self.bell.ring()


class FolderWatcher:
    """The watch on one folder. ``look`` reads the record; it may block for as long as the file server takes."""

    def __init__(self, folder: Path, look: Callable[[], Record | None], poll_s: float) -> None:
        self._folder = folder
        self._look = look
        self._poll_s = poll_s
        self._desk: _Desk | None = None
        self._pid = os.getpid()

    async def changed(self, seen: Record | None) -> Record | None:
        """Return the record once its version differs from that of ``seen``; raise what a look raises."""
        waiter = _Waiter(_version(seen), asyncio.get_running_loop().create_future())
        desk = self._enter(waiter)
        try:
            return await waiter.answer
        finally:
            with desk.guard:
                if desk.waiter is waiter:
                    desk.waiter = None

    def stop(self) -> None:
        """End the thread, unless a file server that does not answer blocks it: then it ends when that answers."""
        desk, self._desk = self._desk, None
        if desk is not None and self._pid == os.getpid():
            with desk.guard:
                desk.is_closed = True
                desk.ring()

    def _enter(self, waiter: _Waiter) -> _Desk:
        """Have the thread look for this waiter. Start one if there is none, or if it is our parent's."""
        desk = self._desk
        if desk is not None and self._pid == os.getpid():
            with desk.guard:
                if not desk.is_closed:
                    desk.waiter = waiter
                    if desk.is_due:
                        desk.ring()
                    return desk
        self._pid, self._desk = os.getpid(), (desk := _Desk(waiter=waiter))
        try:
            threads.start(partial(self._work, desk), "pgleaderlock-nfs")
        except RuntimeError:  # the program ends, and starts no thread any more
            desk.is_closed = True
            waiter.answer.set_result(None)
        return desk

    # --- The thread --------------------------------------------------------------------------------------------

    def _work(self, desk: _Desk) -> None:
        try:
            self._watch(desk)
        except OSError as error:  # no descriptor is left
            with desk.guard:
                waiter, desk.waiter, desk.is_closed = desk.waiter, None, True
            if waiter is not None:
                waiter.settle(None, error)

    def _watch(self, desk: _Desk) -> None:
        """Look at each change and after each pause, until no candidate has waited for a whole pause."""
        with (
            contextlib.closing(_Bell()) as bell,
            contextlib.closing(Watch(self._folder, lambda name: name.startswith(b"released."))) as watch,
        ):
            desk.bell, pause = bell, partial(_pause, watch, bell)
            while True:
                watch.start([])  # before looking: a change in between is notified
                if not self._step(desk, pause):
                    return

    def _step(self, desk: _Desk, pause: "Callable[[float], _Reason]") -> bool:
        """Look if that is due, and pause. Return False when the thread is to end."""
        with desk.guard:
            if desk.is_closed:
                return False
            waiter, is_due = desk.waiter, desk.is_due
            desk.is_due = waiter is None and is_due
        if waiter is not None and is_due:
            self._look_for(waiter, desk)
        reason = pause(self._poll_s * random.uniform(*_SPREAD))  # noqa: S311 - spreads the load
        with desk.guard:
            desk.is_due |= reason is not _Reason.RUNG
            desk.is_closed |= reason is _Reason.OVER and waiter is None and desk.waiter is None
            return not desk.is_closed

    def _look_for(self, waiter: _Waiter, desk: _Desk) -> None:
        record, error = None, None
        try:
            record = self._look()
            if _version(record) == waiter.seen:
                return
        except Exception as raised:  # noqa: BLE001 - it is raised again where it is waited for
            error = raised
        with desk.guard:
            if desk.waiter is waiter:
                desk.waiter = None
        waiter.settle(record, error)


class _Reason(Enum):
    """Why a pause is over."""

    NOTIFIED, RUNG, OVER = range(3)


class _Bell:
    """Ends the pause of a thread. Closed in a forked child."""

    def __init__(self) -> None:
        ear, hammer = os.pipe()
        os.set_blocking(ear, False)
        os.set_blocking(hammer, False)
        self.ear, self._hammer = Descriptor(lambda: ear), Descriptor(lambda: hammer)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # it was rung before, or the thread has ended
            os.write(self._hammer.number, b"!")

    def was_rung(self) -> bool:
        """Return whether it was rung since this was asked last."""
        try:
            return bool(os.read(self.ear.number, 1024))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.ear.close()
        self._hammer.close()


def _pause(watch: Watch, bell: _Bell, timeout_s: float) -> _Reason:
    """Wait for a notification or the bell, for a time-out."""
    if watch.is_started:
        if watch.wait(timeout_s, or_readable=bell.ear.number):
            return _Reason.NOTIFIED
    else:
        poll = select.poll()
        poll.register(bell.ear.number, select.POLLIN)
        poll.poll(timeout_s * 1000)
    return _Reason.RUNG if bell.was_rung() else _Reason.OVER


def _version(record: Record | None) -> object:
    return None if record is None else record.version
