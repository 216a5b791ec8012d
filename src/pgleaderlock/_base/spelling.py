"""Which known word a user may have meant: one with a typing error, or of which only a part was written.

A ratio of common letters, as difflib has it, calls short words alike that share nothing but their length (``--confi``
and ``--json``). Slips are counted here instead, and a short word may have only one.
"""

import re
from collections.abc import Iterable

_MOST_SLIPS = ((6, 2), (3, 1), (0, 0))  # of a word with at least so many letters
_PARTS = re.compile(r"[-_.]+")
_SHORTEST_PART = 3


def near(word: str, known: Iterable[str]) -> list[str]:
    """Return those known words that this one may stand for, the likeliest first."""
    slips = {each: _slips(word, each) for each in known}
    limit = next(most for letters, most in _MOST_SLIPS if len(_bare(word)) >= letters)
    likely = [each for each, count in slips.items() if count <= limit]
    if likely:
        fewest = min(slips[each] for each in likely)
        return [each for each in likely if slips[each] == fewest]
    return [each for each in slips if _is_part(word, each)]


def _bare(word: str) -> str:
    return word.lstrip("-")


def _is_part(word: str, whole: str) -> bool:
    """Whether the one is the other without some of its parts (``interval``, ``health-interval``), or cut off late."""
    short, long = sorted((_bare(word), _bare(whole)), key=len)
    if len(short) < _SHORTEST_PART:
        return False
    few, many = _PARTS.split(short), _PARTS.split(long)
    has_parts = few in (many[: len(few)], many[-len(few) :])
    return has_parts or (long.startswith(short) and 2 * len(short) > len(long))


def _slips(one: str, other: str) -> int:
    """Count the letters that are wrong, missing, too many, or swapped with the next one."""
    one, other = _bare(one), _bare(other)
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, its in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                least = min(least, last[j - 2] + 1)
            row.append(least)
    return row[-1]
