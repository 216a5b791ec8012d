"""The values in force, for people and for programs: every setting, its value, and its origin. No secrets."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from pgleaderlock._base.durations import show_duration
from pgleaderlock.ops.config.model import Config, RoleConfig
from pgleaderlock.ops.config.settings import SETTINGS, Setting
from pgleaderlock.ops.config.sources import Loaded
from pgleaderlock.ops.config.values import describe_store

__all__ = ["InForce", "in_force"]

# For these, no value may mean none: the description of the default is for other cases.
_DEPENDS = ("registry.dsn", "cluster.leader_election.settle")


@dataclass(frozen=True, slots=True)
class InForce:
    """One setting: its value, and where the value comes from."""

    key: str
    value: Any
    """The value for JSON, durations as in the file; None if there is none, as for a grace period that is off."""
    origin: str
    otherwise: str = ""
    """The description of the default, if there is no value."""

    @property
    def text(self) -> str:
        """The value on one line."""
        match self.value:
            case None:
                return self.otherwise or "-"
            case bool():
                return str(self.value).lower()
            case dict():
                return ", ".join(f"{name}={item}" for name, item in self.value.items()) or "-"
            case list():
                return ", ".join(map(str, self.value)) or "-"
            case _:
                return str(self.value)


def in_force(loaded: Loaded) -> list[InForce]:
    """Return every setting, in the order of the documentation."""
    return [_setting(setting, loaded) for setting in SETTINGS]


def _setting(setting: Setting, loaded: Loaded) -> InForce:
    otherwise = "" if setting.key in _DEPENDS else setting.otherwise.replace("`", "")
    return InForce(setting.key, _shown(setting, loaded.config), loaded.origins[setting.key], otherwise)


def _shown(setting: Setting, config: Config) -> Any:
    value = setting.value_in(config)
    if value is None:
        value = _otherwise(config).get(setting.key)
    match setting.kind:
        case "duration" if value is not None:
            return show_duration(value)
        case "secret" | "token" if value is not None:
            return _without_secrets(setting, value)
        case "roles":
            return [_role(role) for role in value]
        case "facts":
            return dict(value)
        case "tables":
            return _alerts(config) if setting.key == "alerts" else _receivers(config)
        case _:
            return value


def _without_secrets(setting: Setting, value: SecretStr | str) -> str:
    if setting.kind == "token":
        return "(not shown)"
    return describe_store(value.get_secret_value() if isinstance(value, SecretStr) else value)


def _otherwise(config: Config) -> Mapping[str, Any]:
    """Return the defaults that depend on other settings."""
    election = "cluster.leader_election"
    return {
        "cluster.node": f"{socket.gethostname()}:<pid>",
        f"{election}.lease_duration": config.election.lease_s,
        f"{election}.refresh_interval": config.election.health_interval_s,
        f"{election}.lock_timeout": config.election.slice_s,
        f"{election}.settle": config.election.lease_s if config.election.on_sessions else None,
        "registry.enabled": config.registry_is_on,
        "registry.dsn": config.registry_dsn if config.registry_is_on else None,
    }


def _role(role: RoleConfig) -> str:
    return role.name if role.key is None else f"{role.name}={role.key}"


def _alerts(config: Config) -> list[str]:
    return [alert.name for alert in config.alerting.alerts]


def _receivers(config: Config) -> list[str]:
    return [f"{each.kind}:{each.name}" if each.name else each.kind for each in config.alerting.receivers]
