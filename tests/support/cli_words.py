"""All commands of the command line, for tests that hold for each of them."""

from collections.abc import Iterator

import click

from pgleaderlock.cli.commands import cli

__all__ = ["COMMANDS", "WITHOUT_STORE", "words_for"]

# Commands that ask no store: they print, check files, take a path, or (demo) exist to show one of their own.
WITHOUT_STORE = {
    "demo",
    "alerts export",
    "config check",
    "config show",
    "k8s rbac",
    "nfs break",
    "nfs status",
    "nfs tidy",
    "schema show",
}


def leaves(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, *words, name)
        else:
            yield " ".join([*words, name]), command


COMMANDS = dict(leaves(cli))


def words_for(name: str) -> list[str]:
    """The command with a lock named, where it can name one, and what it cannot do without."""
    known = {option.name for option in COMMANDS[name].params}
    words = [*name.split(), *(["--role", "x"] if "role" in known else [])]
    return [*words, "--", "true"] if name == "exec" else words
