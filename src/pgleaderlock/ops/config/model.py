"""The settings: name, type, default and meaning of each.

Frozen, and checked as a whole: the library accepts every :class:`Config`. The descriptions are the documentation:
a test compares ``docs/reference/configuration.md`` with them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, create_model, model_validator

from pgleaderlock.ops.alerts import Config as AlertsConfig
from pgleaderlock.ops.alerts import parse as parse_alerts
from pgleaderlock.ops.config import relations, values
from pgleaderlock.options import BY_NAME, DEFAULT_SCHEMA, POD_LABEL, SETTINGS, LockSettings, Setting
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.retry import FixedInterval, RetryStrategy
from pgleaderlock.stores.times import RENEWALS_PER_LEASE, USUAL_INTERVAL_S, LeaseTimes, choose_times

__all__ = [
    "RELATIONS_LATER",
    "ClusterConfig",
    "Config",
    "DashboardConfig",
    "Kind",
    "LeaderElectionConfig",
    "MetricsConfig",
    "RegistryConfig",
    "RoleConfig",
]

Kind = Literal["duration", "flag", "number", "text", "secret", "token", "roles", "facts", "tables"]
"""How to write a setting in the file, and as the text of a variable or a flag."""

RELATIONS_LATER: Mapping[str, Any] = {"relations": "later"}
"""Context of a validation that checks each value alone: the caller then checks relations, and reports their places."""

_LONGEST_SLICE_S = 0.9  # for the usual deadlock_timeout of 1 s
_MANY = 100_000
_MOST_SEPARATE = 8
_LAST_PORT = 65535


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def _setting(default: Any, kind: Kind, meaning: str, *, otherwise: str = "", alias: str | None = None) -> Any:
    """Return a field; ``otherwise`` describes the default where it is not a fixed value."""
    return Field(
        default=default, description=meaning, json_schema_extra={"kind": kind, "otherwise": otherwise}, alias=alias
    )


def _each_a_table(value: Any) -> Any:
    """Turn a role that is written as its name alone into a table."""
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of names, roles = ["scheduler"], or of tables')  # noqa: TRY004 - pydantic's
    return tuple({"name": item} if isinstance(item, str) else item for item in value)


class RoleConfig(_Section):
    """One role for which this node is a candidate."""

    name: values.RoleName = Field(description="The name of the role, also in metrics and tables.")
    key: values.RoleKey | None = Field(
        default=None, description="The key of the lock, if it does not follow from the name."
    )

    @property
    def lock_key(self) -> LockKey:
        """The lock of the key, or if there is none, of the name."""
        return LockKey.named(self.name) if self.key is None else self.key.for_role(self.name)


class _Store(_Section):
    backend: values.BackendUrl | None = _setting(
        None,
        "secret",
        "The store of the elections: any URL of `open_backend`, or a connection string of libpq.",
        otherwise="none: `run` needs one, or `--embedded`",
    )
    roles: Annotated[tuple[RoleConfig, ...], BeforeValidator(_each_a_table)] = _setting(
        (), "roles", "The roles of this node: names, or tables with `name` and `key`.", otherwise="none"
    )
    check_interval: values.Duration = _setting(
        5.0, "duration", "How long one round of queueing lasts; with polling, the interval between attempts."
    )


_IN_FILE = tuple(each for each in SETTINGS if each.key is not None)


def _attribute(setting: Setting) -> str:
    """Return the name of its field; pydantic has a method ``schema``."""
    return "schema_name" if setting.key == "schema" else str(setting.key)


def _field(setting: Setting) -> Any:
    kind: Kind = "duration" if setting.is_seconds else "flag" if setting.type is bool else "text"
    return _setting(
        None if setting.otherwise else setting.default,
        kind,
        setting.told(setting.meaning, _quoted_key),
        otherwise=setting.told(setting.otherwise, _quoted_key),
        alias=setting.key,
    )


def _quoted_key(setting: Setting) -> str:
    return f"`{setting.key}`"


if TYPE_CHECKING:

    class _Settings(_Store):
        def __getattr__(self, name: str) -> Any: ...

else:
    _Settings = create_model(
        "_Settings",
        __base__=_Store,
        **{_attribute(each): (values.type_of(each), _field(each)) for each in (*_IN_FILE, POD_LABEL)},
    )


class LeaderElectionConfig(_Settings):
    """``[cluster.leader_election]``: store, roles, and the settings of :mod:`pgleaderlock.options` that have a key."""

    max_roles: Annotated[int, values.between(1, _MANY)] | None = _setting(
        None, "number", "The most roles that this node leads at the same time.", otherwise="all"
    )
    poll_interval: values.Duration = _setting(
        0.25,
        "duration",
        "Where roles share one session: how often to try to acquire those that this node does not lead.",
    )

    @property
    def url(self) -> str | None:
        """The store, with its secrets: for connecting, never for showing. None if none is configured."""
        return None if self.backend is None else self.backend.get_secret_value()

    @property
    def on_sessions(self) -> bool:
        """Whether the locks are those of PostgreSQL's sessions, also of the embedded PostgreSQL."""
        return self.url is None or values.is_sessions(self.url)

    @property
    def shares_sessions(self) -> bool:
        """Whether all roles share one pair of sessions, in a group."""
        is_many = self.max_roles is not None or len(self.roles) > _MOST_SEPARATE
        return self.on_sessions and not self.term_table and is_many

    @property
    def postgres_dsn(self) -> str | None:
        """The PostgreSQL of the elections, by sessions or rows; None for the embedded one and for other stores."""
        if self.url is None or values.is_sessions(self.url):
            return self.url
        return self.url.replace("postgresql+lease://", "postgresql://", 1) if values.is_rows(self.url) else None

    def url_of(self, role: RoleConfig) -> str | None:
        """Return the store of one role: in a URL that names the lock, ``{role}`` is replaced by the role's name."""
        if self.url is None or self.on_sessions or values.is_rows(self.url):
            return self.url
        return self.url.replace("{role}", quote(role.name, safe=""))

    @property
    def _times(self) -> LeaseTimes:
        return choose_times(self.lease_duration, self.refresh_interval or USUAL_INTERVAL_S)

    @property
    def lease_s(self) -> float:
        """How long a silent leader keeps the lock."""
        return self._times.lease_s

    @property
    def health_interval_s(self) -> float:
        """How often a leader renews."""
        return self._times.health_interval_s

    @property
    def slice_s(self) -> float | None:
        """The wait slice; None leaves it to the server's ``deadlock_timeout``.

        Never longer than the slice for a server with the usual ``deadlock_timeout``.
        """
        longest_s: float | None = self.lock_timeout
        if longest_s is None:
            return None
        return max(0.1, min(longest_s, _LONGEST_SLICE_S, self.lease_s / RENEWALS_PER_LEASE))

    @property
    def settings(self) -> LockSettings:
        """The settings of the library, for a lock of this node."""
        given = {each.name: getattr(self, _attribute(each)) for each in _IN_FILE}
        given |= {"slice_s": self.slice_s, "retry_strategy": self.retry_strategy()}
        return LockSettings(**{name: value for name, value in given.items() if value is not None})

    def retry_strategy(self) -> RetryStrategy:
        """Return the retry strategy of a follower: the same delay after each attempt."""
        return FixedInterval(self.check_interval)


class ClusterConfig(_Section):
    """``[cluster]``: the node."""

    node: values.NodeName | None = _setting(
        None, "text", "The name of this node in metrics and in the registry.", otherwise="host:pid"
    )
    about: values.About = _setting({}, "facts", "Facts about this node, shown in the registry.", otherwise="none")
    leader_election: LeaderElectionConfig = Field(default_factory=LeaderElectionConfig)


class RegistryConfig(_Section):
    """``[registry]``: tables of leaders, candidates and events, for operators."""

    enabled: bool | None = _setting(
        None, "flag", "Whether this node writes to the registry.", otherwise="true where the backend is PostgreSQL"
    )
    dsn: values.PostgresDsn | None = _setting(
        None, "secret", "The PostgreSQL of the registry.", otherwise="that of the backend"
    )
    schema_name: values.SchemaName = _setting(DEFAULT_SCHEMA, "text", "The schema of its tables.", alias="schema")
    schema_owner: values.SchemaOwner | None = _setting(None, "text", BY_NAME["schema_owner"].meaning, otherwise="none")
    heartbeat: values.Duration = _setting(5.0, "duration", "How often this node writes a sign of life to the registry.")
    keep_days: Annotated[int, values.between(1, 36500)] = _setting(
        30, "number", "For how many days the history is kept."
    )
    accept_asks: bool = _setting(True, "flag", "Whether operators may ask this node to step down.")  # noqa: FBT003


class MetricsConfig(_Section):
    """``[metrics]``: the metrics endpoint for Prometheus."""

    enabled: bool = _setting(False, "flag", "Whether this node serves metrics.")  # noqa: FBT003
    port: Annotated[int, values.between(0, _LAST_PORT)] = _setting(
        9464, "number", "The port to listen on; 0 is any free one."
    )
    host: values.Host = _setting(
        "127.0.0.1", "text", "The address to listen on. There is no password: everyone who reaches it can read it."
    )
    prefix: values.Prefix = _setting("pgleaderlock", "text", "The prefix of the metrics' names.")


class DashboardConfig(_Section):
    """``[dashboard]``: the page for operators."""

    enabled: bool = _setting(False, "flag", "Whether this node serves the dashboard.")  # noqa: FBT003
    port: Annotated[int, values.between(0, _LAST_PORT)] = _setting(
        8464, "number", "The port to listen on; 0 is any free one."
    )
    host: values.Host = _setting(
        "127.0.0.1", "text", "The address to listen on. There is no password: everyone who reaches it can read it."
    )
    token: values.DashboardToken | None = _setting(
        None,
        "token",
        "The token for asking leaders to step down, on the page or by HTTP; at least 16 characters.",
        otherwise="none: the page is read-only",
    )


class Config(_Section):
    """All settings of a node. Make it with :func:`~pgleaderlock.ops.config.load_config`."""

    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    registry: RegistryConfig = Field(default_factory=RegistryConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    dashboard: DashboardConfig = Field(default_factory=DashboardConfig)
    alerts: list[Any] = _setting([], "tables", "Alerts; see [how to alert](../how-to/alert.md).", otherwise="none")
    receivers: dict[str, Any] = _setting(
        {}, "tables", "Receivers of the alerts, with the paths of the files that hold their secrets.", otherwise="none"
    )

    @property
    def election(self) -> LeaderElectionConfig:
        """``[cluster.leader_election]``."""
        return self.cluster.leader_election

    @property
    def registry_is_on(self) -> bool:
        """Whether this node writes to the registry."""
        if self.registry.enabled is not None:
            return self.registry.enabled
        return self.registry.dsn is not None or self.election.on_sessions or self.election.postgres_dsn is not None

    @property
    def registry_dsn(self) -> str | None:
        """The database of the registry, with its secrets. None if the backend is embedded, or not PostgreSQL."""
        return self.election.postgres_dsn if self.registry.dsn is None else self.registry.dsn.get_secret_value()

    @property
    def alerting(self) -> AlertsConfig:
        """The alerts and their receivers, as ``pgleaderlock alerts export`` reads them."""
        return parse_alerts({"alerts": self.alerts, "receivers": self.receivers})

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        if info.context is not RELATIONS_LATER:
            texts = [conflict.text for conflict in relations.find_conflicts(self)]
            if texts:
                raise ValueError("; ".join(texts))
            _ = self.alerting
        return self
