"""SIGINT and SIGTERM in the three parts of a command's life: before its loop runs, in it, and after it.

Before: they raise, so that whatever was begun (the embedded server's start) is unwound. In the loop: they are calls.
After: they are ignored, because what is left is a short and bounded tidying up that the first one asked for.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from pgleaderlock.cli import exit_codes

__all__ = ["call_on_signal", "unwind_on_signal"]

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def unwind_on_signal() -> None:
    """Let SIGTERM unwind the stack as Python's own KeyboardInterrupt does."""
    signal.signal(signal.SIGTERM, _exit_terminated)


def _exit_terminated(_signal_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(exit_codes.TERMINATED)


@contextlib.contextmanager
def call_on_signal(handler: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``handler`` in the running loop for each signal; ignore them from the end of the block on."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
