"""One table of a TOML file. It knows its place there, so that every error names file, table and key."""

from collections.abc import Collection, Iterator
from typing import Any


class Table:
    """A table as ``tomllib`` returns it, read key by key. Errors never show values: one of them may be a secret."""

    def __init__(self, content: Any, place: str) -> None:
        if not isinstance(content, dict):
            raise ValueError(f"{place} must be a table, not {_kind(content)}")  # noqa: TRY004 - a file is a value
        self._content: dict[str, Any] = content
        self.place = place

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def wrong(self, key: str, why: str) -> ValueError:
        """Return an error about this key, with its place."""
        return ValueError(f"{self.place}: {key} {why}")

    def only(self, known: Collection[str]) -> None:
        """Refuse unknown keys: an alert with a misspelt ``for`` would fire at once."""
        for key in self._content:
            if key not in known:
                raise self.wrong(key, f"is an unknown key: the keys here are {', '.join(known)}")

    def text(self, key: str) -> str | None:
        """Return a text that is not empty, or None where there is no such key."""
        value = self._content.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(key, f'must be a text in quotes, not {_kind(value)}: {key} = "..."')
        if not value.strip():
            raise self.wrong(key, "is empty: give it a value, or leave the key out")
        return value

    def needed(self, key: str, example: str) -> str:
        value = self.text(key)
        if value is None:
            raise self.wrong(key, f"is missing: add {key} = {example}")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of texts, or None where there is no such key."""
        value = self._content.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f'must be a list of texts: {key} = ["slack:#ops"]')
        return tuple(value)

    def flag(self, key: str) -> bool:
        """Return true or false; false where there is no such key."""
        value = self._content.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, without quotes, not {_kind(value)}")
        return value

    def part(self, key: str, place: str) -> "Table":
        """Return a table within this one; an empty one where there is no such key."""
        return Table(self._content.get(key, {}), place)

    def parts(self, key: str) -> list[Any]:
        """Return an array of tables, as written: ``[[key]]``."""
        value = self._content.get(key, [])
        if not isinstance(value, list):
            raise ValueError(f"{self.place}: {key} must be an array of tables: write [[{key}]], in double brackets")  # noqa: TRY004
        return value


def _kind(value: Any) -> str:
    """Return the name of a value's type in words of TOML."""
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table", str: "a text"}
    return names.get(type(value), type(value).__name__)
