"""Load a configuration from a file, the environment and flags, and keep the origin of each value.

::

    defaults  <  file  <  environment  <  flags

Each layer overrides the one before it, key by key; a list is replaced, not extended. Then everything is checked, and
all problems are reported at once, each with its place.

``$PG_DSN``, which other programs read as well, names the store only if neither the file, a ``PGLEADERLOCK_`` variable
nor a flag does.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pgleaderlock._base.spelling import near
from pgleaderlock.ops.config import alerting, relations
from pgleaderlock.ops.config.model import RELATIONS_LATER, Config
from pgleaderlock.ops.config.problems import ConfigError, KeyPath, Problem, show_path
from pgleaderlock.ops.config.settings import PREFIX, SETTINGS, Setting, sections, setting_at, suggest

__all__ = ["DEFAULT", "Loaded", "Option", "load", "load_config"]

_DEEPEST = 50  # tables and lists within each other
DEFAULT = "default"
"""The origin of a value that is not set anywhere."""

_BACKEND = ("cluster", "leader_election", "backend")
_URL_VARIABLE = "PGLEADERLOCK_URL"  # of --url
_DSN_VARIABLE = "PG_DSN"  # of --dsn
_VERY_LIKELY = 0.85
_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_SHORT_QUOTE = 3
_TEXTS = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be an array of tables: write its name in double brackets, [[alerts]]",
    "int_type": "must be a whole number, without quotes",
    "bool_type": "must be true or false, without quotes",
    "string_type": "must be a text in quotes",
    "missing": "is missing",
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command line that sets a key of the file."""

    flag: str
    key: str
    text: str
    """The value as text, as in an environment variable."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and the origin of each value."""

    config: Config
    file: str | None
    origins: Mapping[str, str]
    """By key: ``default``, ``pgleaderlock.toml``, ``$PGLEADERLOCK_LEASE_DURATION``, ``--set`` or ``--lease``."""
    refused: tuple[Problem, ...] = ()
    """Problems for which ``pgleaderlock alerts export`` would refuse the alerts. A node can start nevertheless."""
    doubtful: tuple[Problem, ...] = ()
    """Warnings of ``pgleaderlock alerts export``."""


def load_config(
    path: str | os.PathLike[str] | None = None, *, environ: Mapping[str, str] | None = None, sets: Sequence[str] = ()
) -> Config:
    """Return the configuration of a file, overridden by the environment and ``KEY=VALUE`` flags. See :func:`load`."""
    return load(path, environ=environ, sets=sets).config


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    options: Sequence[Option] = (),
) -> Loaded:
    """Read all layers, merge and check them; :class:`ConfigError` has all problems.

    ``environ`` is by default that of the process. ``sets`` are as ``--set`` takes them:
    ``cluster.leader_election.lease_duration=30s``. ``options`` are a program's own and override everything else.
    """
    layers = _read(path)
    layers.drop_what_is_no_table()
    layers.lay_environment(os.environ if environ is None else environ)
    layers.lay_flags(sets)
    layers.lay_options(options)
    config = _check(layers)
    if layers.problems:
        raise ConfigError(layers.problems)
    origins = {setting.key: layers.origin(setting.path) for setting in SETTINGS}
    reviews = alerting.review(config.alerting, config.metrics.prefix)
    refused, doubtful = (
        tuple(Problem(layers.origin(path), show_path(path), text) for path, text in found) for found in reviews
    )
    return Loaded(config, layers.file, origins, refused, doubtful)


# --- The layers ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Layers:
    """The merged content of all sources, in the form of the file, and the origin of each part."""

    file: str | None
    content: dict[str, Any]
    laid_over: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def drop_what_is_no_table(self) -> None:
        """Report a section that is not a table once, instead of once for each of its keys."""
        for section in sections():
            holder = self._holder(section)
            if not isinstance(holder.get(section[-1], {}), dict):
                self.add(section, "must be a table")
                del holder[section[-1]]

    def lay_environment(self, environ: Mapping[str, str]) -> None:
        for setting in SETTINGS:
            if setting.variable in environ:
                self._lay(setting, environ[setting.variable], f"${setting.variable}")
        self._lay_store(environ)
        self._notice_slips(environ)

    def _lay_store(self, environ: Mapping[str, str]) -> None:
        backend = next(setting for setting in SETTINGS if setting.path == _BACKEND)
        if _URL_VARIABLE in environ:
            if environ.get(backend.variable, environ[_URL_VARIABLE]) != environ[_URL_VARIABLE]:
                self.problems.append(Problem(f"${_URL_VARIABLE}", "", f"names another store than ${backend.variable}"))
            elif _BACKEND not in self.laid_over:
                self._lay(backend, environ[_URL_VARIABLE], f"${_URL_VARIABLE}")
        elif _DSN_VARIABLE in environ and "backend" not in self._holder(_BACKEND):
            self._lay(backend, environ[_DSN_VARIABLE], f"${_DSN_VARIABLE}")

    def _notice_slips(self, environ: Mapping[str, str]) -> None:
        """Refuse variables that are almost ours. Others may have the same prefix: Kubernetes makes some."""
        known = {setting.variable.removeprefix(PREFIX) for setting in SETTINGS}
        for variable in sorted(environ):
            name = variable.removeprefix(PREFIX)
            if name in (variable, *known):
                continue
            if meant := difflib.get_close_matches(name, known, n=1, cutoff=_VERY_LIKELY):
                self.problems.append(Problem(f"${variable}", "", f"unknown; did you mean ${PREFIX}{meant[0]}?"))

    def lay_flags(self, sets: Iterable[str]) -> None:
        by_key = {setting.key: setting for setting in SETTINGS}
        for written in sets:
            key, equals, text = written.partition("=")
            shown = show_path(tuple(key.split(".")))
            if not equals:
                self.problems.append(Problem("--set", "", "write it as KEY=VALUE, as in --set cluster.node=web-1"))
            elif key in by_key:
                self._lay(by_key[key], text, "--set")
            else:
                self.problems.append(Problem(f"--set {shown}", "", _suggest_key(key)))

    def lay_options(self, options: Iterable[Option]) -> None:
        by_key = {setting.key: setting for setting in SETTINGS}
        for option in options:
            setting = by_key[option.key]
            if self.laid_over.get(setting.path) == "--set":
                self.problems.append(Problem(option.flag, "", f"--set {option.key} sets it too: give one of them"))
            else:
                self._lay(setting, option.text, option.flag)

    def _lay(self, setting: Setting, text: str, label: str) -> None:
        self.laid_over[setting.path] = label
        holder = self._holder(setting.path)
        before = holder.pop(setting.path[-1], None)  # an overridden value need not be valid
        try:
            value = setting.read(text)
        except ValueError as error:
            self.add(setting.path, str(error))
            return
        holder[setting.path[-1]] = _with_keys(value, before) if setting.kind == "roles" else value

    def _holder(self, path: KeyPath) -> dict[str, Any]:
        """Return the table of a key; create it if it does not exist."""
        table = self.content
        for name in path[:-1]:
            table = table.setdefault(str(name), {})
        return table

    # --- Places ---

    def origin(self, path: KeyPath) -> str:
        """Return the origin of the value of a setting, or of a part of it."""
        setting = setting_at(path)
        if setting is not None and setting.path in self.laid_over:
            return self.laid_over[setting.path]
        if setting is not None and not self._says(setting.path):
            return DEFAULT
        return self.file or DEFAULT

    def _says(self, path: KeyPath) -> bool:
        table: Any = self.content
        for name in path:
            if not isinstance(table, dict) or name not in table:
                return False
            table = table[name]
        return True

    def add(self, path: KeyPath, text: str) -> None:
        setting, place = setting_at(path), self.origin(path)
        if setting is None or not place.startswith(("$", "--")):
            self.problems.append(Problem("" if place == DEFAULT else place, show_path(path), text))
            return
        rest = show_path(path[len(setting.path) :])
        self.problems.append(Problem(f"--set {setting.key}" if place == "--set" else place, rest, text))

    def add_conflict(self, conflict: relations.Conflict) -> None:
        """Add a conflict, at the place of the first of its values that is not a default."""
        keys = sorted(conflict.keys, key=lambda key: self.origin(key) == DEFAULT)
        others = ", ".join(f"{show_path(key)}: {self.origin(key)}" for key in keys[1:])
        self.add(keys[0], f"{conflict.text} ({others})")


def _with_keys(roles: list[Any], before: Any) -> list[Any]:
    """Return the roles with their keys from the overridden layer: the same name must stay the same lock."""
    tables = [each for each in before if isinstance(each, dict)] if isinstance(before, list) else []
    keyed = {each["name"]: each for each in tables if isinstance(each.get("name"), str)}
    return [keyed.get(each, each) if isinstance(each, str) else each for each in roles]


def _suggest_key(key: str) -> str:
    keys = [setting.key for setting in SETTINGS]
    meant = [each for each in keys if each.rpartition(".")[2] == key.rpartition(".")[2]] or near(key, keys)
    return f"unknown key; did you mean {' or '.join(meant)}?" if meant else "unknown key: see pgleaderlock config show"


# --- The file --------------------------------------------------------------------------------------------------------


def _read(path: str | os.PathLike[str] | None) -> _Layers:
    if path is None:
        return _Layers(None, {})
    file = os.fspath(path)
    try:
        text = Path(file).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError([Problem(file, "", f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem(file, "", "is not text in UTF-8: is it another file?")]) from None
    except ValueError:  # a name with a NUL in it
        raise ConfigError([Problem("", "", "this cannot be the name of a file")]) from None
    content, problem = _parse(text, file)
    if problem is not None:  # raised here, so that tomllib's exception is not part of it
        raise ConfigError([problem])
    return _Layers(file, content)


def _parse(text: str, file: str) -> tuple[dict[str, Any], Problem | None]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return {}, _syntax_problem(str(error), text, file)
    except RecursionError:
        return {}, Problem(file, "", "is nested too deeply")
    except ValueError:  # such as a number of thousands of digits
        return {}, Problem(file, "", "is TOML that cannot be parsed")
    # Dotted keys may nest deeper than brackets can, and deeper than the recursion of the checks that follow.
    return ({}, Problem(file, "", "is nested too deeply")) if _is_too_deep(content) else (content, None)


def _is_too_deep(content: dict[str, Any]) -> bool:
    level: list[Any] = [content]
    for _ in range(_DEEPEST):
        nested = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [value for each in nested for value in each if isinstance(value, dict | list)]
    return bool(level)


def _syntax_problem(message: str, text: str, file: str) -> Problem:
    match = _SYNTAX.fullmatch(message)
    if match is None:
        return Problem(file, "", "is not TOML")
    why = _QUOTED.sub(lambda quote: quote[0] if len(quote[0]) <= _SHORT_QUOTE else "'…'", match[1])
    line = match[2] or str(text.rstrip().count("\n") + 1)
    column = f" (column {match[3]})" if match[3] else " (at the end of the file)"
    return Problem(f"{file}:{line}", "", f"is not TOML: {why}{column}")


# --- The checks ------------------------------------------------------------------------------------------------------


def _check(layers: _Layers) -> Config:
    """Return the configuration without the values that are wrong, so that the rest can be checked too."""
    config, errors = _validate(layers.content)
    wrong = {_part_of(tuple(error["loc"])) for error in errors}
    for error in errors:
        layers.add(tuple(error["loc"]), _text_of(error))
    if config is None:
        config, _ = _validate(_without(layers.content, wrong))
    assert config is not None  # noqa: S101 - every setting has a default
    for conflict in relations.find_conflicts(config):
        if not wrong & {_part_of(key) for key in conflict.keys}:
            layers.add_conflict(conflict)
    for path, text in alerting.find_problems(config.alerts, config.receivers):
        layers.add(path, text)
    return config


def _validate(content: dict[str, Any]) -> tuple[Config | None, Sequence[Mapping[str, Any]]]:
    try:
        return Config.model_validate(content, context=RELATIONS_LATER), ()
    except ValidationError as error:
        return None, error.errors(include_url=False, include_context=False, include_input=False)


def _part_of(loc: KeyPath) -> KeyPath:
    """Return the path to remove: a whole setting, or an unknown key."""
    setting = setting_at(loc)
    return loc if setting is None else setting.path


def _without(content: dict[str, Any], wrong: Iterable[KeyPath]) -> dict[str, Any]:
    content = deepcopy(content)
    for path in wrong:
        table = content
        for name in path[:-1]:
            table = table[str(name)]
        table.pop(str(path[-1]), None)
    return content


def _text_of(error: Mapping[str, Any]) -> str:
    """Return our text for an error of pydantic. Its own text is used only where it lists the allowed values."""
    match error["type"]:
        case "extra_forbidden":
            return suggest(tuple(error["loc"]))
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case "literal_error":
            return str(error["msg"]).replace("Input should be", "must be").replace("'", '"')
        case other:
            return _TEXTS.get(other, "is not an allowed value")
