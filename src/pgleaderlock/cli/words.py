"""The texts of ``--help`` for each command beside its options: a short line, an example, the exit codes, the group.

One table, so that a command cannot be without them. The numbers are :mod:`~pgleaderlock.cli.exit_codes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import click

from pgleaderlock.cli import exit_codes as codes

_UNWRITTEN = "the answer could not be written to stdout"
_USAGE = {codes.USAGE: "wrong usage: nothing was started"}
_STORE = {codes.UNREACHABLE: "the store cannot be reached, or the embedded PostgreSQL failed"}
_REGISTRY = {codes.UNREACHABLE: "the registry cannot be reached, or there is none"}
_SIGNAL = {codes.INTERRUPTED: f"interrupted ({codes.TERMINATED}: SIGTERM)"}
_EARLY = {codes.INTERRUPTED: f"interrupted before there was anything to hand over ({codes.TERMINATED}: SIGTERM)"}


@dataclass(frozen=True, slots=True)
class Words:
    """The help texts of one command."""

    short: str
    """One line in the list of commands."""
    example: str = ""
    """Without the name of the program. A group of commands has none."""
    exits: Mapping[Any, str] = field(default_factory=dict)
    """By exit code, or by a word for several."""

    @property
    def epilog(self) -> str:
        """The end of the command's help, in which click must not fill the lines."""
        parts = [f"\b\nExample:\n  pgleaderlock {self.example}"] if self.example else []
        if self.exits:
            lines = "\n".join(f"  {code:<5} {meaning}" for code, meaning in self.exits.items())
            parts.append(f"\b\nExit codes:\n{lines}")
        return "\n\n".join(parts)


class Texts(TypedDict):
    """The arguments of click's decorators that are texts."""

    short_help: str
    epilog: str


def texts(command: str) -> Texts:
    """Return the texts of this command as arguments for click's decorators."""
    return Texts(short_help=WORDS[command].short, epilog=WORDS[command].epilog)


def _shown(what: str) -> dict[int, str]:
    """Return the exit codes of a command that reads a store and prints."""
    return {codes.CLEAN: what, codes.NOT_ACQUIRED: _UNWRITTEN}


def _printed(what: str) -> dict[int, str]:
    """Return the exit codes of a command that uses no store."""
    return _shown(what) | _USAGE


WORDS: Mapping[str, Words] = {
    "demo": Words(
        "Watch a failover, and cause one, on this machine.",
        "demo --script kill,freeze,step-down --rounds 2",
        {
            codes.CLEAN: "ended, or every failover of the --script was measured",
            codes.OVERLAP: "split brain (two leaders at once), or no take-over in a --script",
        }
        | _USAGE
        | _STORE
        | {codes.INTERRUPTED: f"a --script was interrupted ({codes.TERMINATED}: SIGTERM)"},
    ),
    "torture": Words(
        "Inject faults, and look for two leaders at once.",
        "torture --dsn postgresql://db/app --minutes 10 --seed 42",
        {
            codes.CLEAN: "never two leaders, and no other problem",
            codes.OVERLAP: "split brain (two leaders at once), or another problem: see above",
        }
        | _USAGE
        | _STORE
        | {codes.UNFIT: "the database is not fit for elections: see doctor"}
        | _SIGNAL,
    ),
    "run": Words(
        "Take part in an election until interrupted.",
        "run --dsn postgresql://db/app --role billing/scheduler",
        {codes.CLEAN: "stopped on request, and released"}
        | _USAGE
        | {codes.UNREACHABLE: "the embedded PostgreSQL failed (for any other database, run waits)"}
        | {codes.LEADERSHIP_ENDED: "the election ended by itself, or the release was not confirmed"}
        | _EARLY,
    ),
    "exec": Words(
        "Run a command while leading, and only then.",
        "exec --dsn postgresql://db/app --role billing/beat -- ./beat",
        {"*": "the command's own; 128 + N if signal N ended it"}
        | _USAGE
        | {
            codes.EXEC_UNREACHABLE: "the store could not be reached within --wait",
            codes.EXEC_LOST: "leadership was lost, with --once",
            codes.EXEC_NOT_ACQUIRED: "another process led for all of --wait, or has the time of --cron",
            codes.EXEC_FAILED: "this system could not start one more process",
            codes.CANNOT_EXECUTE: "the command cannot be executed",
            codes.NOT_FOUND: "the command was not found",
            "128+N": "signal N arrived while no command was running",
        },
    ),
    "sidecar": Words(
        "Take part, and answer over HTTP who leads.",
        "sidecar --url k8s://jobs/scheduler --port 4040",
        {codes.CLEAN: "stopped on request, and released"}
        | _USAGE
        | {codes.UNREACHABLE: "the embedded PostgreSQL failed (for any other store, it waits)"}
        | {codes.LEADERSHIP_ENDED: "the election ended by itself, or the release was not confirmed"}
        | _EARLY,
    ),
    "acquire": Words(
        "Try to acquire the lock: exit code 0 or 1.",
        "acquire --dsn postgresql://db/app --role nightly --hold 60",
        {codes.CLEAN: "acquired, held for --hold, and released", codes.NOT_ACQUIRED: "another process holds the lock"}
        | _USAGE
        | _STORE
        | {codes.LEADERSHIP_ENDED: "lost while holding it, or the release was not confirmed"}
        | _EARLY,
    ),
    "status": Words(
        "Show who holds a lock, or all roles.",
        "status --dsn postgresql://db/app --role billing/scheduler",
        _shown("shown, whether held or free") | _USAGE | _STORE | _SIGNAL,
    ),
    "leader": Words(
        "Show who leads, and its address.",
        "leader --dsn postgresql://db/app --role billing --follow",
        {codes.CLEAN: "there is a leader; or --follow was ended by a signal"}
        | {codes.NOT_ACQUIRED: f"no leader; or {_UNWRITTEN}"}
        | _USAGE
        | _STORE
        | _SIGNAL,
    ),
    "watch": Words(
        "Show all roles, live.",
        "watch --config pgleaderlock.toml",
        {codes.CLEAN: "ended by Ctrl-C or SIGTERM"} | _USAGE | _REGISTRY,
    ),
    "dashboard": Words(
        "Serve a page that shows who leads what.",
        "dashboard --dsn postgresql://db/app --port 8464",
        {codes.CLEAN: "ended by Ctrl-C or SIGTERM"} | _USAGE | _REGISTRY,
    ),
    "history": Words(
        "Show events: terms, and how they ended.",
        "history --dsn postgresql://db/app --role scheduler --since 12h",
        _shown("shown") | _USAGE | _REGISTRY | _SIGNAL,
    ),
    "ticks": Words(
        "Show the runs of scheduled jobs.",
        "ticks --dsn postgresql://db/app --job make_invoices --since 1d",
        _shown("shown") | _USAGE | _REGISTRY | _SIGNAL,
    ),
    "audit": Words(
        "Check the history: availability, overlaps.",
        "audit --dsn postgresql://db/app --since 30d",
        {codes.CLEAN: "no two terms overlap", codes.OVERLAP: "two terms overlap by more than the error of the clocks"}
        | _USAGE
        | _REGISTRY
        | _SIGNAL,
    ),
    "step-down": Words(
        "Ask a leader to hand over.",
        "step-down --dsn postgresql://db/app --role scheduler",
        {codes.CLEAN: "another node leads", codes.NOT_HANDED_OVER: "refused, not answered, or no other node took over"}
        | _USAGE
        | _REGISTRY
        | _SIGNAL,
    ),
    "doctor": Words(
        "Check whether elections can run on a database.",
        "doctor --dsn postgresql://db/app --role billing/scheduler",
        {codes.CLEAN: "no problem found; there may be warnings"}
        | _USAGE
        | _STORE
        | {codes.UNFIT: "a problem: do not elect leaders on this database yet"}
        | _SIGNAL,
    ),
    "config": Words("Show or check the configuration of a node."),
    "config show": Words(
        "Print every value, and where it came from.", "config show --config pgleaderlock.toml", _printed("shown")
    ),
    "config check": Words(
        "Check whether a configuration can be used.",
        "config check --config pgleaderlock.toml",
        {codes.CLEAN: "no problems", codes.USAGE: "problems: each is named, with its place"},
    ),
    "schema": Words("Print, create or upgrade the tables."),
    "schema show": Words("Print the statements.", "schema show --from 1", _printed("printed")),
    "schema apply": Words(
        "Create or upgrade the tables, and grant their use.",
        "schema apply --dsn postgresql://db/app --grant-to app",
        {codes.CLEAN: "the tables exist, in the newest version"}
        | _USAGE
        | {codes.UNREACHABLE: "the database cannot be reached, or refuses to change them"}
        | _SIGNAL,
    ),
    "alerts": Words("Export alerts for Prometheus and others."),
    "alerts export": Words(
        "Compile alerts to rules, routes and a dashboard.",
        "alerts export --config pgleaderlock.toml --out rules",
        _printed("exported; stderr lists the conditions that were corrected"),
    ),
    "k8s": Words("Print the permissions for Kubernetes."),
    "k8s rbac": Words(
        "Print a Role and its binding.", "k8s rbac --namespace jobs --lease scheduler", _printed("printed")
    ),
    "nfs": Words("Look at a lock in a shared folder, or break it."),
    "nfs status": Words(
        "Show who holds the lock.",
        "nfs status /mnt/shared/locks/scheduler",
        _shown("shown, whether held or free") | _USAGE | {codes.UNREACHABLE: "the folder cannot be read"},
    ),
    "nfs break": Words(
        "Take the lock from its holder.",
        "nfs break /mnt/shared/locks/scheduler",
        {codes.CLEAN: "the lock is free"}
        | _USAGE
        | {codes.UNREACHABLE: "the folder cannot be read or written"}
        | {codes.INTERRUPTED: "not confirmed: nothing was broken"},
    ),
    "nfs tidy": Words(
        "Remove the files of dead candidates.",
        "nfs tidy /mnt/shared/locks/scheduler",
        {codes.CLEAN: "removed, or there was nothing"}
        | _USAGE
        | {codes.UNREACHABLE: "the folder cannot be read or written"},
    ),
}

_GROUPS = {
    "Take part": ("run", "exec", "sidecar", "acquire"),
    "Look": ("status", "leader", "watch", "dashboard", "history", "ticks", "audit"),
    "Operate": ("step-down", "doctor", "nfs"),
    "Set up": ("config", "schema", "alerts", "k8s"),
    "Try it": ("demo", "torture"),
}


class CommandGroup(click.Group):
    """Lists its commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write a section for each group, in which every command has one line."""
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=100)) for name in names])
