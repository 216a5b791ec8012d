"""The warning about a ``with lock:`` block that never asked whether this process leads."""

import inspect
import sys
import warnings

from pgleaderlock.errors import UnusedLeadershipWarning

_OF_THE_BLOCK = 2  # frames up: warn_of_unused_leadership is called by __exit__ or __aexit__, and that by the block
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

_was_issued = False


def warn_of_unused_leadership(block: str, instead: str) -> None:
    """Issue the warning, once in a process. To be called by ``__exit__`` or ``__aexit__`` itself."""
    global _was_issued  # noqa: PLW0603 - once in a process
    frame = sys._getframe(_OF_THE_BLOCK)  # noqa: SLF001 - the documented way to the caller
    # The body of a generator's block is elsewhere, as for a fixture or the lifespan of a web server, and an exit stack
    # may be kept by anything: what asks may not have had its turn yet.
    is_elsewhere = frame.f_code.co_flags & _GENERATORS or frame.f_globals.get("__name__") == "contextlib"
    if _was_issued or is_elsewhere:
        return
    _was_issued = True
    warnings.warn(
        f"{block} ended, and the program never asked whether it leads: the block takes part in the election, and does "
        f"not wait until this process leads. {instead} waits. To take part only, call start() and shutdown()",
        UnusedLeadershipWarning,
        stacklevel=_OF_THE_BLOCK + 1,
    )
