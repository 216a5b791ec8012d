"""The event loop of one simulated process: asyncio as the engine knows it, on a clock that may run fast or slow.

Each node has a loop, and none of them ever waits: the next step of a node is a call scheduled in the
:class:`~pgleaderlock.testing.simulation.world.World`. So a process can be frozen while the others go on, can be killed
between any two steps, and its clock can have another rate than that of others; on one loop for all nodes none of that
would be possible.

Only what tasks, futures, timers and time-outs need is here. Sockets, pipes and signals are not; a thread's work is done
at once.
"""

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from pgleaderlock.testing.simulation._futures import reject, resolve
from pgleaderlock.testing.simulation.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_TASKS_KEPT = 200
_BUSY_S = 1e-4
"""A process comes to its next step within a tenth of a millisecond, when it is not standing still."""


class NodeLoop(asyncio.AbstractEventLoop):
    """One process. ``rate`` is how many seconds pass on its clock in one of the world's."""

    def __init__(
        self, world: World, rate: float, *, after_step: Callable[[], object], failed: Callable[[dict[str, Any]], object]
    ) -> None:
        self._world = world
        self._rate = rate
        self._offset = world.random.uniform(0, 1e4)  # no two hosts count from the same moment
        self._after_step = after_step
        self._failed = failed
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_is_due = False
        self._is_over = False
        self._tasks: list[asyncio.Task[Any]] = []  # kept, so that the tasks of a dead process are not collected
        self.is_frozen = False
        self.turn_s = _BUSY_S
        """How long it takes at most to come to the next turn: longer on a loop that other work keeps busy."""

    def time(self) -> float:
        """Return what this host's monotonic clock shows."""
        return self._offset + self._world.now * self._rate

    # --- Life and death ----------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Take no step until :meth:`thaw`. What arrives meanwhile waits."""
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        self._arrange_turn()

    def close(self) -> None:
        """Kill the process: take no step, not even for clean-up, until :meth:`bury`."""
        self._is_over = True

    def bury(self) -> None:
        """Cancel the tasks of a process after the run: asyncio logs an error for a pending task that is destroyed."""
        self._is_over = self.is_frozen = False
        self._after_step = lambda: None
        self._failed = lambda _: None
        for task in self._tasks:
            task.cancel()
        self._arrange_turn()

    def forget_finished(self) -> None:
        """Drop the tasks that are done: asyncio reports an exception that was never retrieved only then."""
        self._tasks = [task for task in self._tasks if not task.done()]

    @property
    def is_empty(self) -> bool:
        return all(task.done() for task in self._tasks)

    def is_closed(self) -> bool:
        """Whether the process is dead."""
        return self._is_over

    def is_running(self) -> bool:
        return not self._is_over

    # --- Steps -------------------------------------------------------------------------------------------------

    def _may_step(self) -> bool:
        return not self.is_frozen and not self._is_over

    def _arrange_turn(self) -> None:
        if self._ready and not self._turn_is_due and self._may_step():
            self._turn_is_due = True
            self._world.later(self._world.random.random() * self.turn_s, self._take_turn)

    def _take_turn(self) -> None:
        """Do all that was ready when the turn began, as asyncio does."""
        self._turn_is_due = False
        if not self._may_step():
            return
        former = events._get_running_loop()  # noqa: SLF001 - what asyncio provides for loops
        events._set_running_loop(self)  # noqa: SLF001
        try:
            for _ in range(len(self._ready)):
                if not self._may_step():
                    break  # the step before was its last one
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - as every loop does
                    self._after_step()
        finally:
            events._set_running_loop(former)  # noqa: SLF001
        self._arrange_turn()

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._arrange_turn()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call it in the next turn: there are no other threads here."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it after so long, on this host's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it then, on this host's clock."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at((when - self._offset) / self._rate, lambda: self._be_due(timer))
        return timer

    def _be_due(self, timer: asyncio.TimerHandle) -> None:
        if not timer.cancelled():
            self._ready.append(timer)
            self._arrange_turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: what is due and cancelled is passed over."""

    # --- What tasks ask of their loop --------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > _TASKS_KEPT:
            self.forget_finished()
        return task

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002 - there are no threads
        func: Callable[[Unpack[Ts]], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Do a thread's work at once, and set the result of its future a little later."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - it is passed to the caller
            self.call_soon(reject, future, error)
        else:
            self.call_soon(resolve, future, result)
        return future

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Fail the simulation: the engine would restart work that raised, and a test would pass without any action."""
        error = NotImplementedError("replace it by something that sleeps")
        self._failed({"message": "real sockets, names and processes know nothing of virtual time", "exception": error})
        raise error

    create_connection = create_unix_connection = create_datagram_endpoint = create_server = _refuse
    getaddrinfo = subprocess_exec = subprocess_shell = add_reader = add_writer = _refuse

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode is slow."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that no code caught to the checker, unless the process is dead."""
        if not self._is_over:
            self._failed(context)
