"""Find the line of each key in a TOML text, for error messages.

``tomllib`` returns values without their lines. So this scans the text once more, but only for how keys, tables and
values are delimited, because ``tomllib`` has accepted it already. If the scan fails nevertheless, some lines are
unknown, and nothing else breaks.
"""

import contextlib
import re
import tomllib
from collections.abc import Mapping

__all__ = ["KeyPath", "find_lines"]

KeyPath = tuple[str | int, ...]
"""The path to a value: the names of tables and keys, and the numbers of elements, from 0."""

_NOTHING = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_NAME = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+')
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_EQUALS = re.compile(r"[ \t]*=[ \t]*")
_TEXT = re.compile(  # one over several lines may end with two quotes of its own
    "|".join(
        (
            r'"""(?:[^\\]|\\[\s\S])*?"{3,5}',
            r"'''[\s\S]*?'{3,5}",
            r'"(?:[^"\\\n]|\\.)*"',
            r"'[^'\n]*'",
        )
    )
)
_BARE = re.compile(r"[^,\]}#\n]+")


class _LostError(Exception):
    """The scanner found something that it does not expect."""


def find_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line, from 1, on which each table, key and element of a TOML text begins."""
    scanner = _Scanner(text)
    with contextlib.suppress(_LostError, RecursionError):  # the lines found until then are valid
        scanner.scan()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._line, self._counted_to = 1, 0
        self._lengths: dict[KeyPath, int] = {}  # of arrays of tables

    def scan(self) -> None:
        table: KeyPath = ()
        while self._skip_to_something():
            if self._text.startswith("[[", self._at):
                table = self._array_header()
            elif self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)

    # --- Statements ---

    def _array_header(self) -> KeyPath:
        line = self._line_here()
        path = self._within_arrays(self._key_between("[[", "]]"))
        number = self._lengths[path] = self._lengths.get(path, -1) + 1
        self._note(path, line)
        self.lines[*path, number] = line
        return (*path, number)

    def _header(self) -> KeyPath:
        line = self._line_here()
        path = self._within_arrays(self._key_between("[", "]"))
        self._note(path, line)
        self.lines[path] = line  # a better place than that of an inner table, if that came first
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line_here()
        path = (*table, *self._key())
        self._note(path, line)
        self._take(_EQUALS)
        self._value(path)

    # --- Values ---

    def _value(self, path: KeyPath) -> None:
        match self._text[self._at : self._at + 1]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._take(_TEXT)
            case _:
                self._take(_BARE)

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        number = 0
        while self._goes_on("]"):
            self.lines[*path, number] = self._line_here()
            self._value((*path, number))
            number += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._goes_on("}"):
            self._pair(path)

    def _goes_on(self, end: str) -> bool:
        """Step over what separates elements; False after the end."""
        while self._skip_to_something():
            if self._text[self._at] == end:
                self._at += 1
                return False
            if self._text[self._at] != ",":
                return True
            self._at += 1
        raise _LostError

    # --- Keys ---

    def _key_between(self, opening: str, closing: str) -> tuple[str, ...]:
        self._at += len(opening)
        self._skip_to_something()
        names = self._key()
        self._skip_to_something()
        if not self._text.startswith(closing, self._at):
            raise _LostError
        self._at += len(closing)
        return names

    def _key(self) -> tuple[str, ...]:
        names = [self._name()]
        while dot := _DOT.match(self._text, self._at):
            self._at = dot.end()
            names.append(self._name())
        return tuple(names)

    def _name(self) -> str:
        written = self._take(_NAME)
        if written[0] not in "\"'":
            return written
        return str(tomllib.loads(f"name = {written}")["name"])

    def _within_arrays(self, names: tuple[str, ...]) -> KeyPath:
        """Return the path of a header, which means the last element of each array of tables on its way."""
        path: KeyPath = ()
        for name in names[:-1]:
            path = (*path, name)
            if path in self._lengths:
                path = (*path, self._lengths[path])
        return (*path, *names[-1:])

    def _note(self, path: KeyPath, line: int) -> None:
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    # --- The text ---

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _LostError
        self._at = match.end()
        return match[0]

    def _skip_to_something(self) -> bool:
        match = _NOTHING.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at < len(self._text)

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line
