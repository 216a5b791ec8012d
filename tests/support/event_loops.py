"""The event loop that tests, and the programs which they start, run on: ``pytest --event-loop uvloop``.

Tests on virtual time keep their own loop. What asks for a loop with ``asyncio.run()`` or ``asyncio.new_event_loop()``
gets the chosen one, in this process and in its children: theirs is set by ``on_uvloop/sitecustomize.py``.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "child_environment", "loop_factory", "use"]

VARIABLE = "PGLEADERLOCK_TEST_EVENT_LOOP"
_FOLDER = str(Path(__file__).parent / "on_uvloop")


def loop_factory(name: str) -> type[asyncio.AbstractEventLoop]:
    """Return the class of the loop of this name: ``asyncio`` or ``uvloop``."""
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    import uvloop

    return uvloop.Loop


def child_environment(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return this environment, with what makes Python programs use the loop of this name."""
    old = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder not in {"", _FOLDER}]
    folders = [_FOLDER, *old] if name == "uvloop" else old
    path = {"PYTHONPATH": os.pathsep.join(folders)} if folders else {}
    rest = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    return {**rest, **path, VARIABLE: name}


def use(name: str) -> None:
    """Use the loop of this name in this process and in its children from now on."""
    changed = child_environment(name, os.environ)
    os.environ.clear()
    os.environ.update(changed)
    if name == "uvloop":
        asyncio.set_event_loop_policy(_uvloop_policy())
    elif "uvloop" in sys.modules:
        asyncio.set_event_loop_policy(None)


def _uvloop_policy() -> Any:
    import uvloop

    policy = uvloop.EventLoopPolicy()
    # pytest-asyncio puts the policy of the session back for each test, also for one on asyncio's own loop, which asks
    # the policy how to learn of the end of a child.
    policy.get_child_watcher = asyncio.DefaultEventLoopPolicy().get_child_watcher
    return policy
