"""A long past, in few lines: what is in order is summed up by the server, the rest comes line by line. Pure.

A **sequence** is terms of one lock of which each ended in order before the next began. Of it, the first beginning and
the last end are here as those of one long term; how many there were, and how long it was between them, is a sum. That
holds unless another term reaches into the sequence: then the two may overlap, and every line of that lock is needed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pgleaderlock.ops.registry.audit import BEGINS, ENDS, Line, Orderly, PastTerm, failover, terms_of

Row = tuple[Any, ...]


@dataclass(slots=True)
class Past:
    """What a history says, for an audit."""

    lines: list[Line] = field(default_factory=list)
    orderly: dict[str, Orderly] = field(default_factory=dict)
    sequences: dict[str, set[tuple[str, int | None]]] = field(default_factory=dict)
    """By lock, the instance and the token of the terms that stand for a sequence."""

    def crossed(self) -> set[str]:
        """Return the locks in which another term reaches into a sequence."""
        by_lock: dict[str, list[Line]] = {lock: [] for lock in self.sequences}
        for line in self.lines:
            if line.lock in by_lock:
                by_lock[line.lock].append(line)
        return {lock for lock, lines in by_lock.items() if _is_crossed(terms_of(lines), self.sequences[lock])}

    def replace_lock(self, lock: str, lines: Iterable[Line]) -> None:
        """Have all lines of this lock, and no sums."""
        self.lines = [line for line in self.lines if line.lock != lock] + list(lines)
        self.orderly.pop(lock, None)
        self.sequences.pop(lock, None)


def sum_up(rows: Sequence[Row], lines: Mapping[int, Line]) -> Past:
    """Make sense of the server's sums, and of the lines that they name, which are in the order of time."""
    past = Past()
    firsts, lasts = set[int](), set[int]()
    for lock, event, cause, number, opens, closes, *sums in rows:
        if number is None:
            _count(past.orderly.setdefault(lock, Orderly()), event, cause, sums)
        elif opens:
            firsts.add(number)
        elif closes:
            lasts.add(number)
    begun: dict[str, Line] = {}
    for number, line in lines.items():
        first = begun.get(line.lock)
        if number in firsts:
            begun[line.lock] = line
        elif number in lasts and first is not None and (first.instance, first.token) != (line.instance, line.token):
            past.sequences.setdefault(line.lock, set()).add((first.instance, first.token))
            line = replace(line, node=first.node, instance=first.instance, token=first.token)  # noqa: PLW2901
        past.lines.append(line)
    return past


def _count(orderly: Orderly, event: str, cause: str | None, sums: Sequence[Any]) -> None:
    count, missing, gaps_s = sums
    orderly.missing += missing
    if event in BEGINS:
        orderly.terms += count
        orderly.leaderless_s += gaps_s
    else:
        how = failover(event, cause)
        orderly.failovers[how] = orderly.failovers.get(how, 0) + count


def _is_crossed(terms: Sequence[PastTerm], sequences: Collection[tuple[str, int | None]]) -> bool:
    led_until = in_sequence_until = float("-inf")
    for term in terms:
        is_sequence = (term.instance, term.token) in sequences
        if term.began_at < (led_until if is_sequence else in_sequence_until):
            return True
        ended_at = float("inf") if term.ended_at is None else term.ended_at
        led_until = max(led_until, ended_at)
        in_sequence_until = max(in_sequence_until, ended_at) if is_sequence else in_sequence_until
    return False


def keys_of_ends(lines: Iterable[Line]) -> list[tuple[str, str, int | None]]:
    """Return lock, instance and token of the terms that these lines see the end of, and not the beginning."""
    begun, ended = set[tuple[str, str, int | None]](), dict[tuple[str, str, int | None], None]()
    for line in sorted(lines, key=lambda line: line.at):
        which = (line.lock, line.instance, line.token)
        if line.event in BEGINS:
            begun.add(which)
        elif which not in begun and (line.event in ENDS or line.event in ("vanished", "unwatched")):
            ended[which] = None
    return list(ended)
