"""The constructor of a blocking election: it takes what the asyncio one takes."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")


def takes_arguments_of(
    engine: Callable[P, Any],
) -> Callable[[Callable[[Any, Any], None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator of ``__init__(self, engine)``: callers pass the arguments of the asyncio election instead."""

    def decorate(init: Callable[[Any, Any], None]) -> Callable[Concatenate[Any, P], None]:
        def made(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            if "shutdown_event" in kwargs:  # an asyncio.Event cannot be set from a thread, nor another one be awaited
                raise TypeError(
                    "shutdown_event is not offered by pgleaderlock.sync: call shutdown(), which any thread may, where "
                    "you would set the event"
                )
            init(self, engine(*args, **kwargs))

        functools.update_wrapper(made, engine.__init__)  # its signature, for help() and editors
        return made

    return decorate
