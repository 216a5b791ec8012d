"""Look at a lock from outside the election, on a connection of its own that is closed afterwards.

For display only: the answer may be out of date by the time it is read.
"""

from functools import partial

from pgleaderlock.postgres._activity import Candidate, election_candidates
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._standby import standby_problem
from pgleaderlock.postgres.keys import LockKey

__all__ = ["Candidate", "inspect_lock"]

_CALL_S = 10.0


async def inspect_lock(dsn: str, key: LockKey) -> tuple[list[Candidate], str]:
    """Return the holder of the lock, then the followers that show; and a text about what is wrong, or an empty one.

    ConnectionError if the database does not answer.
    """
    connection = await Connector(key, dsn=dsn).open()
    fetch_all = partial(connection.fetch_all, bound_s=_CALL_S)
    try:
        return await election_candidates(fetch_all, key), await standby_problem(fetch_all, key)
    finally:
        await connection.close()
