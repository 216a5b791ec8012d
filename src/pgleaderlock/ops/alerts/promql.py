"""A tokenizer for PromQL, enough to find two common mistakes and to change a condition without touching the rest.

This is not a parser of the language: Prometheus has one, and checks what we export. The one on PyPI (promql-parser
0.11) keeps no positions and prints values of labels without escaping them: a corrected condition could mean something
else.

This one cuts a text into words, quoted texts and balanced brackets, so that a ``)`` in a label's value or in a comment
does not close anything, and keeps the position of each piece, so that a correction changes only that part of the text.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Aggregation", "Comparison", "Piece", "aggregation", "comparisons", "read", "words"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w:]))
      | (?P<word>[A-Za-z_:][\w:]*|\d\w*)
      | (?P<operator>[=!<>]=|=~|!~|[<>])
      | (?P<open>[(\[{])
      | (?P<close>[)\]}])
      | (?P<quote>["'`])
      | (?P<mark>.)""",
    re.VERBOSE,
)
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_SET_OPERATORS = frozenset({"and", "or", "unless"})
_EXPECTS_MORE = _SET_OPERATORS | {"by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
_BETWEEN = frozenset("+-*/%^=,@")
_SIGNS = frozenset("+-")
_AGGREGATIONS = frozenset({"sum", "max", "count"})
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A word, or brackets with their content; and its position in the text."""

    kind: str
    text: str
    start: int
    end: int
    inside: tuple["Piece", ...] = ()

    @property
    def keyword(self) -> str:
        """The text in lower case, as PromQL's keywords are compared; names of functions and metrics are not."""
        return self.text.lower() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left operator threshold``, also if it was written the other way round.

    ``stands_alone`` if the condition is only this comparison, or several joined by ``or``: then a part can be added
    with another ``or``.
    """

    left: tuple[Piece, ...]
    operator: str
    threshold: float
    end: int
    stands_alone: bool

    def holds_for(self, value: float) -> bool:
        """Return whether this value would raise the alert."""
        return _HOLDS[self.operator](value, self.threshold)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """``sum(argument)``, with or without its ``by``."""

    name: str
    argument: Piece


def read(text: str) -> tuple[Piece, ...]:
    """Return the pieces of a condition; ``ValueError`` if something is not closed, or is cut off."""
    open_ends: list[tuple[str, int, list[Piece]]] = [("", 0, [])]
    for match in _TOKEN.finditer(text):
        kind, piece = str(match.lastgroup), match.group()
        if kind == "quote":
            raise ValueError(f"the text that begins with {piece} at character {match.start() + 1} does not end")
        if kind == "open":
            open_ends.append((piece, match.start(), []))
        elif kind == "close":
            bracket, start, inside = open_ends.pop()
            if not open_ends or _CLOSES[bracket] != piece:
                raise ValueError(f"{piece} at character {match.start() + 1} closes nothing")
            open_ends[-1][2].append(Piece(bracket, text[start : match.end()], start, match.end(), tuple(inside)))
        elif kind != "space":
            open_ends[-1][2].append(Piece(kind, piece, match.start(), match.end()))
    bracket, start, nodes = open_ends[-1]
    if bracket:
        raise ValueError(f"{bracket} at character {start + 1} is not closed")
    _check_whole(nodes)
    return tuple(nodes)


def _check_whole(nodes: Sequence[Piece]) -> None:
    """Refuse a condition that is cut off: an operator, or a grouping, with nothing after it or before it."""
    if not nodes:
        return
    first, last = nodes[0], nodes[-1]
    if _joins(first) and first.text not in _SIGNS:
        raise ValueError(f"there is nothing before {first.text} at character {first.start + 1}")
    if _joins(last) or last.keyword in _EXPECTS_MORE:
        raise ValueError(f"there is nothing after {last.text} at character {last.start + 1}: is it cut off?")
    match nodes:
        case [*_, Piece(keyword=name), Piece(keyword="by" | "without"), Piece(kind="(")] if name in _AGGREGATIONS:
            raise ValueError(f"there is nothing to take the {name} of at the end: is it cut off?")
    for node in nodes:
        if node.kind == "(":
            _check_whole(node.inside)


def _joins(node: Piece) -> bool:
    return node.kind == "operator" or (node.kind == "mark" and node.text in _BETWEEN) or node.keyword in _SET_OPERATORS


def words(nodes: Sequence[Piece]) -> Iterator[Piece]:
    """Yield every word, at any depth. Quoted texts are not words."""
    for node in nodes:
        if node.kind == "word":
            yield node
        yield from words(node.inside)


def comparisons(nodes: Sequence[Piece], *, stands_alone: bool = True) -> Iterator[Comparison]:
    """Yield the comparisons with a number in a condition."""
    joints = [at for at, node in enumerate(nodes) if node.keyword in _SET_OPERATORS]
    stands_alone = stands_alone and all(nodes[at].keyword == "or" for at in joints)
    for before, after in pairwise([-1, *joints, len(nodes)]):
        side = nodes[before + 1 : after]
        matched = _without_matching(side)
        yield from _comparison(matched, stands_alone=stands_alone and len(matched) == len(side))


def _comparison(side: Sequence[Piece], *, stands_alone: bool) -> Iterator[Comparison]:
    match side:
        case [Piece(kind="(") as brackets]:
            yield from comparisons(brackets.inside, stands_alone=stands_alone)
        case [*left, Piece(kind="operator") as sign, Piece(kind="number") as number] if left and sign.text in _HOLDS:
            yield Comparison(tuple(left), sign.text, float(number.text), number.end, stands_alone)
        case [Piece(kind="number") as number, Piece(kind="operator") as sign, *left] if left and sign.text in _HOLDS:
            yield Comparison(tuple(left), _MIRRORED[sign.text], float(number.text), left[-1].end, stands_alone)
        case _:
            pass


def _without_matching(side: Sequence[Piece]) -> Sequence[Piece]:
    """Leave out ``on (...)`` and its like, which belong to the operator before them."""
    while len(side) > 1 and side[0].keyword in {"on", "ignoring"} and side[1].kind == "(":
        side = side[2:]
    return side


def aggregation(nodes: Sequence[Piece]) -> Aggregation | None:
    """Return the aggregation that these pieces are; None if they are not one that yields 0 for zero values."""
    match nodes:
        case [Piece(keyword=name), Piece(kind="(") as argument]:
            pass
        case [Piece(keyword=name), Piece(keyword="by" | "without"), Piece(kind="("), Piece(kind="(") as argument]:
            pass
        case [Piece(keyword=name), Piece(kind="(") as argument, Piece(keyword="by" | "without"), Piece(kind="(")]:
            pass
        case _:
            return None
    return Aggregation(name, argument) if name in _AGGREGATIONS else None
