"""The stores of the simulation: each as it is configured in production, on a modelled server.

Which faults are inside the promise depends on the store: only a term table notices a promotion, only the strict
take-over survives both sessions of a frozen leader being killed, and only a witness survives one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.leader_group import LeaderGroup
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import Session
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.kubernetes import KubernetesBackend, default_request_timeout_s
from pgleaderlock.stores.kubernetes.store import LeaseStore
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation.checks import Checker
from pgleaderlock.testing.simulation.fault_profiles import FaultProfile
from pgleaderlock.testing.simulation.files import SharedFolder, SimulatedFileStore
from pgleaderlock.testing.simulation.groups import SimulatedGroup
from pgleaderlock.testing.simulation.kubernetes import ApiServer, SimulatedClient, wall_clock
from pgleaderlock.testing.simulation.nfs import FileServer, SimulatedNfsStore
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres
from pgleaderlock.testing.simulation.records import ModelledRecord, SimulatedStore
from pgleaderlock.testing.simulation.world import World

__all__ = ["STORES", "KeepsHistory", "Server", "Store"]


class Server(Protocol):
    """The server at the other end of the cables. Its faults depend on its class."""

    is_up: bool

    def end(self) -> None:
        """Remove what the server left behind."""


@runtime_checkable
class KeepsHistory(Protocol):
    """A server from whose history watches are resumed."""

    def compact(self) -> None:
        """Drop the history, and end all watches: none of them can be resumed."""


_KEY = LockKey.pair(42, 1)
_PROCESS = frozenset({"crash", "freeze", "step_down", "shutdown", "hasty_step_down", "stop_and_start"})
_EVERYWHERE = _PROCESS | {"host_crash", "cut"}
_SESSIONS = _EVERYWHERE | {
    "forget",
    "restart",
    "server_crash",
    "power",
    "cut_and_restart",
    "cut_and_crash",
    "lose_standby",
    "late_answers",
    "late_answers_and_freeze",
}
_KILLS = frozenset({"kill_session", "reset", "ambush", "late_answers_and_kill", "overtake_heir"})
_DOUBLE_KILLS = frozenset({"double_ambush", "double_ambush_and_kill"})
_PAIRS = frozenset(
    {"end_apart", "end_both", "frozen_end_both", "end_newcomer", "end_newcomers_witness", "slow_connects", "busy"}
)
_CLOCKS = frozenset(
    {"step_clock", "restart_and_step", "cut_and_restart_and_step", "reset_statistics", "late_time_outs"}
)
_PROMOTIONS = frozenset({"promote", "cut_and_promote", "cut_and_replace", "cut_and_switch"})
"""Another server takes the place of the old one."""
_ROLES = 3
_HALF_A_DAY_S = 12 * 3600.0


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _postgres(world: World, checker: Checker, profile: FaultProfile) -> ModelledPostgres:
    return ModelledPostgres(world, checker.note, race_share=profile.race_share)


def _on_postgres(node: SimulatedNode, server: Any, lease_s: float, lease: dict[str, Any]) -> Backend:
    async def open_session() -> Session:
        session = SimulatedSession(node.name, node.cable, server)
        node.connect(session)
        await session.connect()
        return session

    return LeasedLockBackend(_KEY, open_session, Lease(lease_s, **lease), node.loop.time, "simulated server")


def _as_group(node: SimulatedNode, server: Any, lease_s: float, lease: dict[str, Any]) -> LeaderGroup:
    return SimulatedGroup(node, server, lease_s, roles=_ROLES, **lease)


# --- Records ---------------------------------------------------------------------------------------------------------


def _identity(node: SimulatedNode) -> str:
    return f"{node.name}-{node.boots}"


def _on_record(node: SimulatedNode, server: Any, lease_s: float, _: dict[str, Any]) -> Backend:
    store = SimulatedStore(server, node.cable)
    return RecordBackend(store, identity=_identity(node), lease_s=lease_s, clock=node.loop.time)


def _on_kubernetes(node: SimulatedNode, server: Any, lease_s: float, _: dict[str, Any]) -> Backend:
    client = SimulatedClient(server, node.cable, node.connect, default_request_timeout_s(lease_s))
    ahead_s = node.world.random.uniform(-_HALF_A_DAY_S, _HALF_A_DAY_S)
    clock = wall_clock(node.world, node.rate, ahead_s)
    store = LeaseStore(client, "default", "simulated", wall_clock=clock)
    return KubernetesBackend(store, identity=_identity(node), lease_s=lease_s, clock=node.loop.time)


def _on_files(node: SimulatedNode, server: Any, lease_s: float, _: dict[str, Any]) -> Backend:
    store = SimulatedFileStore(server, node, identity=_identity(node), lease_s=lease_s)
    return RecordBackend(store, identity=_identity(node), lease_s=lease_s, clock=node.loop.time)


def _on_nfs(node: SimulatedNode, server: Any, lease_s: float, _: dict[str, Any]) -> Backend:
    store = SimulatedNfsStore(server, node, identity=_identity(node), lease_s=lease_s)
    return RecordBackend(store, identity=_identity(node), lease_s=lease_s, clock=node.loop.time)


@dataclass(frozen=True, slots=True)
class Store:
    """One store, and the faults that its promise covers."""

    name: str
    faults: frozenset[str]
    """The faults that its promise covers."""
    lease: dict[str, Any] = field(default_factory=dict)
    """How the lease differs from the default; for PostgreSQL."""
    make_server: Callable[[World, Checker, FaultProfile], Server] = _postgres
    contend: Callable[[SimulatedNode, Any, float, dict[str, Any]], Backend | LeaderGroup] = _on_postgres
    """Makes the backend or group of a node: a real one, over simulated connections."""
    has_places: bool = False
    """Whether its followers have places in the succession: an heir and a next heir."""
    roles: int = 1
    """How many roles each process takes part in."""


STORES = {
    store.name: store
    for store in (
        Store("postgres", _SESSIONS | _KILLS | _PAIRS | _CLOCKS | {"flood_and_end_both"}, has_places=True),
        Store("postgres-poll", _SESSIONS | _KILLS | _PAIRS | _CLOCKS, {"wake": "poll"}),
        Store(
            "postgres-terms", _SESSIONS | _KILLS | _PAIRS | _CLOCKS | _PROMOTIONS, {"term_table": True}, has_places=True
        ),
        Store(
            "postgres-strict",
            _SESSIONS | _KILLS | _PAIRS | _CLOCKS | _PROMOTIONS | _DOUBLE_KILLS | {"early_time_outs"},
            {"term_table": True, "takeover": "strict"},
            has_places=True,
        ),
        Store("postgres-alone", _SESSIONS | _CLOCKS, {"witness": False}, has_places=True),
        Store(
            "records",
            _EVERYWHERE | {"down"},
            make_server=lambda world, checker, _: ModelledRecord(world, checker.note),
            contend=_on_record,
        ),
        Store(
            "kubernetes",
            _EVERYWHERE | {"down", "forget", "compact"},
            make_server=lambda world, checker, _: ApiServer(world, checker.note),
            contend=_on_kubernetes,
        ),
        Store("group", _SESSIONS | _KILLS | _PAIRS | _CLOCKS | {"flood_and_end_both"}, contend=_as_group, roles=_ROLES),
        Store(
            "nfs",
            _EVERYWHERE | {"down"},
            make_server=lambda world, checker, _: FileServer(world, checker.note, checker.leave_out),
            contend=_on_nfs,
        ),
        Store(
            "file",
            _PROCESS,
            make_server=lambda world, checker, _: SharedFolder(world, checker.leave_out),
            contend=_on_files,
        ),
    )
}
"""The stores by name."""
