"""Which lock, in which store: what the commands need to know of it, whatever keeps it.

``--dsn`` and a ``--url`` of PostgreSQL mean the session lock, of which the server shows who waits as well. Any other
``--url`` is a backend that can at least name its holder, or say why it might have none.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import click

from pgleaderlock.backends import _dsn, open_backend
from pgleaderlock.backends._pg_status import Contender, inspect_lock
from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.record import RecordBackend
from pgleaderlock.cli.console import key_fields, visible
from pgleaderlock.cli.database import CHECK_DSN
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.keys import LockKey

__all__ = ["Sight", "Target", "in_postgres", "in_store", "is_postgres", "store_options"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a store showed of a lock."""

    contenders: list[Contender]
    """Who holds it, and then who waits for it where the store shows that."""
    note: str = ""
    """What "free" and "held" do not say: why no candidate may be able to lead."""


@dataclass(frozen=True, slots=True)
class Target:
    """One lock that an election is about."""

    name: str
    """For people."""
    described: str
    """The same, with everything that tells it from others."""
    fields: dict[str, Any]
    """For programs. Never a secret."""
    look: Callable[[], Awaitable[Sight]]
    """Ask the store; ConnectionError if it does not say."""
    advice: str = ""
    """What to check when the store does not answer."""


def is_postgres(url: str) -> bool:
    """Whether this URL is a connection string of PostgreSQL's, for its session locks."""
    return url.partition("://")[0] in ("postgresql", "postgres")


def in_postgres(dsn: str, key: LockKey) -> Target:
    """The session lock of this key."""

    async def look() -> Sight:
        return Sight(*await inspect_lock(dsn, key))

    return Target(key.role or str(key), key.described, key_fields(key), look, CHECK_DSN)


def store_options(url: str, schema: str | None, owner: str | None) -> dict[str, Any]:
    """Return what a backend is told besides: only lease rows have a schema, and must not look in another."""
    options = {name: value for name, value in (("schema", schema), ("schema_owner", owner)) if value is not None}
    if options and not url.lower().startswith("postgresql+lease://"):
        flag = next(iter(options)).replace("_", "-")
        raise click.UsageError(f"--{flag} is about tables of PostgreSQL: this store has none.")
    return options


def in_store(url: str, role: str | None, schema: str | None = None, owner: str | None = None) -> Target:
    """The lock that this URL names, in whatever store."""
    if role is not None and "://" in role:
        raise click.UsageError("--role takes a name, and this is a connection string.")
    try:
        backend = open_backend(url, role=role, **store_options(url, schema, owner))  # to be asked, not to compete
    except (ValueError, TypeError, PgLeaderLockError) as error:
        raise click.UsageError(str(error)) from error

    async def look() -> Sight:
        try:
            if not isinstance(backend, RecordBackend):  # of which a look is all that is wanted, and may be all there is
                await backend.open()
            return await _sight_of(backend)
        finally:
            await backend.close()

    shown = visible(_without_secrets(url))
    return Target(role or shown, f"{role} ({shown})" if role else shown, {"url": shown, "role": role}, look)


async def _sight_of(backend: Backend) -> Sight:
    holder = await backend.holder()
    if holder is not None:
        return Sight([Contender(granted=True, holder=holder)])
    return Sight([], await backend.explain_absence() if isinstance(backend, RecordBackend) else "")


def _without_secrets(url: str) -> str:
    """Keep what names the store; a user's password and the options after it are nobody's business."""
    scheme, _, rest = url.partition("://")
    if scheme == "postgresql+lease":  # of which a password may have anything in it
        return f"{scheme}:// {_dsn.describe(_dsn.check_dsn('postgresql://' + rest))}"
    place = rest.partition("?")[0].partition("#")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"
