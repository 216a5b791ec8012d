"""The ledger's own connection."""

from pgleaderlock.postgres._durability import FLUSHED
from pgleaderlock.postgres._tables import TableConnection
from pgleaderlock.postgres.session import Parameters, Row

__all__ = ["LedgerConnection", "Row"]


class LedgerConnection(TableConnection):
    """The connection to the tables of the ledger, or none."""

    TABLES = ("tick_jobs", "ticks", "terms")  # a claim looks at the term row too
    # Waits for a lock must be short, because all jobs share the connection; and if this process is frozen between two
    # statements, a successor must not wait for it for long.
    LIMITS = f"""
SELECT {FLUSHED}, set_config('lock_timeout', '500ms', false), set_config('statement_timeout', '8s', false),
       set_config('idle_in_transaction_session_timeout', '1s', false), set_config('TimeZone', 'UTC', false),
       set_config('default_transaction_isolation', 'read committed', false)
"""

    async def fetch_both(self, first: str, second: str, parameters: Parameters) -> tuple[list[Row], list[Row]]:
        """Run two statements in one transaction; the second only if the first has an answer."""
        async with self.transaction() as fetch_all:
            rows = await fetch_all(first, parameters)
            return rows, await fetch_all(second, parameters) if rows else []
