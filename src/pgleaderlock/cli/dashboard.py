"""``pgleaderlock dashboard``: serve the page until a signal ends it."""

import asyncio
import os
import secrets
import signal
from collections.abc import Iterable
from typing import Any

import click

from pgleaderlock._base.checks import check_token
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.ops.dashboard import Dashboard, RegistrySource, Source, StoreSource, Watched
from pgleaderlock.postgres import _dsn
from pgleaderlock.stores import open_backend

TOKEN_VARIABLE = "PGLEADERLOCK_DASHBOARD_TOKEN"  # noqa: S105 - the name of it
_LOOK_EVERY_S = 1.0


def choose_token(*, allow_actions: bool) -> str | None:
    """Return the token for actions: that of the variable, or a new one; None if actions are not allowed."""
    if not allow_actions:
        return None
    if TOKEN_VARIABLE in os.environ:
        with wrong_usage(said=f"${TOKEN_VARIABLE} {{}}; or unset it."):
            return check_token(os.environ[TOKEN_VARIABLE])
    return secrets.token_urlsafe(24)


def registry_source(dsn: str, place: ShownRoles, window_s: float) -> Source:
    """Return a source that reads the registry of a database."""
    where = _dsn.describe(_dsn.check_dsn(dsn))
    return RegistrySource(
        dsn, place.schema, where=where, window_s=window_s, roles=place.roles, schema_owner=place.owner
    )


def store_source(urls: Iterable[str], window_s: float) -> Source:
    """Return a source that reads the holders of locks in any stores: each URL is one role."""
    backends = {}
    for url in urls:
        with wrong_usage((ValueError, PgLeaderLockError)):
            backend = open_backend(url)
        backends[" ".join(f"{name}={value}" for name, value in backend.labels.items())] = backend
    return StoreSource(backends, where=", ".join(backends), interval_s=_LOOK_EVERY_S, window_s=window_s)


async def serve(source: Source, place: ShownRoles | None = None, *, token: str | None, **serving: Any) -> None:
    """Serve the page until a signal comes, with the alerts of the place that it shows."""
    ended = asyncio.Event()

    def end(_signal: signal.Signals) -> None:
        ended.set()

    dashboard = Dashboard(source, token=token, watched=None if place is None else Watched(*place.alerting), **serving)
    with call_on_signal(end):
        with wrong_usage((PgLeaderLockError,), said="{}; --port 0 is any free one."):
            await dashboard.start()
        try:
            # A token that the operator chose is known to its users, and must not appear in a service's log.
            is_ours = token is not None and TOKEN_VARIABLE not in os.environ
            fragment = f"#token={token}" if is_ours else ""
            click.echo(f"dashboard: {dashboard.url}{fragment}")
            click.echo(f"shows {visible(source.where)}; Ctrl-C ends it", err=True)
            await ended.wait()
        finally:
            await dashboard.close()
