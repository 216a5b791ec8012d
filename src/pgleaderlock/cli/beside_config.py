"""The options of a command that also has a configuration: each overrides a key, concerns the command, or is refused.

None is ignored: a node that reads its ``--dsn`` from the wrong place would be a second leader (split brain).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgleaderlock._base.durations import show_duration
from pgleaderlock.cli.config import load_for_command
from pgleaderlock.cli.election_options import given_pod_label, given_settings
from pgleaderlock.cli.options import is_given
from pgleaderlock.cli.shown_roles import is_configured
from pgleaderlock.options import POD_LABEL, SETTINGS

if TYPE_CHECKING:
    from pgleaderlock.ops.config import Config
    from pgleaderlock.ops.config.sources import Option

_ELECTION = "cluster.leader_election"


def _written(value: Any) -> str:
    """Return the value of a setting as the text of a key."""
    if isinstance(value, bool):
        return str(value).lower()
    return show_duration(value) if isinstance(value, float) else str(value)


# By the name of the option's argument, as click has it: each key, and how to write the value there.
_KEYS: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "dsn": {f"{_ELECTION}.backend": str},
    "url": {f"{_ELECTION}.backend": str},
    "role": {f"{_ELECTION}.roles": str},
    **{each.name: {f"{_ELECTION}.{each.key}": _written} for each in (*SETTINGS, POD_LABEL) if each.key is not None},
    "metrics_port": {"metrics.enabled": lambda _: "true", "metrics.port": str},
}
_SAME = frozenset({"config_file", "sets", "embedded", "as_json", "quiet"})
"""These mean the same with a configuration as without."""
_OF_ONE_LOCK = _SAME | {"role", "key", "key1", "key2", "hold_s", "wait_s", "kill_after_s", "once", "restart"}
_OF_ONE_LOCK |= {"pass_dsn", "command", "cron", "tz", "if_killed", "host", "port", "notice_s", "metrics_port"}
"""For a command on one lock: the options that name the lock, and what this process does with it."""
_RETRY = f"the retry interval of a configured node is --set {_ELECTION}.check_interval"
_BY_ROLE = "a configured node has roles, each with a key if it needs one: --role NAME=pair:1/100"
_INSTEAD = {
    "retry_base_s": _RETRY,
    "retry_max_s": _RETRY,
    "auto_reacquire": "a configured node takes part again after a loss",
    "key": _BY_ROLE,
    "key1": _BY_ROLE,
    "key2": _BY_ROLE,
}


def config_for_node(context: click.Context, config_file: Path | None, sets: tuple[str, ...]) -> "Config | None":
    """Return the configuration of a whole node, overridden by the given options; None if there is none."""
    if not sets and not is_configured(config_file, takes_part=True):
        return None
    return load_for_command(config_file, sets, _given_keys(context, _SAME)).config


def config_for_lock(context: click.Context, config_file: Path | None, *, takes_part: bool = False) -> "Config | None":
    """Return the same for a command on one of its roles. If no role is configured, it gets the one that is named."""
    if not is_configured(config_file, takes_part=takes_part):
        return None
    config = load_for_command(config_file, (), _given_keys(context, _OF_ONE_LOCK)).config
    if config.election.roles or not is_given("role"):
        return config
    return load_for_command(config_file, (), _given_keys(context, _OF_ONE_LOCK - {"role"})).config


def _given_keys(context: click.Context, same: frozenset[str]) -> "list[Option]":
    """Return the given options as keys of the configuration."""
    given = [each for each in context.command.params if is_given(str(each.name)) and each.name not in same]
    values = {**context.params, **given_settings(), POD_LABEL.name: given_pod_label()}
    return [each for option in given for each in _keys(option, values)]


def _keys(parameter: click.Parameter, values: Mapping[str, Any]) -> "list[Option]":
    """Return the keys of one option. Without any it is wrong usage."""
    from pgleaderlock.ops.config.sources import Option  # noqa: PLC0415 - it needs an extra of its own

    name, flag = str(parameter.name), max(parameter.opts, key=len)
    if name not in _KEYS:
        why = _INSTEAD.get(name, "a configured node has no such setting")
        raise click.UsageError(f"{flag} has no effect beside --config and --set, or $PGLEADERLOCK_BACKEND: {why}.")
    return [Option(flag, key, write(values[name])) for key, write in _KEYS[name].items()]
