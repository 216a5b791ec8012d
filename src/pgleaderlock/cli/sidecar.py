"""``pgleaderlock sidecar``: take part for a program in another language, and answer it over HTTP who leads."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import click

from pgleaderlock.cli.beside_config import config_for_lock
from pgleaderlock.cli.config import config_option
from pgleaderlock.cli.elect import elected
from pgleaderlock.cli.election_options import candidate_options, chosen_backoff
from pgleaderlock.cli.metrics import served_metrics
from pgleaderlock.cli.options import LockName, listen_options, metrics_port_option, seconds_option, wrong_usage
from pgleaderlock.cli.run import take_part
from pgleaderlock.cli.target import Target
from pgleaderlock.cli.words import texts
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.stores.watching import LeaderView

_PORT = 4040  # as in pgleaderlock.ops.sidecar, which needs an extra
_LONGEST_NOTICE_S = 5.0  # the release has to fit into the ten seconds that a supervisor allows


@click.command("sidecar", **texts("sidecar"))
@candidate_options
@listen_options(_PORT)
@seconds_option(
    "--notice",
    "On SIGTERM, answer for this long that this process does not lead, then release the lock: the time between two "
    "questions of your program.",
    default=0.0,
    zero_ok=True,
)
@config_option
@metrics_port_option
@click.pass_context
def sidecar(
    context: click.Context,
    *,
    config_file: Path | None,
    metrics_port: int | None,
    dsn: str | None,
    url: str | None,
    named: LockName,
    retry_base_s: float,
    retry_max_s: float,
    quiet: bool,
    host: str,
    port: int,
    notice_s: float,
) -> None:
    """Take part in the election for a program beside this one, and answer it over HTTP who leads.

    GET /leader answers 200 if this process leads and 503 if not; GET /election 200 if it is known who leads, 503 if
    not; both the same JSON. GET / answers {"name": HOST}, as the image leader-elector did. GET /healthz and /readyz
    are for probes.

    SIGTERM releases the lock and exits. There is no password: everyone who can reach the address can read who leads,
    so it listens on this machine only, unless --host says otherwise.

    With --config, --role is a role of that file. Its store and times apply unless an option overrides them.
    """
    if notice_s > _LONGEST_NOTICE_S:
        raise click.UsageError(f"--notice must be at most {_LONGEST_NOTICE_S:g} seconds.")
    configured = config_for_lock(context, config_file, takes_part=True)
    # A configuration has its own interval between attempts.
    own: dict[str, Any] = {} if configured else {"retry_strategy": chosen_backoff(retry_base_s, retry_max_s)}
    level = "INFO" if quiet else "DEBUG"
    with (
        elected(dsn, url, named, configured=configured, log_level=level, **own) as (lock, target),
        served_metrics(lock, target.name, metrics_port),
    ):
        if notice_s:
            lock.before_release(partial(asyncio.sleep, notice_s))
        code = asyncio.run(_serve(lock, target, host, port))
    context.exit(code)


async def _serve(lock: Election, target: Target, host: str, port: int) -> int:
    from pgleaderlock.ops.sidecar import Sidecar  # noqa: PLC0415 - it needs an extra of its own

    with wrong_usage((ValueError,)):
        answering = Sidecar(lock, LeaderView(**target.watched), host=host, port=port)
    with wrong_usage((PgLeaderLockError,), said="{}; --port 0 is any free one."):
        await answering.start()
    try:
        click.echo(f"sidecar: {answering.url}", err=True)
        return await take_part(lock, target, as_json=False)
    finally:
        await answering.close()
