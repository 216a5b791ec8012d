"""``pgleaderlock run --config``: take part for all roles of a node until asked to stop."""

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import click
from loguru import logger

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.database import open_database
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.cli.run import EventPrinter
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.errors import MissingExtra, PgLeaderLockError
from pgleaderlock.models import Event, EventKind

if TYPE_CHECKING:
    from pgleaderlock.ops.config import Config
    from pgleaderlock.ops.node import Node

_GRACEFUL_S = 10.0
_FORCED_S = 0.5


def run_configured(config: "Config", *, as_json: bool, log_level: str) -> int:
    """Run a node to its end, and return the exit code that tells how it ended."""
    from pgleaderlock.ops.node import Node  # noqa: PLC0415 - it needs an extra of its own

    show_logs(log_level)
    with open_database(config.election.url if config.election.on_sessions else "") as database_dsn:
        node = _make(Node, config, database_dsn)
        return asyncio.run(_run(node, as_json=as_json))


def _make(make: "type[Node]", config: "Config", dsn: str) -> "Node":
    with wrong_usage((ValueError, PgLeaderLockError)):
        return make(config, dsn=dsn)


async def _run(node: "Node", *, as_json: bool) -> int:
    """Take part until a signal arrives, or every election has ended by itself."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()
    stops: list[asyncio.Task[None]] = []

    def stop(signal_number: signal.Signals | None) -> None:
        if signal_number is not None:
            manner = "again: closing the sessions by force" if stops else "received: releasing all roles"
            logger.info(f"{signal_number.name} {manner}")
        if not asked.done():
            asked.set_result(None)
        stops.append(loop.create_task(node.shutdown(_FORCED_S if stops else _GRACEFUL_S)))

    printer = EventPrinter(lambda: stop(None)) if as_json else None
    _listen(node, ended, printer)
    with call_on_signal(stop):
        await _start(node)
        await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not stops:
            stops.append(loop.create_task(node.shutdown(_GRACEFUL_S)))
        while waiting := [task for task in stops if not task.done()]:
            await asyncio.wait(waiting)
    if asked.done():
        return exit_codes.CLEAN
    logger.error(f"every election ended by itself; exit code {exit_codes.LEADERSHIP_ENDED}")
    return exit_codes.LEADERSHIP_ENDED


async def _start(node: "Node") -> None:
    """Start the node. A port that is taken is wrong usage, which is raised before any election starts."""
    metrics = node.config.metrics
    try:
        node.serve_metrics()
    except OSError as error:
        text = f"metrics: {metrics.host}:{metrics.port}: {error.strerror}; choose another port, 0 for any free one."
        raise click.UsageError(text) from error
    try:
        await node.serve_dashboard()
    except MissingExtra:
        raise
    except PgLeaderLockError as error:
        raise click.UsageError(f"{error}; choose another port, 0 for any free one.") from error
    _introduce(node)
    await node.start()


def _introduce(node: "Node") -> None:
    names = list(node.elections)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")  # noqa: PLR2004
    logger.info(f"process {os.getpid()} takes part for {shown}; Ctrl-C to hand over and leave")
    if node.metrics_port is not None:
        logger.info(f"metrics: http://{node.config.metrics.host}:{node.metrics_port}/metrics")
    if node.dashboard_url is not None:
        logger.info(f"dashboard: {node.dashboard_url}")


def _listen(node: "Node", ended: "asyncio.Future[None]", printer: EventPrinter | None) -> None:
    """Log changes of leadership, print every event with ``--json``, and set ``ended`` when all elections have ended."""
    for name, election in node.elections.items():

        def hear(event: Event, name: str = name) -> None:
            if event.kind is EventKind.ACQUIRED:
                logger.success(f"this process leads {name}")
            elif event.kind is EventKind.LOST:
                logger.warning(f"this process no longer leads {name}: work that only the leader may do must stop")
            if printer is not None:
                printer.print(event, {"role": name, "process_id": os.getpid()})
            is_over = event.kind is EventKind.STOPPED and all(each.state.is_stopped for each in node.elections.values())
            if is_over and not ended.done():
                ended.set_result(None)

        election.subscribe(hear)
