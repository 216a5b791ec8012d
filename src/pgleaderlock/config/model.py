"""The settings: what each is called, what it may be, what it is when nobody says anything, and what it means.

Frozen, and checked as a whole: what a :class:`Config` holds, the library takes. The descriptions are the documentation:
``docs/reference/configuration.md`` is compared with them by a test.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from pgleaderlock.alerts import Config as AlertsConfig
from pgleaderlock.alerts import parse as parse_alerts
from pgleaderlock.backends.lease import DEFAULT_SCHEMA
from pgleaderlock.backends.times import RENEWALS_PER_LEASE, USUAL_INTERVAL_S, LeaseTimes, choose_times
from pgleaderlock.config import relations
from pgleaderlock.config.values import (
    About,
    BackendUrl,
    DashboardToken,
    Duration,
    DurationOrZero,
    Host,
    LeaseDuration,
    LockTimeout,
    NodeName,
    PostgresDsn,
    Prefix,
    RefreshInterval,
    RoleKey,
    RoleName,
    SchemaName,
    SchemaOwner,
    between,
    is_rows,
    is_sessions,
)
from pgleaderlock.keys import LockKey
from pgleaderlock.retry import FixedInterval, RetryStrategy

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
"""How a setting is written, in the file and as the text of a variable or a flag."""

RELATIONS_LATER: Mapping[str, Any] = {"relations": "later"}
"""Context of a validation that looks at each value alone: whoever asks for it looks at the relations, with places."""

_LONGEST_SLICE_S = 0.9  # of the usual deadlock_timeout of 1 s
_MANY = 100_000
_MOST_SEPARATE = 8
_LAST_PORT = 65535


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


def _setting(default: Any, kind: Kind, meaning: str, *, otherwise: str = "", alias: str | None = None) -> Any:
    """Return a field; ``otherwise`` says in words what holds where nobody says anything."""
    return Field(
        default=default, description=meaning, json_schema_extra={"kind": kind, "otherwise": otherwise}, alias=alias
    )


def _each_a_table(value: Any) -> Any:
    """A role that needs no more than its name is written as that."""
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of names, roles = ["scheduler"], or of tables')  # noqa: TRY004 - pydantic's
    return tuple({"name": item} if isinstance(item, str) else item for item in value)


class RoleConfig(_Section):
    """One role that this node stands for."""

    name: RoleName = Field(description="What it is called, in metrics and tables too.")
    key: RoleKey | None = Field(default=None, description="Which lock it is, where the name is not to say it.")

    @property
    def lock_key(self) -> LockKey:
        """The lock: that of the key, or of the name."""
        return LockKey.named(self.name) if self.key is None else self.key.for_role(self.name)


class LeaderElectionConfig(_Section):
    """``[cluster.leader_election]``: which store, which roles, which times."""

    backend: BackendUrl | None = _setting(
        None,
        "secret",
        "Which store decides: any URL of `open_backend`, or a connection string of libpq's.",
        otherwise="none: `run` needs one, or `--embedded`",
    )
    roles: Annotated[tuple[RoleConfig, ...], BeforeValidator(_each_a_table)] = _setting(
        (), "roles", "What this node stands for: names, or tables with `name` and `key`.", otherwise="none"
    )
    check_interval: Duration = _setting(
        5.0, "duration", "How long one round of queueing lasts; where no candidate queues, how often to ask."
    )
    lease_duration: LeaseDuration | None = _setting(
        None, "duration", "How long a silent leader keeps the lock.", otherwise="3 × `refresh_interval`, so `15s`"
    )
    refresh_interval: RefreshInterval | None = _setting(
        None,
        "duration",
        "How often a leader renews. Less than two thirds of `lease_duration`.",
        otherwise="⅓ of `lease_duration`, so `5s`",
    )
    lock_timeout: LockTimeout | None = _setting(
        None,
        "duration",
        "The longest that one wait for the lock inside the server lasts.",
        otherwise="nearly the server's `deadlock_timeout`",
    )
    wake: Literal["line", "poll"] = _setting("line", "text", "Queue for the lock, or ask for it now and then.")
    witness: bool = _setting(True, "flag", "A second lock on a second session, which closes the gap of a lost one.")  # noqa: FBT003
    allow_pooler: bool = _setting(
        False,  # noqa: FBT003
        "flag",
        "Go on behind a connection pooler in session mode. One in transaction or statement mode is refused anyway.",
    )
    takeover: Literal["fast", "strict"] = _setting(
        "fast", "text", "Strict waits a lease after every leader that did not release cleanly. Needs `term_table`."
    )
    term_table: bool = _setting(False, "flag", "Write each term down, for strict take-over and fencing.")  # noqa: FBT003
    schema_name: SchemaName = _setting(
        DEFAULT_SCHEMA, "text", "Where the term table, or the rows of `postgresql+lease://`, are.", alias="schema"
    )
    schema_owner: SchemaOwner | None = _setting(
        None,
        "text",
        "Which role's tables there are used, besides those of our own user and of a superuser.",
        otherwise="no other's",
    )
    settle: DurationOrZero | None = _setting(
        None,
        "duration",
        "How long after the server's start no candidate leads yet. `0s` only for a server without a past.",
        otherwise="`lease_duration`",
    )
    reconnect_grace: Duration | None = _setting(
        None, "duration", "Try to win leadership back for so long before calling it lost.", otherwise="off"
    )
    max_roles: Annotated[int, between(1, _MANY)] | None = _setting(
        None, "number", "The most roles that this node leads at a time.", otherwise="all"
    )
    poll_interval: Duration = _setting(
        0.25, "duration", "Where many roles share one session: how often those that are not led here are tried for."
    )

    @property
    def url(self) -> str | None:
        """The store, with its secrets: for connecting, never for showing. None where none was named."""
        return None if self.backend is None else self.backend.get_secret_value()

    @property
    def on_sessions(self) -> bool:
        """Whether the locks are those of PostgreSQL's sessions, which the embedded one has too."""
        return self.url is None or is_sessions(self.url)

    @property
    def shares_sessions(self) -> bool:
        """Whether all roles share one pair of sessions, in a group."""
        is_many = self.max_roles is not None or len(self.roles) > _MOST_SEPARATE
        return self.on_sessions and not self.term_table and is_many

    @property
    def postgres_dsn(self) -> str | None:
        """The PostgreSQL that decides, in sessions or in rows; None where none does, or where it is embedded."""
        if self.url is None or is_sessions(self.url):
            return self.url
        return self.url.replace("postgresql+lease://", "postgresql://", 1) if is_rows(self.url) else None

    def url_of(self, role: RoleConfig) -> str | None:
        """Return the store of one role: where the URL names the lock, ``{role}`` in it stands for the role's name."""
        if self.url is None or self.on_sessions or is_rows(self.url):
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
        """How long to stand in line at a time; None leaves it to what the server says of itself.

        Never longer than would be chosen on a server with the usual ``deadlock_timeout``.
        """
        if self.lock_timeout is None:
            return None
        return max(0.1, min(self.lock_timeout, _LONGEST_SLICE_S, self.lease_s / RENEWALS_PER_LEASE))

    def lock_options(self) -> dict[str, Any]:
        """Return the keywords of ``LeaderLock``, beside the store and the lock."""
        return {
            "retry_strategy": self.retry_strategy(),
            "health_interval_s": self.health_interval_s,
            "reconnect_grace_s": self.reconnect_grace,
            "lease_s": self.lease_s,
            "wake": self.wake,
            "slice_s": self.slice_s,
            "settle_s": self.settle,
            "witness": self.witness,
            "allow_pooler": self.allow_pooler,
            "takeover": self.takeover,
            "term_table": self.term_table,
            "schema": self.schema_name,
            "schema_owner": self.schema_owner,
        }

    def retry_strategy(self) -> RetryStrategy:
        """Return what says how long a follower waits: the same time after each attempt."""
        return FixedInterval(self.check_interval)


class ClusterConfig(_Section):
    """``[cluster]``: who this node is."""

    node: NodeName | None = _setting(
        None, "text", "What this node is called in metrics and in the registry.", otherwise="host:pid"
    )
    about: About = _setting({}, "facts", "Facts about this node, shown in the registry.", otherwise="none")
    leader_election: LeaderElectionConfig = Field(default_factory=LeaderElectionConfig)


class RegistryConfig(_Section):
    """``[registry]``: who leads what, written down for people."""

    enabled: bool | None = _setting(
        None, "flag", "Whether this node writes to the registry.", otherwise="true where the backend is PostgreSQL"
    )
    dsn: PostgresDsn | None = _setting(
        None, "secret", "Which PostgreSQL the registry is in.", otherwise="that of the backend"
    )
    schema_name: SchemaName = _setting(DEFAULT_SCHEMA, "text", "Where its tables are.", alias="schema")
    schema_owner: SchemaOwner | None = _setting(
        None,
        "text",
        "Which role's tables there are used, besides those of our own user and of a superuser.",
        otherwise="no other's",
    )
    heartbeat: Duration = _setting(5.0, "duration", "How often this node shows that it is there.")
    keep_days: Annotated[int, between(1, 36500)] = _setting(30, "number", "For how many days the history is kept.")
    accept_asks: bool = _setting(True, "flag", "Whether operators may ask this node to step down.")  # noqa: FBT003


class MetricsConfig(_Section):
    """``[metrics]``: elections for Prometheus."""

    enabled: bool = _setting(False, "flag", "Whether this node serves metrics.")  # noqa: FBT003
    port: Annotated[int, between(0, _LAST_PORT)] = _setting(9464, "number", "Where; 0 is any free port.")
    host: Host = _setting("127.0.0.1", "text", "On which address. There is no password: who reaches it, reads it.")
    prefix: Prefix = _setting("pgleaderlock", "text", "What the names of the metrics begin with.")


class DashboardConfig(_Section):
    """``[dashboard]``: elections for people."""

    enabled: bool = _setting(False, "flag", "Whether this node serves the dashboard.")  # noqa: FBT003
    port: Annotated[int, between(0, _LAST_PORT)] = _setting(8464, "number", "Where; 0 is any free port.")
    host: Host = _setting("127.0.0.1", "text", "On which address. There is no password: who reaches it, reads it.")
    token: DashboardToken | None = _setting(
        None,
        "token",
        "What lets an operator ask leaders to step down, in a page or a program; at least 16 characters.",
        otherwise="none: the page only shows",
    )


class Config(_Section):
    """All settings of a node. Make it with :func:`~pgleaderlock.config.load_config`."""

    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    registry: RegistryConfig = Field(default_factory=RegistryConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    dashboard: DashboardConfig = Field(default_factory=DashboardConfig)
    alerts: list[Any] = _setting(
        [], "tables", "When to worry; see [how to alert](../how-to/alert.md).", otherwise="none"
    )
    receivers: dict[str, Any] = _setting(
        {}, "tables", "Whom to tell, and the files with what lets us.", otherwise="none"
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
        """Where the registry is, with its secrets. None where the backend is embedded, or not PostgreSQL."""
        return self.election.postgres_dsn if self.registry.dsn is None else self.registry.dsn.get_secret_value()

    @property
    def alerting(self) -> AlertsConfig:
        """The alerts, and whom they are told to, as ``pgleaderlock alerts export`` reads them."""
        return parse_alerts({"alerts": self.alerts, "receivers": self.receivers})

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        if info.context is not RELATIONS_LATER:
            texts = [conflict.text for conflict in relations.find_conflicts(self)]
            if texts:
                raise ValueError("; ".join(texts))
            _ = self.alerting
        return self
