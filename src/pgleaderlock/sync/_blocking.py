"""An asyncio election, for callers that block: each call is made on the background thread's event loop.

The caller waits for the outcome, unless it is one of the election's own callbacks: there ``shutdown()`` and
``step_down()`` only request it, and calls that would have to wait raise an error.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Self, TypeVar, overload

from pgleaderlock._base.checks import check_callable, check_seconds
from pgleaderlock.engine._leader_task import AfterWork, WorkPolicy
from pgleaderlock.engine._unused import warn_of_unused_leadership
from pgleaderlock.engine.callbacks import B, Decorators, F, L, listener_of
from pgleaderlock.engine.election import Election
from pgleaderlock.engine.functions import Work, is_async
from pgleaderlock.engine.leading import LeadingBlock
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import LockError
from pgleaderlock.models import Event, EventKind, LockState
from pgleaderlock.sync._callback_thread import CallbackThread
from pgleaderlock.sync._leading import BlockingLeading, Caller
from pgleaderlock.sync._loop_thread import LoopEnded, LoopThread, enlist

T = TypeVar("T")
A = TypeVar("A", bound=Election)
W = TypeVar("W", bound=Work)

_EXIT_TIMEOUT_S = 10.0  # for a `with` block that ends in an exception, as in the asyncio API


class BlockingElection(Decorators, Generic[A]):
    """One candidate, for any thread."""

    def __init__(self, engine: A) -> None:
        self._engine = engine
        self._callbacks = CallbackThread()
        self._home: LoopThread | None = None  # where it runs, until the last callback of that run has returned
        self._pid: int | None = None  # of the process that used it first
        self._ending: set[asyncio.Task[None]] = set()
        is_used = engine._is_used  # noqa: SLF001 - of this package; our own listener does not count
        engine.subscribe(self._note_end)
        engine._is_used = is_used  # noqa: SLF001

    # --- State -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LockState:
        """The present state of the election. In a forked child: STOPPED."""
        return LockState.STOPPED if self._is_forked else self._engine.state

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels that identify this lock, also in every log line. Never a secret."""
        return self._engine.labels

    @property
    def identity(self) -> str | None:
        """The name by which the store shows this candidate while it leads; None if it has no name of its own there."""
        return self._engine.identity

    @property
    def address(self) -> str | None:
        """The address that the store shows while this candidate leads; None without one."""
        return self._engine.address

    @property
    def is_leader(self) -> bool:
        """Whether this process may act as the leader now. Check it again before each action that must happen once."""
        return self._engine.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of the current term: greater than every earlier leader's. None when not leading."""
        return self._engine.token

    @property
    def trusted_until(self) -> float | None:
        """Until when, on the election's clock, leadership is valid without a renewal. None when not leading."""
        return self._engine.trusted_until

    @property
    def place(self) -> str:
        """This candidate's place in the succession, for display only: ``heir``, ``next heir``, or empty."""
        return self._engine.place

    @property
    def lease_s(self) -> float | None:
        """The lease duration: how long the store keeps the lock of a silent leader. None where it keeps it for ever."""
        return self._engine.lease_s

    @property
    def health_interval_s(self) -> float:
        """How often a leader renews."""
        return self._engine.health_interval_s

    @property
    def time_left_s(self) -> float:
        """For how many seconds leadership is still valid without a renewal: 0 when not leading."""
        return self._engine.time_left_s

    @property
    def is_stopping(self) -> bool:
        """Whether a shutdown was requested and is in progress. False during a step-down and after a loss."""
        return not self._is_forked and self._engine.is_stopping

    @property
    def term(self) -> Term | None:
        """The term that this process leads in. None when not leading."""
        return None if self._is_forked else self._engine.term

    @property
    def is_in_leader_task(self) -> bool:
        """Whether the caller runs inside a leader task of this election."""
        return self._engine.is_in_leader_task

    # --- Leader tasks ----------------------------------------------------------------------------------------------

    @overload
    def while_leader(self, fn: W) -> W: ...
    @overload
    def while_leader(
        self, *, name: str | None = None, on_return: AfterWork = "restart", on_failure: AfterWork = "restart"
    ) -> Callable[[W], W]: ...
    def while_leader(
        self,
        fn: W | None = None,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
    ) -> W | Callable[[W], W]:
        """Run ``fn(term)``, or ``fn()``, in a thread in each term, and never twice at once in this process.

        A thread cannot be stopped, so it has to check:

            @lock.while_leader
            def work(term: Term) -> None:
                while not term.wait(5):
                    do_one_thing(fence=term.token)

        The lock is kept until it has returned, for as long as leadership is valid; a task that runs longer is an
        overrun (:meth:`on_overrun`). When it returns or raises before the term ends: ``restart`` it after a growing
        pause, ``step_down``, or ``stop`` the election.
        """

        def register(work: W) -> W:
            refuse_coroutines("a leader task", work)
            self._on_the_loop(self._engine.while_leader(name=name, on_return=on_return, on_failure=on_failure), work)
            return work

        return register if fn is None else register(fn)

    def run_while_leader(
        self, fn: Work, *, name: str | None = None, on_return: AfterWork = "restart", on_failure: AfterWork = "restart"
    ) -> object:
        """Take part, run ``fn`` in each term as :meth:`while_leader` does, and return when the election has stopped.

        Starts the election unless it runs; an election that it started it also shuts down when the caller is
        interrupted (Ctrl-C). Returns what the work returned, and raises what it raised if the election stopped for that
        (``stop``).
        """
        refuse_coroutines("a leader task", fn)
        if self._callbacks.is_here or self.is_in_leader_task:
            raise LockError("run_while_leader() in a callback or in a leader task would wait for itself")
        policy = WorkPolicy(on_return, on_failure)

        async def run(home: LoopThread) -> object:
            is_ours = not self._engine._is_running()  # noqa: SLF001 - of this package
            await self._start(home)
            try:
                return await self._engine._run_work(fn, policy, name, is_ours=is_ours)  # noqa: SLF001 - of this package
            finally:
                if is_ours:  # also when the work was refused before it ran
                    await self._engine.shutdown()

        return self._call(run)

    def leading(self, timeout_s: float | None = None) -> BlockingLeading:
        """Wait for leadership, run the block as the leader, and release leadership when it ends.

            with lock.leading() as term:
                while not term.wait(5):
                    do_one_thing(fence=term.token)

        A thread cannot be cancelled: a block whose leadership is lost, or is to be handed over on request, runs on
        until it checks. ``term.check()`` raises :class:`LeadershipLost` then, ``term.is_ending`` is True, and
        ``term.wait(seconds)`` returns True at once. The lock is kept until the block has ended, for as long as
        leadership is valid; a block that runs longer is an overrun (:meth:`on_overrun`). If leadership ended before the
        block did, LeadershipLost is raised at the end of the block, unless the block raised an error of its own.

        Starts the election unless it runs, and shuts down at the end what it started. An election that was running goes
        on: at the end of the block it steps down, and takes part again one retry delay later (1 s by default), so that
        the others go first. One block of a lock at a time. TimeoutError after ``timeout_s`` without leadership;
        LockError if the election stops meanwhile. Inside the block ``shutdown()`` and ``step_down()`` only request it
        and return.
        """
        _check_timeout(timeout_s)

        async def new_block(home: LoopThread) -> LeadingBlock:
            return self._engine._new_block(None, functools.partial(self._start, home))  # noqa: SLF001 - of this package

        return BlockingLeading(self._caller("leading()"), new_block, timeout_s)

    def _caller(self, what: str) -> Caller:
        def call(make: Callable[[LoopThread], Coroutine[Any, Any, T]], /) -> T:
            if self._callbacks.is_here or self.is_in_leader_task:
                raise LockError(f"{what} in a callback, a leader task or another leading() block would wait for itself")
            return self._call(make)

        return Caller(call, self._call, self._ask, lambda: self._is_forked)

    def _on_the_loop(self, register: Callable[[F], object], fn: F) -> None:
        """Register now, or on the event loop where it runs: leader tasks start and end there."""
        self._check_process()
        if self._home is None:
            register(fn)
            return

        async def do() -> None:
            register(fn)

        self._call(lambda _: do())  # also in a callback: the loop itself waits for no callback here

    # --- Lifecycle ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in the election; returns in FOLLOWER. Does nothing when running. Waits for a running shutdown."""
        self._call(self._start_at_once if self._callbacks.is_here else self._start)

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Release the lock if it is held, and stop. Past ``timeout_s`` the session is closed by force.

        Returns when the election has stopped and its callbacks have run. In a callback and in a leader task it only
        requests this and returns.
        """
        self._end(self._engine.shutdown, timeout_s)

    def step_down(self, timeout_s: float | None = None, *, to: str | None = None) -> None:
        """Give up leadership without stopping. Does nothing when not leading.

        Returns when the lock is released and the callbacks have run. Past ``timeout_s`` the session is closed, which
        frees the lock for certain. In a callback and in a leader task it only requests this and returns.

        ``to`` names the candidate that leads next, as :meth:`nominate` does, which may take two seconds more. If that
        is refused, the LockError is raised, or in a callback logged, and this candidate leads on.

        A release that fails, for example on a session that has just ended, leads to STOPPED and not back to FOLLOWER,
        with ``on_error`` and ``on_stopped``, as the state table specifies. Call :meth:`start` to take part again.
        """
        self._end(functools.partial(self._engine.step_down, to=to), timeout_s)

    def nominate(self, to: str) -> None:
        """Have another candidate lead next, after this leader: it becomes the heir. LockError if that cannot be.

        ``to`` is the candidate's host and process id (``host-2:18``), as they show in its session's
        ``application_name``, or all of that name. Only for one lock on PostgreSQL sessions. Does nothing when not
        leading. It decides nothing: should the nominee end, another candidate leads next.
        """
        if self._home is not None:
            self._call(lambda _: self._engine.nominate(to))

    def wait_for_leadership(self, timeout_s: float | None = None) -> bool:
        """Wait to become the leader. Return True after the ``on_acquired`` callbacks ran; False when the time is up.

        Also False when the election has stopped, or stops meanwhile: then waiting would never end. Raises LockError
        when it was never started. Ctrl-C ends the wait, and the election goes on.
        """
        _check_timeout(timeout_s)
        self._check_process()
        if self._callbacks.is_here:
            raise LockError("wait_for_leadership() in a callback would wait for itself: call it in another thread")
        if self._home is None:
            self._engine._check_started()  # noqa: SLF001 - of this package
            return False
        try:
            return self._call(lambda _: self._engine.wait_for_leadership(timeout_s))
        except LoopEnded:
            return False

    def __enter__(self) -> Self:
        """Take part in the election, and return at once: the block is not held back until this process leads.

        Other locks are held in their ``with`` block. This one only takes part there: ask :attr:`is_leader`, call
        :meth:`wait_for_leadership`, or use ``with lock.leading()``, which waits.
        """
        self.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Release the lock if it is held, and stop. The time for that is bounded if the block ended in an exception."""
        self.shutdown(timeout_s=None if exc_type is None else _EXIT_TIMEOUT_S)
        if exc_type is None and not self._engine._was_used():  # noqa: SLF001 - of this package
            warn_of_unused_leadership(f"with block of {self._labels_text()}", "with lock.leading()")

    # --- Callbacks ---------------------------------------------------------------------------------------------

    def subscribe(self, listener: L) -> L:
        """Notify ``listener`` of every event, as an :class:`~pgleaderlock.Event`."""
        self._engine.subscribe(self._on_own_thread("a listener", listener))
        return listener

    def before_release(self, fn: B) -> B:
        """Call ``fn()`` before leadership is released on request, and wait for it: to stop new work and finish the old.

        Leadership is renewed meanwhile. The election waits no longer than ``drain_s``, including other callbacks that
        are still running. Not called before a loss.
        """
        self._engine.before_release(self._on_own_thread("the before_release callback", fn))
        return fn

    def _register(self, fn: F, *kinds: EventKind, passes: tuple[str, ...] = ()) -> F:
        on_own_thread = self._on_own_thread(f"the {kinds[0].value} callback", fn)
        self._engine.subscribe(listener_of(on_own_thread, kinds, passes))
        return fn

    def _on_own_thread(self, what: str, fn: Callable[..., object]) -> Callable[..., Coroutine[Any, Any, None]]:
        self._check_process()
        check_callable(what, fn)
        refuse_coroutines(what, fn)

        @functools.wraps(fn)  # so that its signature is seen: it may take the event
        async def on_own_thread(*arguments: Any) -> None:
            await self._callbacks.run(functools.partial(fn, *arguments))

        on_own_thread.__qualname__ = getattr(fn, "__qualname__", repr(fn))
        self._callbacks.expect_callbacks()
        return on_own_thread

    # --- On the event loop -------------------------------------------------------------------------------------

    async def _start(self, home: LoopThread) -> None:
        if home.is_ending:
            raise LockError("the interpreter is about to exit: no election can be started any more")
        await self._engine.start()
        # Nothing is awaited in between: an interrupted caller leaves nothing behind, or an election that is kept.
        if self._home is not home and not self._engine._has_stopped:  # noqa: SLF001 - of this package
            self._home = home
            home.keep(self, self._engine.shutdown)
            self._callbacks.begin_run()

    async def _start_at_once(self, home: LoopThread) -> None:
        """Start if that needs no waiting, for a callback: the run that called it must end before another can begin."""
        starting = asyncio.ensure_future(self._start(home))
        await asyncio.wait({starting}, timeout=0)
        if not starting.done():
            starting.cancel()
            raise LockError("start() in a callback while stopping would wait for itself: call it in another thread")
        starting.result()

    def _note_end(self, event: Event) -> None:
        """Clean up after a run when its last event is delivered."""
        if event.kind is EventKind.STOPPED:
            self._ending.add(task := asyncio.get_running_loop().create_task(self._clean_up()))
            task.add_done_callback(self._ending.discard)

    async def _clean_up(self) -> None:
        try:
            await self._engine.shutdown()  # it has stopped: this waits for the last callbacks
        finally:
            home = self._home
            if home is not None and self._engine._has_stopped:  # noqa: SLF001 - of this package
                self._home = None
                self._callbacks.rest()
                home.let_go(self)

    # --- From a caller's thread --------------------------------------------------------------------------------

    def _end(self, verb: Callable[[float | None], Coroutine[Any, Any, None]], timeout_s: float | None) -> None:
        _check_timeout(timeout_s)
        self._check_process()
        if self._home is None:
            return
        with contextlib.suppress(LoopEnded):  # the election has ended with it
            if self._callbacks.is_here or self.is_in_leader_task:
                self._ask(lambda: verb(timeout_s))
            else:
                self._call(lambda _: verb(timeout_s))

    def _call(self, make: Callable[[LoopThread], Coroutine[Any, Any, T]]) -> T:
        """Make a call on the event loop, and return its result."""
        self._check_process()
        home = enlist()
        self._pid = os.getpid()
        try:
            return home.wait(make(home))
        finally:
            home.leave()

    def _ask(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make a call on the event loop, without waiting for it."""
        home = enlist()
        try:
            home.ask(make()).add_done_callback(lambda _: home.leave())
        except BaseException:
            home.leave()
            raise

    @property
    def _is_forked(self) -> bool:
        return self._pid is not None and self._pid != os.getpid()

    def _check_process(self) -> None:
        if self._is_forked:
            raise LockError(
                f"this lock ({self._labels_text()}) was started before a fork, in process {self._pid}, and a forked "
                "child has neither its connection nor its thread: make the lock in the child. With gunicorn that is "
                "the post_fork hook, or no --preload; with multiprocessing, the function that the child runs, or the "
                "start method 'spawn'"
            )

    def _labels_text(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._engine.labels.items())

    def __repr__(self) -> str:
        return f"<pgleaderlock.sync.{type(self).__name__} {self._labels_text()} {self.state.value}>"


def refuse_coroutines(what: str, fn: Callable[..., Any]) -> None:
    """Raise TypeError for a coroutine function: callbacks of the blocking API run on a thread without an event loop."""
    if is_async(fn):
        raise TypeError(f"{what} of pgleaderlock.sync must be a plain function, not a coroutine function")


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s, zero_ok=True)
