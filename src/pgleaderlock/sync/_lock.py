"""``sync.LeaderLock``: the blocking election on a PostgreSQL advisory lock."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from pgleaderlock.lock import LeaderLock as AsyncLeaderLock
from pgleaderlock.postgres._fence import Connection
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.sync._arguments import takes_arguments_of
from pgleaderlock.sync._blocking import BlockingElection, refuse_coroutines
from pgleaderlock.sync._once import BlockingOnce

if TYPE_CHECKING:
    from pgleaderlock.work.schedule.policy import IfKilled
    from pgleaderlock.work.schedule.registration import JobOptions

W = TypeVar("W", bound=Callable[..., Any])


class LeaderLock(BlockingElection[AsyncLeaderLock]):
    """Makes exactly one of N processes the leader, on the PostgreSQL that they share; for callers that block.

    ``with lock`` takes part in the election; it does not wait until this process leads, as other locks do.
    ``with lock.leading()`` waits (:meth:`leading`).

        lock = LeaderLock("postgresql://app@db/app", role="billing/scheduler")

        @lock.on_lost
        def stop() -> None: ...

        with lock:
            lock.wait_for_leadership()
            while lock.is_leader:
                ...

    Takes the arguments of :class:`pgleaderlock.LeaderLock`, but for ``shutdown_event``: any thread may call
    :meth:`shutdown`. What you pass in (a ``connect_fn``, which stays a coroutine function, a retry strategy) is called
    on the background thread and must not block. It may compete with locks of the asyncio API for the same key.
    """

    @takes_arguments_of(AsyncLeaderLock)
    def __init__(self, engine: AsyncLeaderLock) -> None:
        super().__init__(engine)

    @property
    def key(self) -> LockKey:
        """The key of this lock."""
        return self._engine.key

    @overload
    def every(self, interval: str | float, fn: W, **options: "Unpack[JobOptions]") -> W: ...
    @overload
    def every(self, interval: str | float, **options: "Unpack[JobOptions]") -> Callable[[W], W]: ...
    def every(
        self, interval: str | float, fn: W | None = None, **options: "Unpack[JobOptions]"
    ) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, in a thread at every multiple of the interval, in the process that leads.

        Each slot is claimed in a ledger before it is run, by one term only: a failover runs none twice, and forgets
        none. :meth:`pgleaderlock.LeaderLock.every` says more. Needs ``term_table=True``.
        """
        return self._schedule(self._engine.every(interval, **options), fn)

    @overload
    def cron(self, expression: str, fn: W, *, tz: str = "UTC", **options: "Unpack[JobOptions]") -> W: ...
    @overload
    def cron(self, expression: str, *, tz: str = "UTC", **options: "Unpack[JobOptions]") -> Callable[[W], W]: ...
    def cron(
        self, expression: str, fn: W | None = None, *, tz: str = "UTC", **options: "Unpack[JobOptions]"
    ) -> W | Callable[[W], W]:
        """Run ``fn(tick)``, or ``fn()``, at the times of a cron expression in a time zone; otherwise as :meth:`every`.

        Needs the extra ``cron``.
        """
        return self._schedule(self._engine.cron(expression, tz=tz, **options), fn)

    def once(
        self,
        name: str,
        slot: datetime,
        *,
        if_killed: "IfKilled" = "leave",
        max_attempts: int = 5,
        keep_days: int = 30,
    ) -> BlockingOnce:
        """Let one of all processes that ask for this slot run it. None of them has to lead, or to take part.

            with lock.once("report", slot) as mine:
                if mine:
                    make_report()

        At most once by default: a slot whose process died in the block, or whose block raised an error, is not run
        again. With ``if_killed="repeat"`` the next process that asks runs a slot that was cut off again.
        :meth:`pgleaderlock.LeaderLock.once` says more.
        """
        once = self._engine.once(name, slot, if_killed=if_killed, max_attempts=max_attempts, keep_days=keep_days)
        return BlockingOnce(self._check_process, once)

    def _schedule(self, schedule: Callable[[W], W], fn: W | None) -> W | Callable[[W], W]:
        def register(work: W) -> W:
            refuse_coroutines("a job", work)
            self._on_the_loop(schedule, work)
            return work

        return register if fn is None else register(fn)

    def fence(self, connection: Connection[Any]) -> None:
        """Make the transaction of this psycopg connection fail unless we are still the newest leader.

        Inside your own transaction, on the database of the lock, in any thread:

            with connection.transaction():
                lock.fence(connection)
                connection.execute("INSERT INTO invoices ...")

        Raises :class:`~pgleaderlock.LeadershipLost` when a newer leader exists or we do not lead; the transaction is
        then aborted. Needs ``term_table=True``.
        """
        self._check_process()
        if not isinstance(connection, Connection):
            raise TypeError(
                f"fence() of pgleaderlock.sync takes a psycopg.Connection, not {type(connection).__name__}: with "
                "another driver, execute lock.fence_sql() in your transaction"
            )
        self._engine.fence(connection)

    def fence_sql(self) -> str:
        """Return :meth:`fence` as one SQL statement without parameters, for other drivers.

        It fails with SQLSTATE ``PGL01``. Valid for the current term only: ask for it in each transaction.
        """
        self._check_process()
        return self._engine.fence_sql()
