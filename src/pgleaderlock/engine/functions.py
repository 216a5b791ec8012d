"""Functions that users register as work: what kind they are, and what they are called with."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Work", "is_async", "is_on_a_loop", "takes_argument", "to_the_end"]

Work = Callable[..., Any]
"""``fn(term)`` or ``fn()``; ``async``, or plain and then run in a thread."""


def is_async(fn: Work) -> bool:
    """Return whether calling it makes a coroutine, also behind functools.partial or in an object's ``__call__``."""
    while hasattr(fn, "func"):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def is_on_a_loop() -> bool:
    """Return whether an event loop runs in this thread; of the greenlets of one thread, whether in this one."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    # asyncio knows one running loop for a thread, also in its other greenlets; the loop knows the one that runs it.
    return getattr(loop, "_thread_id", None) in (None, threading.get_ident())


def takes_argument(fn: Work, name: str, what: str) -> bool:
    """Return whether it takes an argument. Raise TypeError if it needs more: at registration, not in the first term."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some built-in functions have none
        return True
    for arguments in ((None,), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise TypeError(f"{name}{signature} cannot be called with {what}, nor without: it must take one argument or none")


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await a clean-up that must not be interrupted and has time limits of its own.

    A cancellation that comes meanwhile is raised when it has ended.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
