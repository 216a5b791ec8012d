"""Combinations of settings that are not allowed, though each setting alone is. Independent of files: only of keys."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgleaderlock._base.durations import show_duration
from pgleaderlock._base.pod_labels import ROLE, has_role_in_key, label_fault
from pgleaderlock.ops.config.problems import KeyPath
from pgleaderlock.ops.config.values import is_rows
from pgleaderlock.options import SETTINGS
from pgleaderlock.stores.times import is_too_rare, too_rare

if TYPE_CHECKING:
    from pgleaderlock.ops.config.model import Config

__all__ = ["Conflict", "find_conflicts"]

_ELECTION = ("cluster", "leader_election")
_OF_SEPARATE_SESSIONS = tuple(each.key for each in SETTINGS if each.key and not each.in_groups)
# A file may have lock_timeout for every store, as the specification's example does.
_OF_SESSIONS = tuple(
    each.key for each in SETTINGS if each.scope == "sessions" and each.key not in {None, "lock_timeout"}
)
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that contradict each other, the one to check first in front, and a sentence that says why."""

    keys: tuple[KeyPath, ...]
    text: str


def find_conflicts(config: "Config") -> list[Conflict]:
    """Return every conflict of this configuration."""
    checks = (_times, _takeover, _limit, _shared, _sessions, _schema, _registry, _roles, _one_lock, _pod_label, _ports)
    return [conflict for check in checks for conflict in check(config)]


def _key(name: str) -> KeyPath:
    return (*_ELECTION, name)


def _times(config: "Config") -> Iterator[Conflict]:
    """Check the times by the rule of ``choose_times``, whose error would name its arguments instead of our keys."""
    election = config.election
    if election.refresh_interval is None or election.lease_duration is None:
        return  # then one is derived from the other
    if is_too_rare(election.refresh_interval, election.lease_duration):
        yield Conflict(
            (_key("refresh_interval"), _key("lease_duration")),
            too_rare(
                f"refresh_interval = {show_duration(election.refresh_interval)}",
                f"lease_duration = {show_duration(election.lease_duration)}",
            ),
        )


def _takeover(config: "Config") -> Iterator[Conflict]:
    if config.election.takeover == "strict" and not config.election.term_table:
        yield Conflict(
            (_key("takeover"), _key("term_table")),
            'takeover = "strict" decides by the term table: set term_table = true as well',
        )


def _limit(config: "Config") -> Iterator[Conflict]:
    """Check ``max_roles``: such a node shares its sessions between its roles, in a ``LeaderGroup``."""
    election = config.election
    if election.max_roles is None or (election.on_sessions and not election.term_table):
        return
    other = "term_table" if election.term_table else "backend"
    yield Conflict(
        (_key("max_roles"), _key(other)),
        f"a limited node shares PostgreSQL's sessions between its roles, and has no term table: leave out max_roles or "
        f"{other}",
    )


def _shared(config: "Config") -> Iterator[Conflict]:
    """Refuse settings that need a session per role: roles that share one are acquired and recovered together."""
    election = config.election
    if not election.shares_sessions:
        return
    for name in _OF_SEPARATE_SESSIONS:
        if name in election.model_fields_set:
            yield Conflict(
                (_key(name), _key("roles" if election.max_roles is None else "max_roles")),
                f"{name} has no effect where roles share their sessions (more than eight of them, or max_roles): "
                f"leave {name} out, or set term_table = true",
            )


def _sessions(config: "Config") -> Iterator[Conflict]:
    if config.election.on_sessions:
        return
    for name in _OF_SESSIONS:
        if name in config.election.model_fields_set:
            yield Conflict(
                (_key(name), _key("backend")),
                f"{name} is only for sessions of PostgreSQL, and backend names another store: leave {name} out",
            )


def _schema(config: "Config") -> Iterator[Conflict]:
    """Refuse a schema if the election has no table: it would have no effect."""
    election = config.election
    if is_rows(election.url or "") or (election.on_sessions and election.term_table):
        return
    for field, name in (("schema_name", "schema"), ("schema_owner", "schema_owner")):
        if field not in election.model_fields_set:
            continue
        if election.on_sessions:
            yield Conflict(
                (_key(name), _key("term_table")),
                f"{name} is only for the term table, and there is none: set term_table = true as well, or leave {name} "
                f"out. The registry has a key of its own: registry.{name}",
            )
        else:
            yield Conflict(
                (_key(name), _key("backend")),
                f"{name} is only for tables of PostgreSQL, and backend names a store that has none: leave {name} out",
            )


def _registry(config: "Config") -> Iterator[Conflict]:
    election = config.election
    has_none = config.registry.dsn is None and not election.on_sessions and election.postgres_dsn is None
    if config.registry.enabled and has_none:
        yield Conflict(
            (("registry", "enabled"), ("registry", "dsn"), _key("backend")),
            "the registry is in PostgreSQL, and backend names another store: set registry.dsn, or "
            "registry.enabled = false",
        )


def _roles(config: "Config") -> Iterator[Conflict]:
    roles = config.election.roles
    for name, times in Counter(role.name for role in roles).items():
        if times > 1:
            twins = [number for number, role in enumerate(roles) if role.name == name]
            yield Conflict(tuple((*_key("roles"), twin) for twin in reversed(twins)), f"{name} is named {times} times")
    first: dict[object, int] = {}
    for number, role in enumerate(roles):
        other = first.setdefault(role.lock_key, number)
        if roles[other].name != role.name:
            yield Conflict(
                ((*_key("roles"), number), (*_key("roles"), other)),
                f"{role.name} and {roles[other].name} are one lock, {role.lock_key}: it would compete with itself",
            )


def _one_lock(config: "Config") -> Iterator[Conflict]:
    """Check the roles of stores in which the URL names the lock, or the row has the role's name."""
    election = config.election
    if election.on_sessions:
        return
    for number, role in enumerate(election.roles):
        if role.key is not None:
            yield Conflict(
                ((*_key("roles"), number, "key"), _key("backend")),
                "a key is for sessions of PostgreSQL, and backend names another store: leave key out",
            )
    urls = {election.url_of(role) for role in election.roles}
    if len(election.roles) > 1 and len(urls) == 1 and not is_rows(election.url or ""):
        yield Conflict(
            (_key("backend"), _key("roles")),
            "the URL of this store names one lock, which all roles would share: write {role} where it names it",
        )


def _pod_label(config: "Config") -> Iterator[Conflict]:
    """Check the label of each role: a pod has one value for each key."""
    label, roles = config.election.pod_label, config.election.roles
    if label is None:
        return
    if len(roles) > 1 and not has_role_in_key(label):
        yield Conflict(
            (_key("pod_label"), _key("roles")),
            "a pod has one value for each key, and there are several roles: write {role} into the key, as in "
            'pod_label = "pgleaderlock/{role}=leader"',
        )
    for number, role in enumerate(roles):
        fault = label_fault(label.replace(ROLE, role.name))
        if fault is not None:
            yield Conflict((_key("pod_label"), (*_key("roles"), number)), f"the label of role {role.name} {fault}")


def _ports(config: "Config") -> Iterator[Conflict]:
    metrics, dashboard = config.metrics, config.dashboard
    if not (metrics.enabled and dashboard.enabled) or metrics.port != dashboard.port or metrics.port == 0:
        return
    if metrics.host == dashboard.host or {metrics.host, dashboard.host} & set(_EVERYWHERE):
        yield Conflict(
            (("dashboard", "port"), ("metrics", "port")),
            f"metrics and the dashboard cannot both listen on port {metrics.port}: choose another for one of them",
        )
