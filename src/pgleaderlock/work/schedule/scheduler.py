"""The scheduled jobs of one lock: each is a leader task that claims its slots in the ledger before it runs them."""

from collections.abc import Callable
from typing import Any

from pgleaderlock._base.checks import check_callable
from pgleaderlock.engine._leader_task import LeaderTask, WorkPolicy
from pgleaderlock.engine.leader_tasks import LeaderTasks
from pgleaderlock.errors import LockError
from pgleaderlock.postgres._connector import ConnectFn, Connector
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.work.schedule._connection import LedgerConnection
from pgleaderlock.work.schedule._ledger import Ledger
from pgleaderlock.work.schedule._runner import Job, JobRunner
from pgleaderlock.work.schedule.policy import JobPolicy
from pgleaderlock.work.schedule.timetable import Schedule

__all__ = ["Scheduler"]

_LONGEST_NAME = 200


class Scheduler:
    """All jobs of one lock, with the ledger that they share."""

    def __init__(
        self,
        leader_tasks: LeaderTasks,
        key: LockKey,
        lease: Lease,
        *,
        dsn: Dsn | None = None,
        connect_fn: ConnectFn | None = None,
    ) -> None:
        self._leader_tasks = leader_tasks
        self._host = leader_tasks.host
        self._key = key
        self._lease = lease
        connector = Connector(f"the tick ledger of {key.described}", dsn=dsn, connect_fn=connect_fn)
        connection = LedgerConnection(connector, lease.schema, owner=lease.schema_owner)
        self._ledger = Ledger(connection, key, lease, self._host.logger)
        self._names: set[str] = set()

    def add(self, schedule: Schedule, fn: Callable[..., Any], name: str | None, policy: JobPolicy) -> None:
        """Run the function at the times of the schedule from now on."""
        check_callable("the job", fn)
        if not self._lease.term_table:
            raise LockError(
                f"scheduled work needs the term table, which lock {self._key.described} does not use: pass "
                "term_table=True, to all candidates"
            )
        job = Job(self._named(fn, name), schedule, fn, policy)
        runner = JobRunner(job, self._ledger, self._host)
        self._names.add(job.name)
        self._leader_tasks.enroll(LeaderTask(runner.live, WorkPolicy(drains=True), self._host, f"job {job.name}"))

    def _named(self, fn: Callable[..., Any], name: str | None) -> str:
        chosen = getattr(fn, "__qualname__", "") if name is None else name
        if not isinstance(chosen, str):
            raise TypeError(f"name must be a str, not {type(chosen).__name__}")
        if not chosen or "<lambda>" in chosen:
            raise ValueError("give the job a name=: the ledger identifies it by that, in every process and for ever")
        if len(chosen) > _LONGEST_NAME or not chosen.isprintable():
            raise ValueError(f"name must be at most {_LONGEST_NAME} printable characters")
        if chosen in self._names:
            raise ValueError(
                f"there is a job {chosen!r} already: give each its own name=, by which the ledger identifies it"
            )
        return chosen
