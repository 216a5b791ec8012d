"""What the simulated nodes elect their leader on: each store as it is configured in production, on a modelled server.

Which faults are inside the promise depends on the store: only a term table notices a promotion, only the strict
take-over survives both sessions of a frozen leader being killed, and only a witness survives one.
"""

from dataclasses import dataclass, field
from typing import Any

from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.lease import Lease
from pgleaderlock.backends.leased import LeasedLockBackend
from pgleaderlock.backends.record import RecordBackend
from pgleaderlock.backends.session import Session
from pgleaderlock.keys import LockKey
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation.node import Node
from pgleaderlock.testing.simulation.postgres import ModelledPostgres
from pgleaderlock.testing.simulation.records import ModelledRecord, SimulatedStore

__all__ = ["STORES", "Server", "Store"]

Server = ModelledPostgres | ModelledRecord
"""What stands at the other end of the cables."""

_KEY = LockKey.pair(42, 1)
_EVERYWHERE = frozenset({"crash", "host_crash", "freeze", "cut", "step_down", "shutdown"})
_SESSIONS = _EVERYWHERE | {"forget", "restart", "server_crash", "power", "cut_and_restart", "cut_and_crash"}
_KILLS = frozenset({"kill_session", "reset", "ambush"})
_PROMOTIONS = frozenset({"promote", "cut_and_promote"})


@dataclass(frozen=True, slots=True)
class Store:
    """One of them."""

    name: str
    faults: frozenset[str]
    """What its promise covers."""
    lease: dict[str, Any] = field(default_factory=dict)
    """How the lease differs from the default; for PostgreSQL."""
    is_record: bool = False

    def make_backend(self, node: Node, server: Server, lease_s: float) -> Backend:
        """Return what a node contends with: the real thing, over simulated connections."""
        if isinstance(server, ModelledRecord):
            identity = f"{node.name}-{node.boots}"
            store = SimulatedStore(server, node.cable)
            return RecordBackend(store, identity=identity, lease_s=lease_s, clock=node.loop.time)

        async def open_session() -> Session:
            session = SimulatedSession(node.name, node.cable, server)
            node.sessions = [each for each in node.sessions if not each.closed]
            node.sessions.append(session)
            await session.connect()
            return session

        lease = Lease(lease_s, **self.lease)
        return LeasedLockBackend(_KEY, open_session, lease, node.loop.time, "simulated server")


STORES = {
    store.name: store
    for store in (
        Store("postgres", _SESSIONS | _KILLS),
        Store("postgres-poll", _SESSIONS | _KILLS, {"wake": "poll"}),
        Store("postgres-terms", _SESSIONS | _KILLS | _PROMOTIONS, {"term_table": True}),
        Store(
            "postgres-strict",
            _SESSIONS | _KILLS | _PROMOTIONS | {"double_ambush"},
            {"term_table": True, "takeover": "strict"},
        ),
        Store("postgres-alone", _SESSIONS, {"witness": False}),
        Store("records", _EVERYWHERE | {"down"}, is_record=True),
    )
}
"""By their names."""
