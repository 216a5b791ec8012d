"""Descriptors that a forked child does not keep.

A lock of flock(2) belongs to the open file, and fork(2) gives the child a share in it: a child that outlives a dead
leader would keep that leader's lock, and followers would not see the death. An inotify queue is shared alike, and the
child could consume the parent's events. So whatever is opened here is closed in every child, before any code of the
child runs. A program that is executed (exec) never gets them: they are close-on-exec.

Not promised: a fork by C code that goes around :func:`os.fork`. Such a child keeps the lock until it ends, and a dead
leader's term is then over only with its lease.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn

from pgleaderlock._base.portable import at_fork

_open: "weakref.WeakSet[Descriptor]" = weakref.WeakSet()
# Held while a descriptor is opened and noted, and during a fork in any thread: no child can get one that is not noted.
# Re-entrant, because the garbage collector may close one at any moment, also of the thread that is in here.
_guard = threading.RLock()


class Descriptor:
    """One open descriptor of this very process."""

    def __init__(self, opener: Callable[[], int], closer: Callable[[int], None] = os.close) -> None:
        self._number: int | None = None
        self._closer = closer
        with _guard:
            self._number = opener()
            _open.add(self)

    @property
    def number(self) -> int:
        """Its number, for system calls; -1, which none accepts, when it is closed."""
        return -1 if self._number is None else self._number

    @property
    def is_open(self) -> bool:
        """False once it was closed, and in a child that was forked since."""
        return self._number is not None

    def close(self) -> None:
        """Close it. May be repeated."""
        with _guard:
            number, self._number = self._number, None
            _open.discard(self)
            if number is not None:
                with contextlib.suppress(OSError):  # EIO: the kernel has closed it
                    self._closer(number)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a descriptor cannot be copied or pickled: the first to be dropped would close it for both")

    def __del__(self) -> None:
        self.close()  # an election that was dropped without a shutdown must not keep its lock


def _before_fork() -> None:
    _guard.acquire()


def _after_fork_in_parent() -> None:
    _guard.release()


def _after_fork_in_child() -> None:
    global _guard  # noqa: PLW0603 - the child's threads are other threads
    _guard = threading.RLock()
    for descriptor in list(_open):
        descriptor.close()


at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
