"""The problems of a configuration: all at once, each with its place, none with a value.

A value may be a password, even where none belongs. So no message repeats a value; it names the place.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pgleaderlock.errors import PgLeaderLockError

__all__ = ["ConfigError", "KeyPath", "Problem", "show_path"]

KeyPath = tuple[str | int, ...]
"""The path to a value: the names of tables and keys, and the numbers of elements, from 0."""

_PRESENTABLE = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its place, its key, and a text."""

    place: str
    """``pgleaderlock.toml``, ``$PGLEADERLOCK_LEASE_DURATION``, ``--set cluster.node``."""
    key: str
    """``cluster.leader_election.lease_duration``; empty if the place says enough."""
    text: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.place, self.key, self.text)))


class ConfigError(PgLeaderLockError, ValueError):
    """A configuration that cannot be used. Its text has one line for each problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems: tuple[Problem, ...] = tuple(problems)
        """All problems, for programs."""

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[Sequence[Problem]]]:
        return (type(self), (self.problems,))


def show_path(path: KeyPath) -> str:
    """Return the path of a key as it is written: ``cluster.leader_election.roles[1].name``."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += f".{part}" if _PRESENTABLE.fullmatch(part) else ".(a key that is not shown)"
    return shown.removeprefix(".")
