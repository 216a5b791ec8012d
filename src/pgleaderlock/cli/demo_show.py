"""The output of ``pgleaderlock demo``: a page with buttons, or a table of measured failovers."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from rich.text import Text

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import print_json
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.signals import call_on_signal, unwind_on_hangup
from pgleaderlock.cli.tables import console_for, fitting_table
from pgleaderlock.errors import EmbeddedServerError, LockError, PgLeaderLockError
from pgleaderlock.ops.dashboard import Dashboard, RegistrySource
from pgleaderlock.options import DEFAULT_SCHEMA
from pgleaderlock.testing.demo import ACTIONS, ActionResult, Said, Stage, Tally, own_server, play
from pgleaderlock.testing.embedded import Server

_PORT = 8765
_WINDOW_S = 600.0
_LOOK_EVERY_S = 0.25  # a leader that does not renew is shown for a second or two only
_SHORT_LINGER_S = 0.2
_LINGER_S = 3.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of one run."""

    nodes: int
    lease_s: float
    port: int | None
    """None: the usual port, or any free one if that is taken; with a script, no page."""
    opens_browser: bool
    script: tuple[str, ...]
    rounds: int
    as_json: bool


def run_demo(options: DemoOptions) -> int:
    """Run to the end, clean up, and return the exit code."""
    unwind_on_hangup()
    click.echo("starting a PostgreSQL and the nodes...", err=True)
    try:
        with own_server() as server:
            return asyncio.run(_until_signal(_Demo(options, server)))
    except EmbeddedServerError as error:
        raise UnreachableError(str(error)) from error


async def _until_signal(demo: "_Demo") -> int:
    came: list[signal.Signals] = []
    ended = asyncio.Event()

    def end(number: signal.Signals) -> None:
        came.append(number)
        ended.set()

    with call_on_signal(end, also=(signal.SIGHUP,)):
        run = asyncio.ensure_future(demo.run())
        stop = asyncio.ensure_future(ended.wait())
        await asyncio.wait({run, stop}, return_when=asyncio.FIRST_COMPLETED)
        if came:
            demo.print_summary()  # now, because cleaning up takes a moment
        for task in (run, stop):
            task.cancel()
        await asyncio.wait({run, stop})
    if not run.cancelled():
        return run.result()
    if demo.had_overlap:
        return exit_codes.OVERLAP
    return exit_codes.of_signal(came[0]) if demo.options.script else exit_codes.CLEAN


@dataclass(slots=True)
class _Demo:
    options: DemoOptions
    server: Server
    had_overlap: bool = False
    tally: Tally = field(default_factory=Tally)
    _listeners: list[Callable[[Said], None]] = field(default_factory=list)

    async def run(self) -> int:
        options = self.options
        linger_s = _SHORT_LINGER_S if options.script else _LINGER_S
        stage = Stage(self.server, nodes=options.nodes, lease_s=options.lease_s, hear=self._hear, linger_s=linger_s)
        try:
            async with stage:
                if options.script and options.port is None:
                    return await self._play(stage)
                async with self._dashboard(stage) as address:
                    return await (self._play(stage) if options.script else self._show(stage, address))
        except PgLeaderLockError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:  # for example: no further process can be started
            raise click.ClickException(f"the demo failed: {error}") from error

    def print_summary(self) -> None:
        """Print the failovers measured before the interruption."""
        if self.options.as_json:
            return
        with contextlib.suppress(OSError):  # a terminal that hung up
            if not self.tally.results:
                click.echo("\nNothing was measured: no action was started.")
                return
            click.echo("\nMeasured, from the action to the next leader:\n")
            _print_table(self.tally.results)

    def _hear(self, said: Said) -> None:
        self.had_overlap = self.had_overlap or said.is_overlap
        self.tally.hear(said)
        with contextlib.suppress(OSError):  # the terminal is gone; the page may still be open
            click.echo(click.style(said.text, fg="red", bold=True) if said.is_alarm else said.text, err=True)
        for listener in self._listeners:
            listener(said)

    # --- The page ---

    @contextlib.asynccontextmanager
    async def _dashboard(self, stage: Stage) -> AsyncIterator[str]:
        token = secrets.token_urlsafe(24)
        wanted = _PORT if self.options.port is None else self.options.port
        dashboard = self._make_dashboard(stage, wanted, token)
        try:
            await dashboard.start()
        except LockError as error:
            if self.options.port is not None:
                raise click.UsageError(f"{error}; --port 0 is any free one.") from error
            dashboard = self._make_dashboard(stage, 0, token)
            await dashboard.start()
        self._listeners.append(lambda said: None if said.is_aside else dashboard.note(_page_record(said)))
        try:
            yield f"{dashboard.url}#token={token}"
        finally:
            await dashboard.close()

    def _make_dashboard(self, stage: Stage, port: int, token: str) -> Dashboard:
        where = f"the demo's own PostgreSQL and {self.options.nodes} nodes"
        source = RegistrySource(
            self.server.dsn, DEFAULT_SCHEMA, where=where, window_s=_WINDOW_S, look_every_s=_LOOK_EVERY_S
        )
        actions = {action: _button(stage, action) for action in ACTIONS}
        return Dashboard(source, port=port, token=token, actions=actions)

    async def _show(self, stage: Stage, address: str) -> int:
        count = self.options.nodes - 1
        followers = "1 follower" if count == 1 else f"{count} followers"
        click.echo(f"\n  {stage.leader} leads, with {followers}. See it, and break it:\n")
        click.echo(f"      {click.style(address, bold=True)}\n")
        click.echo("  Ctrl-C ends the demo and removes everything that it started.\n")
        if self.options.opens_browser:
            await _open_browser(address)
        await stage.wait_until_failed()
        return exit_codes.CLEAN  # pragma: no cover - it raises, or is cancelled

    # --- The table ---

    async def _play(self, stage: Stage) -> int:
        results = await play(stage, self.options.script, self.options.rounds)
        if self.options.as_json:
            for result in results:
                print_json(_fields(result))
        else:
            _print_table(results)
        return exit_codes.CLEAN if all(result.is_good for result in results) else exit_codes.NOT_ACQUIRED


def _button(stage: Stage, action: str) -> Callable[[Mapping[str, Any]], Awaitable[str]]:
    async def press(_body: Mapping[str, Any]) -> str:
        return stage.begin(action)

    return press


def _page_record(said: Said) -> dict[str, Any]:
    return {
        "action": said.action,
        "phase": _phase(said),
        "node": said.node,
        "from": said.from_node,
        "failover_ms": said.failover_ms,
        "stopped_ms": said.stopped_ms,
        "text": said.text,
        "alarm": said.is_alarm,
    }


def _phase(said: Said) -> str:
    if said.is_alarm:
        return "failed"
    if said.failover_ms is not None:
        return "measured"
    return "note" if said.action is None else "begun"


def _fields(result: ActionResult) -> dict[str, Any]:
    return {
        "action": result.action,
        "rounds": result.rounds,
        "min_ms": result.figure("min"),
        "median_ms": result.figure("median"),
        "max_ms": result.figure("max"),
        "overlaps": result.overlaps,
        "problems": result.problems,
        "measured": [
            {"from": each.from_node, "to": each.to_node, "failover_ms": each.failover_ms, "stopped_ms": each.stopped_ms}
            for each in result.failovers
        ],
    }


def _print_table(results: Sequence[ActionResult]) -> None:
    console = console_for()
    headings: Sequence[str] = (
        "Action",
        "Rounds",
        "Min (ms)",
        "Median (ms)",
        "Max (ms)",
        "Never two leaders",
        "Problems",
    )
    rows = [
        [
            Text(result.action.replace("_", "-")),
            Text(f"{len(result.measured_ms)} of {result.rounds}"),
            *(Text(_ms(result.figure(name)), justify="right") for name in ("min", "median", "max")),
            Text("NO", style="bold red") if result.overlaps else Text("yes", style="green"),
            Text("; ".join(result.problems) or "-"),
        ]
        for result in results
    ]
    if not any(result.problems for result in results):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    console.print(fitting_table(headings, rows, console.width, prose=("Problems",)))


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


# --- The browser ---


async def _open_browser(address: str) -> None:
    """Open a browser that has a window; one that runs in the terminal would take over this terminal."""
    if not _has_display():
        return
    with contextlib.suppress(webbrowser.Error, OSError):
        browser = webbrowser.get()
        if type(browser) is not webbrowser.GenericBrowser:  # which waits for a program in the foreground
            await asyncio.to_thread(browser.open, address)


def _has_display() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
