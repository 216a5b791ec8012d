"""The order of lines of the history, where their times do not tell it. Pure.

Each node reckons the database's time, and knows how exactly (``within_s``). A hand-over takes less than that, so by
their times alone a leader may seem to have begun before its predecessor ended. Two things are exact: the token grows
from term to term of one lock, and a node writes its own lines in the order in which they happened.
"""

from collections import defaultdict
from collections.abc import Iterable

from pgleaderlock.ops.registry.audit import Line

_Numbered = tuple[int, Line]


def in_order(numbered: Iterable[_Numbered]) -> list[Line]:
    """Return lines, which come with their numbers in the table, the oldest first.

    Lines of one lock whose times leave their order open are in the order of their terms; others are where their times
    say, also where two terms overlap.
    """
    lines = sorted(numbered, key=lambda each: (each[1].at, each[0]))
    places: dict[str, list[int]] = defaultdict(list)
    for place, (_, line) in enumerate(lines):
        places[line.lock].append(place)
    for of_lock in places.values():
        ordered: list[_Numbered] = []
        for each in [lines[place] for place in of_lock]:
            at = len(ordered)
            while at and _came_later(ordered[at - 1], each):
                at -= 1
            ordered.insert(at, each)
        for place, each in zip(of_lock, ordered, strict=True):
            lines[place] = each
    return [line for _, line in lines]


def _came_later(earlier: _Numbered, later: _Numbered) -> bool:
    """Return whether the line with the earlier time is known to have come after the other."""
    (number, first), (other_number, second) = earlier, later
    if second.at - first.at > first.within_s + second.within_s:
        return False
    if first.instance == second.instance:
        return number > other_number
    return first.token is not None and second.token is not None and first.token > second.token
