"""End the leadership of a lock in a test, in the store, as it is ended in production.

:func:`lose_leadership` changes nothing in the election. On PostgreSQL it ends the lock session on the server, as
``pg_terminate_backend`` of an administrator does; in memory it writes another candidate's name into the record. The
election then finds out by itself. So state, ``is_leader``, the order of events, callbacks and leader tasks are those of
a real loss.

What this does not show: a loss that is noticed late, because the process was frozen or the network was silent (then
leadership ends by the clock, and work may overrun: simulate that with :func:`pgleaderlock.testing.simulate`), and a
successor that acts. In memory the cause is ``held_by_another``; on PostgreSQL it is ``session_terminated``. Another
store's causes differ again.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, overload

from pgleaderlock.engine.election import Election
from pgleaderlock.errors import LockError
from pgleaderlock.models import Event, EventKind
from pgleaderlock.stores.memory import MemoryStore
from pgleaderlock.stores.record import Claim, RecordBackend
from pgleaderlock.sync._blocking import BlockingElection

__all__ = ["lose_leadership"]

_OTHER = "another candidate"
_END_S = 10.0
_END_SESSION = "SELECT pg_terminate_backend(%s)"
_OUTCOMES = (EventKind.LOST, EventKind.RECOVERED, EventKind.RELEASED, EventKind.STOPPED)


@overload
def lose_leadership(lock: Election) -> Coroutine[Any, Any, Event]: ...
@overload
def lose_leadership(lock: BlockingElection[Any]) -> Event: ...
def lose_leadership(lock: Election | BlockingElection[Any]) -> Coroutine[Any, Any, Event] | Event:
    """End the current term of this lock in its store, and return the event once all listeners were notified of it.

    ``await lose_leadership(lock)``; without ``await`` for a lock of ``pgleaderlock.sync``. The lock is a ``LeaderLock``
    on psycopg's connections, or an election on a store in memory. The event is LOST; with a grace period it may be
    RECOVERED instead, as in production. In memory, another candidate then holds the record for one lease.

    LockError if the lock does not lead, TypeError if it is on another store.
    """
    if isinstance(lock, BlockingElection):
        engine = lock._engine  # noqa: SLF001 - of this package
        if lock._callbacks.is_here:  # noqa: SLF001
            raise _inside(engine)
        return lock._call(lambda _: _lose(engine))  # noqa: SLF001
    if not isinstance(lock, Election):
        raise TypeError(f"lose_leadership() takes a lock or an election, not {type(lock).__name__}")
    return _lose(lock)


async def _lose(election: Election) -> Event:
    run = election._run_here()  # noqa: SLF001 - of this package, as all below
    if run is not None and election._is_inside(run):  # noqa: SLF001
        raise _inside(election)
    if not election.is_leader:
        raise LockError(f"{_named(election)} does not lead, so it can lose nothing: wait_for_leadership() first")
    outcome: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def note(event: Event) -> None:
        if event.kind in _OUTCOMES and not outcome.done():
            outcome.set_result(event)

    end = _end_in_store(election)
    election.subscribe(note)  # the last of the listeners: when it is notified, all others were
    await end
    return await outcome


def _end_in_store(election: Election) -> Coroutine[Any, Any, None]:
    backend = election._backend  # noqa: SLF001
    name = election.labels.get("memory")
    if isinstance(backend, RecordBackend) and isinstance(name, str):
        return _take_record(MemoryStore(name))
    from pgleaderlock.lock import LeaderLock  # noqa: PLC0415 - psycopg is imported only where it is used
    from pgleaderlock.postgres.advisory import LeasedLockBackend  # noqa: PLC0415

    if isinstance(election, LeaderLock) and isinstance(backend, LeasedLockBackend):
        return _end_lock_session(election, backend._pair.lock_session.facts.session_pid)  # noqa: SLF001
    raise TypeError(
        f"lose_leadership() can end the leadership of a LeaderLock on psycopg's connections and of an election in "
        f"memory, not that of {_named(election)} ({type(election).__name__} on {type(backend).__name__})"
    )


async def _take_record(store: MemoryStore) -> None:
    """Write another candidate's name into the record, as that candidate would after the lease."""
    while (record := await store.read()) is not None:
        claim = Claim(_OTHER, record.token + 1, record.lease_s, is_new_term=True)
        if await store.write(claim, record) is not None:  # None: a renewal was faster
            return


async def _end_lock_session(lock: Any, pid: int) -> None:
    connection = await lock._connector.open(bound_s=_END_S)  # noqa: SLF001
    try:
        row = await connection.fetch(_END_SESSION, (pid,), bound_s=_END_S)
    finally:
        await connection.close()
    if row is None or not row[0]:
        raise LockError(f"the lock session of {_named(lock)} (pid {pid}) could not be ended: it has ended already")


def _inside(election: Election) -> LockError:
    return LockError(
        f"lose_leadership() of {_named(election)} would wait for itself in one of its callbacks, leader tasks or "
        "leading() blocks, or in a task that one of them created: create the task before the block, or call it from "
        "outside"
    )


def _named(election: Election) -> str:
    return " ".join(f"{name}={value}" for name, value in election.labels.items())
