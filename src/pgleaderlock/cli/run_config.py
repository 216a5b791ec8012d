"""The options of ``run`` beside ``--config`` and ``--set``: each is a key of the configuration, or is refused.

None is ignored: a node that reads its ``--dsn`` from the wrong place leads beside the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgleaderlock._durations import show_duration
from pgleaderlock.cli.config import load_for_command
from pgleaderlock.cli.options import allows_pooler, is_given, schema_owner, wants_embedded

if TYPE_CHECKING:
    from pgleaderlock.config import Config
    from pgleaderlock.config.sources import Option

__all__ = ["config_for_run"]

_ELECTION = "cluster.leader_election"


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the configuration, and how an option's value is written there."""

    path: str
    write: Callable[[Any], str] = str


def _of_election(name: str, write: Callable[[Any], str] = str) -> tuple[_Key, ...]:
    return (_Key(f"{_ELECTION}.{name}", write),)


def _true(_value: Any) -> str:
    return "true"


def _false(_value: Any) -> str:
    return "false"


# By the name of the option's argument, as click has it.
_KEYS: Mapping[str, tuple[_Key, ...]] = {
    "dsn": _of_election("backend"),
    "url": _of_election("backend"),
    "role": _of_election("roles"),
    "lease_s": _of_election("lease_duration", show_duration),
    "health_interval_s": _of_election("refresh_interval", show_duration),
    "settle_s": _of_election("settle", show_duration),
    "wake": _of_election("wake"),
    "allow_pooler": _of_election("allow_pooler", _true),
    "no_witness": _of_election("witness", _false),
    "takeover": _of_election("takeover"),
    "term_table": _of_election("term_table", _true),
    "schema": _of_election("schema"),
    "schema_owner": _of_election("schema_owner"),
    "reconnect_grace_s": _of_election("reconnect_grace", show_duration),
    "metrics_port": (_Key("metrics.enabled", _true), _Key("metrics.port")),
}
_SAME = frozenset({"config_file", "sets", "embedded", "as_json", "quiet"})
"""These mean the same with a configuration as without."""
_RETRY = f"how often a follower of a configured node asks is --set {_ELECTION}.check_interval"
_BY_ROLE = "a configured node has roles, each with a key if it needs one: --role NAME=pair:1/100"
_INSTEAD = {
    "retry_base_s": _RETRY,
    "retry_max_s": _RETRY,
    "no_auto_reacquire": "a configured node takes part again after a loss",
    "key": _BY_ROLE,
    "key1": _BY_ROLE,
    "key2": _BY_ROLE,
}


def config_for_run(context: click.Context, config_file: Path | None, sets: tuple[str, ...]) -> "Config":
    """Return the configuration in force, under the options that were given beside it."""
    given = [option for option in context.command.params if is_given(str(option.name))]
    names = {str(option.name) for option in given}
    if {"dsn", "url"} <= names:
        raise click.UsageError("--url and --dsn name the store twice: give one of them.")
    values = {**context.params, "schema_owner": schema_owner(), "allow_pooler": allows_pooler()}
    config = load_for_command(config_file, sets, [each for option in given for each in _keys(option, values)]).config
    if wants_embedded() and config.election.url is not None:
        raise click.UsageError(
            "--embedded and the configuration's backend name the store twice: leave one of them out."
        )
    return config


def _keys(parameter: click.Parameter, values: Mapping[str, Any]) -> "list[Option]":
    """Return what this option says in words of the configuration. Without any such words it is wrong usage."""
    from pgleaderlock.config.sources import Option  # noqa: PLC0415 - it needs an extra of its own

    name, flag = str(parameter.name), max(parameter.opts, key=len)
    if name in _SAME:
        return []
    if name not in _KEYS:
        why = _INSTEAD.get(name, "it is no setting of a configured node")
        raise click.UsageError(f"{flag} has no effect beside --config and --set: {why}.")
    return [Option(flag, key.path, key.write(values[name])) for key in _KEYS[name]]
