"""``LeaderServices``: named services with a start and a stop, some on the leader only and some on every node.

Each leader-only service is a leader task of its own, so that the election knows what really runs: the lock is kept
until it has stopped, for as long as leadership is valid; what takes longer is an overrun under the service's name; and
a service that stops late delays its own start in the next term, not that of others. A
:class:`~pgleaderlock.work._service_order.ServiceOrder` puts them in order. The services of every node have the same
runner, in a term of the node's own that lasts until the node is stopped.

:meth:`LeaderServices.start` first makes one attempt to lead; then it starts the leader's services if this node leads;
then those of every node. A follower that leads later starts the leader's services then.

Not promised: that a start or a stop returns. One that does not is reported, and the other services go on.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

from pgleaderlock._base.checks import check_callable, check_flag, check_seconds
from pgleaderlock.engine._leader_task import Host, LeaderTask, TaskRun, WorkPolicy
from pgleaderlock.engine.election import Election
from pgleaderlock.engine.leader_tasks import LeaderTasks
from pgleaderlock.engine.term import Term
from pgleaderlock.engine.while_leader import leader_tasks_of
from pgleaderlock.errors import LockError, ServiceFailed
from pgleaderlock.models import Event, EventKind, Grant
from pgleaderlock.work._service_order import Service, ServiceOrder, ServiceTask, Step

__all__ = ["LeaderServices", "StartsAndStops"]

_logger = logging.getLogger("pgleaderlock")
_ANSWERS = {EventKind.ACQUIRED, EventKind.ACQUIRE_FAILED, EventKind.ERROR, EventKind.STOPPED}


@runtime_checkable
class StartsAndStops(Protocol):
    """An object that is a service as it is. Both may be ``async``; plain ones run in threads."""

    def start(self) -> object:
        """Begin, and return."""

    def stop(self) -> object:
        """End, and return when it has."""


class _Group:
    """Services that run in the same terms, in the order in which they were added."""

    def __init__(self, runner: LeaderTasks, make_order: Callable[["_Group", Term], ServiceOrder]) -> None:
        self.runner = runner
        self.services: list[ServiceTask] = []
        self._tasks: list[LeaderTask] = []
        self._enrolled: list[LeaderTask] = []
        self._make_order = make_order
        self._order: ServiceOrder | None = None

    def add(self, service: ServiceTask, policy: WorkPolicy) -> None:
        async def work(task_run: TaskRun) -> None:
            await service.run(self.order_of(task_run.term), task_run)

        self.services.append(service)
        self._tasks.append(LeaderTask(work, policy, self.runner.host, service.service.name))

    def order_of(self, term: Term) -> ServiceOrder:
        """Return the service order of this term; the first caller makes it."""
        if self._order is None or self._order.term is not term:
            self._order = self._make_order(self, term)
        return self._order

    def enroll(self) -> None:
        """Run the services in each term from now on. A service that still stops is started when it has stopped."""
        self._order = None
        for task in self._tasks:
            self.runner.enroll(task)
            self._enrolled.append(task)

    def remove(self) -> list[asyncio.Future[None]]:
        """Stop the services, and return a future for each that has not stopped yet."""
        enrolled, self._enrolled = self._enrolled, []
        return [over for task in enrolled if (over := self.runner.remove(task)) is not None]


class LeaderServices:
    """Starts and stops services with leadership, and others with the node.

        services = LeaderServices(lock)
        services.add("refresh", start=refresh.start, stop=refresh.stop)
        services.add("heartbeat", heartbeat, leader_only=False)

        async with services:
            await serve()

    Takes part in the election for as long as it is started, unless the lock was started before. Use it on one event
    loop.
    """

    def __init__(
        self,
        lock: Election,
        *,
        noun: str = "scheduler",
        first_try_s: float = 5.0,
        start_s: float = 10.0,
        stop_s: float = 10.0,
    ) -> None:
        """Set the noun for log lines, and the time limits.

        ``noun`` is what the log lines call the leader's services. ``first_try_s``: how long the start of a node waits
        to learn whether it leads. ``start_s``: how long the next service waits for a start that does not return.
        ``stop_s``: how long all stops together may take where no lease limits them.
        """
        if not isinstance(lock, Election):
            raise TypeError(f"lock must be a LeaderLock or another Election, not {type(lock).__name__}")
        self._lock = lock
        self._noun = noun
        self._first_try_s = check_seconds("first_try_s", first_try_s)
        self._start_s = check_seconds("start_s", start_s)
        self._stop_s = check_seconds("stop_s", stop_s)
        leader_tasks = leader_tasks_of(lock)
        self._host = leader_tasks.host
        self._on_leader = _Group(leader_tasks, self._make_order)
        self._on_node = _Group(LeaderTasks(self._host_on_node()), self._make_order)
        self._services: list[ServiceTask] = []
        self._is_started = self._is_stopping = self._starts_lock = False
        self._was_answered = asyncio.Event()
        lock.subscribe(self._note_answer)

    @property
    def names(self) -> tuple[str, ...]:
        """The services that were added, in order."""
        return tuple(task.service.name for task in self._services)

    @property
    def running(self) -> tuple[str, ...]:
        """The services that were started, or are being started, and have not stopped yet."""
        return tuple(task.service.name for task in self._services if task.is_busy)

    def add(
        self,
        name: str,
        service: StartsAndStops | None = None,
        *,
        start: Step | None = None,
        stop: Step | None = None,
        leader_only: bool = True,
        required: bool = False,
    ) -> None:
        """Add a service: an object with ``start()`` and ``stop()``, or two functions. Plain ones run in threads.

        One whose start raises is reported to ``on_error``, and started again after a pause that grows; the others go
        on. If it is ``required``, leadership is released instead; and of a service of every node, :meth:`start` raises.
        """
        if self._is_started:
            raise LockError(f"service {name} comes too late: the services are started. Add it before")
        if not name or name in self.names:
            raise ValueError(f"a service needs a name of its own, and {name!r} is not one")
        if service is not None:
            if start is not None or stop is not None or not isinstance(service, StartsAndStops):
                raise TypeError(f"service {name} must be an object with start() and stop(), or start= and stop=")
            start, stop = service.start, service.stop
        if start is None or stop is None:
            raise TypeError(f"service {name} must have both a start and a stop")
        check_callable(f"the start of {name}", start)
        check_callable(f"the stop of {name}", stop)
        check_flag("leader_only", leader_only)
        check_flag("required", required)
        task = ServiceTask(Service(name, start, stop, leader_only, required), self._report)
        self._services.append(task)
        if leader_only:
            self._on_leader.add(task, WorkPolicy(on_failure="step_down" if required else "restart", drains=True))
        else:
            self._on_node.add(task, WorkPolicy(drains=True, ends_when_cancelled=True))

    # --- Lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make one attempt to lead, start the leader's services if it succeeded, then those of every node."""
        if self._is_started:
            return
        self._is_started, self._is_stopping = True, False
        try:
            await self._try_to_lead()
            await self._start_on_node()
        except BaseException:  # `async with` does not call __aexit__ when __aenter__ has failed
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the leader's services and hand leadership over, then stop those of every node."""
        if not self._is_started:
            return
        self._is_started, self._is_stopping = False, True
        try:
            if self._starts_lock:
                await self._lock.shutdown()
            stopping = self._on_leader.remove()
            if stopping and not self._starts_lock:  # a shutdown has waited for as long as leadership was valid
                await asyncio.wait(stopping, timeout=self._stop_s)
        finally:
            self._on_node.runner.follow(Grant(), leads=False)
            self._on_node.remove()
            await self._on_node.runner.stopped(timeout_s=self._stop_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- On the leader -----------------------------------------------------------------------------------------

    async def _try_to_lead(self) -> None:
        self._starts_lock = self._lock.state.is_stopped or self._lock.is_stopping
        if self._starts_lock:
            self._was_answered = asyncio.Event()
        self._on_leader.enroll()
        await self._lock.start()
        if not self._on_leader.services:
            return
        if self._lock.term is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._was_answered.wait(), self._first_try_s)
        term = self._lock.term
        if term is None:
            _log_line(f"Not leader, skipping {self._noun} startup")
        else:
            await self._on_leader.order_of(term).settled()

    def _note_answer(self, event: Event) -> None:
        if event.kind in _ANSWERS:
            self._was_answered.set()

    def _make_order(self, group: _Group, term: Term) -> ServiceOrder:
        is_on_leader = group is self._on_leader
        if is_on_leader:
            _log_line(f"Acquired leadership, starting {self._noun}s")
        return ServiceOrder(
            group.services,
            term,
            clock=self._host.clock,
            start_s=self._start_s,
            stop_by=partial(self._stop_by, term),
            note_ending=self._note_ending if is_on_leader else lambda: None,
        )

    def _stop_by(self, term: Term, asked_at: float) -> float:
        """Return when all services must have stopped: while no other can lead, and while a hand-over waits.

        Without a lease, as on a node, ``stop_s`` after the request.
        """
        known = [at for at in (term.hand_over_at, term.trusted_until) if at is not None and not math.isinf(at)]
        return min(known, default=asked_at + self._stop_s)

    def _note_ending(self) -> None:
        is_over = self._is_stopping or self._lock.is_stopping
        _log_line(f"{'Shutting down' if is_over else 'No longer leader'}, stopping {self._noun}s")

    # --- On every node -----------------------------------------------------------------------------------------

    def _host_on_node(self) -> Host:
        """Return the host of a term that has no lease: it lasts until the node is stopped."""

        def report(kind: EventKind, error: Exception) -> None:
            if kind is not EventKind.OVERRUN:  # no other node waits for these services to stop
                self._host.report(kind, error)

        return replace(self._host, grant_now=Grant, report=report, note_idle=lambda: None)

    async def _start_on_node(self) -> None:
        group = self._on_node
        group.enroll()
        group.runner.follow(Grant(), leads=True)
        term = group.runner.term
        assert term is not None  # noqa: S101 - which the line before has begun
        order = group.order_of(term)
        await order.settled()
        required = {task.service.name for task in group.services if task.service.required}
        for failure in order.failures:
            if failure.name in required:
                raise failure

    # --- Reports -----------------------------------------------------------------------------------------------

    def _report(self, event: str, failure: ServiceFailed) -> None:
        self._host.logger.error(event, service=failure.name, error=failure, exc_info=failure.__cause__)
        self._host.report(EventKind.WORK_FAILED, failure)

    def __repr__(self) -> str:
        return f"<LeaderServices {' '.join(self.names)} of {self._lock!r}>"


def _log_line(line: str) -> None:
    """Log the line as it was specified, without the fields of other log events."""
    _logger.info("%s", line, extra={"event": line, "fields": dict[str, Any]()})
