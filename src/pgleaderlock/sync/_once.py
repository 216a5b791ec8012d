"""``with lock.once()``: a slot of the ledger, for callers that block."""

import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from pgleaderlock.sync._loop_thread import LoopThread, enlist

if TYPE_CHECKING:
    from pgleaderlock.work.schedule.once import Once, SlotClaim


class BlockingOnce:
    """One block. Its session lives on the background thread, which stays until the block has ended."""

    def __init__(self, check_process: Callable[[], None], once: "Once") -> None:
        self._check_process = check_process
        self._once = once
        self._home: LoopThread
        self._pid = 0

    def __enter__(self) -> "SlotClaim":
        """Claim the slot, or find out which process has it. ConnectionError if the database does not say."""
        self._check_process()
        self._home, self._pid = enlist(), os.getpid()
        try:
            return self._home.wait(self._once.__aenter__())
        except BaseException as error:
            try:
                self._record_interrupted(error)
            finally:
                self._home.leave()
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Record how the block ended. What it raised goes on."""
        if self._pid != os.getpid():  # a forked child has neither the session nor the thread: its parent records
            return
        try:
            self._home.wait(self._once.__aexit__(exc_type, exc, tb))
        finally:
            self._home.leave()

    def _record_interrupted(self, error: BaseException) -> None:
        """Ctrl-C may come when the slot was claimed, and this thread does not know it yet. Else this does nothing."""
        if not isinstance(error, Exception):
            self._home.wait(self._once.__aexit__(type(error), error, error.__traceback__))
