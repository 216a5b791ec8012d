"""One leader task: work that runs while leading, and never twice at once in this process.

A :class:`LeaderTask` lives as long as its election. Each term gives it a :class:`TaskRun`. The run waits until the run
before it is over (a thread cannot be stopped, a coroutine may take long to stop), does the work, and applies the
policy when the work returns or raises by itself. If the term ends during that wait, the work is not begun.

A run is over when all of these have ended: its asyncio task, its threads, and the run before it. So a third run cannot
begin while the first one is still busy, even if the second one never called anything.

This is the one runner of leader-only work. Functions of ``while_leader`` are called once in each run; services,
scheduled jobs and ``exec`` bring a coroutine of their own that gets the run, and makes its calls and pauses there; the
block of ``leading()`` has one that stands for it.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from pgleaderlock._base import threads
from pgleaderlock._base.checks import check_callable, check_flag
from pgleaderlock._base.clock import Clock
from pgleaderlock._logging import NDLogger
from pgleaderlock.engine.functions import Work, is_async, takes_argument
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import LeadershipLost, LockError
from pgleaderlock.models import EventKind, Grant
from pgleaderlock.retry import ExponentialBackoff, RetryCycle

AfterWork = Literal["restart", "step_down", "stop"]
"""What to do when work ends before its term does."""

_STEADY_S = 60.0  # after a run of this length, pauses between restarts begin at their shortest again
_PAUSES = ExponentialBackoff(base_s=1.0, max_s=30.0)
# Inherited by the threads and tasks that the work starts: they are inside the run too.
_current_run: ContextVar["TaskRun | None"] = ContextVar("pgleaderlock_task_run", default=None)


class RunMark:
    """Marks the code of one context as inside a run, until it is reset."""

    def __init__(self, run: "TaskRun") -> None:
        self._token: Token[TaskRun | None] = _current_run.set(run)

    def reset(self) -> None:
        """Remove the mark. ValueError in another context."""
        _current_run.reset(self._token)


@dataclass(frozen=True, slots=True)
class Host:
    """The interface of the election to its leader tasks."""

    clock: Clock
    logger: NDLogger
    """Adds the election's labels."""
    described: str
    """The lock, for messages."""
    patience_s: float
    """After how long work that does not stop is an overrun, where a grant never ends by itself."""
    grant_now: Callable[[], Grant | None]
    """The grant while leading; None in another process, another state, or when the loop is closed."""
    report: Callable[[EventKind, Exception], None]
    """Notify all listeners of an event of this kind, with the error."""
    leave: Callable[[AfterWork], None]
    """Step down, or stop the election, because the work is done or cannot be done here."""
    note_idle: Callable[[], None]
    """Called when no leader task runs any more."""


@dataclass(frozen=True, slots=True)
class WorkPolicy:
    """What to do when work ends by itself, and whether it may finish its present item before a hand-over."""

    on_return: AfterWork = "restart"
    on_failure: AfterWork = "restart"
    drains: bool = False
    note_pause: Callable[[float], None] | None = None
    """Called with the seconds until the work is begun again, before each pause."""
    ends_when_cancelled: bool = False
    """For work outside an election, which is not cancelled a second time when the program ends."""

    def __post_init__(self) -> None:
        for name in ("on_return", "on_failure"):
            if (value := getattr(self, name)) not in get_args(AfterWork):
                raise ValueError(f"{name} must be one of {', '.join(get_args(AfterWork))}, not {value!r}")
        check_flag("drains", self.drains)


class LeaderTask:
    """Work that is done in each term."""

    def __init__(
        self,
        work: Callable[["TaskRun"], Coroutine[Any, Any, object]],
        policy: WorkPolicy,
        host: Host,
        name: str,
        *,
        fn: Work | None = None,
    ) -> None:
        self.name = name
        self.work = work
        self.policy = policy
        self.host = host
        self.fn = fn
        """The user's function that the work calls, if it is one."""
        self.is_cancelled_to_drain = not policy.drains and (fn is None or is_async(fn))
        self.task_run: TaskRun | None = None
        self.result: object = None
        self.error: Exception | None = None
        """The error with which it ended for good, where its policy is to stop."""

    def begin(self, term: Term) -> None:
        """Run in this term, as soon as the run of an earlier term is over."""
        self.task_run = TaskRun(self, term, self.task_run)


def call_in_each_term(fn: Work, policy: WorkPolicy, host: Host, name: str | None = None) -> LeaderTask:
    """Return a leader task that calls a user's function, with the term if it takes an argument."""
    check_callable("the work", fn)
    name = name or getattr(fn, "__qualname__", None) or type(fn).__name__
    takes_term = takes_argument(fn, name, "a term")

    async def work(run: TaskRun) -> object:
        return await run.call(partial(fn, run.term) if takes_term else fn, f"work {name}")

    return LeaderTask(work, policy, host, name, fn=fn)


class TaskRun:
    """One leader task in one term."""

    def __init__(self, task: LeaderTask, term: Term, previous: "TaskRun | None") -> None:
        self._work = task
        self.term = term
        self._loop = asyncio.get_running_loop()
        self._thread_is_free = threading.Event()
        self._thread_is_free.set()
        self._pending: set[asyncio.Future[Any]] = set()
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done when this run is over. Several tasks wait for it: it must not be cancelled."""
        self.is_reported = False
        self._is_ended = False
        self._before = None if previous is None else previous.over_here()
        if self._before is not None:
            self._wait_for(self._before)
        self._task = self._loop.create_task(self._live(), name=f"pgleaderlock work {task.name}")
        self._wait_for(self._task)

    @property
    def name(self) -> str:
        """The name of its leader task."""
        return self._work.name

    @property
    def fn(self) -> Work | None:
        """The user's function that it calls, if it is one."""
        return self._work.fn

    @property
    def is_over(self) -> bool:
        """Whether this run is over. On a closed event loop, only a thread can still run."""
        return self.over.done() or (self._loop.is_closed() and self._thread_is_free.is_set())

    @property
    def is_here(self) -> bool:
        """Whether the caller runs inside this run, where waiting for its end would be a deadlock."""
        return _current_run.get() is self

    def over_here(self) -> asyncio.Future[Any] | None:
        """Return a future on the caller's event loop that is done when this run is over; None if it is over.

        On another loop than ours only the thread is waited for: our loop is closed, and its tasks run no more.
        """
        if self.is_over:
            return None
        if self._loop is asyncio.get_running_loop():
            return self.over
        return threads.begin(self._thread_is_free.wait, f"pgleaderlock waits for {self.name}")

    def ask(self) -> None:
        """Ask it to end before a hand-over. Its term is ending; a coroutine that does not drain is cancelled."""
        if self._work.is_cancelled_to_drain:
            self.end()

    def end(self) -> None:
        """Cancel it, once: a second cancellation would interrupt its clean-up. A thread stops because its term ends."""
        if not self._is_ended and not self._loop.is_closed():
            # A flag of our own, because Task.cancelling() also counts cancellations that were not ours.
            self._is_ended = True
            self._task.cancel()

    def _wait_for(self, future: asyncio.Future[Any]) -> None:
        self._pending.add(future)
        future.add_done_callback(self._note_end)

    def _note_end(self, future: asyncio.Future[Any]) -> None:
        self._pending.discard(future)
        if not future.cancelled():
            future.exception()  # retrieved, or asyncio would log it: it was reported where it was raised
        if not self._pending:
            self.over.set_result(None)

    async def _live(self) -> None:
        _current_run.set(self)
        while True:
            try:
                return await self._serve()
            except asyncio.CancelledError:
                if not await self._undo_foreign_cancellation():
                    raise

    async def _undo_foreign_cancellation(self) -> bool:
        """Whether a cancellation came neither from the election nor from the end of the program; if so, undo it.

        For example a library cancels the current task by mistake. Work that ended by it would be missing for the rest
        of the term, while the election goes on leading.
        """
        task = asyncio.current_task()
        if task is not self._task:  # a task that the work began is cancelled by the work
            return False
        if self._is_ended or self._work.policy.ends_when_cancelled:
            return False
        while task.cancelling():
            task.uncancel()
        # When the program ends and cancels all tasks, the election is cancelled too, and cancels this task again during
        # this sleep: that CancelledError is raised here and ends the run.
        await asyncio.sleep(0)
        return True

    async def _serve(self) -> None:
        if self._before is not None:
            self._work.host.logger.warning("work_still_running", work=self.name)
            await asyncio.wait({self._before})
        policy, pauses = self._work.policy, self._new_pauses()
        while not self._is_ending():
            pauses.begin_attempt()
            began_at = self._work.host.clock()
            error = await self.attempt(self._work_once())
            if self._is_ending():
                return
            how = policy.on_return if error is None else policy.on_failure
            if how != "restart":
                self._work.error = error if how == "stop" else None
                self._work.host.leave(how)
                return
            if self._work.host.clock() - began_at >= _STEADY_S:
                pauses = self._new_pauses()
                pauses.begin_attempt()
            pauses.fail_attempt(error)
            delay_s = pauses.next_delay_s() or 0.0
            if policy.note_pause is not None:
                policy.note_pause(delay_s)
            await self.pause(delay_s)

    async def _work_once(self) -> None:
        self._work.result = await self._work.work(self)

    def _is_ending(self) -> bool:
        return self.term.is_ending

    def _new_pauses(self) -> RetryCycle:
        return RetryCycle(_PAUSES, self._work.host.clock)

    # --- For the work --------------------------------------------------------------------------------------------

    async def pause(self, delay_s: float) -> None:
        """Sleep, but not longer than the term lasts."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.term.wait_until_ending(), delay_s)

    async def attempt(self, call: Coroutine[Any, Any, object], **fields: object) -> Exception | None:
        """Await a call of a user's function. Return what it raised, which is reported with these fields; else None."""
        try:
            await call
        except asyncio.CancelledError:
            if not await self._undo_foreign_cancellation():
                raise
            error: Exception = LockError("the work was cancelled, and not by its election")
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise  # raised by a coroutine: the event loop ends by it. In a thread it becomes an ordinary error
        except BaseException as raised:  # noqa: BLE001 - the user's function may raise anything
            error = threads.failure(raised)
        else:
            return None
        self.report(error, **fields)
        return error

    async def call(self, fn: Callable[[], Any], what: str) -> object:
        """Call a user's function and return its result: a coroutine function here, a plain one in a thread.

        One call at a time. A cancellation ends the wait for a thread, not the thread: the run is over when it is.
        """
        answer = fn() if is_async(fn) else await self._call_in_a_thread(fn, what)
        return await answer if inspect.isawaitable(answer) else answer

    async def _call_in_a_thread(self, fn: Callable[[], object], what: str) -> object:
        self._thread_is_free.clear()
        try:
            thread = threads.begin(partial(self._call_here, fn), f"pgleaderlock {what}")
        except BaseException:  # no more threads can be started on this system
            self._thread_is_free.set()
            raise
        self._wait_for(thread)
        try:
            await self.wait_for(thread)
        except asyncio.CancelledError:
            thread.add_done_callback(self._report_late_failure)
            raise
        return thread.result()

    async def wait_for(self, future: asyncio.Future[Any]) -> None:
        """Wait until the future is done, also through cancellations that were not the election's."""
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                if not await self._undo_foreign_cancellation():
                    raise

    def mark_as_inside(self) -> RunMark:
        """Count the caller, and what it starts from now on, as inside this run: it must not wait for the run's end."""
        return RunMark(self)

    def _call_here(self, fn: Callable[[], object]) -> object:
        try:
            return fn()
        finally:
            self._thread_is_free.set()

    def _report_late_failure(self, thread: asyncio.Future[object]) -> None:
        """Report the failure of a thread whose run was cancelled before it ended."""
        error = thread.exception()
        if isinstance(error, Exception):
            self.report(error)

    def report(self, error: Exception, **fields: object) -> None:
        """Log a failure of the work, and notify the listeners of it."""
        if isinstance(error, LeadershipLost) and self._is_ending():
            return  # raised by term.check() to stop the work: not a failure
        host = self._work.host
        host.logger.error("work_failed", work=self.name, **fields, error=error, exc_info=error)
        host.report(EventKind.WORK_FAILED, error)
