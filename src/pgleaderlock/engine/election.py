"""The engine: one loop that does the I/O of the current state and feeds the outcome to the state table.

**The state is the I/O in progress.** Each running state has one coroutine below (``_follow``, ``_acquire``, ``_lead``,
``_reconnect``, ``_release``). It performs that state's calls on the backend and returns one :class:`Fact`;
:mod:`~pgleaderlock.engine.fsm` says what follows. There is no other place where a state changes.

:meth:`Election.shutdown` and :meth:`Election.step_down` put a request into an inbox, whose inputs go to the same table.
A request cancels the call in progress at once. A backend whose verb is cancelled closes its session if it does not know
what that session holds, so leaving a state never leaves a lock held.

Whether this process may act as the leader is :attr:`Election.is_leader`: the state, *and* what the backend sees of the
grant at that moment (:meth:`Backend.look`), *and* a comparison of its ``trusted_until`` with the clock, evaluated when
asked. So it is right even while the event loop is blocked.

The table defines the consequences of a transition (:class:`~pgleaderlock.engine.fsm.Transition`), and one function,
:meth:`Election._apply`, carries them out without awaiting: no other task can see a new state with an old grant. Only
what has to be waited for comes after it, in :meth:`Election._step`.

Leader tasks (``while_leader``) begin and end in the step in which leadership does
(:mod:`~pgleaderlock.engine.leader_tasks`), and the session is kept until they have stopped, for as long as the grant is
valid.

Not promised here: that other work ends with the leadership. Callbacks are notified; stopping that work is up to them.
"""

import asyncio
import inspect
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import check_flag, check_name, check_seconds, refuse_plain_with
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._logging import get_logger
from pgleaderlock.engine._calls import Asked, guarded, see_out
from pgleaderlock.engine._leader_task import AfterWork, Host
from pgleaderlock.engine._run import Fact, Run
from pgleaderlock.engine._unused import warn_of_unused_leadership
from pgleaderlock.engine.delivery import EventStream
from pgleaderlock.engine.event_log import log_events
from pgleaderlock.engine.fsm import Input, Machine, Policy, Transition
from pgleaderlock.engine.hard_fence import HardFence
from pgleaderlock.engine.leader_tasks import LeaderTasks
from pgleaderlock.engine.while_leader import WhileLeader
from pgleaderlock.errors import (
    ConnectionError,
    LeadershipLost,
    LockError,
    PgLeaderLockError,
    ShutdownError,
)
from pgleaderlock.models import Callback, Event, EventKind, Grant, LockState
from pgleaderlock.retry import ExponentialBackoff, RetryCycle, RetryStrategy, away_ceiling_s
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.times import SOON_SHARE, effective_interval_s, until_renewal_s

__all__ = ["Election"]

_CANCEL_WAIT_S = 0.5
_EXIT_TIMEOUT_S = 10.0  # for `async with` that ends in an exception, and for the last callbacks of a cancelled task


class Election(WhileLeader):
    """One candidate for one lock, in any store.

    Use from one event loop. A stopped election can be started again, on another loop too; one whose loop was closed
    while it ran cannot: its lease frees the lock.
    """

    __enter__ = __exit__ = refuse_plain_with

    def __init__(
        self,
        backend: Backend,
        *,
        retry_strategy: RetryStrategy | None = None,
        health_interval_s: float = 5.0,
        reconnect_grace_s: float | None = None,
        auto_reacquire: bool = True,
        shutdown_event: asyncio.Event | None = None,
        clock: Clock = suspend_aware_clock,
        hard_fence: bool = False,
        drain_s: float = 10.0,
    ) -> None:
        super().__init__()
        if isinstance(backend, str):
            raise TypeError("backend must be a Backend, not a str: Election(open_backend(url))")
        self._strategy = ExponentialBackoff() if retry_strategy is None else retry_strategy
        if not isinstance(self._strategy, RetryStrategy):
            raise TypeError(f"retry_strategy must have a next_delay_s method, {type(retry_strategy).__name__} has none")
        if shutdown_event is not None and not isinstance(shutdown_event, asyncio.Event):
            raise TypeError(f"shutdown_event must be an asyncio.Event, not {type(shutdown_event).__name__}")
        self._health_interval_s = check_seconds("health_interval_s", health_interval_s)
        if reconnect_grace_s is not None:
            check_seconds("reconnect_grace_s", reconnect_grace_s)
        self._grace_s = reconnect_grace_s
        self._drain_s = check_seconds("drain_s", drain_s)
        self._machine = Machine(
            Policy(check_flag("auto_reacquire", auto_reacquire), grace=reconnect_grace_s is not None)
        )
        self._backend = backend
        self._shutdown_event = shutdown_event
        self._clock = clock
        self._hard_fence = HardFence(clock) if check_flag("hard_fence", hard_fence) else None
        self._new_cycle()
        self._grant: Grant | None = None
        self._running: Run | None = None
        self._was_started = False
        self._left_open = False  # a run ended without closing the backend; the next run closes it first
        self._logger = get_logger().bind(**backend.labels)
        self._fence_may_disarm = True
        self._leader_tasks = LeaderTasks(self._make_host())
        self._log_event = self.subscribe(log_events(self._logger))
        self._is_used = False  # so far only by ourselves
        self._work = {
            LockState.FOLLOWER: self._follow,
            LockState.ACQUIRING: self._acquire,
            LockState.LEADER: self._lead,
            LockState.RECONNECTING: self._reconnect,
            LockState.RELEASING: self._release,
        }

    # --- State -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LockState:
        """The present state of the election."""
        self._is_used = True
        return self._machine.state

    @property
    def _has_stopped(self) -> bool:
        return self._machine.state.is_stopped

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels that identify this lock, also in every log line, such as ``key1`` and ``key2``. Never a secret."""
        return self._backend.labels

    @property
    def identity(self) -> str | None:
        """The name by which the store shows this candidate while it leads; None if it has no name of its own there."""
        return self._backend.identity

    @property
    def address(self) -> str | None:
        """The address that the store shows while this candidate leads; None without one."""
        return self._backend.address

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as the leader now. Check it again before each action that must happen once."""
        return self.time_left_s > 0

    @property
    def token(self) -> int | None:
        """The fencing token of the current term: greater than every earlier leader's. None when not leading."""
        grant = self._valid_grant()
        return None if grant is None else grant.token

    @property
    def trusted_until(self) -> float | None:
        """Until when, on the election's clock, leadership is valid without a renewal. None when not leading."""
        grant = self._valid_grant()
        return None if grant is None else grant.trusted_until

    @property
    def place(self) -> str:
        """This candidate's place in the succession, for display only: ``heir``, ``next heir``, or empty."""
        self._is_used = True
        return self._backend.place

    @property
    def lease_s(self) -> float | None:
        """The lease duration: how long the store keeps the lock of a silent leader. None where it keeps it for ever."""
        return self._backend.lease_s

    @property
    def health_interval_s(self) -> float:
        """How often a leader renews: the given interval, or a shorter one that leaves time to repeat a failure."""
        return effective_interval_s(self._health_interval_s, self.lease_s)

    @property
    def time_left_s(self) -> float:
        """For how many seconds leadership is still valid without a renewal: 0 when not leading."""
        self._is_used = True  # is_leader, token and trusted_until ask here too
        grant, run = self._grant, self._running
        if not self._machine.state.leads or grant is None or run is None:
            return 0.0
        if run.loop.is_closed() or run.pid != os.getpid():  # a forked child has our memory, but not our lock
            return 0.0
        return max(0.0, self._backend.look(grant).trusted_until - self._clock())

    def _valid_grant(self) -> Grant | None:
        """Return the grant in its present state; None when not leading."""
        grant = self._grant
        return self._backend.look(grant) if self.is_leader and grant is not None else None

    def lifeline(self) -> tuple[int, ...]:
        """Return the store's descriptors that keep the lock while a copy of them is open (:meth:`Backend.lifeline`)."""
        return self._backend.lifeline()

    @property
    def is_stopping(self) -> bool:
        """Whether a shutdown was requested and is in progress. False during a step-down and after a loss."""
        run = self._running
        return run is not None and run.is_leaving

    # --- Lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take part in the election; returns in FOLLOWER. Does nothing when running. Waits for a running shutdown."""
        while (run := self._run_here()) is not None:
            if not self._is_ending(run):
                return
            if run.stream.is_current_task():
                raise LockError("start() in a callback while stopping: use asyncio.create_task(lock.start())")
            await asyncio.wait({run.task})
        self._begin_run()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Release the lock if it is held, and stop. Past ``timeout_s`` the session is closed by force.

        Returns when the election has stopped and its callbacks have run. In a callback and in a leader task it only
        requests this and returns, because the engine waits for those: waiting there would be a deadlock.
        """
        _check_timeout(timeout_s)
        run = self._run_here()
        if run is None:
            return
        run.is_leaving = True
        if self._is_inside(run):
            self._ask_once_drained(run, run.ask_to_stop)
            return
        began_at = asyncio.get_running_loop().time()
        try:
            await self._drain(run, timeout_s)
        finally:  # also when the caller was cancelled while draining: the shutdown goes on
            run.ask_to_stop()
        left_s = None if timeout_s is None else max(0.0, began_at + timeout_s - asyncio.get_running_loop().time())
        await asyncio.wait({run.task}, timeout=left_s)
        if not run.task.done():
            error = ShutdownError(f"shutdown did not finish within {timeout_s:g} s: the session was closed by force")
            run.inbox.put(Input.ABORTED, error)
            run.stream.hurry()
            await asyncio.wait({run.task}, timeout=_EXIT_TIMEOUT_S)
            run.task.cancel()  # no effect if it is done; it is not done only if a callback ignores its cancellation

    async def step_down(self, timeout_s: float | None = None, *, to: str | None = None) -> None:
        """Give up leadership without stopping. Does nothing when not leading.

        Returns when the lock is released and the callbacks have run. Past ``timeout_s`` the session is closed, which
        frees the lock for certain. In a callback and in a leader task it only requests this and returns.

        ``to`` names the candidate that leads next, as :meth:`nominate` does, which may take two seconds more. If that
        is refused, the LockError is raised, or in a callback logged, and this candidate leads on.

        A release that fails, for example on a session that has just ended, leads to STOPPED and not back to FOLLOWER,
        with ``on_error`` and ``on_stopped``, as the state table specifies. Call :meth:`start` to take part again.
        """
        _check_timeout(timeout_s)
        self._is_used = True
        if to is not None:
            check_name("to", to)
        run = self._run_here()
        if run is None or not self._machine.state.is_in_term:
            return
        yielded = run.yielded
        if self._is_inside(run):
            self._release_later(run, yielded, to)
            return
        if to is not None:
            await self.nominate(to)
        try:
            await self._drain(run, timeout_s)
        finally:
            self._ask_to_release(run, yielded)
        await asyncio.wait({yielded}, timeout=timeout_s)
        if not yielded.done() and self._machine.state.is_in_term:
            run.inbox.put(Input.RELEASE_TIMED_OUT)
            await asyncio.wait({yielded})
        await self._wait_for_listeners(run, or_until=run.task, timeout_s=timeout_s)

    async def nominate(self, to: str) -> None:
        """Have another candidate lead next, after this leader: it becomes the heir. LockError if that cannot be.

        ``to`` is the candidate's host and process id (``host-2:18``), as they show in its session's
        ``application_name``, or all of that name. Only for one lock on PostgreSQL sessions. Does nothing when not
        leading. It decides nothing: should the nominee end, another candidate leads next.
        """
        check_name("to", to)
        run, grant = self._run_here(), self._valid_grant()
        if run is None or grant is None:
            return
        # In a task, because a caller that is cancelled must not cut a statement short, which would end the session.
        term, task = run.yielded, run.do(self._backend.nominate(grant, to))
        task.add_done_callback(lambda each: None if each.cancelled() else each.exception())  # it may have no reader
        await asyncio.wait({task, term}, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not term.done():
            task.result()

    def _release_later(self, run: Run, term: asyncio.Future[None], to: str | None) -> None:
        """Request the release of this term from a callback or a leader task, after the nomination if there is one."""
        ask = partial(self._ask_once_drained, run, partial(self._ask_to_release, run, term))
        if to is None:
            ask()
            return

        async def nominate_and_ask() -> None:
            try:
                await self.nominate(to)
            except PgLeaderLockError as error:
                self._logger.warning("nomination_refused", to=to, error=error)
            else:
                ask()

        run.do(nominate_and_ask())

    def _is_inside(self, run: Run) -> bool:
        """Whether the caller is a callback or a leader task, for which the engine waits: it must not wait in turn."""
        return run.stream.is_current_task() or self._leader_tasks.is_here

    def _ask_to_release(self, run: Run, term: asyncio.Future[None]) -> None:
        """Request the release of this term. Does nothing if it is over: a later term must not end by a late request."""
        if not term.done() and self._machine.accepts(Input.RELEASE_REQUESTED):
            run.inbox.put(Input.RELEASE_REQUESTED)

    def _ask_once_drained(self, run: Run, ask: Callable[[], None]) -> None:
        """Drain, then request it: in a task of its own, because callbacks and leader tasks must not wait here."""
        if not self._has_to_drain():
            ask()
            return

        async def drain_and_ask() -> None:
            await self._drain(run, None)
            ask()

        run.do(drain_and_ask())

    async def _drain(self, run: Run, timeout_s: float | None) -> None:
        """Let leader tasks finish before a requested release, while the engine goes on renewing.

        Concurrent callers share one drain: ``before_release`` callbacks run once.
        """
        if not self._has_to_drain():
            return
        bound_s = self._drain_s if timeout_s is None else min(self._drain_s, timeout_s)
        if run.draining is None:
            run.draining = run.loop.create_task(self._finish_work(run, bound_s), name="pgleaderlock drain")
        draining = run.draining
        await asyncio.wait({draining, run.yielded, run.task}, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            self._logger.warning("drain_unfinished", seconds=bound_s)
            draining.cancel()
            await asyncio.wait({draining}, timeout=_CANCEL_WAIT_S)  # bounded: a callback may ignore its cancellation

    def _has_to_drain(self) -> bool:
        return self._machine.state.leads and (bool(self._drains) or not self._leader_tasks.is_idle)

    async def _finish_work(self, run: Run, bound_s: float) -> None:
        announced = run.stream.drained()

        async def call_after_on_acquired(fn: Callback) -> None:
            # Before that, ``fn`` would finish work that on_acquired has yet to begin, and the lock would then be free.
            await asyncio.wait({announced})
            await _call(fn)

        work = [self._leader_tasks.drain(bound_s), *map(call_after_on_acquired, self._drains)]
        for error in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(error, Exception):
                self._logger.error("callback_failed", callback="before_release", error=error, exc_info=error)
                self._report(EventKind.CALLBACK_FAILED, error)

    async def wait_for_leadership(self, timeout_s: float | None = None) -> bool:
        """Wait to become the leader. Return True after the ``on_acquired`` callbacks ran; False when the time is up.

        Also False when the election has stopped, or stops meanwhile: then waiting would never end. Raises LockError
        when it was never started.
        """
        _check_timeout(timeout_s)
        self._is_used = True
        run = self._run_here()
        if run is None:
            self._check_started()
            await asyncio.sleep(0)  # a caller that loops on this must not block the event loop
            return False
        if run.stream.is_current_task():
            raise LockError("wait_for_leadership() in a callback would wait for itself: use asyncio.create_task()")
        # The announcement alone is not enough, as its term may be over: is_leader looks at the session itself, and sees
        # its end before the engine has read it.
        leads = asyncio.ensure_future(run.until(lambda: run.is_announced and self.is_leader))
        try:
            await asyncio.wait({leads, run.task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return leads.done()
        finally:
            leads.cancel()

    def _check_started(self) -> None:
        """Raise LockError when :meth:`start` was never called: the caller would wait for ever."""
        if not self._was_started:
            raise LockError(
                f"{type(self).__name__} was not started, so waiting would never end: call start() first, "
                "or wait inside its with block"
            )

    async def __aenter__(self) -> Self:
        """Take part in the election, and return at once: the block is not held back until this process leads.

        In asyncio ``async with lock`` commonly means that the lock is held. Here it means that this process takes part:
        ask :attr:`is_leader`, await :meth:`wait_for_leadership`, or use ``async with lock.leading()``, which waits.
        """
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Release the lock if it is held, and stop. The time for that is bounded if the block ended in an exception."""
        await self.shutdown(timeout_s=None if exc_type is None else _EXIT_TIMEOUT_S)
        if exc_type is None and not self._was_used():
            warn_of_unused_leadership(f"async with of {self._labels_text()}", "async with lock.leading()")

    def _was_used(self) -> bool:
        """Whether the program ever asked who leads, or has callbacks or leader tasks."""
        return self._is_used or self._leader_tasks.was_used

    def _run_here(self) -> Run | None:
        """Return the current run. LockError if it is on another event loop, where the caller would wait for ever."""
        run = self._running
        if run is not None and run.loop.is_closed():
            raise LockError(
                "the event loop of this election was closed while it ran: make a new election, and await shutdown() "
                "before a loop is closed. If it led, its lock is free when its lease has expired"
            )
        if run is not None and run.loop is not asyncio.get_running_loop():
            raise LockError(
                "this election runs on another event loop, perhaps in another thread: from there use "
                "asyncio.run_coroutine_threadsafe(lock.shutdown(), loop). Only is_leader and state may be asked there"
            )
        return run

    def _is_ending(self, run: Run) -> bool:
        """Whether this run is about to end by itself: a new one can begin only after that."""
        return run.is_leaving or self._machine.state.is_stopped or run.task.cancelling() > 0

    # --- Leader tasks --------------------------------------------------------------------------------------------

    def _make_host(self) -> Host:
        return Host(
            clock=self._clock,
            logger=self._logger,
            described=self._labels_text(),
            patience_s=self._drain_s,
            grant_now=self._valid_grant,
            report=self._report,
            leave=self._leave_for_work,
            note_idle=self._note_tasks_idle,
        )

    def _report(self, kind: EventKind, error: Exception) -> None:
        """Notify listeners of what a callback or a leader task did. Once the election has ended, it is logged only."""
        event = Event(kind, self._machine.state, self._machine.state, _REPORTED[kind], self._clock(), error=error)
        if self._running is not None:
            self._running.stream.put(event)
        else:
            self._log_event(event)

    def _leave_for_work(self, how: AfterWork) -> None:
        run = self._running
        if run is not None:
            run.is_leaving = run.is_leaving or how == "stop"
            leave = run.ask_to_stop if how == "stop" else partial(self._ask_to_release, run, run.yielded)
            self._ask_once_drained(run, leave)

    def _is_running(self) -> bool:
        run = self._run_here()
        return run is not None and not self._is_ending(run)

    def _term_mark(self) -> object:
        return None if self._running is None else self._running.yielded

    def _is_here(self) -> bool:
        run = self._run_here()
        return run is not None and self._is_inside(run)

    async def _until_stopped(self) -> Exception | None:
        run = self._run_here()
        if run is None:
            return None
        await asyncio.wait({run.task})
        return run.error

    # --- The loop ----------------------------------------------------------------------------------------------

    def _begin_run(self, won: Grant | None = None) -> None:
        """Begin a run. With a lock that was acquired already, pass through all states up to LEADER at once."""
        loop = asyncio.get_running_loop()
        self._was_started = True
        run = self._running = Run(EventStream(self._listeners, self._note_delivered, self._logger))
        self._new_cycle()
        facts = [Fact(Input.START)]
        if won is not None and self._clock() < (won := self._backend.look(won)).lost_at:
            self._cycle.begin_attempt()
            facts += [Fact(Input.ACQUIRE_ATTEMPT), Fact(Input.ACQUIRE_SUCCEEDED, grant=won)]
        for fact in facts:
            self._notify(run, self._apply(run, fact).events)
        run.task = loop.create_task(self._live(run), name="pgleaderlock lifecycle")
        run.task.add_done_callback(lambda _: self._end_dead_run(run))
        if self._shutdown_event is not None:
            run.signal_task = loop.create_task(_relay(self._shutdown_event, run, self._drain))

    def _end_dead_run(self, run: Run) -> None:
        """End a run that was cancelled before its first step, and so could not end itself.

        The backend cannot be closed here, because that has to be awaited: the next run does it before anything else.
        """
        if self._running is not run:
            return
        self._running = None
        self._left_open = True
        error = ShutdownError("the lifecycle task ended before it could tidy up")
        applied = self._apply(run, Fact(Input.ABORTED, error))
        self._disarm_hard_fence()
        self._notify(run, applied.events)
        run.stream.end()

    async def _live(self, run: Run) -> None:
        error: Exception | None = None
        try:
            if self._left_open:
                self._left_open = False
                await self._close_backend()
            while not self._machine.state.is_stopped:
                await self._step(run, await self._next_fact(run))
        except asyncio.CancelledError:
            error = ShutdownError("the lifecycle task was cancelled: the session was closed")
            raise
        except Exception as bug:  # of any kind: a lock must not stay held by a task that no longer renews it
            self._logger.error("engine_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
            error = LockError(f"the election failed and was stopped: {bug!r}")
        finally:
            if not run.loop.is_closed():  # else this task is being garbage-collected, and cannot await any more
                await self._end_run(run, error)

    async def _next_fact(self, run: Run) -> Fact:
        if run.inbox.news.done():  # first, or calls that fail at once could postpone a request for ever
            return run.inbox.take()
        try:
            return await self._work[self._machine.state](run)
        except Asked:
            return run.inbox.take()

    def _apply(self, run: Run, fact: Fact) -> "_Applied":
        """Change the state, and do everything that follows from it without awaiting. No other place changes the state.

        Leader tasks and the hard fence come before the events, so that a callback can neither delay the start of a task
        nor keep it from being stopped.
        """
        transition = self._machine.feed(fact.input)
        grant = fact.grant  # as the store has just returned it
        if grant is None and self._grant is not None:
            grant = self._backend.look(self._grant)
        self._grant = fact.grant or self._grant
        run.error = fact.error
        self._leader_tasks.follow(grant, leads=transition.leads, error=fact.error)
        self._set_hard_fence(transition, grant)
        events = self._events(transition, fact, grant)
        if transition.changes and not transition.leads:
            run.is_announced = False
        run.note_change()
        if transition.ends_term:
            run.inbox.drop(Input.RELEASE_REQUESTED, Input.RELEASE_TIMED_OUT)
            self._new_cycle(after_release=transition.hands_over)
            self._grant = None
        return _Applied(transition, events, math.inf if grant is None else grant.successor_from)

    async def _step(self, run: Run, fact: Fact) -> None:
        """Apply one fact, then notify the listeners and close the session, in the order that the table defines.

        After a loss the listeners are notified and leader tasks stop before the session is closed, because the session
        is what keeps a successor out: closed earlier, a successor could lead while our work still runs. ``end_term``
        comes after the close, so that a ``step_down`` returns only when the lock is free.
        """
        applied = self._apply(run, fact)
        transition = applied.transition
        try:
            if not transition.keeps_call:
                await run.calls.cancel()
            await self._notify_and_wait(run, applied)
            if transition.ends_term:
                await self._wait_for_leader_tasks(run, applied.successor_from)
        finally:
            try:
                if transition.closes:
                    await self._close_backend()
            finally:
                if transition.ends_term:
                    run.end_term()
                self._notify(run, applied.after)
        if applied.after and not transition.leads:  # a slow callback must not delay a leader's next renewal
            await self._wait_for_listeners(run)

    async def _wait_for_leader_tasks(self, run: Run, successor_from: float) -> None:
        """Keep the session until leader tasks have stopped, but no longer than it keeps a successor out."""
        left_s = self._drain_s if math.isinf(successor_from) else max(0.0, successor_from - self._clock())
        await self._leader_tasks.stopped(or_until=run.inbox.aborted, timeout_s=left_s)
        if run.inbox.aborted.done():  # the session is closed now, so a successor may lead: report what still runs
            self._leader_tasks.report_overruns()

    async def _open_backend(self) -> None:
        """Open a session of the backend. A subclass may choose the backend by what it finds there."""
        await self._backend.open()

    async def _close_backend(self) -> None:
        """Close the backend. By its contract it does not raise; an error is logged, and must not end the election."""
        try:
            await guarded(self._backend.close)
        except PgLeaderLockError as error:
            self._logger.error("close_failed", error=error)  # noqa: TRY400 - ours is not logging's

    def _set_hard_fence(self, transition: Transition, grant: Grant | None) -> None:
        """Arm the hard fence with each grant. After a loss it stays armed until the listeners have been notified.

        It ends the process if they are not in time: work that was not notified may still act as the leader.
        """
        if self._hard_fence is None or grant is None:
            return
        if not transition.keeps_fence:
            self._disarm_hard_fence()
        elif transition.leads and not math.isinf(grant.trusted_until):
            self._fence_may_disarm = False
            self._hard_fence.arm(grant.trusted_until)

    def _disarm_hard_fence(self) -> None:
        """Disarm the hard fence, as all listeners have been notified; or later, when leader tasks have stopped."""
        self._fence_may_disarm = True
        self._note_tasks_idle()

    def _note_tasks_idle(self) -> None:
        if self._hard_fence is not None and self._fence_may_disarm and self._leader_tasks.is_idle:
            self._hard_fence.disarm()

    @staticmethod
    def _notify(run: Run, events: Iterable[Event]) -> None:
        for event in events:
            run.stream.put(event)

    async def _notify_and_wait(self, run: Run, applied: "_Applied") -> None:
        """Notify the listeners of what comes before the close of the session, and wait while no other can lead."""
        self._notify(run, applied.before)
        if applied.before:
            left_s = applied.successor_from - self._clock()
            timeout_s = None if math.isinf(left_s) else max(0.0, left_s)
            # With a time limit, an ordinary request does not end this wait: an on_lost often begins with a shutdown(),
            # and closing the session for it would let a successor lead before that on_lost has finished.
            or_until = None if timeout_s is None else run.inbox.aborted
            await self._wait_for_listeners(run, or_until=or_until, timeout_s=timeout_s)

    def _new_cycle(self, *, after_release: bool = False) -> None:
        ceiling_s = away_ceiling_s(self._backend.lease_s)
        self._cycle = RetryCycle(self._strategy, self._clock, away_ceiling_s=ceiling_s)
        if after_release:  # a step-down is meant to hand over: other candidates try before we try again
            self._cycle.begin_attempt()
            self._cycle.fail_attempt()
            self._cycle.after_release = True

    def _events(self, transition: Transition, fact: Fact, grant: Grant | None) -> tuple[Event, ...]:
        now, attempt = self._clock(), self._cycle.attempt
        token, trusted_until = (None, None) if grant is None else (grant.token, grant.successor_from)
        return tuple(
            [  # a list is faster than a generator: thousands of roles may begin at once
                Event(
                    kind,
                    transition.source,
                    transition.to,
                    _loss_cause(fact) if kind is EventKind.LOST else fact.input.value,
                    now,
                    error=fact.error,
                    attempt=attempt,
                    token=token,
                    took_s=fact.took_s,
                    trusted_until=trusted_until,
                )
                for kind in _emitted(transition, fact)
            ]
        )

    def _note_delivered(self, event: Event) -> None:
        run, leads = self._running, self._machine.state.leads
        if event.kind is EventKind.LOST and not leads:
            self._disarm_hard_fence()
        if event.kind in (EventKind.ACQUIRED, EventKind.RECOVERED) and leads and run:
            run.is_announced = True
            run.note_change()

    async def _wait_for_listeners(
        self, run: Run, *, or_until: asyncio.Future[None] | None = None, timeout_s: float | None = None
    ) -> None:
        """Wait until listeners were notified of all events or ``or_until``, by default the next request, is done."""
        either = {run.stream.drained(), or_until or run.inbox.news}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    async def _end_run(self, run: Run, error: Exception | None) -> None:
        """End a run, however its loop ended: no call in flight, no lock held, all listeners notified."""
        try:
            if run.signal_task is not None:
                run.signal_task.cancel()
            if error is not None:
                run.stream.hurry()
            if not self._machine.state.is_stopped:
                await self._step(run, Fact(Input.ABORTED, error))
            await run.stream.finish(None if error is None else _EXIT_TIMEOUT_S)
        finally:  # also when cancelled again here: tasks that wait for the stream or this run must not wait for ever
            run.stream.end()
            self._running = None
            self._disarm_hard_fence()

    # --- The I/O of each state ---------------------------------------------------------------------------------

    async def _follow(self, run: Run) -> Fact:
        """Wait for the next attempt, then make sure that a session is open for it."""
        delay_s = self._next_delay_s()
        if isinstance(delay_s, Fact):
            return delay_s
        try:
            if delay_s > 0:
                # After a step-down we sleep and do not queue: queued, we could be granted the lock before another
                # candidate that is queued behind us or just starting. After an error we sleep too: the backend's wait
                # may fail at once, and would then be no delay.
                rests = self._cycle.after_release or self._cycle.last_error is not None
                wait = asyncio.sleep if rests else self._backend.wait
                await run.calls.call(partial(wait, delay_s))
            self._cycle.begin_attempt()
            await run.calls.call(self._open_backend)
        except PgLeaderLockError as error:
            self._cycle.fail_attempt(error)
            return Fact(Input.DB_ERROR, error)
        return Fact(Input.ACQUIRE_ATTEMPT)

    def _next_delay_s(self) -> float | Fact:
        """Return the delay that the retry strategy gives; a fact if it gives up or raises."""
        try:
            delay_s = self._cycle.next_delay_s()
        except Exception as error:  # noqa: BLE001 - it is a user's
            return Fact(Input.RETRIES_EXHAUSTED, error)
        return Fact(Input.RETRIES_EXHAUSTED, self._gave_up()) if delay_s is None else delay_s

    async def _acquire(self, run: Run) -> Fact:
        """Try to acquire the lock, once."""
        try:
            grant = self._in_time(await run.calls.call(self._backend.try_acquire))
        except PgLeaderLockError as error:
            self._cycle.fail_attempt(error)
            return Fact(Input.DB_ERROR, error)
        if run.inbox.news.done():
            raise Asked  # a leadership that is to end at once is not announced; closing the session frees the lock
        if grant is None:
            self._cycle.fail_attempt()
            return Fact(Input.ACQUIRE_FAILED)
        return Fact(Input.ACQUIRE_SUCCEEDED, grant=grant)

    def _in_time(self, grant: Grant | None) -> Grant | None:
        """Return the grant, or raise LeadershipLost if it has ended before its term is announced.

        Another candidate may have led since then, with a greater token. The last answer may have waited to be read, and
        both sessions may have ended since (found by the exhaustive check): so the backend looks once more, in the step
        that announces the term.
        """
        if grant is None or self._clock() < self._backend.look(grant).lost_at:
            return grant
        if self._clock() < grant.lost_at:
            raise self._lost("its session ended before the term began", LossCause.CONNECTION_LOST)
        raise self._lost("this process stood still while it was granted the lock", LossCause.STALLED)

    async def _lead(self, run: Run) -> Fact:
        """Wait for one health interval or a loss, then renew, before the grant must be declared lost."""
        assert self._grant is not None  # noqa: S101 - LEADER is entered with a grant only
        try:
            left_s = self._grant.lost_at - self._clock()
            renew_in_s = (
                None
                if self._backend.renews_itself
                else until_renewal_s(self._health_interval_s, left_s, self._backend.lease_s)
            )
            why = await run.calls.call_within(self._backend.lost, renew_in_s)
        except Asked:
            await run.calls.cancel()
            raise
        if why is not None:
            return Fact(Input.DB_ERROR, why)
        had_s, left_s = left_s, self._grant.lost_at - self._clock()
        if left_s <= 0:  # past the deadline a renewal may succeed although another candidate has led since: not tried
            return Fact(Input.HEALTH_FAILED, self._missed_deadline(had_s))
        sent = self._clock()
        try:
            verb = partial(self._backend.renew, self._grant)
            grant = await run.calls.call_while(verb, None if math.isinf(left_s) else left_s)
        except PgLeaderLockError as error:
            return Fact(Input.HEALTH_FAILED, error)
        # Without an answer the call stays in flight. It is cancelled only after the loss was declared, because that
        # closes the session and frees the lock.
        if grant is None:
            return Fact(Input.HEALTH_FAILED, self._no_answer())
        if self._clock() >= self._grant.lost_at:  # leader tasks that checked their term meanwhile have stopped already
            return Fact(Input.HEALTH_FAILED, self._answered_too_late())
        return Fact(Input.HEALTH_OK, grant=grant, took_s=self._clock() - sent)

    def _missed_deadline(self, had_s: float) -> LeadershipLost:
        """Return the error for a deadline that was missed although ``had_s`` seconds were left when the wait began."""
        if had_s < SOON_SHARE * (self._backend.lease_s or 0.0):  # so little that the process need not have stood still
            return self._answered_too_late()
        return self._lost("this process stood still for too long", LossCause.STALLED)

    def _answered_too_late(self) -> LeadershipLost:
        return self._lost("the renewal was answered too late", LossCause.RENEW_TIMEOUT)

    def _no_answer(self) -> ConnectionError:
        """Return the same kind of error as a session whose own time limit ends first: the store did not answer."""
        what = f"no answer to the renewal: leadership of {self._labels_text()} ends"
        return ConnectionError(what, cause=LossCause.RENEW_TIMEOUT)

    def _lost(self, what: str, cause: LossCause) -> LeadershipLost:
        return LeadershipLost(f"{what}: leadership of {self._labels_text()} ends", cause=cause)

    async def _reconnect(self, run: Run) -> Fact:
        """Try to get the lock back within the grace period, before any listener is notified of a loss."""
        fact = await run.calls.call_within(self._recover, self._grace_s)
        return fact or Fact(Input.GRACE_EXPIRED, self._cycle.last_error)

    async def _recover(self) -> Fact:
        self._new_cycle()
        while True:
            self._cycle.begin_attempt()
            try:
                await guarded(self._backend.open)
                grant = self._in_time(await guarded(self._backend.try_acquire))
            except PgLeaderLockError as error:
                # The backend is not closed here: its verb has closed the session that failed, and the session that is
                # left keeps a successor out until our on_lost has run.
                self._cycle.fail_attempt(error)
            else:
                if grant is not None:
                    return Fact(Input.REACQUIRE_SUCCEEDED, grant=grant)
                taken = self._lost("another took the lock while reconnecting", LossCause.HELD_BY_ANOTHER)
                return Fact(Input.REACQUIRE_FAILED, taken)
            delay_s = self._next_delay_s()
            if isinstance(delay_s, Fact):
                return delay_s
            await self._wait_between_attempts(delay_s)

    async def _wait_between_attempts(self, delay_s: float) -> None:
        """Wait for the whole delay; the backend waits first, as it renews the session that keeps a successor out."""
        ends_at = self._clock() + delay_s
        try:
            await guarded(partial(self._backend.wait, delay_s))
        except PgLeaderLockError as error:
            self._cycle.fail_attempt(error)
        # The backend's wait may end early, or fail at once. The next attempt would then probably fail too, as the store
        # has just failed: so the rest of the delay is slept.
        await asyncio.sleep(max(0.0, ends_at - self._clock()))

    async def _release(self, run: Run) -> Fact:
        """Release the lock. A shutdown that is requested meanwhile continues this release and begins no other."""
        if run.releasing is None:
            run.releasing = run.calls.begin(partial(self._release_after_renewal, run.calls.in_flight))
        try:
            await run.calls.wait(run.releasing)
            run.calls.take(run.releasing)
        except LockError as error:
            return Fact(Input.RELEASE_FAILED, error)
        except PgLeaderLockError as error:
            return Fact(Input.DB_ERROR, error)
        return Fact(Input.RELEASE_SUCCEEDED)

    async def _release_after_renewal(self, renewal: asyncio.Task[Any] | None) -> None:
        """Release the lock, after a renewal that is in flight and after leader tasks have stopped.

        Cancelling the renewal would close the session, and the release could not be marked as clean.
        """
        assert self._grant is not None  # noqa: S101 - RELEASING is entered from LEADER only
        if renewal is not None:
            try:
                await asyncio.wait({renewal})
            finally:
                await see_out(renewal)
        left_s = self._backend.look(self._grant).successor_from - self._clock()
        await self._leader_tasks.stopped(timeout_s=self._drain_s if math.isinf(left_s) else max(0.0, left_s))
        try:
            await self._backend.release(self._grant)
        except ConnectionError as error:
            broke_it = None if renewal is None or renewal.cancelled() else renewal.exception()
            if broke_it is None:
                raise
            raise broke_it from error  # the cause; ``error`` says only that the session is closed

    def _gave_up(self) -> PgLeaderLockError:
        tries = (
            f"gave up on {self._labels_text()} after {self._cycle.attempt} attempts in {self._cycle.elapsed_s:.1f} s"
        )
        if self._cycle.last_error is not None:
            return ConnectionError(f"{tries}: {self._cycle.last_error}")
        if self._cycle.after_release:
            return LockError(f"the retry strategy gave up on {self._labels_text()} after a step-down")
        return LockError(f"{tries}: another holds the lock")

    def _labels_text(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._backend.labels.items())


@dataclass(frozen=True, slots=True)
class _Applied:
    """A transition that was made, and the events of which listeners have yet to be notified."""

    transition: Transition
    events: tuple[Event, ...]
    successor_from: float
    """When another could lead at the earliest, on our clock."""

    @property
    def before(self) -> tuple[Event, ...]:
        """The events of which listeners are notified before the session is closed."""
        if not self.transition.notifies_first:
            return ()
        return tuple(event for event in self.events if event.kind is not EventKind.STOPPED)

    @property
    def after(self) -> tuple[Event, ...]:
        """The events of which listeners are notified after that."""
        return self.events[len(self.before) :]


_LOSSES = {
    Input.GRACE_EXPIRED: LossCause.GRACE_EXPIRED,
    Input.RELEASE_REQUESTED: LossCause.STEPPED_DOWN,
    Input.ABORTED: LossCause.ABORTED,
}
_REPORTED = {  # the causes of events that no input caused: the names of their log lines
    EventKind.CALLBACK_FAILED: "callback_failed",
    EventKind.WORK_FAILED: "work_failed",
    EventKind.OVERRUN: "work_overrun",
}


def _emitted(transition: Transition, fact: Fact) -> tuple[EventKind, ...]:
    """Return the events of the table, and RENEWED after a renewal, which is not in the table as no state changes."""
    return transition.emits if fact.took_s is None else (*transition.emits, EventKind.RENEWED)


def _loss_cause(fact: Fact) -> LossCause:
    """Return what ended a term: known by the input in some cases, by the error otherwise."""
    known = _LOSSES.get(fact.input)
    if known is None and isinstance(fact.error, PgLeaderLockError):
        known = fact.error.cause
    return known or LossCause.UNKNOWN


async def _relay(event: asyncio.Event, run: Run, drain: Callable[[Run, None], Awaitable[None]]) -> None:
    await event.wait()
    run.is_leaving = True
    await drain(run, None)
    run.ask_to_stop()


async def _call(fn: Callback) -> None:
    answer = fn()
    if inspect.isawaitable(answer):
        await answer


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s, zero_ok=True)
