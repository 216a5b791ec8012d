"""The output of commands: log lines on stderr through loguru, JSON lines on stdout."""

import contextlib
import json
import logging
import os
import re
import shutil
import sys
import textwrap
from typing import Any, TextIO

import click
from loguru import logger

from pgleaderlock._base.checks import visible
from pgleaderlock.models import Holder
from pgleaderlock.postgres.keys import LockKey

__all__ = [
    "InterceptHandler",
    "describe_holder",
    "discard_output",
    "fold",
    "holder_fields",
    "key_fields",
    "print_folded",
    "print_json",
    "show_logs",
    "visible",
    "wants_colour",
]

_LIBRARY = "pgleaderlock"
_COPIED = re.compile(r"`([^`]+)`")
_FORMAT = (
    "<dim>{time:YYYY-MM-DD HH:mm:ss.SSS}</dim> <level>{level: <7}</level> {extra[source]} | <level>{message}</level>"
)

# A leader's line must stand out from the attempts around it; loguru's own colours make everything bold.
_COLOURS = {"DEBUG": "<dim>", "INFO": "", "SUCCESS": "<green><bold>", "WARNING": "<yellow>", "ERROR": "<red>"}


class InterceptHandler(logging.Handler):
    """Hands the standard library's log records to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on, with its level and its traceback if it has one."""
        known = record.levelname in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}
        level = record.levelname if known else record.levelno
        # As an argument-less message: a "{" in it must stay a "{".
        logger.bind(source=record.name).opt(exception=record.exc_info).log(level, record.getMessage())


def show_logs(level: str) -> None:
    """Send the library's log lines of this level and above to stderr, and nowhere else."""
    logger.remove()
    logger.configure(extra={"source": _LIBRARY})
    for name, colour in _COLOURS.items():
        logger.level(name, color=colour)
    if sys.stderr is not None:  # as it is in a process that was started with 2>&-
        # diagnose would print the values of variables in a traceback, and one of them is the DSN.
        logger.add(
            sys.stderr, level=level, format=_FORMAT, colorize=wants_colour(sys.stderr), backtrace=False, diagnose=False
        )
    library_logger = logging.getLogger(_LIBRARY)
    library_logger.handlers = [InterceptHandler()]
    library_logger.propagate = False
    library_logger.setLevel(level)


def wants_colour(stream: TextIO) -> bool:
    """Return whether this is a terminal whose user wants colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(record: dict[str, Any]) -> None:
    """Print one record as one line, without buffering: a program may be waiting for it."""
    click.echo(json.dumps(record))


def discard_output() -> None:
    """Discard the rest of stdout: if no reader is left, Python cannot write it and would exit with 120."""
    with contextlib.suppress(OSError):  # a stdout that is no file of the system's
        number = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def print_folded(text: str) -> None:
    """Print one line; a terminal gets it folded between words and indented, a pipe unfolded for searching."""
    if sys.stdout.isatty():
        width, _ = shutil.get_terminal_size()
        indent = " " * (len(text) - len(text.lstrip()) + 4)
        text = fold(text, max(width, 40), indent)
    click.echo(text)


def fold(text: str, width: int, indent: str) -> str:
    """Fold between words, and indent all lines but the first.

    Text in `backticks` is meant to be copied: it gets a line of its own, however long, because a line that the terminal
    itself breaks is copied as one.
    """
    lines: list[str] = []
    for number, part in enumerate(_COPIED.split(text)):
        if number % 2:
            lines.append(f"{indent}{part}")
        elif part.strip(" .,;:"):
            first = "" if not lines else indent
            words = part if not lines else part.lstrip(" .,;:")
            lines += textwrap.wrap(
                words,
                width,
                initial_indent=first,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def key_fields(key: LockKey) -> dict[str, Any]:
    """Return the lock as the command line named it, and in the form that the library prints."""
    if key.space == "pair":
        pair = {"key": str(key), "key1": key.numbers[0], "key2": key.numbers[1]}
        return pair if key.role is None else {**pair, "role": key.role}
    return {"key": str(key), "role": key.role}


def holder_fields(holder: Holder) -> dict[str, Any]:
    """Return what pg_stat_activity shows of a session, under names that say what they are."""
    return {
        "pid": holder.pid,
        "application_name": holder.name,
        "user": holder.detail,
        "client_address": holder.address,
        "session_start": holder.since,
    }


def describe_holder(holder: Holder) -> str:
    """Return the holder as one line for people. The pid is the server's; our application names contain the client's."""
    if holder.pid is None:  # a store without sessions knows a name, and since when
        return visible(holder.name + (f", since {holder.since}" if holder.since else ""))
    place = holder.address or "the local socket"
    return visible(f"pid {holder.pid}, {holder.name}, user {holder.detail}, from {place}, session since {holder.since}")
