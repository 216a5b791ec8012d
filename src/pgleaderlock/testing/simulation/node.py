"""One simulated process: an election (the real engine on a real backend), and the faults of a process."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pgleaderlock.engine.election import Election
from pgleaderlock.models import ERROR_KINDS, Event, EventKind
from pgleaderlock.postgres.leader_group import LeaderGroup
from pgleaderlock.testing.simulation._loop import NodeLoop
from pgleaderlock.testing.simulation.network import Cable
from pgleaderlock.testing.simulation.world import World

if TYPE_CHECKING:
    from pgleaderlock.testing.simulation.checks import Checker

__all__ = ["Connection", "Role", "SimulatedNode", "describe_event"]


class Connection(Protocol):
    """An open resource of a process that the kernel closes: a session, a stream, a locked file."""

    @property
    def closed(self) -> bool:
        """Whether the process has closed it."""

    def hang_up(self) -> None:
        """Close it as the kernel does when the process dies."""

    def vanish(self) -> None:
        """Make it silent without a close, as when the host loses power, or a firewall drops its state."""


class SimulatedNode:
    """One process, which may be started, frozen, crashed and started again; ``lock`` is its current election."""

    def __init__(
        self,
        name: str,
        world: World,
        rate: float,
        watcher: "Checker",
        make_election: Callable[["SimulatedNode"], Election],
    ) -> None:
        self.name = name
        self.world = world
        self.rate = rate
        self.cable = Cable(world)
        self.sessions: list[Connection] = []
        self.boots = 0
        self.booted_at = 0.0
        self.lock: Election
        self.service: Election | LeaderGroup
        """The object to start: ``lock``, or the group that ``lock`` belongs to."""
        self.seats: list[SimulatedNode] = [self]
        """One for each role for which this process is a candidate."""
        self.is_alive = False
        self.thawed_at = 0.0
        self.busy_until = 0.0
        """Until when other work keeps, or kept, the event loop busy."""
        self.pair_ended_at = -math.inf
        """When a session of its pair was last ended together with the other one."""
        self.is_notifying = False
        """Whether an ``on_lost`` callback of the simulation's own is running."""
        self.trusted_until = 0.0
        """Until when, on its own clock, its last term was valid."""
        self.leads = False  # as the checker saw it last
        self.token: int | None = None
        self._watcher = watcher
        self._make_election = make_election
        self.loop: NodeLoop

    # --- For users ---------------------------------------------------------------------------------------------

    def act(self, deed: str = "acts") -> None:
        """Mark an action that only the leader may do. The simulation fails if a newer term has begun already."""
        self._watcher.acted(self, deed)

    # --- For stores --------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """Register a resource that the kernel has to close when this process dies."""
        self.sessions = [each for each in self.sessions if not each.closed]
        self.sessions.append(connection)

    # --- Life cycle --------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the process."""
        self.boots += 1
        self.booted_at = self.world.now
        self.is_alive = True
        for seat in self.seats:
            seat.trusted_until = 0.0  # the host's clock begins anew
            seat.is_notifying = False
            seat.token = None  # a new process remembers nothing
        self.sessions.clear()
        self.loop = NodeLoop(  # type: ignore[abstract] # it has no socket methods, on purpose
            self.world, self.rate, after_step=self._stepped, failed=lambda context: self._watcher.failed(self, context)
        )
        self.lock = self._make_election(self)
        self._watcher.note(self.name, "starts")
        self.loop.create_task(self.service.start())

    def _stepped(self) -> None:
        for seat in self.seats:
            seat._watcher.stepped(seat)  # noqa: SLF001 - a part of us

    def crash(self, *, with_host: bool = False) -> None:
        """Kill the process. Its kernel closes the connections, unless the host crashes too."""
        self.is_alive = False
        for seat in self.seats:
            seat.leads = seat.is_notifying = False
        self.loop.close()
        for session in self.sessions:
            if with_host:
                session.vanish()
            elif not session.closed:
                session.hang_up()

    def freeze(self) -> None:
        """Freeze the process."""
        self.loop.freeze()

    def thaw(self) -> None:
        """Let the process run again."""
        self.thawed_at = self.world.now
        self.loop.thaw()

    def keep_busy(self, turn_s: float, lasts_s: float) -> None:
        """Keep the event loop busy with other work: for ``lasts_s``, each turn comes up to ``turn_s`` later."""
        loop, idle_s = self.loop, self.loop.turn_s
        loop.turn_s = turn_s
        self.busy_until = self.world.now + lasts_s

        def be_free() -> None:
            loop.turn_s = idle_s

        self.world.later(lasts_s, be_free)

    @property
    def is_busy(self) -> bool:
        """Whether other work keeps its event loop busy."""
        return self.world.now < self.busy_until

    @property
    def is_frozen(self) -> bool:
        """Whether the process is frozen."""
        return self.is_alive and self.loop.is_frozen

    @property
    def acts_as_leader(self) -> bool:
        """Whether ``is_leader`` would be True for its code at this moment; frozen or not."""
        return self.is_alive and self.lock.is_leader

    def listen(self) -> None:
        """Subscribe the checker to the election's events, before any other listener."""
        self.lock.subscribe(lambda event: self._watcher.heard(self, event))

    def describe(self) -> str:
        """Return its state in words."""
        if not self.is_alive:
            return f"{self.name} is gone"
        frozen = ", frozen" if self.is_frozen else ""
        cut = ", cut off" if self.cable.is_out else ""
        left = f", valid for {self.lock.time_left_s:.3f} s more" if self.lock.state.leads else ""
        return f"{self.name} is {self.lock.state.value}, token {self.lock.token}{left}{frozen}{cut}"


class Role(SimulatedNode):
    """One more election of a process. It shares the loop, the cable and all else of that process."""

    def __init__(self, process: SimulatedNode, name: str, watcher: "Checker") -> None:  # not super's: no new process
        self._process = process
        self.name = name
        self._watcher = watcher
        self.lock: Election
        self.is_notifying = self.leads = False
        self.trusted_until = 0.0
        self.token: int | None = None
        process.seats.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


def describe_event(event: Event) -> str:
    """Return one line for a transcript."""
    words = [event.kind.value]
    if event.kind is EventKind.STATE_CHANGE:
        words = [f"{event.from_state.value} -> {event.to_state.value} ({event.cause})"]
    if event.kind in (EventKind.ACQUIRED, EventKind.RECOVERED) and event.token is not None:
        words.append(f"token {event.token}")
    if event.kind is EventKind.LOST:
        words.append(f"because of {event.cause}")
    if event.kind in ERROR_KINDS and event.error is not None:
        words.append(str(event.error) or repr(event.error))
    return " ".join(words)
