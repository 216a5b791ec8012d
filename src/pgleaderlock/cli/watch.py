"""``pgleaderlock watch``: the roles of a registry, shown anew when something changes.

A terminal gets one table that stays in its place, a pipe a new table per change, a program a line per change. A
database that goes away makes the picture stale, which is said, and is asked again until it is back.
"""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Any, Protocol

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.place import Place
from pgleaderlock.cli.roles import print_record, role_fields, roles_table, silence_s, unreachable
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.cli.tables import console_for
from pgleaderlock.cli.times import iso
from pgleaderlock.errors import ConnectionError
from pgleaderlock.registry.reading import RoleStatus, open_reader

__all__ = ["watch"]

_CALM_S = 0.05
"""Between two looks: news of many nodes at once is one picture."""


async def watch(dsn: str, place: Place, interval_s: float, *, as_json: bool) -> None:
    """Show the roles until a signal ends it; UnreachableError if there was nothing to show to begin with."""
    task = asyncio.get_running_loop().create_task(_watch(dsn, place, interval_s, _screen_for(as_json=as_json)))

    def end(_signal: signal.Signals) -> None:
        task.cancel()

    with call_on_signal(end), contextlib.suppress(asyncio.CancelledError):
        await task


async def _watch(dsn: str, place: Place, interval_s: float, screen: "_Screen") -> None:
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


async def _follow(dsn: str, place: Place, interval_s: float, screen: "_Screen", clock: "_DatabaseClock") -> None:
    """Show what there is, again and again, until the connection ends."""
    async with open_reader(dsn, place.schema) as reader:
        while True:
            roles = await reader.status(roles=place.roles)
            clock.note(await reader.now())
            screen.show(roles, clock.now())
            await asyncio.sleep(min(_CALM_S, interval_s))
            await reader.wait_for_change(interval_s)


class _DatabaseClock:
    """The database's time of day, also while it cannot be asked."""

    def __init__(self) -> None:
        self.read_at: float | None = None
        self._noted_at = 0.0

    def note(self, read_at: float) -> None:
        self.read_at, self._noted_at = read_at, asyncio.get_running_loop().time()

    def now(self) -> float:
        return (self.read_at or 0.0) + asyncio.get_running_loop().time() - self._noted_at


# --- Where it is shown ---


class _Screen(Protocol):
    def show(self, roles: Sequence[RoleStatus], now: float) -> None:
        """Show what was read just now."""

    def show_stale(self, error: str, since: float, now: float) -> None:
        """Say that what was shown is old."""

    def close(self) -> None:
        """Leave the terminal in order."""


def _screen_for(*, as_json: bool) -> _Screen:
    if as_json:
        return _JsonLines()
    return _LiveTable() if console_for().is_terminal else _Tables()


def _essence(role: RoleStatus) -> tuple[Any, ...]:
    """What makes a change: who leads and who stands, and whether they are heard of; not every sign of life."""
    leader = role.leader
    led = None if leader is None else (leader.instance, leader.token, silence_s(leader) is None)
    return role.role, led, tuple((each.instance, each.state, each.is_alive) for each in role.candidates)


def _stale_text(error: str, since: float) -> str:
    return f"stale since {(iso(since) or '')[11:19]} UTC: {error}"


class _LiveTable:
    """One table that stays in its place."""

    def __init__(self) -> None:
        self._live = Live(console=console_for(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._table: Any = Text()

    def show(self, roles: Sequence[RoleStatus], now: float) -> None:
        self._table = roles_table(roles, self._live.console.width)
        self._draw(Text(f"{(iso(now) or '')[11:19]} UTC, Ctrl-C ends it", style="dim"))

    def show_stale(self, error: str, since: float, now: float) -> None:  # noqa: ARG002 - every screen is told
        self._draw(Text(_stale_text(error, since), style="bold red"))

    def _draw(self, below: Text) -> None:
        if not self._live.is_started:
            self._live.start()
        self._live.update(Group(self._table, below), refresh=True)

    def close(self) -> None:
        self._live.stop()


class _Tables:
    """A new table per change, for a pipe."""

    def __init__(self) -> None:
        self._shown: list[tuple[Any, ...]] | None = None
        self._is_stale = False

    def show(self, roles: Sequence[RoleStatus], now: float) -> None:
        essence = [(role.lock, *_essence(role)) for role in roles]
        if essence != self._shown:
            click.echo(f"{iso(now)}")
            console = console_for()
            console.print(roles_table(roles, console.width))
        elif self._is_stale:
            click.echo(f"{iso(now)} fresh again, and nothing has changed")
        self._shown, self._is_stale = essence, False

    def show_stale(self, error: str, since: float, now: float) -> None:
        if not self._is_stale:
            click.echo(f"{iso(now)} {_stale_text(error, since)}")
        self._is_stale = True

    def close(self) -> None:
        """There is nothing to put in order."""


class _JsonLines:
    """A line per change, for programs."""

    def __init__(self) -> None:
        self._shown: dict[str, RoleStatus] = {}
        self._is_stale = False

    def show(self, roles: Sequence[RoleStatus], now: float) -> None:
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

    def close(self) -> None:
        """There is nothing to put in order."""
