"""``watch_leader`` and ``find_leader`` for callers that block."""

import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import Any

from pgleaderlock.models import LeaderSeen, LeaderUnknown
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.stores import watching
from pgleaderlock.sync._loop_thread import enlist

__all__ = ["find_leader", "watch_leader"]

_Seen = LeaderSeen | LeaderUnknown | None


def watch_leader(
    url: Dsn, role: str | None = None, *, key: LockKey | None = None, poll_s: float = 1.0, **options: Any
) -> Generator[_Seen, None, None]:
    """Yield who leads, and each change, as the function of that name in :mod:`pgleaderlock.stores.watching` does."""
    return _each(watching.watch_leader(url, role, key=key, poll_s=poll_s, **options))


def find_leader(url: Dsn, role: str | None = None, *, key: LockKey | None = None, **options: Any) -> LeaderSeen | None:
    """Return the leader, None when there is none; ConnectionError when the store does not answer."""
    thread = enlist()
    try:
        return thread.wait(watching.find_leader(url, role, key=key, **options))
    finally:
        thread.leave()


def _each(leaders: AsyncGenerator[_Seen, None]) -> Generator[_Seen, None, None]:
    async def following() -> _Seen:
        return await anext(leaders)

    async def end() -> None:
        with contextlib.suppress(RuntimeError):  # a step that was interrupted is just ending
            await leaders.aclose()

    thread = enlist()
    try:
        while True:
            yield thread.wait(following())
    finally:
        try:
            thread.wait(end())
        finally:
            thread.leave()
