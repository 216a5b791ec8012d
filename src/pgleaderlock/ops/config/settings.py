"""Every setting by its key: the name of its environment variable, and how to parse its text.

One rule for names: ``PGLEADERLOCK_``, then the path of the key in capitals, without ``cluster`` and
``leader_election``, whose keys are the most used. ``registry.dsn`` is ``PGLEADERLOCK_REGISTRY_DSN``,
``cluster.leader_election.lease_duration`` is ``PGLEADERLOCK_LEASE_DURATION``.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pgleaderlock._base.spelling import near
from pgleaderlock.ops.config.model import Config, Kind, RoleConfig
from pgleaderlock.ops.config.problems import KeyPath

__all__ = ["PREFIX", "SETTINGS", "Setting", "children_of", "sections", "setting_at", "suggest"]

PREFIX = "PGLEADERLOCK_"
"""The prefix of every variable."""

_UNSAID = ("cluster", "leader_election")
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file."""

    path: tuple[str, ...]
    kind: Kind
    default: Any
    otherwise: str
    """The description of the default, if it is not a fixed value."""
    meaning: str
    attribute: tuple[str, ...]
    """The path to its value in a :class:`Config`."""
    choices: tuple[str, ...] = ()
    """The allowed values, if they are a few words."""

    @property
    def key(self) -> str:
        """The key as ``--set`` takes it."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return PREFIX + "_".join(part for part in self.path if part not in _UNSAID).upper()

    def read(self, text: str) -> Any:
        """Return the value as in the file, from the text of a variable or a flag. Errors do not repeat the text."""
        if not text.strip():
            raise ValueError("is empty: give it a value, or leave it out")
        match self.kind:
            case "flag":
                return _read_flag(text)
            case "number":
                return _read_number(text)
            case "roles":
                return [_read_role(item) for item in _items(text)]
            case "facts":
                return dict(_read_fact(item) for item in _items(text))
            case "tables":
                return _read_toml(text)
            case "duration" | "text" | "secret" | "token":
                return text

    def value_in(self, config: Config) -> Any:
        """Return the value of this setting in a configuration."""
        value: Any = config
        for name in self.attribute:
            value = getattr(value, name)
        return value


def _read_flag(text: str) -> bool:
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise ValueError("must be true or false")


def _read_number(text: str) -> int:
    if _WHOLE.fullmatch(text):
        return int(text)
    if text.startswith("tcp://"):
        raise ValueError(
            "must be a whole number, but is an address: Kubernetes sets this variable for a service of that name. "
            "Set enableServiceLinks: false for the pod, or rename the service"
        )
    raise ValueError("must be a whole number")


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def _read_role(text: str) -> dict[str, str] | str:
    name, equals, key = text.partition("=")
    return {"name": name, "key": key} if equals else text


def _read_fact(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError("must be name=value, and more of them after commas")
    return name, value


def _read_toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # the original message may repeat the value
        raise ValueError('must be a value of TOML, such as [{ name = "...", ... }]') from None


# --- All of them -----------------------------------------------------------------------------------------------------


def _walk(model: type[BaseModel], path: tuple[str, ...], attribute: tuple[str, ...]) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, here, (*attribute, name))
        else:
            yield _setting(field, here, (*attribute, name))


def _setting(field: FieldInfo, path: tuple[str, ...], attribute: tuple[str, ...]) -> Setting:
    more = cast("Mapping[str, Any]", field.json_schema_extra)
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return Setting(path, more["kind"], field.default, more["otherwise"], field.description or "", attribute, choices)


SETTINGS: tuple[Setting, ...] = tuple(_walk(Config, (), ()))
"""All settings, in the order of the model."""


def sections() -> list[tuple[str, ...]]:
    """Return the tables of the file, the outer before the inner."""
    found = {setting.path[:length] for setting in SETTINGS for length in range(1, len(setting.path))}
    return sorted(found, key=len)


def setting_at(path: KeyPath) -> Setting | None:
    """Return the setting at this path, or the one that it is a part of; None for an unknown key."""
    return next((setting for setting in SETTINGS if path[: len(setting.path)] == setting.path), None)


def children_of(path: KeyPath) -> list[str]:
    """Return the keys that a table may have."""
    if setting_at(path) is not None:  # the table of a role
        return list(RoleConfig.model_fields)
    depth = len(path)
    return list(dict.fromkeys(setting.path[depth] for setting in SETTINGS if setting.path[:depth] == path))


def suggest(path: KeyPath) -> str:
    """Return the error text for an unknown key, with similar keys."""
    name, known = str(path[-1]), children_of(path[:-1])
    if meant := near(name, known):
        return f"unknown key; did you mean {' or '.join(meant)}?"
    homes = [setting for setting in SETTINGS if setting.path[-1] == name]
    if homes:
        places = " or ".join(f"[{'.'.join(home.path[:-1])}]" for home in homes)
        return f"unknown key; it belongs into {places}"
    return f"unknown key; the keys here are {', '.join(known)}"
