"""What differs between systems, and in processes that gevent has patched.

Windows has no fork, no poll, and an event loop that psycopg cannot use. gevent replaces threads by greenlets and
``select`` by calls that let other greenlets run; :func:`native` returns the standard library's own, for a look at a
socket that must not wait.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def at_fork(**calls: Callable[[], object]) -> None:
    """Register these calls as :func:`os.register_at_fork` does, where processes can fork."""
    register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**calls)


def native(module: str, name: str) -> Any:
    """Return what the standard library calls so, also where gevent has replaced it; None where there is none."""
    if _is_patched(module):
        return sys.modules["gevent.monkey"].get_original(module, name)
    return getattr(import_module(module), name, None)


def has_greenlets_for_threads() -> bool:
    """Return whether gevent has replaced threads by greenlets: then the event loop has to be cooperative too."""
    return _is_patched("threading")


def has_cooperative_select() -> bool:
    """Return whether gevent has replaced ``select``, so that an event loop lets other greenlets run while it waits."""
    return _is_patched("select")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: asyncio's policy decides, unless only one that uses Python's selectors can work."""
    if has_greenlets_for_threads() or sys.platform == "win32":
        return asyncio.SelectorEventLoop()
    return asyncio.new_event_loop()


def _is_patched(module: str) -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched(module))
