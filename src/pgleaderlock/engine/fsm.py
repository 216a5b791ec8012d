"""The state machine of one election: a table, and nothing else.

Pure: no asyncio, no clock, no logging, no I/O. The engine does the I/O that a state stands for, learns one fact, and
feeds it in as an :class:`Input`; what comes out (:class:`Transition`) says everything that follows: where to go, which
events to emit and whether before the session is closed, whether the term is over, what becomes of the call in flight
and of the hard fence. The engine asks no state what it means.

Rules that hold for every row:

- An input that the current state has no row for raises :class:`~pgleaderlock.errors.IllegalTransition` and changes
  nothing. There is no default.
- A change of state emits ``on_state_change`` first. Entering STOPPED closes the session and emits ``on_stopped`` last.
  Neither is written into the rows below.
- A term that ACQUIRED opened is over with the first RELEASED, LOST or STOPPED after it. LOST always ends a term; the
  specification's ``on_lost`` for an attempt that failed is kept by :mod:`~pgleaderlock.engine.callbacks`.
- Three destinations depend on how the lock was configured or on who asked; they are the footnotes of the
  specification's table, and are written here with its marks.

The machine remembers one thing beside its state: that a stop was asked for. It decides where a release leads (²).
"""

import enum
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import assert_never

from pgleaderlock.errors import IllegalTransition
from pgleaderlock.models import EventKind, LockState

__all__ = ["ROWS", "Destination", "Input", "Machine", "Policy", "Row", "Table", "Transition", "table_for"]


class Input(enum.Enum):
    """A fact that the engine learned, or something that a caller asked for."""

    START = "start"
    STOP_REQUESTED = "stop_requested"
    ACQUIRE_ATTEMPT = "acquire_attempt"
    ACQUIRE_SUCCEEDED = "acquire_succeeded"
    ACQUIRE_FAILED = "acquire_failed"
    DB_ERROR = "db_error"
    HEALTH_OK = "health_ok"
    HEALTH_FAILED = "health_failed"
    REACQUIRE_SUCCEEDED = "reacquire_succeeded"
    REACQUIRE_FAILED = "reacquire_failed"
    GRACE_EXPIRED = "grace_expired"
    RELEASE_REQUESTED = "release_requested"
    RELEASE_SUCCEEDED = "release_succeeded"
    RELEASE_FAILED = "release_failed"
    # Beyond the specification:
    RELEASE_TIMED_OUT = "release_timed_out"
    """``step_down(timeout_s)`` ran out of time: close the session, which frees the lock for certain."""
    RETRIES_EXHAUSTED = "retries_exhausted"
    """The retry strategy gave up, or gave an answer that is not a delay."""
    ABORTED = "aborted"
    """``shutdown(timeout_s)`` ran out of time, or the lifecycle task was cancelled."""


class Destination(enum.Enum):
    """A destination that depends on the policy. The value is the specification's footnote mark."""

    REACQUIRE = "¹"
    """FOLLOWER, or STOPPED when ``auto_reacquire`` is off."""
    RESUME = "²"
    """FOLLOWER after a ``step_down()`` with ``auto_reacquire``, STOPPED otherwise."""
    GRACE = "³"
    """RECONNECTING; without a grace period ``on_lost`` first, and then as ¹."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The two settings of an election that change its transitions."""

    auto_reacquire: bool = True
    grace: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row: in ``source``, on ``input``, go ``to``, emitting ``emits`` in order."""

    source: LockState
    input: Input
    to: LockState | Destination
    emits: tuple[EventKind, ...] = ()
    closes: bool = False
    """The session is closed after the events were heard, because what it holds is in doubt."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A row with its destination resolved, and everything that follows from it."""

    source: LockState
    input: Input
    to: LockState
    emits: tuple[EventKind, ...]
    closes: bool
    """The session is closed."""
    changes: bool
    """Another state is entered."""
    leads: bool
    """Leadership is valid afterwards: leader tasks run, and the engine waits for no listener."""
    ends_term: bool
    """The term is over: its grant is forgotten, and the session waits for leader tasks to stop."""
    hands_over: bool
    """The end was asked for: others get the first turn."""
    notifies_first: bool
    """Listeners are notified before the session is closed: so ``on_lost`` precedes a successor's start.

    Everything else is notified afterwards: ``on_released`` and ``on_stopped`` say that nothing is held any more.
    """
    keeps_call: bool
    """The call in flight goes on: a release begins when the renewal under way is answered."""
    keeps_fence: bool
    """The hard fence stays armed: until ``on_lost`` was delivered, and while reconnecting in silence."""


S, I, E, D = LockState, Input, EventKind, Destination  # noqa: E741 - one letter each, to read the rows as a table

ROWS: tuple[Row, ...] = (
    # As in section 3.3 of the specification, in its order.
    Row(S.STOPPED, I.START, S.FOLLOWER),
    Row(S.FOLLOWER, I.ACQUIRE_ATTEMPT, S.ACQUIRING),
    Row(S.FOLLOWER, I.STOP_REQUESTED, S.STOPPED),
    Row(S.ACQUIRING, I.ACQUIRE_SUCCEEDED, S.LEADER, (E.ACQUIRED,)),
    Row(S.ACQUIRING, I.ACQUIRE_FAILED, S.FOLLOWER, (E.ACQUIRE_FAILED,)),
    Row(S.ACQUIRING, I.DB_ERROR, D.REACQUIRE, (E.ATTEMPT_FAILED, E.ERROR), closes=True),
    Row(S.ACQUIRING, I.STOP_REQUESTED, S.STOPPED),
    Row(S.LEADER, I.HEALTH_OK, S.LEADER),
    Row(S.LEADER, I.HEALTH_FAILED, D.GRACE, (E.ERROR,), closes=True),
    Row(S.LEADER, I.DB_ERROR, D.GRACE, (E.ERROR,), closes=True),
    Row(S.LEADER, I.STOP_REQUESTED, S.RELEASING),
    Row(S.LEADER, I.RELEASE_REQUESTED, S.RELEASING),
    Row(S.RECONNECTING, I.REACQUIRE_SUCCEEDED, S.LEADER, (E.RECOVERED,)),
    Row(S.RECONNECTING, I.REACQUIRE_FAILED, D.REACQUIRE, (E.LOST,)),
    Row(S.RECONNECTING, I.GRACE_EXPIRED, D.REACQUIRE, (E.LOST,), closes=True),
    Row(S.RECONNECTING, I.STOP_REQUESTED, S.STOPPED),
    Row(S.RELEASING, I.RELEASE_SUCCEEDED, D.RESUME, (E.RELEASED,)),
    Row(S.RELEASING, I.RELEASE_FAILED, S.STOPPED, (E.ERROR,)),
    Row(S.RELEASING, I.DB_ERROR, S.STOPPED, (E.ERROR,)),
    # Pairs on which the specification is silent.
    Row(S.FOLLOWER, I.DB_ERROR, S.FOLLOWER, (E.ERROR,), closes=True),
    Row(S.FOLLOWER, I.RELEASE_REQUESTED, S.FOLLOWER),
    Row(S.FOLLOWER, I.RETRIES_EXHAUSTED, S.STOPPED, (E.ERROR,)),
    Row(S.RECONNECTING, I.RELEASE_REQUESTED, D.REACQUIRE, (E.LOST,), closes=True),
    Row(S.RECONNECTING, I.RETRIES_EXHAUSTED, S.STOPPED, (E.LOST, E.ERROR)),
    Row(S.RELEASING, I.STOP_REQUESTED, S.RELEASING),
    Row(S.RELEASING, I.RELEASE_REQUESTED, S.RELEASING),
    Row(S.RELEASING, I.RELEASE_TIMED_OUT, D.RESUME, (E.RELEASED,), closes=True),
    Row(S.FOLLOWER, I.ABORTED, S.STOPPED, (E.ERROR,)),
    Row(S.ACQUIRING, I.ABORTED, S.STOPPED, (E.ERROR,)),
    Row(S.LEADER, I.ABORTED, S.STOPPED, (E.LOST, E.ERROR)),
    Row(S.RECONNECTING, I.ABORTED, S.STOPPED, (E.LOST, E.ERROR)),
    Row(S.RELEASING, I.ABORTED, S.STOPPED, (E.ERROR,)),
)
"""All transitions of the state machine. Their order matters to readers only."""


def _resolve(row: Row, policy: Policy, *, stopping: bool) -> tuple[LockState, tuple[EventKind, ...]]:
    """Follow a footnote to the state it means here, and to the events that come with it."""
    again = S.FOLLOWER if policy.auto_reacquire else S.STOPPED
    match row.to:
        case LockState():
            return row.to, row.emits
        case Destination.REACQUIRE:
            return again, row.emits
        case Destination.RESUME:
            return S.STOPPED if stopping else again, row.emits
        case Destination.GRACE:
            return (S.RECONNECTING, row.emits) if policy.grace else (again, (E.LOST, *row.emits))
        case _:  # pragma: no cover - mypy proves that it cannot be reached
            assert_never(row.to)


def _specialise(row: Row, policy: Policy, *, stopping: bool) -> Transition:
    to, emits = _resolve(row, policy, stopping=stopping)
    # The verb that failed has given up the session it failed on. What else protects a recovery is kept for it.
    closes = (row.closes and to is not S.RECONNECTING) or to is S.STOPPED
    if to is not row.source:
        emits = (E.STATE_CHANGE, *emits)
    if to is S.STOPPED:
        emits = (*emits, E.STOPPED)
    return Transition(
        row.source,
        row.input,
        to,
        emits,
        closes,
        changes=to is not row.source,
        leads=to.leads,
        ends_term=row.source.is_in_term and not to.is_in_term,
        hands_over=E.RELEASED in emits,
        notifies_first=E.LOST in emits,
        keeps_call=to in (row.source, S.RELEASING),
        keeps_fence=to in (S.LEADER, S.RECONNECTING) or E.LOST in emits,
    )


Table = MappingProxyType[tuple[LockState, Input], Transition]
"""What follows from each input in each state."""


@cache
def table_for(policy: Policy, *, stopping: bool = False) -> Table:
    """Return the table that this policy makes of :data:`ROWS`."""
    return MappingProxyType({(row.source, row.input): _specialise(row, policy, stopping=stopping) for row in ROWS})


class Machine:
    """The current state, and whether a stop was asked for. Changes only through :meth:`feed`."""

    def __init__(self, policy: Policy) -> None:
        self._tables = table_for(policy), table_for(policy, stopping=True)
        self._state = S.STOPPED
        self._stopping = False

    @property
    def state(self) -> LockState:
        """The current state."""
        return self._state

    def accepts(self, fact: Input) -> bool:
        """Whether this input would change anything but the memory of a stop."""
        transition = self._tables[self._stopping].get((self._state, fact))
        return transition is not None and transition.changes

    def feed(self, fact: Input) -> Transition:
        """Enter the next state and return the transition; IllegalTransition, and no change, for an illegal input."""
        stopping = self._stopping or fact is I.STOP_REQUESTED
        transition = self._tables[stopping].get((self._state, fact))
        if transition is None:
            raise IllegalTransition(f"no row for input {fact.value!r} in state {self._state.value!r}")
        self._state = transition.to
        self._stopping = stopping and transition.to is not S.STOPPED
        return transition
