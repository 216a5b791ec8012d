"""Changes of files, by inotify where the system has it.

Two things are watched. The folder, for files that are renamed to a name that its owner asked for (``IN_MOVED_TO``);
temporary files do not count. And the files of terms, for the end of their holders: only a holder has one open for
writing, and the kernel closes it when the process dies (``IN_CLOSE_WRITE``). A candidate that only checks whether the
lock is free opens the file for reading, which wakes no other.

The kernel reports that closing a moment *before* it frees the lock: check at once, and again in a moment
(:attr:`Watch.may_have_ended` says whether that is necessary).

Where there is no inotify (macOS), or no more of it (``fs.inotify.max_user_instances``), :meth:`Watch.start` returns
False, and its owner polls instead.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pgleaderlock._base.files.descriptor import Descriptor

_CLOSE_WRITE, _MOVED_TO = 0x008, 0x080
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_IGNORED = 0x8000
_ONLYDIR, _DONT_FOLLOW = 0x01000000, 0x02000000
_EVENT = struct.Struct("iIII")
_BUFFER = 65536


class Watch:
    """The changes of one folder. Kept open between waits, because closing an inotify queue takes the kernel a while."""

    def __init__(self, folder: Path, counts: Callable[[bytes], bool]) -> None:
        self._folder = folder
        self._counts = counts
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue: Descriptor | None = None
        self._folder_id = -1
        self._file_ids: dict[Path, int] = {}
        self.may_have_ended = True
        """Set when a file of a term is closed, or watched from now on. Its owner clears it, after checking again."""

    def start(self, files: Iterable[Path]) -> bool:
        """Watch the folder and these files. Return False when this system cannot."""
        try:
            if not self.is_started or self._folder_id < 0:
                self._open()
        except OSError:
            self.close()
            return False
        wanted = set(files)
        for path in set(self._file_ids) - wanted:
            self._forget(path)
        for path in wanted - set(self._file_ids):
            self.may_have_ended = True  # before it was watched
            with contextlib.suppress(OSError):  # it was deleted: the record that follows is a change too
                self._file_ids[path] = self._add(path, _CLOSE_WRITE | _DONT_FOLLOW)
        return True

    @contextlib.contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each change, on the running loop. To be entered after :meth:`start`."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        queue = self._queue
        assert queue is not None  # noqa: S101 - it was started

        def read() -> None:
            if self._read(queue):
                changed.set()

        number = queue.number
        loop.add_reader(number, read)
        try:
            yield changed
        finally:
            loop.remove_reader(number)

    @property
    def is_started(self) -> bool:
        """Whether the last :meth:`start` has succeeded."""
        return self._queue is not None and self._queue.is_open

    def wait(self, timeout_s: float, *, or_readable: int | None = None) -> bool:
        """Wait without an event loop, after :meth:`start`. Return whether there was a change.

        Return False early when the descriptor ``or_readable`` can be read.
        """
        queue, deadline = self._queue, time.monotonic() + timeout_s
        assert queue is not None  # noqa: S101 - it was started
        poll = select.poll()
        poll.register(queue.number, select.POLLIN)
        if or_readable is not None:
            poll.register(or_readable, select.POLLIN)
        while ready := poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if self._read(queue):
                return True
            if any(number == or_readable for number, _ in ready):
                return False
        return False

    def close(self) -> None:
        """Stop watching. May be repeated."""
        if self._queue is not None:
            self._queue.close()
        self._queue = None
        self._file_ids = {}

    def _open(self) -> None:
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("no inotify here")
        self.close()
        self._queue = Descriptor(lambda: self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)))
        self._folder_id = self._add(self._folder, _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR)

    def _add(self, path: Path, mask: int) -> int:
        assert self._queue is not None  # noqa: S101 - it is open
        number = ctypes.c_int(self._queue.number)
        return self._checked(self._libc.inotify_add_watch(number, os.fsencode(path), ctypes.c_uint32(mask)))

    def _forget(self, path: Path) -> None:
        assert self._queue is not None  # noqa: S101 - it is open
        # It fails when the file is gone already, and its watch with it.
        self._libc.inotify_rm_watch(ctypes.c_int(self._queue.number), ctypes.c_int(self._file_ids.pop(path)))

    @staticmethod
    def _checked(answer: int) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer

    def _read(self, queue: Descriptor) -> bool:
        """Read the queued events. Return whether any of them is a change that counts; an unreadable one does."""
        try:
            data = os.read(queue.number, _BUFFER)
        except BlockingIOError:
            return False
        except OSError:
            return True
        has_changed, offset = False, 0
        while offset < len(data):
            watch_id, mask, _, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            offset += _EVENT.size + length
            if watch_id != self._folder_id:
                has_changed = has_changed or not mask & _IGNORED
                self.may_have_ended = True
            elif not mask & _MOVED_TO or self._counts(name):
                has_changed = True
            if mask & (_IGNORED | _MOVE_SELF):
                self._note_end(watch_id)
        return has_changed

    def _note_end(self, watch_id: int) -> None:
        """Forget a watch that ended with its file. If it was the folder's, the next :meth:`start` begins anew."""
        if watch_id == self._folder_id:
            self._folder_id = -1
        self._file_ids = {path: each for path, each in self._file_ids.items() if each != watch_id}
