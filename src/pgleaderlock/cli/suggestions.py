"""Suggestions for an unknown option or command, in place of click's own."""

from collections.abc import Iterable

import click

from pgleaderlock._base.spelling import near

_ELSEWHERE = {"--lock": "--key", "--key": "--lock"}  # commands on the registry name a lock by --lock, others by --key


def with_near_words(error: click.UsageError) -> click.UsageError:
    """Return the error with similar options or commands that exist, if any; any other error as it is."""
    context = error.ctx
    if context is None:
        return error
    if isinstance(error, click.NoSuchOption):
        options = [flag for each in context.command.get_params(context) for flag in (*each.opts, *each.secondary_opts)]
        known = [flag for flag in options if flag.startswith("--")]
        other = _ELSEWHERE.get(error.option_name)
        return _suggesting(error, [other] if other in known else near(error.option_name, known))
    word = getattr(error, "command_name", None)  # of an exception that click has had since 8.4
    if word is not None and isinstance(context.command, click.Group):
        return _suggesting(error, near(word, context.command.list_commands(context)))
    return error


def _suggesting(error: click.UsageError, words: Iterable[str]) -> click.UsageError:
    meant = " or ".join(words)
    return click.UsageError(f"{error.message} Did you mean {meant}?" if meant else error.message, error.ctx)
