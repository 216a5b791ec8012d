"""``LeaderServices``: named services with a start and a stop, some on the leader only and some on every node.

Each leader-only service is a leader task of its own, so that the election knows what really runs: the lock is kept
until it has stopped, for as long as leadership can be trusted; what takes longer is an overrun under the service's
name; and a service that stops late delays its own start in the next term, not that of others. A
:class:`~pgleaderlock.work._service_order.ServiceOrder` puts them in order.

At start-up leadership is tried for first, once; then the leader's services are started, or are not; then those of every
node. A follower that wins later starts the leader's services then.

Not promised: that a start or a stop returns. Whoever does not is reported, and the others go on.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from pgleaderlock._base.checks import check_callable, check_flag, check_seconds
from pgleaderlock.engine._leader_task import LeaderTask, WorkPolicy
from pgleaderlock.engine.election import Election
from pgleaderlock.engine.term import Term
from pgleaderlock.engine.while_leader import leader_tasks_of
from pgleaderlock.errors import LockError, ServiceFailed
from pgleaderlock.models import Event, EventKind
from pgleaderlock.work._service_order import Keeper, Service, ServiceOrder, Step

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


class _NodeUp:
    """The span of the services of every node: until this node is stopped."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    @property
    def is_ending(self) -> bool:
        return self._ended.is_set()

    async def wait_until_ending(self) -> None:
        await self._ended.wait()

    def end(self) -> None:
        self._ended.set()


class LeaderServices:
    """Starts and stops services with leadership, and others with the node.

        services = LeaderServices(lock)
        services.add("refresh", start=refresh.start, stop=refresh.stop)
        services.add("heartbeat", heartbeat, leader_only=False)

        async with services:
            await serve()

    Takes part in the election for as long as it is started, unless the lock was started by somebody else. Use it on one
    event loop.
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
        """Nothing runs yet.

        ``noun`` is what the log lines call the leader's services. ``first_try_s``: how long the start of a node waits
        to learn whether it leads. ``start_s``: after how long a start that does not return keeps the next one waiting
        no more. ``stop_s``: how long all stops together may take where no lease says it.
        """
        if not isinstance(lock, Election):
            raise TypeError(f"lock must be a LeaderLock or another Election, not {type(lock).__name__}")
        self._lock = lock
        self._noun = noun
        self._first_try_s = check_seconds("first_try_s", first_try_s)
        self._start_s = check_seconds("start_s", start_s)
        self._stop_s = check_seconds("stop_s", stop_s)
        self._leader_tasks = leader_tasks_of(lock)
        self._keepers: list[Keeper] = []
        self._started: list[LeaderTask] = []
        self._order: ServiceOrder | None = None
        self._node_up: _NodeUp | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = self._starts_lock = False
        self._was_answered = asyncio.Event()
        lock.subscribe(self._hear)

    @property
    def names(self) -> tuple[str, ...]:
        """What was added, in order."""
        return tuple(keeper.service.name for keeper in self._keepers)

    @property
    def running(self) -> tuple[str, ...]:
        """What was started, or is being, and has not stopped yet."""
        return tuple(keeper.service.name for keeper in self._keepers if keeper.is_busy)

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
        on. If it is ``required``, leadership is given up instead; and of a service of every node, :meth:`start` raises.
        """
        if self._node_up is not None:
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
        self._keepers.append(Keeper(Service(name, start, stop, leader_only, required), self._report))

    # --- Lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Try for leadership once, start the leader's services if it was won, then those of every node."""
        if self._node_up is not None:
            return
        self._node_up, self._is_stopping, self._order = _NodeUp(), False, None
        try:
            await self._try_to_lead()
            await self._start_on_node(self._node_up)
        except BaseException:  # whoever enters `async with` in vain does not leave it
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the leader's services and hand leadership over, then stop those of every node."""
        node_up, self._node_up = self._node_up, None
        if node_up is None:
            return
        self._is_stopping = True
        try:
            if self._starts_lock:
                await self._lock.shutdown()
            await self._withdraw()
        finally:
            node_up.end()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._stop_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    # --- On the leader -----------------------------------------------------------------------------------------

    async def _try_to_lead(self) -> None:
        self._starts_lock = self._lock.state.is_stopped or self._lock.is_stopping
        if self._starts_lock:
            self._was_answered = asyncio.Event()
        leaders = self._of(leader_only=True)
        for keeper in leaders:
            policy = WorkPolicy(on_failure="step_down" if keeper.service.required else "restart", drains=True)
            self._started.append(self._leader_tasks.add(partial(self._serve, keeper), policy, keeper.service.name))
        await self._lock.start()
        if not leaders:
            return
        if self._lock.term is None:
            await _wait(self._was_answered, self._first_try_s)
        term = self._lock.term
        if term is None:
            _say(f"Not leader, skipping {self._noun} startup")
        else:
            await self._order_of(term).settled()

    def _hear(self, event: Event) -> None:
        if event.kind in _ANSWERS:
            self._was_answered.set()

    async def _serve(self, keeper: Keeper, term: Term) -> None:
        """The leader task: one service in one term."""
        await keeper.run(self._order_of(term))

    def _order_of(self, term: Term) -> ServiceOrder:
        """Return the service order of this term; the first caller makes it."""
        if self._order is None or self._order.span is not term:
            _say(f"Acquired leadership, starting {self._noun}s")
            self._order = ServiceOrder(
                self._of(leader_only=True),
                term,
                clock=self._leader_tasks.host.clock,
                start_s=self._start_s,
                stop_by=partial(self._stop_by, term),
                note_ending=self._note_ending,
            )
        return self._order

    def _stop_by(self, term: Term, asked_at: float) -> float:
        """When everything has to have stopped: while nobody else can lead, and while a hand-over waits."""
        known = [at for at in (term.hand_over_at, term.trusted_until) if at is not None and not math.isinf(at)]
        return min(known, default=asked_at + self._stop_s)

    def _note_ending(self) -> None:
        is_over = self._is_stopping or self._lock.is_stopping
        _say(f"{'Shutting down' if is_over else 'No longer leader'}, stopping {self._noun}s")

    async def _withdraw(self) -> None:
        """Stop what an election that goes on without us still runs."""
        stopping = [over for task in self._started if (over := self._leader_tasks.remove(task)) is not None]
        self._started = []
        if stopping and not self._starts_lock:  # a shutdown has waited for as long as there was to wait
            await asyncio.wait(stopping, timeout=self._stop_s)

    # --- On every node -----------------------------------------------------------------------------------------

    async def _start_on_node(self, node_up: _NodeUp) -> None:
        keepers = self._of(leader_only=False)
        order = ServiceOrder(
            keepers,
            node_up,
            clock=self._leader_tasks.host.clock,
            start_s=self._start_s,
            stop_by=lambda asked_at: asked_at + self._stop_s,
            note_ending=lambda: None,
        )
        self._tasks = [asyncio.create_task(self._run_on_node(keeper, order)) for keeper in keepers]
        await order.settled()
        for failure in order.failures:
            if any(keeper.service.required and keeper.service.name == failure.name for keeper in keepers):
                raise failure

    async def _run_on_node(self, keeper: Keeper, order: ServiceOrder) -> None:
        try:
            await keeper.run(order)
        except ServiceFailed as failure:
            self._report("service_start_failed", failure)

    # --- Telling -----------------------------------------------------------------------------------------------

    def _of(self, *, leader_only: bool) -> Sequence[Keeper]:
        return [keeper for keeper in self._keepers if keeper.service.leader_only is leader_only]

    def _report(self, event: str, failure: ServiceFailed) -> None:
        host = self._leader_tasks.host
        host.logger.error(event, service=failure.name, error=failure, exc_info=failure.__cause__)
        host.report(EventKind.WORK_FAILED, failure)

    def __repr__(self) -> str:
        return f"<LeaderServices {' '.join(self.names)} of {self._lock!r}>"


def _say(line: str) -> None:
    """Log the line as it is: it was specified to the letter, without the fields that our others carry."""
    _logger.info("%s", line, extra={"event": line, "fields": dict[str, Any]()})


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting}, timeout=timeout_s)
    waiting.cancel()
