"""``LeaderElectionService``: one question at start-up, "am I the leader?", for services that are made of threads.

    service = LeaderElectionService("postgresql://app@db/app")
    if service.try_acquire_leadership():
        start_schedulers()

Every node asks; one is told True and goes on leading, on a dedicated connection, until it releases or ends. The others
are told False at once. After a start of the server the one that holds the lock is told True after one lease at the
latest: a leader from before the start, cut off from the server, may be valid for so long. Asked like that, nodes ask
once: to take over from a leader that dies they must keep trying, which is :meth:`LeaderElectionService.start`.

Underneath is the one engine, behind the blocking API: a lease that PostgreSQL enforces, a witness, a queue.
``is_leader()`` is therefore no flag, but a comparison with a clock, and False before another can lead. The lock itself
is the plain ``pg_advisory_lock(LOCK_ID)`` of PostgreSQL's bigint space: a session of any program that holds it is
respected, and respects us.

Not promised: that work which was started as a leader stops by itself. ``on_lost`` is told, in time; stopping is its.
"""

import threading
from typing import Any, ClassVar, Self, TypeVar

from pgleaderlock._base.checks import check_callable, check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import Callback, Event, EventKind
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres.backend import Connector, make_backend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.retry import RetryStrategy
from pgleaderlock.stores.times import USUAL_LEASE_S
from pgleaderlock.sync._blocking import BlockingElection

__all__ = ["LeaderElectionService"]

C = TypeVar("C", bound=Callback)

_STATEMENT_TIMEOUT_S = 5.0
_ATTEMPT_S = 6.0  # for one statement that takes all of its time, and what is around it; not for what is waited for
_GIVE_UP_S = 1.0
_ENDS = (EventKind.LOST, EventKind.RELEASED, EventKind.STOPPED)
# After one of these, an attempt or a term is over.
_OUTCOMES = (EventKind.ACQUIRE_FAILED, EventKind.ERROR, EventKind.LOST, EventKind.RELEASED)


class LeaderElectionService:
    """One node's part in electing the one that runs what must run once. Use it from any thread.

    All nodes must have the same ``LOCK_ID``: of a subclass, or passed as ``lock_id``; any bigint will do. And the same
    ``lease_s``, which is how long a leader that is frozen or cut off keeps the others waiting. ``settle_s`` is how long
    after the server's start no candidate leads, by default the lease; 0 only for a server without a past.

    The connection is dedicated, autocommit, and never from a pool; a leader has a second one for its witness.
    Keepalives (after 10 s, every 5 s, 3 times) and a statement time-out of 5 s are set unless the URL says otherwise.
    """

    LOCK_ID: ClassVar[int] = 0x50474C4C_5F4C4452
    """The lock, in PostgreSQL's space of bigint advisory locks."""

    def __init__(
        self,
        postgres_url: Dsn,
        lock_id: int | None = None,
        *,
        lease_s: float = USUAL_LEASE_S,
        settle_s: float | None = None,
        retry_strategy: RetryStrategy | None = None,
        clock: Clock = suspend_aware_clock,
    ) -> None:
        key = LockKey.bigint(self.LOCK_ID if lock_id is None else lock_id)
        limit_s = _dsn.statement_timeout_s(_dsn.check_dsn(postgres_url)) or _STATEMENT_TIMEOUT_S
        lease = Lease(check_seconds("lease_s", lease_s), settle_s=settle_s, statement_timeout_s=limit_s)
        self._backend = make_backend(key, lease, clock, Connector(key, dsn=postgres_url, lease=lease))
        self._longest_wait_s = max(lease.lease_s, lease.settle_s or 0.0)
        engine = Election(
            self._backend, retry_strategy=retry_strategy, health_interval_s=lease.renew_every_s, clock=clock
        )
        self._engine = engine
        self._key = key
        self._standing = threading.Event()  # set while we are to keep trying
        self._failure: Exception | None = None
        self._is_in_term = False  # only touched on the callbacks' thread
        self._on_acquired: list[Callback] = []
        self._on_lost: list[Callback] = []
        self._election = BlockingElection(engine)
        engine.subscribe(self._stop_unless_standing)
        self._election.subscribe(self._tell)
        self._election.before_release(self._end_term)

    # --- Asking once -------------------------------------------------------------------------------------------

    def try_acquire_leadership(self) -> bool:
        """Try to become the leader, now. True when we lead, also if we did before; False when another node does.

        A node that finds the lock taken returns False at once. The one node that holds the lock returns True: in
        milliseconds as a rule; within one lease after a start of the server, because a leader from before the start may
        be valid for so long, or while a leader before us still stops. A line in the log, ``settling``, says so
        meanwhile. An answer of the server is waited for for some 5 s; :class:`~pgleaderlock.ConnectionError` says that
        the database could not be asked. After :meth:`start` it does not try by itself, and only answers.
        """
        if self.is_leader():
            return True
        if self._standing.is_set():
            return False
        self._failure = None
        self._election.start()
        return self._wait_for_answer() or self._give_up_attempt()

    def _wait_for_answer(self) -> bool:
        """Wait for one answer; and while the lock is ours and a former leader may be valid, for its lease too."""
        if self._election.wait_for_leadership(_ATTEMPT_S):
            return True
        return self._backend.holds_lock and self._election.wait_for_leadership(self._longest_wait_s)

    def _give_up_attempt(self) -> bool:
        """End an attempt that brought no leadership; ConnectionError where the server did not answer."""
        state = self._election.state
        if self._standing.is_set() or state.leads:  # start() came in between; on_acquired takes its time
            return self.is_leader()
        self._election.shutdown(_GIVE_UP_S)
        if self._failure is not None:
            raise self._failure
        if state.is_following:
            raise ConnectionError(
                f"no answer within {_ATTEMPT_S:g} s to the question who leads {self._key.described}: is the database "
                "of the URL up, and the network between?"
            )
        return False

    def is_leader(self) -> bool:
        """Whether this node leads now. Never blocks; False the moment that leadership cannot be relied upon."""
        return self._election.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of this term: greater than every earlier leader's. None when not leading."""
        return self._election.token

    def release(self) -> None:
        """Give leadership up, and stop trying. When it returns, another can have the lock. May be repeated.

        Tells ``on_lost`` first, and renews while it runs, for 10 s at most. In a callback it only asks.
        """
        self._standing.clear()
        self._election.shutdown()

    # --- Standing for election ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Keep trying in the background, and lead again after each loss, until :meth:`stop`. Returns at once."""
        self._standing.set()
        self._election.start()

    def stop(self) -> None:
        """Stop trying, and release. The same as :meth:`release`."""
        self.release()

    def on_acquired(self, fn: C) -> C:
        """Call ``fn()`` when this node became the leader, however that came; in a thread of the service's own."""
        check_callable("the on_acquired callback", fn)
        self._on_acquired.append(fn)
        return fn

    def on_lost(self, fn: C) -> C:
        """Call ``fn()`` once when a term ends, asked for or not, while no other node can lead yet: to stop the work.

        On the same thread as ``on_acquired``, and after it has returned.
        """
        check_callable("the on_lost callback", fn)
        self._on_lost.append(fn)
        return fn

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<LeaderElectionService {self._key!r} {self._election.state.value}>"

    # --- Hearing -----------------------------------------------------------------------------------------------

    async def _stop_unless_standing(self, event: Event) -> None:
        """Back among the followers, whether refused or after a loss: only who was asked to keeps trying."""
        if event.kind is EventKind.ERROR and event.from_state.is_following and event.to_state.is_following:
            self._failure = event.error
        if event.kind in _OUTCOMES and not self._standing.is_set():
            await self._engine.shutdown()  # in a listener, this only asks

    def _tell(self, event: Event) -> None:
        if event.kind is EventKind.ACQUIRED:
            self._is_in_term = True
            _call_all(self._on_acquired)
        elif event.kind in _ENDS:
            self._end_term()

    def _end_term(self) -> None:
        if self._is_in_term:
            self._is_in_term = False
            _call_all(self._on_lost)


def _call_all(callbacks: list[Any]) -> None:
    """Call each, whatever another raised; then raise what they did, for the engine to report."""
    errors: list[Exception] = []
    for callback in tuple(callbacks):
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - a user's
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several callbacks failed", errors)
