"""SIGINT and SIGTERM in the three parts of a command's life: before its loop runs, in it, and after it.

Before: they raise, so that what was started (such as the embedded server) is unwound. In the loop: they call a handler.
After: they are ignored, because only a short and bounded clean-up is left, which the first signal asked for.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

from pgleaderlock.cli import exit_codes

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def unwind_on_signal() -> None:
    """Let SIGTERM unwind the stack as Python's own KeyboardInterrupt does."""
    signal.signal(signal.SIGTERM, _exit_on)


def unwind_on_hangup() -> None:
    """The same for SIGHUP, for what must not outlive its terminal; unless that is ignored, as by nohup."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _exit_on)


def _exit_on(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(exit_codes.of_signal(number))


@contextlib.contextmanager
def call_on_signal(handler: Callable[[signal.Signals], None], also: Iterable[signal.Signals] = ()) -> Iterator[None]:
    """Call ``handler`` in the running loop for each signal; ignore them from the end of the block on."""
    loop = asyncio.get_running_loop()
    numbers = (*_STOP_SIGNALS, *(each for each in also if signal.getsignal(each) is not signal.SIG_IGN))
    for number in numbers:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
