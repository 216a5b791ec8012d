"""A backend that this library does not have: a lease in a row of an SQLite database, for the processes of one host.

    pip install ./examples/third_party_backend
    pgleaderlock run --url 'sqlite:///var/lib/app/leases.db?scheduler'

It shows how little a backend of one's own is: a record that is read, and replaced if it is still the one that was read.
`pytest examples/third_party_backend` runs the contract over it, which all of the built-in ones keep too.
"""

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Mapping
from urllib.parse import unquote

from pgleaderlock import ConnectionError
from pgleaderlock.stores import BackendSettings
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import Claim, Record, RecordBackend, RecordStore

__all__ = ["SqliteStore", "open_sqlite"]

_BUSY_S = 5.0  # how long SQLite itself waits for another writer
_POLL_S = 0.1  # SQLite tells nobody that something has changed

_TABLE = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, token INTEGER NOT NULL, lease_s REAL NOT NULL, version TEXT NOT NULL
) STRICT
"""
_READ = "SELECT holder, token, lease_s, version FROM leases WHERE name = ?"
_FIRST = "INSERT INTO leases VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING RETURNING 1"
# One statement, so that nobody comes between the comparison and the replacement.
_REPLACE = (
    "UPDATE leases SET holder = ?, token = ?, lease_s = ?, version = ? WHERE name = ? AND version = ? RETURNING 1"
)


class SqliteStore(RecordStore):
    """The row of one name. Each call has a connection of its own, in a thread: SQLite waits for the disk."""

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name

    @property
    def labels(self) -> Mapping[str, object]:
        """Database and name."""
        return {"sqlite": self._path, "name": self._name}

    async def read(self) -> Record | None:
        """Read the row."""
        row = await self._execute(_READ, (self._name,))
        return None if row is None else Record(*row)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Replace the row if its version is the one that was read. A version is never used again."""
        values = (claim.holder, claim.token, claim.lease_s, secrets.token_hex(16))
        if replacing is None:
            done = await self._execute(_FIRST, (self._name, *values))
        else:
            done = await self._execute(_REPLACE, (*values, self._name, replacing.version))
        return None if done is None else Record(*values)

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:  # noqa: ARG002 - must be read anyway
        """Look again soon."""
        await asyncio.sleep(min(timeout_s, _POLL_S))
        return None

    async def _execute(self, statement: str, values: tuple[object, ...]) -> tuple[str, int, float, str] | None:
        return await asyncio.to_thread(self._execute_here, statement, values)

    def _execute_here(self, statement: str, values: tuple[object, ...]) -> tuple[str, int, float, str] | None:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)) as connection:
                connection.execute(_TABLE)
                found: list[tuple[str, int, float, str]] = connection.execute(statement, values).fetchall()
                return found[0] if found else None
        except sqlite3.Error as error:
            raise ConnectionError(f"the database {self._path} cannot be used: {error}") from error


def open_sqlite(url: str, settings: BackendSettings) -> Backend:
    """Return a candidate for the lease of ``sqlite:///path/to/file.db?name``."""
    path, _, name = url.removeprefix("sqlite://").partition("?")
    if not path.startswith("/") or not name:
        raise ValueError("a lease is named as sqlite:///path/to/file.db?name")
    if settings.role is not None or settings.options:
        raise ValueError("sqlite:// names one lease by its URL, and has no options")
    store = SqliteStore(unquote(path), unquote(name))
    return RecordBackend(store, identity=settings.identity, lease_s=settings.lease_s, clock=settings.clock)
