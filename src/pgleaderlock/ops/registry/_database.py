"""The registry's own connection, and what other sessions send to it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.clock import Clock
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres._tables import TableConnection
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.postgres.session import Parameters, Row

__all__ = ["Database", "Notification", "Row"]

_MOST_SENDERS = 1000
_MORE_ROOM = "SELECT set_config('statement_timeout', %(limit)s, true), set_config('work_mem', '64MB', true)"
_TIME = "SELECT extract(epoch FROM clock_timestamp())::float"
_QUERY_CANCELED = "57014"


@dataclass(frozen=True, slots=True)
class Notification:
    """What one session sent last."""

    pid: int
    """Of the session that sent it: the server's word."""
    payload: str
    at: float
    """When it was read, on our own clock."""


class Database(TableConnection):
    """The connection to the tables of the registry, or none."""

    TABLES = ("nodes", "candidates", "leaders", "history")
    LATER_TABLES = ("asks",)
    # A server does not notice that we hang up while it waits for a lock: without these, sessions would pile up there.
    LIMITS = "SELECT set_config('lock_timeout', '5s', false), set_config('statement_timeout', '8s', false)"

    def __init__(self, dsn: Dsn, schema: str, clock: Clock, *, owner: str | None = None) -> None:
        super().__init__(Connector("the registry", dsn=dsn), schema, owner=owner)
        self._clock = clock
        self._heard: dict[int, Notification] = {}
        self.heard_count = 0
        """How many notifications came, ever."""

    async def open(self, *, makes_tables: bool = True) -> None:
        """Connect, and make the tables unless they are there. Without ``makes_tables``: to read, and to ask."""
        self._grant = "--grant-to" if makes_tables else "--grant-asks-to"
        await super().open(makes_tables=makes_tables)

    async def fetch_patiently(self, statement: str, parameters: Parameters, limit_s: float) -> list[Row]:
        """Run one statement that has much to read: it may take longer than others, and more memory."""
        async with self.transaction(bound_s=limit_s) as fetch_all:
            await fetch_all(_MORE_ROOM, {"limit": f"{limit_s * 900:.0f}ms"})
            return await fetch_all(statement, parameters)

    async def run_all(self, work: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Run all of them, or none."""
        async with self.transaction() as fetch_all:
            for statement, parameters in work:
                await fetch_all(statement, parameters)

    async def time(self) -> tuple[float, float, float]:
        """Ask for the server's time of day; return it with when we asked and when the answer came, on our clock."""
        sent = self._clock()
        rows = await self.fetch(_TIME)
        return sent, self._clock(), float(rows[0][0])

    def _advice(self, sqlstate: str | None) -> str:
        if sqlstate == _QUERY_CANCELED:
            return "The server is busy, or the history is long: try again, or ask for a shorter time"
        return super()._advice(sqlstate)

    # --- Notifications -------------------------------------------------------------------------------------------

    async def listen(self, channel: str) -> None:
        """Have the notifications of this channel sent here."""
        await self._connected().listen(channel, self._hear)

    async def stop_listening(self) -> None:
        """Have no notifications sent here any more."""
        await self.fetch("UNLISTEN *")

    @contextlib.contextmanager
    def watched(self, readable: Callable[[], None]) -> Iterator[None]:
        """While nothing is asked of it, call this when something comes."""
        with contextlib.nullcontext() if self._connection is None else self._connection.readable(readable):
            yield

    def notifications(self) -> list[Notification]:
        """Return what came, also during a call. If what came was the end of the connection, it is closed."""
        if self._connection is not None:
            self._connection.receive()
        heard, self._heard = self._heard, {}
        return list(heard.values())

    def _hear(self, pid: int, payload: str) -> None:
        """Keep the newest of each session, so that one that sends a million neither fills memory nor hides another."""
        self.heard_count += 1
        if pid in self._heard or len(self._heard) < _MOST_SENDERS:
            self._heard[pid] = Notification(pid, payload, self._clock())
