"""Decorators that turn a user's function into a listener of the event stream.

They return the function unchanged, so they stack, and a function can be registered for several events. Functions may
be plain or ``async``; several per event run in the order of their registration. A function that requires one more
positional parameter than its decorator passes gets the :class:`~pgleaderlock.models.Event` there.

An event has one kind. Two decorators listen to several: ``on_error`` to every error, and ``on_lost``, by specification,
also to attempts that failed.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from pgleaderlock._base.checks import check_callable, check_flag, refuse_pickling
from pgleaderlock.models import (
    ERROR_KINDS,
    Callback,
    ErrorCallback,
    Event,
    EventKind,
    Listener,
    LockState,
    StateChangeCallback,
)

__all__ = ["NOT_GIVEN", "Callbacks", "Decorators", "listener_of"]

B = TypeVar("B", bound=Callback)
C = TypeVar("C", bound=Callback | Callable[[Event], object])
S = TypeVar("S", bound=StateChangeCallback | Callable[[LockState, LockState, Event], object])
E = TypeVar("E", bound=ErrorCallback | Callable[[Exception, Event], object])
L = TypeVar("L", bound=Listener)
F = TypeVar("F", bound=Callable[..., Any])

NOT_GIVEN: Any = object()
"""In place of a function, where a decorator is used with parentheses: None would hide a mistake."""


class Decorators(ABC):
    """The decorators, for any class that can register a function: of an election, or of its blocking front."""

    __reduce_ex__ = refuse_pickling

    def on_acquired(self, fn: C) -> C:
        """Call ``fn()`` or ``fn(event)`` when this process became the leader."""
        return self._register(fn, EventKind.ACQUIRED)

    def on_released(self, fn: C) -> C:
        """Call ``fn()`` or ``fn(event)`` when leadership was released on request."""
        return self._register(fn, EventKind.RELEASED)

    @overload
    def on_lost(self, fn: C, *, attempts: bool = True) -> C: ...
    @overload
    def on_lost(self, *, attempts: bool = True) -> Callable[[C], C]: ...
    def on_lost(self, fn: C = NOT_GIVEN, *, attempts: bool = True) -> C | Callable[[C], C]:
        """Call ``fn()`` or ``fn(event)`` when leadership was lost, or an attempt to acquire it ended in an error.

        The second is the specification's. ``@lock.on_lost(attempts=False)`` leaves it out.
        """
        if fn is NOT_GIVEN:
            return partial(self.on_lost, attempts=attempts)
        also = (EventKind.ATTEMPT_FAILED,) if check_flag("attempts", attempts) else ()
        return self._register(fn, EventKind.LOST, *also)

    def on_acquire_failed(self, fn: C) -> C:
        """Call ``fn()`` or ``fn(event)`` when an attempt found the lock held by another candidate."""
        return self._register(fn, EventKind.ACQUIRE_FAILED)

    def on_stopped(self, fn: C) -> C:
        """Call ``fn()`` or ``fn(event)`` when the election has stopped, for any reason, and its session is closed."""
        return self._register(fn, EventKind.STOPPED)

    def on_state_change(self, fn: S) -> S:
        """Call ``fn(from_state, to_state)``, with ``event`` if it asks, at every change of state, before its reason."""
        return self._register(fn, EventKind.STATE_CHANGE, passes=("from_state", "to_state"))

    def on_error(self, fn: E) -> E:
        """Call ``fn(exception)`` or ``fn(exception, event)`` for each error, also of callbacks and leader tasks."""
        return self._register(fn, *ERROR_KINDS, passes=("error",))

    def on_overrun(self, fn: E) -> E:
        """Call ``fn(error)``, a :class:`~pgleaderlock.errors.WorkOverrun`, when a leader task outlived its term."""
        return self._register(fn, EventKind.OVERRUN, passes=("error",))

    @abstractmethod
    def _register(self, fn: F, *kinds: EventKind, passes: tuple[str, ...] = ()) -> F:
        """Register ``fn`` for events of these kinds; it gets the fields ``passes`` of the event."""
        raise NotImplementedError


class Callbacks(Decorators):
    """The registered functions. One that is added while an election runs is notified from the next event on."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._drains: list[Callback] = []
        self._is_used = False
        """Whether the program ever asked who leads, or asked to be notified: see ``UnusedLeadershipWarning``."""

    def subscribe(self, listener: L) -> L:
        """Notify ``listener`` of every event, as an :class:`~pgleaderlock.models.Event`."""
        check_callable("a listener", listener)
        self._is_used = True
        self._listeners.append(listener)
        return listener

    def before_release(self, fn: B) -> B:
        """Call ``fn()`` before leadership is released on request, and wait for it: to finish work and begin no more.

        Called once ``on_acquired`` has returned. Leadership is renewed meanwhile, and the election waits no longer than
        ``drain_s``. Not called before a loss.
        """
        check_callable("the before_release callback", fn)
        self._is_used = True
        self._drains.append(fn)
        return fn

    def _register(self, fn: F, *kinds: EventKind, passes: tuple[str, ...] = ()) -> F:
        check_callable(f"the {kinds[0].value} callback", fn)
        self._is_used = True
        self._listeners.append(listener_of(fn, kinds, passes))
        return fn


def listener_of(fn: Callable[..., object], kinds: tuple[EventKind, ...], passes: tuple[str, ...]) -> Listener:
    """Return a listener that calls ``fn`` with these fields of each event of these kinds, and the event if it asks."""
    gets_event = _takes_event(fn, len(passes))

    def listener(event: Event) -> object:
        if event.kind not in kinds:
            return None
        fields = [getattr(event, name) for name in passes]
        return fn(*fields, event) if gets_event else fn(*fields)

    listener.__qualname__ = getattr(fn, "__qualname__", repr(fn))
    return listener


def _takes_event(fn: Callable[..., object], passed: int) -> bool:
    """Return whether ``fn`` requires more positional arguments than the number ``passed``.

    A parameter with a default does not count: ``lambda role=role: ...`` keeps a value, and must not get an event.
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.kind in positional and each.default is each.empty]
    return len(required) > passed
