"""``pgleaderlock watch``: the roles of a registry, printed again on every change.

A terminal gets one table that is updated in place, and below it alerts and events as on the dashboard; a pipe gets a
new table per change, a program one line per change. While the database cannot be reached, the output is marked as
stale, and the connection is retried.
"""

import asyncio
import contextlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.roles import print_record, role_fields, roles_picture, silence_s, unreachable
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.cli.tables import console_for
from pgleaderlock.cli.times import duration, iso
from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops.dashboard._alerts import Watched
from pgleaderlock.ops.dashboard._board import Board
from pgleaderlock.ops.dashboard._sources import RegistrySource
from pgleaderlock.ops.registry.reading import RoleStatus

_WINDOW_S = 3600.0
_SHOWN_ALERTS = 5
_SHOWN_EVENTS = 5


async def watch(dsn: str, place: ShownRoles, interval_s: float, *, as_json: bool) -> None:
    """Show the roles until a signal arrives; UnreachableError if the database could not be read even once."""
    task = asyncio.get_running_loop().create_task(_watch(dsn, place, interval_s, _screen_for(as_json=as_json)))

    def end(_signal: signal.Signals) -> None:
        task.cancel()

    with call_on_signal(end), contextlib.suppress(asyncio.CancelledError):
        await task


async def _watch(dsn: str, place: ShownRoles, interval_s: float, screen: "_Screen") -> None:
    clock = _DatabaseClock()
    with contextlib.closing(screen):
        while True:
            try:
                await _follow(dsn, place, interval_s, screen, clock)
            except ConnectionError as error:
                if clock.read_at is None:
                    raise unreachable(error) from error
                screen.show_stale(visible(str(error)), clock.read_at, clock.now())
            await asyncio.sleep(interval_s)


async def _follow(dsn: str, place: ShownRoles, interval_s: float, screen: "_Screen", clock: "_DatabaseClock") -> None:
    """Show the roles on every change, until the connection ends."""
    source = RegistrySource(
        dsn,
        place.schema,
        where="",
        window_s=_WINDOW_S,
        roles=place.roles,
        look_every_s=interval_s,
        schema_owner=place.owner,
    )
    watched = Watched(*place.alerting)
    board = Board(kind=source.kind, where=source.where, can={}, watched=watched)
    async with contextlib.aclosing(source.follow()) as looks:
        async for look, new_lines in looks:
            board.show(look, new_lines)
            clock.note(look.at)
            screen.show(look.roles, clock.now(), board)


class _DatabaseClock:
    """The database's time of day, also while the database cannot be reached."""

    def __init__(self) -> None:
        self.read_at: float | None = None
        self._noted_at = 0.0

    def note(self, read_at: float) -> None:
        self.read_at, self._noted_at = read_at, asyncio.get_running_loop().time()

    def now(self) -> float:
        return (self.read_at or 0.0) + asyncio.get_running_loop().time() - self._noted_at


# --- Where it is shown ---


class _Screen(ABC):
    @abstractmethod
    def show(self, roles: Sequence[RoleStatus], now: float, board: Board) -> None:
        """Show the roles as read just now, with figures, alerts and events of the board."""

    @abstractmethod
    def show_stale(self, error: str, since: float, now: float) -> None:
        """Mark the output as stale."""

    def close(self) -> None:  # noqa: B027 - most have nothing to put in order
        """Restore the terminal."""


def _screen_for(*, as_json: bool) -> _Screen:
    if as_json:
        return _JsonLines()
    return _LiveTable() if console_for().is_terminal else _Tables()


def _essence(role: RoleStatus) -> tuple[Any, ...]:
    """Return what counts as a change: leader, candidates, their places, who is alive; not every heartbeat."""
    leader = role.leader
    led = None if leader is None else (leader.instance, leader.token, silence_s(leader) is None)
    return (
        role.role,
        led,
        tuple((each.instance, each.state, each.place, each.is_alive) for each in role.current_candidates),
    )


def _stale_text(error: str, since: float) -> str:
    return f"stale since {(iso(since) or '')[11:19]} UTC: {error}"


def _beside(board: Board) -> Iterator[Text]:
    """Yield what the page shows beside the roles: figures of the window, alerts, and the newest events."""
    failovers = sum(sum(role["failovers"].values()) for role in board.roles)
    leaderless_s = sum(role["leaderless_s"] for role in board.roles)
    yield Text(f"\nlast hour: {failovers} failovers, {duration(leaderless_s)} without a leader", style="dim")
    wrong = [alert for alert in board.alerts if alert["state"] not in ("ok", "unknown")]
    for alert in wrong[:_SHOWN_ALERTS]:
        style = "bold red" if alert["severity"] == "critical" else "yellow"
        yield Text(f"{alert['state']}: {visible(alert['summary'])}", style=style)
    if len(wrong) > _SHOWN_ALERTS:
        yield Text(f"and {len(wrong) - _SHOWN_ALERTS} more", style="bold red")
    for event in board.events[:_SHOWN_EVENTS]:
        what = event["event"] if event["cause"] is None else f"{event['event']} ({event['cause']})"
        when = (iso(event["at"]) or "")[11:23]
        yield Text(f"{when} {visible(event['role'])}: {visible(event['node'])} {visible(what)}", style="dim")


class _LiveTable(_Screen):
    """One table that is updated in place."""

    def __init__(self) -> None:
        self._live = Live(console=console_for(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._table: Any = Text()

    def show(self, roles: Sequence[RoleStatus], now: float, board: Board) -> None:
        self._table = Group(roles_picture(roles, self._live.console.width), *_beside(board))
        self._draw(Text(f"{(iso(now) or '')[11:19]} UTC, Ctrl-C ends it", style="dim"))

    def show_stale(self, error: str, since: float, now: float) -> None:  # noqa: ARG002 - every screen is told
        self._draw(Text(_stale_text(error, since), style="bold red"))

    def _draw(self, below: Text) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.update(Group(self._table, below), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Tables(_Screen):
    """A new table per change, for a pipe."""

    def __init__(self) -> None:
        self._shown: list[tuple[Any, ...]] | None = None
        self._is_stale = False

    def show(self, roles: Sequence[RoleStatus], now: float, board: Board) -> None:  # noqa: ARG002 - as above
        essence = [(role.lock, *_essence(role)) for role in roles]
        if essence != self._shown:
            click.echo(f"{iso(now)}")
            console = console_for()
            console.print(roles_picture(roles, console.width))
        elif self._is_stale:
            click.echo(f"{iso(now)} fresh again, without changes")
        self._shown, self._is_stale = essence, False

    def show_stale(self, error: str, since: float, now: float) -> None:
        if not self._is_stale:
            click.echo(f"{iso(now)} {_stale_text(error, since)}")
        self._is_stale = True


class _JsonLines(_Screen):
    """A line per change, for programs."""

    def __init__(self) -> None:
        self._shown: dict[str, RoleStatus] = {}
        self._is_stale = False

    def show(self, roles: Sequence[RoleStatus], now: float, board: Board) -> None:  # noqa: ARG002 - as above
        if self._is_stale:
            self._print(now, "fresh")
        before, self._shown, self._is_stale = self._shown, {role.lock: role for role in roles}, False
        for role in roles:
            if role.lock not in before or _essence(before[role.lock]) != _essence(role):
                self._print(now, "role", role)
        for lock, role in before.items():
            if lock not in self._shown:
                self._print(now, "gone", RoleStatus(lock, role.role))

    def show_stale(self, error: str, since: float, now: float) -> None:  # noqa: ARG002 - every screen is told
        if not self._is_stale:
            self._print(now, "stale", error=error)
        self._is_stale = True

    def _print(self, now: float, change: str, role: RoleStatus | None = None, error: str | None = None) -> None:
        status = None if role is None else role_fields(role)
        print_record({"at": iso(now), "change": change, "status": status, "error": error})
