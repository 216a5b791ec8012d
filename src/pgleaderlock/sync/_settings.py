"""The keywords that every blocking election takes: those of the asyncio one, with the same defaults."""

from typing import TypedDict

from pgleaderlock._base.clock import Clock
from pgleaderlock.retry import RetryStrategy

__all__ = ["ElectionSettings", "refuse_shutdown_event"]


class ElectionSettings(TypedDict, total=False):
    """Keywords of :class:`pgleaderlock.Election`, but for ``shutdown_event``."""

    retry_strategy: RetryStrategy | None
    health_interval_s: float
    reconnect_grace_s: float | None
    auto_reacquire: bool
    clock: Clock
    hard_fence: bool
    drain_s: float


def refuse_shutdown_event(settings: object) -> None:
    """Raise TypeError: an asyncio.Event cannot be set from a thread, and a threading.Event cannot be awaited."""
    if isinstance(settings, dict) and "shutdown_event" in settings:
        raise TypeError(
            "shutdown_event is not offered by pgleaderlock.sync: call shutdown(), which any thread may, where you "
            "would set the event"
        )
