"""The lock that a command is about, in any store.

``--dsn`` and a ``--url`` of PostgreSQL mean the session lock, for which the server also shows the queue. Any other
``--url`` is a backend that can at least name its holder, or say why it might have none.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import click

from pgleaderlock._base.schemes import is_postgres
from pgleaderlock.cli.console import key_fields, visible
from pgleaderlock.cli.database import CHECK_DSN
from pgleaderlock.cli.election_options import given_settings
from pgleaderlock.cli.options import LockName, wrong_usage
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.options import BY_NAME, DEFAULT_SCHEMA
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._status import Candidate, inspect_lock
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores import open_backend
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import RecordBackend


@dataclass(frozen=True, slots=True)
class Sight:
    """What a store shows about a lock at one moment."""

    candidates: list[Candidate]
    """The holder, then the followers that the store shows."""
    note: str = ""
    """Why candidates may be unable to lead, which "free" and "held" do not show; empty if there is no reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """The lock of one election."""

    name: str
    """For people."""
    described: str
    """The name, with everything that distinguishes it from other locks."""
    fields: dict[str, Any]
    """The fields that name the lock in JSON. Never a secret."""
    look: Callable[[], Awaitable[Sight]]
    """Read the store; ConnectionError if it does not answer."""
    advice: str = ""
    """What to check when the store does not answer."""
    has_quiet_followers: bool = False
    """Whether the store shows some of the followers, and not those that are quiet."""
    watched: dict[str, Any] = field(default_factory=dict, repr=False)
    """The arguments of ``watch_leader`` and ``find_leader``, with their secrets."""


def as_dsn(url: str | None, dsn: str | None) -> tuple[str | None, str | None]:
    """Return URL and DSN with a ``postgresql://`` URL moved to the DSN: it is a connection string."""
    return (None, url) if url is not None and is_postgres(url) else (url, dsn)


def check_url(url: str | None, named: LockName) -> str | None:
    """Return the URL of a store that is not PostgreSQL's session locks, or None where ``--dsn`` is meant."""
    if url is None:
        return None
    numbers = {"--key": named.key, "--key1": named.key1, "--key2": named.key2}
    given = [flag for flag, value in numbers.items() if value is not None]
    given += [BY_NAME[name].flag for name in given_settings() if BY_NAME[name].scope == "sessions"]
    if given:
        raise click.UsageError(
            f"only for sessions of PostgreSQL, with --dsn or a postgresql:// URL: {', '.join(given)}"
        )
    return url


def in_postgres(dsn: str, key: LockKey, schema: str | None = None, owner: str | None = None) -> Target:
    """Return the session lock of this key. The schema is that of the tables which show its token."""

    async def look() -> Sight:
        return Sight(*await inspect_lock(dsn, key))

    watched = {"url": dsn, "key": key, "schema": schema or DEFAULT_SCHEMA, "schema_owner": owner}
    name, fields = key.role or str(key), key_fields(key)
    return Target(name, key.described, fields, look, CHECK_DSN, has_quiet_followers=True, watched=watched)


def store_options(url: str, schema: str | None, owner: str | None) -> dict[str, Any]:
    """Return further keywords of a backend: only lease rows have a schema."""
    options = {name: value for name, value in (("schema", schema), ("schema_owner", owner)) if value is not None}
    if options and not url.lower().startswith("postgresql+lease://"):
        flag = next(iter(options)).replace("_", "-")
        raise click.UsageError(f"--{flag} is only for tables of PostgreSQL: this store has none.")
    return options


def in_store(url: str, role: str | None, schema: str | None = None, owner: str | None = None) -> Target:
    """Return the lock that this URL names, in any store."""
    if role is not None and "://" in role:
        raise click.UsageError("--role takes a name, and this is a connection string.")
    options = store_options(url, schema, owner)
    with wrong_usage((ValueError, TypeError, PgLeaderLockError)):
        backend = open_backend(url, role=role, **options)  # only to read, not to take part

    async def look() -> Sight:
        try:
            if not isinstance(backend, RecordBackend):  # it can be read without open(), which may need more rights
                await backend.open()
            return await _sight_of(backend)
        finally:
            await backend.close()

    shown = visible(_without_secrets(url))
    described, fields = f"{role} ({shown})" if role else shown, {"url": shown, "role": role}
    return Target(role or shown, described, fields, look, watched={"url": url, "role": role, **options})


async def _sight_of(backend: Backend) -> Sight:
    holder = await backend.holder()
    if holder is not None:
        return Sight([Candidate(granted=True, holder=holder)])
    return Sight([], await backend.explain_absence() if isinstance(backend, RecordBackend) else "")


def _without_secrets(url: str) -> str:
    """Return the part of the URL that names the store, without password and options."""
    scheme, _, rest = url.partition("://")
    if scheme == "postgresql+lease":  # its password may contain any character
        return f"{scheme}:// {_dsn.describe(_dsn.check_dsn('postgresql://' + rest))}"
    place = rest.partition("?")[0].partition("#")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"
