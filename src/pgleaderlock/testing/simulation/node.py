"""One simulated process: an election, the real engine on a real backend, and what can become of a process."""

import math
from collections.abc import Callable
from typing import Any, Protocol

from pgleaderlock.election import Election
from pgleaderlock.models import Event, EventKind, LockState
from pgleaderlock.testing.simulation._loop import NodeLoop
from pgleaderlock.testing.simulation.network import Cable
from pgleaderlock.testing.simulation.world import World

__all__ = ["Connection", "Lifecycle", "Node", "Role", "Watcher", "describe_event"]


class Connection(Protocol):
    """What a process has open that outlives its code: a session, a stream, a locked file."""

    @property
    def closed(self) -> bool:
        """Whether the process gave it up."""

    def hang_up(self) -> None:
        """What the kernel does for a process that dies."""

    def vanish(self) -> None:
        """What becomes of it when the host loses power, or a firewall forgets it."""


class Watcher(Protocol):
    """Who looks at every step."""

    def stepped(self, node: "Node") -> None:
        """A node took a step."""

    def heard(self, node: "Node", event: Event) -> None:
        """A node's election said something."""

    def acted(self, node: "Node", deed: str) -> None:
        """A user's code did what only a leader may."""

    def failed(self, node: "Node", context: dict[str, Any]) -> None:
        """Something raised, and nobody caught it."""

    def note(self, who: str, what: str) -> None:
        """Write it into the transcript."""


class Lifecycle(Protocol):
    """What is started and shut down: an election, or a group of them."""

    async def start(self) -> None:
        """Begin."""

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """End in order."""


class Node:
    """One process, which may be started, frozen, crashed and started again; ``lock`` is its election of the moment."""

    def __init__(
        self, name: str, world: World, rate: float, watcher: Watcher, make_election: Callable[["Node"], Election]
    ) -> None:
        self.name = name
        self.world = world
        self.rate = rate
        self.cable = Cable(world)
        self.sessions: list[Connection] = []
        self.boots = 0
        self.booted_at = 0.0
        self.lock: Election
        self.service: Lifecycle
        """What is started: ``lock``, unless that is one of several that are started together."""
        self.seats: list[Node] = [self]
        """One for each role that this process stands for."""
        self.is_alive = False
        self.thawed_at = 0.0
        self.busy_until = 0.0
        """Until when the event loop was, or is, kept busy by other work."""
        self.pair_ended_at = -math.inf
        """When a session of its pair was last ended together with the other one."""
        self.is_telling = False
        """Whether an ``on_lost`` of the simulation's own is under way."""
        self.lost_a_term = False
        """Whether its last term ended, and callbacks have not begun to hear of it."""
        self.trusted_until = 0.0
        """Until when, on its own clock, its last term could be believed in."""
        self.leads = False  # as the checker saw it last
        self.token: int | None = None
        self._watcher = watcher
        self._make_election = make_election
        self.loop: NodeLoop

    # --- For users ---------------------------------------------------------------------------------------------

    def act(self, deed: str = "acts") -> None:
        """Do what must be done by the leader only. The simulation fails if a newer leader was there already."""
        self._watcher.acted(self, deed)

    # --- For stores --------------------------------------------------------------------------------------------

    def connect(self, connection: Connection) -> None:
        """Note what the kernel has to close when this process dies."""
        self.sessions = [each for each in self.sessions if not each.closed]
        self.sessions.append(connection)

    # --- What becomes of it ------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start the process."""
        self.boots += 1
        self.booted_at = self.world.now
        self.is_alive = True
        for seat in self.seats:
            seat.trusted_until = 0.0  # the host's clock begins anew
            seat.is_telling = seat.lost_a_term = False
            seat.token = None  # a new process remembers nothing
        self.sessions.clear()
        self.loop = NodeLoop(  # type: ignore[abstract] # what has to do with sockets is not there, on purpose
            self.world,
            self.rate,
            after_step=self._stepped,
            failed=lambda context: self._watcher.failed(self, context),
        )
        self.lock = self._make_election(self)
        self._watcher.note(self.name, "starts")
        self.loop.create_task(self.service.start())

    def _stepped(self) -> None:
        for seat in self.seats:
            seat._watcher.stepped(seat)  # noqa: SLF001 - a part of us

    def crash(self, *, with_host: bool = False) -> None:
        """Be gone. A kernel that survives closes the connections."""
        self.is_alive = False
        for seat in self.seats:
            seat.leads = seat.is_telling = False
        self.loop.close()
        for session in self.sessions:
            if with_host:
                session.vanish()
            elif not session.closed:
                session.hang_up()

    def freeze(self) -> None:
        """Stand still."""
        self.loop.freeze()

    def thaw(self) -> None:
        """Go on."""
        self.thawed_at = self.world.now
        self.loop.thaw()

    def keep_busy(self, turn_s: float, lasts_s: float) -> None:
        """Let other work keep the event loop busy: each turn may come so much later, for so long."""
        loop, idle_s = self.loop, self.loop.turn_s
        loop.turn_s = turn_s
        self.busy_until = self.world.now + lasts_s

        def be_free() -> None:
            loop.turn_s = idle_s

        self.world.later(lasts_s, be_free)

    @property
    def is_busy(self) -> bool:
        """Whether its event loop is kept busy."""
        return self.world.now < self.busy_until

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still."""
        return self.is_alive and self.loop.is_frozen

    @property
    def believes(self) -> bool:
        """Whether its code would be told that it leads, if it asked in this moment; frozen or not."""
        return self.is_alive and self.lock.is_leader

    def listen(self) -> None:
        """Hear what the election says, before anybody else does."""
        self.lock.subscribe(lambda event: self._watcher.heard(self, event))

    def describe(self) -> str:
        """Return what it thinks of itself."""
        if not self.is_alive:
            return f"{self.name} is gone"
        frozen = ", frozen" if self.is_frozen else ""
        cut = ", cut off" if self.cable.is_out else ""
        left = f", trusts for {self.lock.time_left_s:.3f} s more" if self.lock.state is LockState.LEADER else ""
        return f"{self.name} is {self.lock.state.value}, token {self.lock.token}{left}{frozen}{cut}"


class Role(Node):
    """One more election of a process. What belongs to the process, its loop and its cable, is asked of that."""

    def __init__(self, process: Node, name: str, watcher: Watcher) -> None:  # not super's: all that would be another's
        self._process = process
        self.name = name
        self._watcher = watcher
        self.lock: Election
        self.is_telling = self.lost_a_term = self.leads = False
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
    if event.loss is not None:
        words.append(f"because of {event.loss.value}")
    if event.kind is EventKind.ERROR and event.error is not None:
        words.append(str(event.error) or repr(event.error))
    return " ".join(words)
