"""PostgreSQL: the backend of one lock, on sessions of psycopg.

A real psycopg connection gets the whole protocol (:mod:`.advisory`): a lease that the server enforces, the queue, a
witness lock. Anything else that ``connect_fn`` returns gets the three statements of the specification (:mod:`.plain`):
the first connection shows it (:class:`~pgleaderlock.postgres._connector.ForeignConnection`).
"""

from pgleaderlock._base.clock import Clock
from pgleaderlock.postgres._connector import ConnectFn, Connector
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease

__all__ = ["ConnectFn", "Connector", "Lease", "make_backend"]


def make_backend(key: LockKey, lease: Lease, clock: Clock, connector: Connector) -> LeasedLockBackend:
    """Return the backend of a lock. Its labels name the database too: the same key in another one is another lock."""
    database = {} if connector.database is None else {"db": connector.database}
    return LeasedLockBackend(
        key,
        connector.open_session,
        lease,
        clock,
        connector.where,
        labels={**key.labels, **database},
        connect_s=connector.connect_s,
        identity=connector.session_name,
    )
