"""``Node``: one process as its configuration describes it. It only puts the parts together.

On PostgreSQL's sessions, each role has its own :class:`~pgleaderlock.LeaderLock`, with a failover within milliseconds
when its process dies. More than eight roles, and those of a node with ``max_roles``, share one pair of sessions in a
:class:`~pgleaderlock.LeaderGroup`, unless there is a term table.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pgleaderlock._base.checks import refuse_plain_with
from pgleaderlock._base.pod_labels import parse_label
from pgleaderlock.engine.election import Election
from pgleaderlock.lock import LeaderLock
from pgleaderlock.ops.config import Config, ConfigError, Problem
from pgleaderlock.ops.registry import Registry
from pgleaderlock.postgres._dsn import check_dsn, describe
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.leader_group import LeaderGroup
from pgleaderlock.postgres.login import Dsn
from pgleaderlock.stores import open_backend

if TYPE_CHECKING:
    from pgleaderlock.ops.config.model import LeaderElectionConfig, RoleConfig
    from pgleaderlock.ops.dashboard import Dashboard
    from pgleaderlock.ops.metrics import MetricsServer

__all__ = ["Node", "make_election", "missing_for_node"]

_WINDOW_S = 3600.0  # of history on the dashboard
_GIVE_UP_S = 10.0  # time-out of the shutdown after a failed start, or after a block that raised


class Node:
    """All elections of one process, with their registry and their metrics.

        async with Node(load_config("pgleaderlock.toml")) as node:
            await node.elections["scheduler"].wait_for_leadership()

    ``dsn`` is the PostgreSQL to use if the configuration names none.
    """

    __enter__ = __exit__ = refuse_plain_with

    def __init__(self, config: Config, *, dsn: Dsn | None = None, settle_s: float | None = None) -> None:
        if problems := missing_for_node(config, dsn):
            raise ConfigError(tuple(problems))
        self.config = config
        self._dsn = config.election.url or dsn
        self._settle_s = settle_s if config.election.settle is None else config.election.settle
        self.elections: LeaderGroup | _SeparateElections = (
            self._make_group() if config.election.shares_sessions else self._make_elections()
        )
        if config.election.pod_label is not None:
            self._label_pod(config.election.pod_label)
        self.registry: Registry | None = self._make_registry()
        self._metrics_server: MetricsServer | None = None
        self._dashboard: Dashboard | None = None
        if config.metrics.enabled:
            self._watch()

    @property
    def name(self) -> str:
        """The name of this node."""
        return self.registry.node if self.registry is not None else self.config.cluster.node or ""

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics; None when they are not served."""
        return None if self._metrics_server is None else self._metrics_server.port

    # --- Parts ---------------------------------------------------------------------------------------------------

    def _make_group(self) -> LeaderGroup:
        election = self.config.election
        return LeaderGroup(
            self._dsn or "",
            {role.name: role.lock_key for role in election.roles},
            lease_s=election.lease_s,
            health_interval_s=election.health_interval_s,
            poll_s=election.poll_interval,
            max_roles=election.max_roles,
            settle_s=self._settle_s,
            witness=election.witness,
            address=election.address,
            allow_pooler=election.allow_pooler,
            options=election.settings.options,
        )

    def _make_elections(self) -> "_SeparateElections":
        election = self.config.election
        instead = {"settle_s": self._settle_s} if election.on_sessions else {}
        return _SeparateElections(
            (role.name, make_election(election, role, self._dsn, **instead)) for role in election.roles
        )

    def _make_registry(self) -> Registry | None:
        config = self.config
        if not config.registry_is_on:
            return None
        registry = Registry(
            config.registry_dsn or self._dsn or "",
            node=config.cluster.node,
            about=config.cluster.about,
            schema=config.registry.schema_name,
            schema_owner=config.registry.schema_owner,
            heartbeat_s=config.registry.heartbeat,
            keep_days=config.registry.keep_days,
            accept_asks=config.registry.accept_asks,
        )
        for name, election in self.elections.items():
            registry.attach(election, role=name)
        return registry

    def _label_pod(self, label: str) -> None:
        from pgleaderlock.ops.pod_label import PodLabel  # noqa: PLC0415 - it needs an extra of its own

        for name, election in self.elections.items():
            PodLabel(str(parse_label(label, name))).watch(election)

    def _watch(self) -> None:
        from pgleaderlock.ops.metrics import Metrics  # noqa: PLC0415 - it needs an extra of its own

        self._metrics = Metrics(self.config.metrics.prefix)
        self._metrics.watch_group(self.elections, node=self.name or "node")
        if self.registry is not None:
            self._metrics.watch_registry(self.registry)

    # --- Lifecycle -----------------------------------------------------------------------------------------------

    def serve_metrics(self) -> None:
        """Serve the metrics, if they are enabled. OSError when the port is taken."""
        if self.config.metrics.enabled and self._metrics_server is None:
            from pgleaderlock.ops.metrics import serve_metrics  # noqa: PLC0415 - it needs an extra of its own

            self._metrics_server = serve_metrics(self.config.metrics.port, self.config.metrics.host)

    async def start(self) -> None:
        """Start all elections. Servers are started only if enabled. A start that fails is undone."""
        was_running = any(not election.state.is_stopped for election in self.elections.values())
        try:
            await self._start()
        except BaseException:
            if not was_running:
                await self.shutdown(_GIVE_UP_S)
            raise

    @property
    def dashboard_url(self) -> str | None:
        """The address of the dashboard; None when it is not served."""
        return None if self._dashboard is None else self._dashboard.url

    async def serve_dashboard(self) -> None:
        """Serve the dashboard, if it is enabled. LockError when the port is taken."""
        if not self.config.dashboard.enabled or self._dashboard is not None:
            return
        from pgleaderlock.ops.dashboard import Dashboard, RegistrySource, Watched  # noqa: PLC0415 - it needs an extra of its own

        dsn, wanted = self.config.registry_dsn or self._dsn or "", self.config.dashboard
        source = RegistrySource(
            dsn,
            self.config.registry.schema_name,
            where=describe(check_dsn(dsn)),
            window_s=_WINDOW_S,
            expected=[role.name for role in self.config.election.roles],
            schema_owner=self.config.registry.schema_owner,
        )
        metrics: Any = None
        if self.config.metrics.enabled:
            from prometheus_client import REGISTRY as metrics  # noqa: N811, PLC0415 - of an extra
        token = None if wanted.token is None else wanted.token.get_secret_value()
        dashboard = Dashboard(
            source,
            host=wanted.host,
            port=wanted.port,
            token=token,
            elections=self.elections,
            metrics=metrics,
            watched=Watched(self.config.alerting.alerts, self.config.metrics.prefix),
        )
        await dashboard.start()
        self._dashboard = dashboard

    async def _start(self) -> None:
        self.serve_metrics()
        await self.serve_dashboard()
        if self.registry is not None:
            await self.registry.start()
        await self.elections.start()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Release every role, write that to the registry, and stop."""
        await self.elections.shutdown(timeout_s)
        if self.registry is not None:
            await self.registry.close()
        if self._dashboard is not None:
            await self._dashboard.close()
            self._dashboard = None
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
            self._metrics_server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self.shutdown(None if exc_type is None else _GIVE_UP_S)


def make_election(
    settings: "LeaderElectionConfig", role: "RoleConfig | LockKey", dsn: Dsn | None = None, **instead: Any
) -> Election:
    """Return the election of a configured role, or on PostgreSQL's sessions of a lock key.

    ``dsn`` is the PostgreSQL to use if the configuration names no store; ``instead`` are keywords of the election.
    """
    if isinstance(role, LockKey) or settings.on_sessions:
        key = role if isinstance(role, LockKey) else role.lock_key
        return LeaderLock(settings.url or dsn or "", key=key, **replace(settings.settings, **instead).keywords())
    options: dict[str, Any] = {"lease_s": settings.lease_s, "address": settings.address}
    if str(settings.url).startswith("postgresql+lease://"):
        options |= {"role": role.name, "schema": settings.schema_name, "schema_owner": settings.schema_owner}
    keywords = replace(settings.settings, **instead).of_election()
    return Election(open_backend(str(settings.url_of(role)), **options), **keywords)


class _SeparateElections(dict[str, Election]):
    """Elections that share no session, but are started and stopped together, as those of a group."""

    async def start(self) -> None:
        for election in self.values():
            await election.start()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        await asyncio.gather(*(election.shutdown(timeout_s) for election in self.values()))

    def on_renewed(self, fn: Callable[[float], object]) -> Callable[[float], object]:
        """Do not register anything: here, renewals are events of each election."""
        return fn


def missing_for_node(config: Config, dsn: Dsn | None = None) -> list[Problem]:
    """Return the problems of a valid configuration that keep a node from starting, such as no roles."""
    election = config.election
    problems = []
    if not election.roles:
        text = 'name at least one role, as in roles = ["scheduler"]: without one there is nothing to run'
        problems.append(Problem("", "cluster.leader_election.roles", text))
    if election.url is None and dsn is None:
        text = "is missing, and no store was given otherwise"
        problems.append(Problem("", "cluster.leader_election.backend", text))
    if config.dashboard.enabled and not config.registry_is_on:
        text = "the dashboard shows the registry: set registry.enabled, and registry.dsn where the store has none"
        problems.append(Problem("", "dashboard.enabled", text))
    return problems
