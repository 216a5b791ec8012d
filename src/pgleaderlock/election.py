"""The engine: one loop that does the I/O of the current state and feeds what it learned to the table.

**The state is the I/O in progress.** Each running state has one coroutine below (``_follow``, ``_acquire``, ``_lead``,
``_reconnect``, ``_release``). It performs that state's calls on the backend and returns one :class:`Fact`;
:mod:`~pgleaderlock.fsm` says what follows. There is no other place where a state changes.

Callers of :meth:`Election.shutdown` and :meth:`Election.step_down` are heard through an inbox of inputs to the same
table. An ask cuts every call short at once; a backend's verb that is cut short gives up its session if it cannot
account for it, so leaving a state never leaves anything held behind.

Whether this process may act as the leader is :attr:`Election.is_leader`: the state *and* a comparison of the grant's
``trusted_until`` with the clock, evaluated when asked. It does not depend on the event loop having had time to notice.

Work that was registered with ``while_leader`` begins and ends in the step in which leadership does
(:mod:`~pgleaderlock.gate`), and the session is kept until it has stopped, for as long as the grant can be trusted.

Not promised here: that other work ends with the leadership. Callbacks are told; stopping is theirs.
"""

import asyncio
import inspect
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from pgleaderlock._bodies import AfterWork, Host
from pgleaderlock._calls import Asked, guarded, see_out
from pgleaderlock._checks import check_flag, check_seconds
from pgleaderlock._logging import get_logger
from pgleaderlock._run import Fact, Run
from pgleaderlock.backends.base import Backend
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import (
    ConnectionError,
    LeadershipLost,
    LockError,
    PgLeaderLockError,
    ShutdownError,
)
from pgleaderlock.event_log import log_events
from pgleaderlock.fsm import Input, Machine, Policy, Transition
from pgleaderlock.gate import Gate
from pgleaderlock.gated import Gated
from pgleaderlock.hard_fence import HardFence
from pgleaderlock.models import Callback, Event, EventKind, Grant, LockState
from pgleaderlock.retry import ExponentialBackoff, RetryCycle, RetryStrategy
from pgleaderlock.stream import CALLBACK_FAILED, EventStream

__all__ = ["Election"]

_LEADING = frozenset({LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING})
_LAST_WORDS_S = 0.5
_EXIT_TIMEOUT_S = 10.0  # for `async with` that ends in an exception, and for the last callbacks of a cancelled task


class Election(Gated):
    """One contender for one lock, whatever store keeps it.

    Use from one event loop. A stopped election can be started again, on another loop too.
    """

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
        self._cycle = RetryCycle(self._strategy, clock)
        self._grant: Grant | None = None
        self._running: Run | None = None
        self._left_open = False  # a run ended without closing the backend; the next one does it first
        self._logger = get_logger().bind(**backend.labels)
        self._fence_may_rest = True
        self._gate = Gate(self._make_host())
        self.subscribe(log_events(self._logger))
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
        """Where the election stands."""
        return self._machine.state

    @property
    def labels(self) -> Mapping[str, object]:
        """What names this lock, in every log line too, such as ``key1`` and ``key2``. Never a secret."""
        return self._backend.labels

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as the leader now. Ask again before each thing that must happen once."""
        return self.time_left_s > 0

    @property
    def token(self) -> int | None:
        """The fencing token of the current term: greater than every earlier leader's. None when not leading."""
        grant = self._grant
        return grant.token if grant is not None and self.is_leader else None

    @property
    def trusted_until(self) -> float | None:
        """Until when, on the election's clock, leadership may be relied upon without news. None when not leading."""
        grant = self._grant
        return grant.trusted_until if grant is not None and self.is_leader else None

    @property
    def time_left_s(self) -> float:
        """How long leadership may still be relied upon if no news comes: 0 when not leading."""
        grant, run = self._grant, self._running
        if self._machine.state is not LockState.LEADER or grant is None or run is None:
            return 0.0
        if run.loop.is_closed() or run.pid != os.getpid():  # a forked child has our memory, but not our lock
            return 0.0
        return max(0.0, grant.trusted_until - self._clock())

    def lifeline(self) -> tuple[int, ...]:
        """Return the store's descriptors of which a copy elsewhere outlasts us, as :meth:`Backend.lifeline` has it."""
        return self._backend.lifeline()

    @property
    def is_stopping(self) -> bool:
        """Whether its end was asked for, and it is on its way there. A step-down is none, nor is a loss."""
        run = self._running
        return run is not None and run.is_leaving

    # --- Lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take part; returns in FOLLOWER. Does nothing when running. Waits for a shutdown under way."""
        while (run := self._run_here()) is not None:
            if not self._is_ending(run):
                return
            if run.stream.is_current_task():
                raise LockError("start() in a callback while stopping: use asyncio.create_task(lock.start())")
            await asyncio.wait({run.task})
        self._begin_run()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Release the lock if it is held, and stop. Past ``timeout_s`` the session is closed by force.

        Returns when the election has stopped and its callbacks have run; in a callback and in gated work it only asks,
        because waiting there would be waiting for itself.
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
        finally:  # also when whoever asked has lost patience
            run.ask_to_stop()
        left_s = None if timeout_s is None else max(0.0, began_at + timeout_s - asyncio.get_running_loop().time())
        await asyncio.wait({run.task}, timeout=left_s)
        if not run.task.done():
            error = ShutdownError(f"shutdown did not finish within {timeout_s:g} s: the session was closed by force")
            run.inbox.put(Input.ABORTED, error)
            run.stream.hurry()
            await asyncio.wait({run.task}, timeout=_EXIT_TIMEOUT_S)
            run.task.cancel()  # only a callback that refuses to be cancelled gets us here with the task not done

    async def step_down(self, timeout_s: float | None = None) -> None:
        """Give up leadership without stopping. Does nothing when not leading.

        Returns when the lock is released and the callbacks have run. Past ``timeout_s`` the session is closed, which
        frees the lock for certain. In a callback and in gated work it only asks.
        """
        _check_timeout(timeout_s)
        run = self._run_here()
        if run is None or self.state not in _LEADING:
            return
        if self._is_inside(run):
            self._ask_once_drained(run, partial(self._ask_to_release, run, run.yielded))
            return
        yielded = run.yielded
        try:
            await self._drain(run, timeout_s)
        finally:
            self._ask_to_release(run, yielded)
        await asyncio.wait({yielded}, timeout=timeout_s)
        if not yielded.done() and self.state in _LEADING:
            run.inbox.put(Input.RELEASE_TIMED_OUT)
            await asyncio.wait({yielded})
        await self._hear_out(run, or_until=run.task, timeout_s=timeout_s)

    def _is_inside(self, run: Run) -> bool:
        """Whether the caller is a callback, or gated work: what it waited for would wait for it."""
        return run.stream.is_current_task() or self._gate.is_here

    def _ask_to_release(self, run: Run, term: asyncio.Future[None]) -> None:
        """Ask for the end of this term, and of no other."""
        if not term.done() and self.state in _LEADING and self.state is not LockState.RELEASING:
            run.inbox.put(Input.RELEASE_REQUESTED)

    def _ask_once_drained(self, run: Run, ask: Callable[[], None]) -> None:
        """From a callback or gated work, where nothing can be waited for."""
        if not self._has_to_drain():
            ask()
            return

        async def drain_and_ask() -> None:
            await self._drain(run, None)
            ask()

        run.later.add(task := run.loop.create_task(drain_and_ask()))
        task.add_done_callback(run.later.discard)

    async def _drain(self, run: Run, timeout_s: float | None) -> None:
        """Let work finish before a release that was asked for, renewing meanwhile. Whoever asks again waits too."""
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
            await asyncio.wait({draining}, timeout=_LAST_WORDS_S)  # it may refuse to be cancelled

    def _has_to_drain(self) -> bool:
        return self.state is LockState.LEADER and (bool(self._drains) or not self._gate.is_idle)

    async def _finish_work(self, run: Run, bound_s: float) -> None:
        work = [self._gate.drain(bound_s), *map(_call, self._drains)]
        for error in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(error, Exception):
                self._logger.error(CALLBACK_FAILED, callback="before_release", error=error, exc_info=error)
                state = self.state
                run.stream.put(Event(EventKind.ERROR, state, state, CALLBACK_FAILED, self._clock(), error=error))

    async def wait_for_leadership(self, timeout_s: float | None = None) -> bool:
        """Wait to become the leader. True after the ``on_acquired`` callbacks ran; False when the time is up.

        Also False when the election is not running, or stops meanwhile: then waiting could never end.
        """
        _check_timeout(timeout_s)
        run = self._run_here()
        if run is None:
            await asyncio.sleep(0)  # so that a loop around this cannot starve everything else
            return False
        if run.stream.is_current_task():
            raise LockError("wait_for_leadership() in a callback would wait for itself: use asyncio.create_task()")
        announced = asyncio.ensure_future(run.announced.wait())
        try:
            await asyncio.wait({announced, run.task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return announced.done()
        finally:
            announced.cancel()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.shutdown(timeout_s=None if exc_type is None else _EXIT_TIMEOUT_S)

    def _run_here(self) -> Run | None:
        """Return the current run, which must be on the caller's event loop: from another it could only hang."""
        run = self._running
        if run is not None and run.loop.is_closed():
            self._bury(run)  # that loop ended without a word to us
            return None
        if run is not None and run.loop is not asyncio.get_running_loop():
            raise LockError(
                "this election runs on another event loop, perhaps in another thread: from there use "
                "asyncio.run_coroutine_threadsafe(lock.shutdown(), loop). Only is_leader and state may be asked there"
            )
        return run

    def _is_ending(self, run: Run) -> bool:
        """Whether this run will be over by itself, and a new one can be begun only then."""
        return run.is_leaving or self.state is LockState.STOPPED or run.task.cancelling() > 0

    # --- Gated work --------------------------------------------------------------------------------------------

    def _make_host(self) -> Host:
        return Host(
            clock=self._clock,
            logger=self._logger,
            described=self._labels_text(),
            patience_s=self._drain_s,
            grant_now=lambda: self._grant if self.is_leader else None,
            report=self._report_work,
            leave=self._leave_for_work,
            note_rest=self._note_rest,
        )

    def _report_work(self, kind: EventKind, cause: str, error: Exception) -> None:
        event = Event(kind, self.state, self.state, cause, self._clock(), error=error)
        if self._running is not None:
            self._running.stream.put(event)
        elif kind is EventKind.OVERRUN:  # after the end of the election there is nobody to tell; failures were logged
            self._logger.error(cause, error=error)

    def _leave_for_work(self, how: AfterWork) -> None:
        run = self._running
        if run is not None:
            run.is_leaving = run.is_leaving or how == "stop"
            leave = run.ask_to_stop if how == "stop" else partial(self._ask_to_release, run, run.yielded)
            self._ask_once_drained(run, leave)

    def _is_running(self) -> bool:
        run = self._run_here()
        return run is not None and not self._is_ending(run)

    async def _until_stopped(self) -> None:
        run = self._run_here()
        if run is not None:
            await asyncio.wait({run.task})

    # --- The loop ----------------------------------------------------------------------------------------------

    def _begin_run(self, won: Grant | None = None) -> None:
        """Begin; with a lock that was won already, if there is one, and then all that leads to it is told at once."""
        loop = asyncio.get_running_loop()
        run = self._running = Run(EventStream(self._listeners, self._note_delivered, self._logger))
        self._new_cycle()
        facts = [Fact(Input.START)]
        if won is not None:
            self._cycle.begin_attempt()
            facts += [Fact(Input.ACQUIRE_ATTEMPT), Fact(Input.ACQUIRE_SUCCEEDED, grant=won)]
        for fact in facts:
            self._grant = fact.grant
            transition = self._machine.feed(fact.input)
            self._set_hard_fence(transition)
            self._gate.follow(transition.to, self._grant)
            for event in self._events(transition, fact):
                run.stream.put(event)
        run.task = loop.create_task(self._live(run), name="pgleaderlock lifecycle")
        run.task.add_done_callback(lambda _: self._bury(run))
        if self._shutdown_event is not None:
            run.signal_task = loop.create_task(_relay(self._shutdown_event, run, self._drain))

    def _bury(self, run: Run) -> None:
        """End a run that could not end itself: cancelled before its first step, or its loop was closed under it."""
        if self._running is not run:
            return
        grant, self._running, self._grant = self._grant, None, None
        self._left_open = True
        error = ShutdownError("the lifecycle task ended before it could tidy up")
        events = self._events(self._machine.feed(Input.ABORTED), Fact(Input.ABORTED, error))
        self._gate.follow(LockState.STOPPED, grant)
        self._let_hard_fence_rest()
        if not run.loop.is_closed():  # on a closed one nobody can be told
            for event in events:
                run.stream.put(event)
            run.stream.end()

    async def _live(self, run: Run) -> None:
        error: Exception | None = None
        try:
            if self._left_open:
                self._left_open = False
                await self._close_backend()
            while self.state is not LockState.STOPPED:
                await self._step(run, await self._next_fact(run))
        except asyncio.CancelledError:
            error = ShutdownError("the lifecycle task was cancelled: the session was closed")
            raise
        except Exception as bug:  # whatever it is, the lock must not stay held by a dead task
            self._logger.error("engine_failed", error=bug, exc_info=bug)  # noqa: TRY400 - ours is not logging's
            error = LockError(f"the election failed and was stopped: {bug!r}")
        except GeneratorExit:  # its loop was closed and is being forgotten: there is nothing to wait with any more
            self._bury(run)
            raise
        finally:
            if self._running is run:  # otherwise it is buried, and another may be under way
                await self._end_run(run, error)

    async def _next_fact(self, run: Run) -> Fact:
        if run.inbox.news.done():  # a call that fails at once would otherwise always come first
            return run.inbox.take()
        try:
            return await self._work[self.state](run)
        except Asked:
            return run.inbox.take()

    async def _step(self, run: Run, fact: Fact) -> None:
        """Change the state, tell the listeners, let go of the session.

        A loss is told before the session is closed, so that ``on_lost`` comes before a successor's ``on_acquired``.
        Everything else is told afterwards: ``on_released`` and ``on_stopped`` say that nothing is held any more.
        """
        if fact.grant is not None:
            self._grant = fact.grant
        transition = self._machine.feed(fact.input)
        self._gate.follow(transition.to, self._grant)
        self._set_hard_fence(transition)
        events = self._events(transition, fact)
        is_loss = EventKind.LOST in transition.emits
        trust_left_s = self._trust_left_s()
        trusted_until = math.inf if self._grant is None else self._grant.trusted_until
        before = [event for event in events if is_loss and event.kind is not EventKind.STOPPED]
        after = [event for event in events if event not in before]
        term_is_over = transition.source in _LEADING and transition.to not in _LEADING
        try:
            await self._leave(run, transition, term_is_over=term_is_over)
            await self._tell(run, before, timeout_s=trust_left_s)
            if term_is_over:
                await self._see_work_out(run, trusted_until)
        finally:
            try:
                if transition.closes:
                    await self._close_backend()
            finally:
                if term_is_over:
                    run.end_term()
                for event in after:
                    run.stream.put(event)
        if after and transition.to is not LockState.LEADER:  # a leader's next renewal waits for nobody
            await self._hear_out(run)

    async def _see_work_out(self, run: Run, trusted_until: float) -> None:
        """Keep the session until gated work has stopped, for as long as nobody else can lead."""
        left_s = self._drain_s if math.isinf(trusted_until) else max(0.0, trusted_until - self._clock())
        await self._gate.stopped(or_until=run.inbox.aborted, timeout_s=left_s)
        if run.inbox.aborted.done():  # the session is closed before its time: whoever still runs is late from now on
            self._gate.judge()

    async def _close_backend(self) -> None:
        """A backend's close does not raise. One that does anyway must not end the election."""
        try:
            await guarded(self._backend.close)
        except PgLeaderLockError as error:
            self._logger.error("close_failed", error=error)  # noqa: TRY400 - ours is not logging's

    def _set_hard_fence(self, transition: Transition) -> None:
        """Arm it with each grant. After a loss it stays armed until the callbacks have been told of it."""
        if self._hard_fence is None or self._grant is None:
            return
        if transition.to is LockState.LEADER and not math.isinf(self._grant.trusted_until):
            self._fence_may_rest = False
            self._hard_fence.arm(self._grant.trusted_until)
        elif transition.to is not LockState.RECONNECTING and EventKind.LOST not in transition.emits:
            self._let_hard_fence_rest()  # but not while reconnecting, of which nobody is told

    def _let_hard_fence_rest(self) -> None:
        """Disarm it, everybody having been told; but not before gated work has stopped."""
        self._fence_may_rest = True
        self._note_rest()

    def _note_rest(self) -> None:
        if self._hard_fence is not None and self._fence_may_rest and self._gate.is_idle:
            self._hard_fence.disarm()

    async def _tell(self, run: Run, events: list[Event], timeout_s: float | None) -> None:
        for event in events:
            run.stream.put(event)
        if events:
            # What keeps a successor waiting is not given up for an ask: an on_lost often begins with a shutdown().
            or_until = None if timeout_s is None else run.inbox.aborted
            await self._hear_out(run, or_until=or_until, timeout_s=timeout_s)

    def _trust_left_s(self) -> float | None:
        """How long a slow ``on_lost`` may keep the session open: no longer than anyone could believe in it."""
        if self._grant is None or math.isinf(self._grant.trusted_until):
            return None
        return max(0.0, self._grant.trusted_until - self._clock())

    async def _leave(self, run: Run, transition: Transition, *, term_is_over: bool) -> None:
        """End what belongs to the state that was left: its call in flight, its term."""
        if transition.to is transition.source:
            return
        if transition.source is LockState.LEADER:
            run.announced.clear()
        if term_is_over:
            run.inbox.drop(Input.RELEASE_REQUESTED, Input.RELEASE_TIMED_OUT)
            self._new_cycle(after_release=EventKind.RELEASED in transition.emits)
            self._grant = None
        if transition.to is not LockState.RELEASING:  # which finishes what LEADER began
            await run.calls.cancel()

    def _new_cycle(self, *, after_release: bool = False) -> None:
        self._cycle = RetryCycle(self._strategy, self._clock)
        if after_release:  # a step-down is meant for the others: let them try before we try again
            self._cycle.begin_attempt()
            self._cycle.fail_attempt()
            self._cycle.after_release = True

    def _events(self, transition: Transition, fact: Fact) -> list[Event]:
        return [
            Event(
                kind,
                transition.source,
                transition.to,
                fact.input.value,
                self._clock(),
                error=fact.error,
                attempt=self._cycle.attempt,
                token=self._grant.token if self._grant else None,
                loss=_loss_cause(fact) if kind is EventKind.LOST and transition.source in _LEADING else None,
                took_s=fact.took_s,
                trusted_until=self._grant.trusted_until if self._grant else None,
            )
            for kind in _emitted(transition, fact)
        ]

    def _note_delivered(self, event: Event) -> None:
        run = self._running
        if event.kind is EventKind.LOST and self.state is not LockState.LEADER:
            self._let_hard_fence_rest()
        if event.kind in (EventKind.ACQUIRED, EventKind.RECOVERED) and self.state is LockState.LEADER and run:
            run.announced.set()

    async def _hear_out(
        self, run: Run, *, or_until: asyncio.Future[None] | None = None, timeout_s: float | None = None
    ) -> None:
        """Wait until the listeners have heard everything; the engine itself waits no longer than to the next ask."""
        heard = {run.stream.drained(), or_until or run.inbox.news}
        await asyncio.wait(heard, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    async def _end_run(self, run: Run, error: Exception | None) -> None:
        """Whatever ended the loop: nothing in flight, nothing held, everything told."""
        try:
            if run.signal_task is not None:
                run.signal_task.cancel()
            if error is not None:
                run.stream.hurry()
            if self.state is not LockState.STOPPED:
                await self._step(run, Fact(Input.ABORTED, error))
            await run.stream.finish(None if error is None else _EXIT_TIMEOUT_S)
        finally:  # cancelled once more, perhaps: whoever waits for the stream or for us must not wait for ever
            run.stream.end()
            self._running = None
            self._let_hard_fence_rest()

    # --- The I/O of each state ---------------------------------------------------------------------------------

    async def _follow(self, run: Run) -> Fact:
        """Wait for our turn, with a session ready to ask with."""
        delay_s = self._next_delay_s()
        if isinstance(delay_s, Fact):
            return delay_s
        try:
            if delay_s > 0:
                # After a step-down nobody stands in line: whoever else is there, or is just starting, goes first.
                # After an error the store is in trouble: a wait that fails at once would be no delay.
                rests = self._cycle.after_release or self._cycle.last_error is not None
                wait = asyncio.sleep if rests else self._backend.wait
                await run.calls.call(partial(wait, delay_s))
            self._cycle.begin_attempt()
            await run.calls.call(self._backend.open)
        except PgLeaderLockError as error:
            self._cycle.fail_attempt(error)
            return Fact(Input.DB_ERROR, error)
        return Fact(Input.ACQUIRE_ATTEMPT)

    def _next_delay_s(self) -> float | Fact:
        """Ask the retry strategy; it may give up, or raise anything."""
        try:
            delay_s = self._cycle.next_delay_s()
        except Exception as error:  # noqa: BLE001 - it is a user's
            return Fact(Input.RETRIES_EXHAUSTED, error)
        return Fact(Input.RETRIES_EXHAUSTED, self._gave_up()) if delay_s is None else delay_s

    async def _acquire(self, run: Run) -> Fact:
        """Ask for the lock, once."""
        try:
            grant = self._in_time(await run.calls.call(self._backend.try_acquire))
        except PgLeaderLockError as error:
            self._cycle.fail_attempt(error)
            return Fact(Input.DB_ERROR, error)
        if run.inbox.news.done():
            raise Asked  # do not announce a leadership that is to end at once; closing the session gives it back
        if grant is None:
            self._cycle.fail_attempt()
            return Fact(Input.ACQUIRE_FAILED)
        return Fact(Input.ACQUIRE_SUCCEEDED, grant=grant)

    def _in_time(self, grant: Grant | None) -> Grant | None:
        """A grant that would have to be declared lost is none: another may have led since, with a greater token."""
        if grant is not None and self._clock() >= grant.lost_at:
            raise self._lost("this process stood still while it was granted the lock", LossCause.STALLED)
        return grant

    async def _lead(self, run: Run) -> Fact:
        """Hold the lock for one health interval, then show that it is still held, before the grant runs out."""
        assert self._grant is not None  # noqa: S101 - LEADER is entered with a grant only
        try:
            why = await run.calls.call_within(self._backend.lost, self._renew_in_s(self._grant))
        except Asked:
            await run.calls.cancel()
            raise
        if why is not None:
            return Fact(Input.DB_ERROR, why)
        left_s = self._grant.lost_at - self._clock()
        if left_s <= 0:  # we slept through it: whatever the store says now, others may have been told otherwise
            return Fact(Input.HEALTH_FAILED, self._lost("this process stood still for too long", LossCause.STALLED))
        sent = self._clock()
        try:
            verb = partial(self._backend.renew, self._grant)
            grant = await run.calls.call_while(verb, None if math.isinf(left_s) else left_s)
        except PgLeaderLockError as error:
            return Fact(Input.HEALTH_FAILED, error)
        if grant is None:  # the call is cut short, and its session closed, only once we do not believe any more
            return Fact(Input.HEALTH_FAILED, self._lost("no answer to the renewal", LossCause.RENEW_TIMEOUT))
        if self._clock() >= self._grant.lost_at:  # work that looked at its term has been told to stop, and has
            return Fact(Input.HEALTH_FAILED, self._lost("this process stood still for too long", LossCause.STALLED))
        return Fact(Input.HEALTH_OK, grant=grant, took_s=self._clock() - sent)

    def _renew_in_s(self, grant: Grant) -> float:
        """When to renew: at the health interval, but in any case while a failure can still be repeated."""
        return min(self._health_interval_s, max(0.0, (grant.lost_at - self._clock()) / 2))

    def _lost(self, what: str, cause: LossCause) -> LeadershipLost:
        return LeadershipLost(f"{what}: leadership of {self._labels_text()} ends", cause=cause)

    async def _reconnect(self, run: Run) -> Fact:
        """Try to get the lock back before anybody needs to know, within the grace period."""
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
                # Not closed: the verb gave up what failed, and what is left keeps a successor waiting for our on_lost.
                self._cycle.fail_attempt(error)
            else:
                if grant is not None:
                    return Fact(Input.REACQUIRE_SUCCEEDED, grant=grant)
                taken = self._lost("another took the lock while reconnecting", LossCause.HELD_BY_ANOTHER)
                return Fact(Input.REACQUIRE_FAILED, taken)
            delay_s = self._next_delay_s()
            if isinstance(delay_s, Fact):
                return delay_s
            await self._wait_out(delay_s)

    async def _wait_out(self, delay_s: float) -> None:
        """Let the backend wait, which keeps what protects us, and wait on when it comes back at once or cannot."""
        ends_at = self._clock() + delay_s
        try:
            await guarded(partial(self._backend.wait, delay_s))
        except PgLeaderLockError as error:
            self._cycle.fail_attempt(error)
        # The store is in trouble, or we would not be here: what it waits for may have come, in vain.
        await asyncio.sleep(max(0.0, ends_at - self._clock()))

    async def _release(self, run: Run) -> Fact:
        """Give the lock back. A stop that is asked for meanwhile does not begin it anew."""
        if run.releasing is None:
            run.releasing = run.calls.begin(partial(self._give_back, run.calls.in_flight))
        try:
            await run.calls.wait(run.releasing)
            run.calls.take(run.releasing)
        except LockError as error:
            return Fact(Input.RELEASE_FAILED, error)
        except PgLeaderLockError as error:
            return Fact(Input.DB_ERROR, error)
        return Fact(Input.RELEASE_SUCCEEDED)

    async def _give_back(self, renewal: asyncio.Task[Any] | None) -> None:
        """Release, after a renewal that is still under way: cutting that short would cost the session."""
        assert self._grant is not None  # noqa: S101 - RELEASING is entered from LEADER only
        if renewal is not None:
            try:
                await asyncio.wait({renewal})
            finally:
                await see_out(renewal)
        trust_left_s = self._trust_left_s()
        await self._gate.stopped(timeout_s=self._drain_s if trust_left_s is None else trust_left_s)
        try:
            await self._backend.release(self._grant)
        except ConnectionError as error:
            broke_it = None if renewal is None or renewal.cancelled() else renewal.exception()
            if broke_it is None:
                raise
            raise broke_it from error  # which says more than that the session is closed

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


_CAUSES = {
    Input.GRACE_EXPIRED: LossCause.GRACE_EXPIRED,
    Input.RELEASE_REQUESTED: LossCause.STEPPED_DOWN,
    Input.ABORTED: LossCause.ABORTED,
}


def _emitted(transition: Transition, fact: Fact) -> tuple[EventKind, ...]:
    """What the table says; and a renewal, which changes nothing, so that the table has no word for it."""
    return transition.emits if fact.took_s is None else (*transition.emits, EventKind.RENEWED)


def _loss_cause(fact: Fact) -> LossCause:
    """Name what ended a term: the input where that says it all, the error otherwise."""
    known = _CAUSES.get(fact.input)
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
