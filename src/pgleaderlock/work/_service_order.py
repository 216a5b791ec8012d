"""Services that run together: started in order, stopped in reverse, and none of them harmed by another.

A :class:`ServiceOrder` is what runs in one span: one term of leadership, or the time in which a node is up. It gives
turns. A :class:`Keeper` sees to one service and outlives the spans: it starts the service in its turn, stops it when
the span ends, and lets nothing of a later span begin before that is really over.

To stop, the time that is left is shared among those that still have to. Whoever uses up its share is reported and goes
on stopping, and the next one begins all the same.

Not promised: that a service stops. One whose ``stop`` never returns is waited for, and not started again: that could
be twice at once.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pgleaderlock._base import threads
from pgleaderlock._base.clock import Clock
from pgleaderlock.engine._leader_task import is_async
from pgleaderlock.errors import ServiceFailed

__all__ = ["Keeper", "Report", "Service", "ServiceOrder", "Span", "Step", "to_the_end"]

Step = Callable[[], Any]
"""``start()`` or ``stop()``; ``async``, or plain and then run in a thread."""
Report = Callable[[str, ServiceFailed], None]
"""Tell everybody: what it is called in the log, and the error."""


class Span(Protocol):
    """For how long services run in order. A :class:`~pgleaderlock.engine.term.Term` is one."""

    @property
    def is_ending(self) -> bool:
        """Whether it is time to stop."""

    async def wait_until_ending(self) -> None:
        """Wait until it is."""


@dataclass(frozen=True, slots=True)
class Service:
    """What is started and stopped under one name."""

    name: str
    start: Step
    stop: Step
    leader_only: bool = True
    required: bool = False


@dataclass(slots=True)
class _Place:
    """How far one service has come."""

    settled: asyncio.Event
    """It was started, or could not be, or takes so long that the next one begins all the same."""
    cleared: asyncio.Event
    """It was stopped, or takes so long that the next one is stopped all the same."""
    is_taken: bool = False
    """There is something to stop."""


class ServiceOrder:
    """Gives turns to the services of one span."""

    def __init__(
        self,
        keepers: Sequence["Keeper"],
        span: Span,
        *,
        clock: Clock,
        start_s: float,
        stop_by: Callable[[float], float],
        note_ending: Callable[[], None],
    ) -> None:
        self.span = span
        self.start_s = start_s
        self.failures: list[ServiceFailed] = []
        """What could not be started, in order."""
        self._order = list(keepers)
        self._places = {keeper: _Place(asyncio.Event(), asyncio.Event()) for keeper in keepers}
        self._clock = clock
        self._stop_by = stop_by
        self._note_ending = note_ending
        self._ending_since: float | None = None
        for keeper, place in self._places.items():
            if keeper.is_busy:  # with an earlier span: it comes when it can, and nobody waits for it
                place.settled.set()

    async def turn_to_start(self, keeper: "Keeper") -> bool:
        """Wait for those that come before. False when the span is ending: then there is nothing to start any more."""
        for other in self._order[: self._order.index(keeper)]:
            await self._unless_ending(self._places[other].settled)
        if self.span.is_ending or self._ending_since is not None:
            return False
        self._places[keeper].is_taken = True
        self._places[keeper].cleared.clear()
        return True

    async def settled(self) -> None:
        """Wait until everything was started that can be, or the span is ending."""
        for place in self._places.values():
            await self._unless_ending(place.settled)

    def settle(self, keeper: "Keeper") -> None:
        """Let those begin that come after."""
        self._places[keeper].settled.set()

    def note_ending(self) -> None:
        """Hear that the first of them is to stop."""
        if self._ending_since is None:
            self._ending_since = self._clock()
            self._note_ending()

    async def turn_to_stop(self, keeper: "Keeper") -> float:
        """Wait for those that come after, and return how long this one may take: its share of what is left."""
        for other in reversed(self._order[self._order.index(keeper) + 1 :]):
            if self._places[other].is_taken:
                await self._places[other].cleared.wait()
        left_s = self._stop_by(self._ending_since or 0.0) - self._clock()
        still_here = sum(place.is_taken and not place.cleared.is_set() for place in self._places.values())
        return max(0.0, left_s) / max(1, still_here)

    def clear(self, keeper: "Keeper") -> None:
        """Let those stop that come before."""
        self._places[keeper].cleared.set()

    def vacate(self, keeper: "Keeper") -> None:
        """Hear that there is nothing to stop: it could not be started."""
        self._places[keeper].is_taken = False
        self.clear(keeper)

    async def _unless_ending(self, event: asyncio.Event) -> None:
        either = [asyncio.ensure_future(wait) for wait in (event.wait(), self.span.wait_until_ending())]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in either:
                waiting.cancel()


class Keeper:
    """Sees to one service, in one span after the other."""

    def __init__(self, service: Service, report: Report) -> None:
        self.service = service
        self._report = report
        self._over: asyncio.Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the service may run, be it in a span that is over."""
        return self._over is not None and not self._over.done()

    async def run(self, order: ServiceOrder) -> None:
        """Start the service in its turn, wait for the end of the span, stop it in its turn.

        Cancelled, it stops the service first. A service that cannot be started raises :class:`ServiceFailed`.
        """
        while self._over is not None and not self._over.done():
            await asyncio.wait({self._over})
        if not await order.turn_to_start(self):
            return
        loop = asyncio.get_running_loop()
        self._over = over = loop.create_future()
        starting = loop.create_task(_call(self.service.start, f"start of {self.service.name}"))
        try:
            await self._see_start(order, starting)
            await order.span.wait_until_ending()
        finally:
            order.settle(self)  # whatever came of it
            try:
                await to_the_end(self._see_stop(order, starting))
            finally:
                over.set_result(None)

    async def _see_start(self, order: ServiceOrder, starting: asyncio.Task[None]) -> None:
        ending = asyncio.ensure_future(order.span.wait_until_ending())
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

    async def _see_stop(self, order: ServiceOrder, starting: asyncio.Task[None]) -> None:
        if starting.done() and _outcome(starting) is not None:
            order.vacate(self)
            return
        order.note_ending()
        if not starting.done() and is_async(self.service.start):
            starting.cancel()
        share_s = await order.turn_to_stop(self)
        stopping = asyncio.get_running_loop().create_task(self._stop(starting))
        await asyncio.wait({stopping}, timeout=share_s)
        if not stopping.done():
            self._report("service_stop_slow", self._slow_stop(share_s, starting))
        order.clear(self)
        await asyncio.wait({stopping})
        if (error := _outcome(stopping)) is not None:
            self._report("service_stop_failed", self._failed("could not be stopped", error))

    async def _stop(self, starting: asyncio.Task[None]) -> None:
        """Stop what was started, what is just being started when that is done, and what was cut short."""
        was_late = not starting.done()
        await asyncio.wait({starting})
        if was_late and not starting.cancelled() and (error := _outcome(starting)) is not None:
            self._report("service_start_failed", self._failed("could not be started", error))
            return
        await _call(self.service.stop, f"stop of {self.service.name}")

    def _failed(self, what: str, error: BaseException) -> ServiceFailed:
        failure = ServiceFailed(f"service {self.service.name} {what}: {error!r}", name=self.service.name)
        failure.__cause__ = error
        return failure

    def _slow_start(self, start_s: float) -> ServiceFailed:
        name = self.service.name
        return ServiceFailed(
            f"service {name} has not started within {start_s:g} s: those after it start now, and it when it can",
            name=name,
        )

    def _slow_stop(self, share_s: float, starting: asyncio.Task[None]) -> ServiceFailed:
        name = self.service.name
        what = "stopped" if starting.done() else "come back from its start, to be stopped,"
        return ServiceFailed(
            f"service {name} has not {what} within its share of {share_s:.2f} s: the others are stopped now. It is "
            "waited for, and is not started again before; set hard_fence=True to end the process in time",
            name=name,
        )


async def _call(step: Step, name: str) -> None:
    """Call a user's function as it was written. Whoever cancels this must know that it is no thread."""
    answer = step() if is_async(step) else await threads.begin(step, f"pgleaderlock {name}")
    if inspect.isawaitable(answer):
        await answer


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await this whatever happens: it is bounded by its own means. A cancellation is heard afterwards."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


def _outcome(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()
