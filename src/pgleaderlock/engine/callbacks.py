"""Decorators that turn a user's function into a listener of the event stream.

They return the function unchanged, so they stack, and a function can be registered for several events. Functions may
be plain or ``async``; several per event run in the order of their registration.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from pgleaderlock._base.checks import check_callable, refuse_pickling
from pgleaderlock.models import Callback, ErrorCallback, Event, EventKind, Listener, StateChangeCallback

__all__ = ["Callbacks"]

C = TypeVar("C", bound=Callback)
S = TypeVar("S", bound=StateChangeCallback)
E = TypeVar("E", bound=ErrorCallback)
L = TypeVar("L", bound=Listener)
F = TypeVar("F", bound=Callable[..., Any])


class Callbacks:
    """Registration by decorator. A function registered while an election runs is notified from the next event on."""

    __reduce_ex__ = refuse_pickling

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._drains: list[Callback] = []

    def subscribe(self, listener: L) -> L:
        """Notify ``listener`` of every event, as an :class:`~pgleaderlock.models.Event`."""
        check_callable("a listener", listener)
        self._listeners.append(listener)
        return listener

    def on_acquired(self, fn: C) -> C:
        """Call ``fn()`` when this process became the leader."""
        return self._register(EventKind.ACQUIRED, fn, lambda _: ())

    def on_released(self, fn: C) -> C:
        """Call ``fn()`` when leadership was released on request."""
        return self._register(EventKind.RELEASED, fn, lambda _: ())

    def before_release(self, fn: C) -> C:
        """Call ``fn()`` before leadership is released on request, and wait for it: to finish work and begin no more.

        Leadership is renewed meanwhile. The election waits no longer than ``drain_s``. Not called before a loss.
        """
        check_callable("the before_release callback", fn)
        self._drains.append(fn)
        return fn

    def on_lost(self, fn: C) -> C:
        """Call ``fn()`` when leadership was lost, or an attempt at it ended in an error."""
        return self._register(EventKind.LOST, fn, lambda _: ())

    def on_acquire_failed(self, fn: C) -> C:
        """Call ``fn()`` when an attempt found the lock held by another candidate."""
        return self._register(EventKind.ACQUIRE_FAILED, fn, lambda _: ())

    def on_stopped(self, fn: C) -> C:
        """Call ``fn()`` when the election has stopped, for any reason. The session is closed by then."""
        return self._register(EventKind.STOPPED, fn, lambda _: ())

    def on_state_change(self, fn: S) -> S:
        """Call ``fn(from_state, to_state)`` at every change of state, before the event that explains it."""
        return self._register(EventKind.STATE_CHANGE, fn, lambda event: (event.from_state, event.to_state))

    def on_error(self, fn: E) -> E:
        """Call ``fn(exception)`` for every error, including exceptions of other callbacks."""
        return self._register(EventKind.ERROR, fn, lambda event: (event.error,))

    def on_overrun(self, fn: E) -> E:
        """Call ``fn(error)``, a :class:`~pgleaderlock.errors.WorkOverrun`, when a leader task outlived its term."""
        return self._register(EventKind.OVERRUN, fn, lambda event: (event.error,))

    def _register(self, kind: EventKind, fn: F, arguments: Callable[[Event], tuple[Any, ...]]) -> F:
        check_callable(f"the {kind.value} callback", fn)

        def listener(event: Event) -> object:
            return fn(*arguments(event)) if event.kind is kind else None

        listener.__qualname__ = getattr(fn, "__qualname__", repr(fn))
        self._listeners.append(listener)
        return fn
