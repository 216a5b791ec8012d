"""``every`` and ``cron``: functions that run at certain times, in one process, each time once."""

from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, Unpack, overload

from pgleaderlock._bodies import Host, WorkPolicy
from pgleaderlock._checks import check_callable
from pgleaderlock._durations import parse_duration
from pgleaderlock.backends._connector import ConnectFn, Connector
from pgleaderlock.backends.lease import Lease
from pgleaderlock.errors import LockError
from pgleaderlock.gate import Gate
from pgleaderlock.keys import LockKey
from pgleaderlock.ticks._connection import LedgerConnection
from pgleaderlock.ticks._ledger import Ledger
from pgleaderlock.ticks._runner import Job, JobRunner
from pgleaderlock.ticks.cron import Cron
from pgleaderlock.ticks.policy import IfKilled, IfMissed, JobPolicy
from pgleaderlock.ticks.schedule import Every, Schedule

__all__ = ["JobOptions", "Scheduled", "Scheduler"]

W = TypeVar("W", bound=Callable[..., Any])
_LONGEST_NAME = 200


class JobOptions(TypedDict, total=False):
    """How a job is run when things do not go as they should. All of them may be left out."""

    name: str
    """What the ledger knows the job by, in every process and for ever. By default the function's."""
    if_killed: IfKilled
    """A slot whose run was cut off half-way: ``leave`` it (the default) or ``repeat`` it."""
    if_missed: IfMissed
    """Slots that nobody ran in time: run the newest ``once`` (the default), or ``all``, or ``skip`` them."""
    max_attempts: int
    """How often a slot is run at most, with ``repeat``; 5 by default."""
    max_missed: int
    """How many missed slots are run, with ``all``, the newest; 100 by default."""
    grace: str | float
    """How late a slot may begin, with ``skip``; by default half the time to the next one, at most a minute."""
    keep_days: int
    """How long the ledger keeps what happened; 30 by default."""


class Scheduler:
    """The scheduled jobs of one lock: gated work, with a ledger."""

    def __init__(
        self,
        gate: Gate,
        host: Host,
        key: LockKey,
        lease: Lease,
        *,
        dsn: str | None = None,
        connect_fn: ConnectFn | None = None,
    ) -> None:
        self._gate = gate
        self._host = host
        self._key = key
        self._lease = lease
        named = f"the tick ledger of {key.described}"
        connector = Connector(key, dsn=dsn, connect_fn=connect_fn, named=named)
        connection = LedgerConnection(connector, lease.schema, owner=lease.schema_owner)
        self._ledger = Ledger(connection, key, lease, host.logger)
        self._names: set[str] = set()

    def add(self, schedule: Schedule, fn: Callable[..., Any], name: str | None, policy: JobPolicy) -> None:
        """Run this at its times from now on."""
        check_callable("the job", fn)
        if not self._lease.term_table:
            raise LockError(
                f"scheduled work is claimed in the name of a term, which lock {self._key.described} does not write "
                "down: pass term_table=True, to all contenders"
            )
        job = Job(self._named(fn, name), schedule, fn, policy)
        runner = JobRunner(job, self._ledger, self._host)
        self._names.add(job.name)
        self._gate.add(runner.live, WorkPolicy(drains=True), f"job {job.name}")

    def _named(self, fn: Callable[..., Any], name: str | None) -> str:
        chosen = getattr(fn, "__qualname__", "") if name is None else name
        if not isinstance(chosen, str):
            raise TypeError(f"name must be a str, not {type(chosen).__name__}")
        if not chosen or "<lambda>" in chosen:
            raise ValueError("give the job a name: the ledger knows it by that, in every process and for ever")
        if len(chosen) > _LONGEST_NAME or not chosen.isprintable():
            raise ValueError(f"name must be at most {_LONGEST_NAME} printable characters")
        if chosen in self._names:
            raise ValueError(
                f"there is a job {chosen!r} already: give each its own name=, which the ledger knows it by"
            )
        return chosen


class Scheduled:
    """Registration of scheduled jobs."""

    _scheduler: Scheduler

    @overload
    def every(self, interval: str | float, fn: W, **options: Unpack[JobOptions]) -> W: ...
    @overload
    def every(self, interval: str | float, **options: Unpack[JobOptions]) -> Callable[[W], W]: ...
    def every(self, interval: str | float, fn: W | None = None, **options: Unpack[JobOptions]) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at every multiple of the interval, in whichever process leads.

        "5m" is at :00, :05, :10 by the database's clock, in UTC. Each slot is claimed in a ledger before it is run, by
        one term only: a failover runs none twice and forgets none. Coroutine functions are cancelled when leadership
        ends, plain ones run in a thread and look at ``tick.is_ending``. One run of a job at a time.

            @lock.every("5m", if_killed="repeat")
            async def send_reminders(tick: Tick) -> None: ...

        What a function raises is recorded, and not repeated. The other options are those of :class:`JobOptions`. Needs
        ``term_table=True``.
        """
        return self._schedule(Every(interval), fn, options)

    @overload
    def cron(self, expression: str, fn: W, *, tz: str = "UTC", **options: Unpack[JobOptions]) -> W: ...
    @overload
    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[JobOptions]) -> Callable[[W], W]: ...
    def cron(
        self, expression: str, fn: W | None = None, *, tz: str = "UTC", **options: Unpack[JobOptions]
    ) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at the times of a cron expression in a time zone; otherwise as :meth:`every`.

        ``@daily`` and its like are understood. What happens when clocks are changed: :mod:`pgleaderlock.ticks.cron`.
        Needs the extra ``cron``.
        """
        return self._schedule(Cron(expression, tz), fn, options)

    def _schedule(self, schedule: Schedule, fn: W | None, options: JobOptions) -> W | Callable[[W], W]:
        policy = _policy_of(options)

        def register(work: W) -> W:
            self._scheduler.add(schedule, work, options.get("name"), policy)
            return work

        return register if fn is None else register(fn)


def _policy_of(options: JobOptions) -> JobPolicy:
    if unknown := set(options) - set(JobOptions.__annotations__):
        raise TypeError(
            f"unknown option {', '.join(sorted(unknown))}: there are {', '.join(JobOptions.__annotations__)}"
        )
    settings: dict[str, Any] = {name: value for name, value in options.items() if name not in {"name", "grace"}}
    return JobPolicy(grace_s=_grace_s(options.get("grace")), **settings)


def _grace_s(grace: str | float | None) -> float | None:
    try:
        return None if grace is None else parse_duration(grace)
    except ValueError as error:
        raise ValueError(f"grace {error}") from None
