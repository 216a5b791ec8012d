"""Services that run together: started in order, stopped in reverse order, each isolated from failures of the others.

A :class:`ServiceOrder` belongs to one term and gives turns: one service starts after another, one stops after another.
A :class:`ServiceTask` is one service: its leader task starts it in its turn and stops it when the term ends.

The time that is left to stop is shared among the services that still have to. A service that uses up its share is
reported and goes on stopping, and the next one begins to stop.

Not promised: that a service stops. One whose ``stop`` never returns is waited for, and not started again: it could then
run twice at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.clock import Clock
from pgleaderlock.engine._leader_task import TaskRun
from pgleaderlock.engine.functions import is_async, to_the_end
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import ServiceFailed

Step = Callable[[], Any]
"""``start()`` or ``stop()``; ``async``, or plain and then run in a thread."""
Report = Callable[[str, ServiceFailed], None]
"""Log this event with the error, and notify the listeners."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service as it was added."""

    name: str
    start: Step
    stop: Step
    leader_only: bool = True
    required: bool = False


@dataclass(slots=True)
class _Place:
    """How far one service has come in this term."""

    settled: asyncio.Event
    """It was started, or could not be, or takes so long that the next one starts without waiting for it."""
    cleared: asyncio.Event
    """It was stopped, or takes so long that the next one stops without waiting for it."""
    is_taken: bool = False
    """Whether there is something to stop."""


class ServiceOrder:
    """Gives turns to the services of one term."""

    def __init__(
        self,
        tasks: Sequence["ServiceTask"],
        term: Term,
        *,
        clock: Clock,
        start_s: float,
        stop_by: Callable[[float], float],
        note_ending: Callable[[], None],
    ) -> None:
        self.term = term
        self.start_s = start_s
        self.failures: list[ServiceFailed] = []
        """One for each start that failed, in order."""
        self._order = list(tasks)
        self._places = {task: _Place(asyncio.Event(), asyncio.Event()) for task in tasks}
        self._clock = clock
        self._stop_by = stop_by
        self._note_ending = note_ending
        self._ending_since: float | None = None
        for task, place in self._places.items():
            if task.is_busy:  # it still stops in an earlier term: the others start without waiting for it
                place.settled.set()

    async def turn_to_start(self, task: "ServiceTask") -> bool:
        """Wait for the services before this one. Return False when the term is ending: then none is started."""
        for other in self._order[: self._order.index(task)]:
            await self._unless_ending(self._places[other].settled)
        if self.term.is_ending or self._ending_since is not None:
            return False
        self._places[task].is_taken = True
        self._places[task].cleared.clear()
        return True

    async def settled(self) -> None:
        """Wait until each service was started or has failed to start, or the term is ending."""
        for place in self._places.values():
            await self._unless_ending(place.settled)

    def settle(self, task: "ServiceTask") -> None:
        """Let the services after this one start."""
        self._places[task].settled.set()

    def note_ending(self) -> None:
        """Note when the first service is to stop: the time to stop counts from then."""
        if self._ending_since is None:
            self._ending_since = self._clock()
            self._note_ending()

    async def turn_to_stop(self, task: "ServiceTask") -> float:
        """Wait until the services after this one have stopped; return its share of the seconds that are left."""
        for other in reversed(self._order[self._order.index(task) + 1 :]):
            if self._places[other].is_taken:
                await self._places[other].cleared.wait()
        left_s = self._stop_by(self._ending_since or 0.0) - self._clock()
        still_to_stop = sum(place.is_taken and not place.cleared.is_set() for place in self._places.values())
        return max(0.0, left_s) / max(1, still_to_stop)

    def clear(self, task: "ServiceTask") -> None:
        """Let the services before this one stop."""
        self._places[task].cleared.set()

    def vacate(self, task: "ServiceTask") -> None:
        """Note that this service could not be started, so there is nothing to stop."""
        self._places[task].is_taken = False
        self.clear(task)

    async def _unless_ending(self, event: asyncio.Event) -> None:
        either = [asyncio.ensure_future(wait) for wait in (event.wait(), self.term.wait_until_ending())]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in either:
                waiting.cancel()


class ServiceTask:
    """One service, in one term after the other."""

    def __init__(self, service: Service, report: Report) -> None:
        self.service = service
        self._report = report
        self.is_busy = False
        """Whether the service may run, even if its term is over."""

    async def run(self, order: ServiceOrder, task_run: TaskRun) -> None:
        """Start the service in its turn, wait for the end of the term, stop it in its turn.

        Cancelled, it stops the service first. A service that cannot be started raises :class:`ServiceFailed`.
        """
        if not await order.turn_to_start(self):
            return
        # A task of its own: a start that takes too long is no longer waited for, but not cancelled either.
        start = task_run.call(self.service.start, f"start of {self.service.name}")
        starting = asyncio.get_running_loop().create_task(start)
        self.is_busy = True
        try:
            await self._see_start(order, starting)
            await order.term.wait_until_ending()
        finally:
            order.settle(self)  # also after a failure: the services after this one must not wait for it
            try:
                await to_the_end(self._see_stop(order, task_run, starting))
            finally:
                self.is_busy = False

    async def _see_start(self, order: ServiceOrder, starting: asyncio.Task[object]) -> None:
        ending = asyncio.ensure_future(order.term.wait_until_ending())
        try:
            await asyncio.wait({starting, ending}, timeout=order.start_s, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and not ending.done():
                self._report("service_start_slow", self._slow_start(order.start_s))
                order.settle(self)
                await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if starting.done() and (error := _outcome(starting)) is not None:
            failure = self._failed("could not be started", error)
            order.failures.append(failure)
            raise failure from error
        order.settle(self)

    async def _see_stop(self, order: ServiceOrder, task_run: TaskRun, starting: asyncio.Task[object]) -> None:
        if starting.done() and _outcome(starting) is not None:
            order.vacate(self)
            return
        order.note_ending()
        if not starting.done() and is_async(self.service.start):
            starting.cancel()
        share_s = await order.turn_to_stop(self)
        stopping = asyncio.get_running_loop().create_task(self._stop(task_run, starting))
        await asyncio.wait({stopping}, timeout=share_s)
        if not stopping.done():
            self._report("service_stop_slow", self._slow_stop(share_s, starting))
        order.clear(self)
        await asyncio.wait({stopping})
        if (error := _outcome(stopping)) is not None:
            self._report("service_stop_failed", self._failed("could not be stopped", error))

    async def _stop(self, task_run: TaskRun, starting: asyncio.Task[object]) -> None:
        """Stop the service once its start has ended, also a start that was cancelled half-way."""
        was_late = not starting.done()
        await asyncio.wait({starting})
        if was_late and not starting.cancelled() and (error := _outcome(starting)) is not None:
            self._report("service_start_failed", self._failed("could not be started", error))
            return
        await task_run.call(self.service.stop, f"stop of {self.service.name}")

    def _failed(self, what: str, error: BaseException) -> ServiceFailed:
        failure = ServiceFailed(f"service {self.service.name} {what}: {error!r}", name=self.service.name)
        failure.__cause__ = error
        return failure

    def _slow_start(self, start_s: float) -> ServiceFailed:
        name = self.service.name
        return ServiceFailed(
            f"service {name} has not started within {start_s:g} s: the services after it start now", name=name
        )

    def _slow_stop(self, share_s: float, starting: asyncio.Task[object]) -> ServiceFailed:
        name = self.service.name
        what = "stopped" if starting.done() else "come back from its start, to be stopped,"
        return ServiceFailed(
            f"service {name} has not {what} within its share of {share_s:.2f} s: the others are stopped now. It is "
            "waited for, and is not started again before; set hard_fence=True to end the process in time",
            name=name,
        )


def _outcome(task: asyncio.Task[object]) -> BaseException | None:
    return asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()
