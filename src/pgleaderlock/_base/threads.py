"""A plain function in a thread of its own, and its end as a future of the event loop that began it.

Not the loop's executor: that has few threads, shared with name look-ups, and joins them when the program ends. These
are daemon threads: none of them should keep a process alive.

Python 3.12 starts no thread once the main thread has ended: not at exit, and not in a program whose other threads go
on. Short work, such as the release of a lock, is then done in the caller's thread.

Not promised: a way to end a thread. It ends when its function does.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def has_main_thread_ended() -> bool:
    """Return whether the main thread has ended: the interpreter exits, or waits for other threads before it does."""
    return not threading.main_thread().is_alive()


def start(work: Callable[[], object], name: str, *, is_short: bool = False) -> None:
    """Run ``work`` in a thread; where none can be started any more, short work in this one."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        if not (is_short and has_main_thread_ended()):
            raise
        work()


def begin(work: Callable[[], T], name: str, *, is_short: bool = False) -> asyncio.Future[T]:
    """Run ``work`` in a thread, with the caller's context variables. The future has its result or exception.

    If the loop is closed before ``work`` ends, the future is never done.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)  # type: ignore[arg-type] # then there is one
        else:
            answer.set_exception(failure(error))

    def do() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(settle, result, error)

    start(do, name, is_short=is_short)
    return answer


def failure(error: BaseException) -> Exception:
    """Return an error that a future may hold: StopIteration would end the awaiting task, SystemExit the loop.

    An ordinary exception is returned as it is.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"the function raised {type(error).__name__}: that ends its call, and nothing else")
    wrapped.__cause__ = error
    return wrapped
