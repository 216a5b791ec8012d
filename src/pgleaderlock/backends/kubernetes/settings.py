"""A mapping of a kubeconfig, read by type: whatever is wrong in it is a ValueError with the file, the key and a cure.

YAML makes a number of ``namespace: 7``, a date of ``token: 2024-01-01`` and a list of what a person meant as a mapping.
kubectl refuses all of these; so do we, because what was meant cannot be told: ``0123`` is 83 by then. Nothing and null
are the same, as kubectl has it. Values are never quoted: any of them may be a secret, if only by a slip of the hand.
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
    """One mapping, and where it stands."""

    def __init__(self, content: object, file: Path, place: str = "") -> None:
        """``place`` names it for people, such as ``user 'admin'``; it is empty for the whole file."""
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
        """What is in it, whatever YAML took the keys for."""
        return {str(key) for key in self._content}

    def named(self, key: str) -> str:
        """Say where this key stands: ``token of user 'admin' in /home/me/.kube/config``."""
        return f"{key} of {self.place} in {self.file}" if self.place else f"{key} in {self.file}"

    def wrong(self, key: str, what: str) -> ValueError:
        """Return the error that this key is worth."""
        return ValueError(f"{self.file}: {key} of {self.place} {what}" if self.place else f"{self.file}: {key} {what}")

    def text(self, key: str) -> str | None:
        """Return a text, None when there is none."""
        value = self._content.get(key)
        return None if value is None else self._text(key, value)

    def flag(self, key: str) -> bool:
        """Return true or false. The text "false" is neither: it would count as true, and switch off what protects."""
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
        # No file, program or server can be handed these, and each of them fails in its own way.
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.wrong(key, "(not shown) holds a character that is none: NUL, or half of one. Take it out")
        return value


def _kind(value: object) -> str:
    if value is None:
        return "empty"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "something else")
