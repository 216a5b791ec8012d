"""A ``LeaderGroup`` on the modelled PostgreSQL: the real one, except that its sessions are simulated.

Each of its roles is an election that is checked like any other: at most one process claims to lead, and tokens grow. A
fault of a process or of a session hits all roles at once; a step-down concerns one role.
"""

from typing import Any

from pgleaderlock.options import LockOptions
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.leader_group import LeaderGroup
from pgleaderlock.postgres.session import Session
from pgleaderlock.testing.simulation._session import SimulatedSession
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres

__all__ = ["SimulatedGroup"]

_DSN = "host=simulated dbname=simulated"
_POLLS = 10
"""Polls per lease. The default of four a second would be most of the steps of a simulated hour."""


class SimulatedGroup(LeaderGroup):
    """The roles of one node."""

    def __init__(
        self, node: SimulatedNode, server: ModelledPostgres, lease_s: float, *, roles: int, **settings: Any
    ) -> None:
        keys = {f"role-{number}": LockKey.pair(43, number) for number in range(1, roles)}
        keys["role-0"] = LockKey.bigint(43)  # both kinds go in one statement
        super().__init__(
            _DSN, keys, lease_s=lease_s, poll_s=lease_s / _POLLS, options=LockOptions(clock=node.loop.time), **settings
        )
        self._node = node
        self._server = server

    async def _open_session(self) -> Session:
        session = SimulatedSession(self._node.name, self._node.cable, self._server)
        self._node.connect(session)
        await session.connect()
        return session
