"""``manage.py leader_exec``: run another management command, or a function, only while leading.

It becomes ``pgleaderlock exec`` around that command: the same guardian, the same exit codes. What can be known to be
wrong is said before anybody waits.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import BaseCommand, CommandError, get_commands
from django.utils.module_loading import import_string

from pgleaderlock.integrations.django.conf import find_dsn, find_role
from pgleaderlock.options import SETTINGS

__all__ = ["Command"]

_SETTINGS = tuple(each for each in SETTINGS if each.key is not None)


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """Wait for leadership, run a command while it lasts."""

    help = (
        "Run a management command only while this process leads: SIGTERM when leadership is lost, SIGKILL in time. "
        "leader_exec [options] -- COMMAND ARGS"
    )
    requires_system_checks: tuple[str, ...] = ()  # the command that is run makes its own

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("--role", help="which lock; by default PGLEADERLOCK['role'] in the settings")
        parser.add_argument("--database", help="an alias in DATABASES; by default PGLEADERLOCK['dsn'], or 'default'")
        for each in _SETTINGS:
            kind = {"action": "store_true"} if each.type is bool else {"metavar": "SECONDS" if each.is_seconds else "X"}
            parser.add_argument(each.flag, dest=each.name, help=each.flag_help, **kind)  # type: ignore[arg-type]
        parser.add_argument("--wait", metavar="SECONDS", help="wait for the lock for so long; 0 asks once")
        parser.add_argument(
            "--once", action="store_true", help="exit after a loss instead of waiting for the lock again"
        )
        parser.add_argument("--restart", action="store_true", help="run the command again when it ends by itself")
        parser.add_argument("--call", metavar="package.module.function", help="run this instead of a command")
        parser.add_argument("--call-now", help=argparse.SUPPRESS)
        parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND ARGS")

    def handle(self, **options: Any) -> None:
        """Become ``pgleaderlock exec``."""
        if options["call_now"]:
            _find(options["call_now"])()
            return
        if find_spec("click") is None:
            raise CommandError("leader_exec needs the command line: pip install 'pgleaderlock[django,cli]'")
        role = options["role"] or _checked(find_role)
        if not role:
            raise CommandError("which lock? Name it with --role, or in the settings: PGLEADERLOCK = {'role': ...}")
        words = _words_of(options)
        environment = {**os.environ, "PG_DSN": _checked(lambda: find_dsn(options["database"]))}
        arguments = [
            sys.executable,
            "-m",
            "pgleaderlock.cli",
            "exec",
            "--role",
            role,
            *_passed_on(options),
            *(["--pass-dsn"] if "PG_DSN" in os.environ else []),  # the settings may be made from it
            "--",
            *words,
        ]
        self.stdout.flush()
        os.execve(sys.executable, arguments, environment)  # noqa: S606 - no shell is meant


def _passed_on(options: dict[str, Any]) -> list[str]:
    given = {**{each.flag: options[each.name] for each in _SETTINGS}, "--wait": options["wait"]}
    words = [word for flag, value in given.items() if value not in (None, False) for word in (flag, value)]
    return [word for word in words if word is not True] + [f"--{name}" for name in ("once", "restart") if options[name]]


def _words_of(options: dict[str, Any]) -> list[str]:
    """Return the whole command line of what is to be run, which must exist."""
    words = options["words"][1:] if options["words"][:1] == ["--"] else options["words"]
    manage = [sys.argv[0]] if Path(sys.argv[0]).is_file() else ["-m", "django"]
    if options["call"]:
        if words:
            raise CommandError("either --call or a command, not both")
        _find(options["call"])
        return [sys.executable, *manage, "leader_exec", "--call-now", options["call"]]
    if not words:
        raise CommandError("which command? leader_exec [options] -- COMMAND ARGS")
    if words[0] not in get_commands():
        near = difflib.get_close_matches(words[0], get_commands(), 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise CommandError(f"there is no management command {words[0]!r}{hint}")
    return [sys.executable, *manage, *words]


def _find(path: str) -> Callable[[], object]:
    try:
        found = import_string(path.replace(":", "."))
    except ImportError as error:
        raise CommandError(f"--call {path}: {error}") from error
    if not callable(found):
        raise CommandError(f"--call {path} is no function")
    function: Callable[[], object] = found
    return function


def _checked(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
