"""A mapping of a kubeconfig, with typed access: a wrong type is a ValueError with the file, the key and advice.

YAML reads ``namespace: 7`` as a number, ``token: 2024-01-01`` as a date, and what its author meant as a mapping perhaps
as a list. kubectl refuses all of these; so do we, because the intended text is lost: ``0123`` has become 83. A missing
key and null are the same, as in kubectl. Values are never quoted: any of them may be a secret, if only by mistake.
"""

from datetime import date
from pathlib import Path
from typing import Any

__all__ = ["Settings"]

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),  # before int, which it is one of
    (int, "a number"),
    (float, "a number"),
    (str, "a text"),
    (list, "a list"),
    (dict, "a mapping"),
    (date, "a date"),
    (bytes, "binary data"),
)


class Settings:
    """One mapping, and its place in the file."""

    def __init__(self, content: object, file: Path, place: str = "") -> None:
        """``place`` names the mapping in errors, such as ``user 'admin'``; it is empty for the whole file."""
        if not isinstance(content, dict):
            where = f"{file}: {place}" if place else f"the kubeconfig {file}"
            raise ValueError(f"{where} must be a mapping, and is {_kind(content)}")  # noqa: TRY004 - a wrong value
        self._content: dict[Any, Any] = content
        self.file = file
        self.place = place

    def __contains__(self, key: str) -> bool:
        return key in self._content

    @property
    def keys(self) -> set[str]:
        """The keys as texts, whatever type YAML gave them."""
        return {str(key) for key in self._content}

    def named(self, key: str) -> str:
        """Return the place of this key: ``token of user 'admin' in /home/me/.kube/config``."""
        return f"{key} of {self.place} in {self.file}" if self.place else f"{key} in {self.file}"

    def wrong(self, key: str, what: str) -> ValueError:
        """Return a ValueError that names the file, this key and what is wrong with it."""
        return ValueError(f"{self.file}: {key} of {self.place} {what}" if self.place else f"{self.file}: {key} {what}")

    def text(self, key: str) -> str | None:
        """Return a text, None when there is none."""
        value = self._content.get(key)
        return None if value is None else self._text(key, value)

    def flag(self, key: str) -> bool:
        """Return true or false. Refuse the text "false": as a non-empty text it would count as true."""
        value = self._content.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false without quotes, and is {_kind(value)}")
        return bool(value)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, an empty one when there is none."""
        return [self._text(f"{key}[{index}]", value) for index, value in enumerate(self._list(key))]

    def part(self, key: str, place: str) -> "Settings":
        """Return the mapping under this key, an empty one when there is none."""
        value = self._content.get(key)
        return Settings({} if value is None else value, self.file, place)

    def parts(self, key: str) -> list["Settings"]:
        """Return a list of mappings, an empty one when there is none."""
        within = f" of {self.place}" if self.place else ""
        return [Settings(value, self.file, f"{key}[{index}]{within}") for index, value in enumerate(self._list(key))]

    def _list(self, key: str) -> list[Any]:
        value = self._content.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, f"must be a list, and is {_kind(value)}")
        return value or []

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            cure = "" if isinstance(value, list | dict) or value is None else ": put it in quotes"
            raise self.wrong(key, f"must be a text, and is {_kind(value)}{cure}")
        # No file name, argument or request can hold these, and each would raise another error.
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.wrong(key, "(not shown) holds an invalid character: NUL, or half of a surrogate pair. Remove it")
        return value


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "something else")
