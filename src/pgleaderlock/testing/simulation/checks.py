"""The invariants that must hold at every step, under every fault profile; and the transcript for a failure.

- At most one node claims to lead. Frozen nodes count: they could thaw at any moment.
- Tokens grow from term to term, over all nodes, and each recovery begins a new term. No term begins after its validity
  has ended.
- A term that ends without a request has a cause.
- A leader that is not frozen has left LEADER before another leads, and has called its ``on_lost`` callbacks if its
  network has no fault. (A killed session and an unanswered renewal together leave no lock that could keep a successor
  waiting.)
- While a node is healthy and no new fault occurs, a node leads before long.
- Long after the last fault, one follower is the heir and another the next heir, where a store has places.
- No lock stays with a session whose process is gone for longer than about two leases.
- A user's code does not act as leader after a newer term began.
- Nothing raises: no callback, no leader task, no other task. In production an exception is logged and the election goes
  on; here that would hide a failed assertion of the user. (An exception in an ``on_error`` callback is not noticed.)
"""

import contextlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import Event, EventKind
from pgleaderlock.testing.simulation.node import SimulatedNode, describe_event
from pgleaderlock.testing.simulation.world import World

__all__ = ["Checker", "Course", "SimulationFailed"]

_STORY_LINES = 60
_DEAD_HOLDER_LEASES = 3.0  # one to be sure, and two looks by candidates that are stuck themselves, as in a group


class SimulationFailed(AssertionError):  # noqa: N818 - it says what happened
    """An invariant was violated. Carries the seed, and the transcript of what led to it."""

    def __init__(self, what: str, kind: str, story: Sequence[str], replay: str) -> None:
        lines = "\n".join(f"  {line}" for line in story)
        super().__init__(f"{what}\n{lines}\nreplay it: {replay}")
        self.what = what
        self.kind = kind
        """``two_leaders``, ``token``, ``late``, ``cause``, ``told_late``, ``no_leader``, ``stuck``, ``unrest``,
        ``no_heir``, ``acted`` or ``raised``."""
        self.replay = replay


def _is_only_a_try(event: Event) -> bool:
    """Whether this is one of a follower's many attempts, which would fill the transcript."""
    is_change = event.kind is EventKind.STATE_CHANGE and event.from_state.is_following and event.to_state.is_following
    return event.kind is EventKind.ACQUIRE_FAILED or is_change


@dataclass(slots=True)
class Course:
    """The state that the checkers of all roles share."""

    story: deque[tuple[float, str, str]]
    terms: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    """The causes of the terms that ended without a request, counted."""
    gaps_s: list[float] = field(default_factory=list)
    """How long each time without a leader lasted."""
    is_over: bool = False
    """Whether the run is over, so that nothing is checked any more."""
    disturbed_at: float = 0.0
    struck_at: float = 0.0
    place: str = ""


class Checker:
    """Checks every step of every node, for one role; each role has its own checker."""

    def __init__(self, world: World, lease_s: float, replay: str, *, keep: bool = False) -> None:
        self._world = world
        self.lease_s = lease_s
        self._replay = replay
        self.course = Course(deque(maxlen=None if keep else _STORY_LINES))
        self._others: list[Checker] = []
        self.nodes: list[SimulatedNode] = []
        self.highest = -1
        self._failure: SimulationFailed | None = None
        self.leaderless_since: float | None = 0.0

    def for_another_role(self) -> "Checker":
        """Return a checker for another role of the same processes."""
        other = Checker(self._world, self.lease_s, self._replay)
        other.course = self.course
        self._others.append(other)
        return other

    @property
    def is_led(self) -> bool:
        """Whether every role has a leader."""
        return self.leader is not None and all(other.is_led for other in self._others)

    @property
    def leader(self) -> SimulatedNode | None:
        """The leader; None if there is none."""
        return next((node for node in self.nodes if node.acts_as_leader), None)

    def leave_out(self, place: str) -> None:
        """Replace this path in the transcript, which must be the same every time."""
        self.course.place = place

    def note(self, who: str, what: str) -> None:
        """Add a line to the transcript."""
        if self.course.is_over:
            return
        if self.course.place:
            what = what.replace(self.course.place, "/simulated")
        self.course.story.append((self._world.now, who, what))

    def transcript(self) -> list[str]:
        """Return the lines of the transcript."""
        return [f"{at:12.3f}  {who:6}  {what}" for at, who, what in self.course.story]

    # --- Steps -------------------------------------------------------------------------------------------------

    def stepped(self, node: SimulatedNode) -> None:
        """Check the node's state after one of its steps."""
        self.raise_failure()
        if not node.lock.state.leads:
            if node.leads:
                node.leads = False
                if self.leader is None:  # another node may lead already when a frozen leader thaws
                    self._note_leaderless()
        elif not node.leads:
            node.leads = True
            self._check_new_term(node)
        elif node.acts_as_leader:  # its renewal may have come after another's term had begun
            self._check_alone()

    def raise_failure(self) -> None:
        """Raise a failure that was found where an exception is lost: in a callback, or in a task without an owner."""
        if self._failure is not None and not self.course.is_over:
            raise self._failure

    def _check_new_term(self, node: SimulatedNode) -> None:
        node.token = node.lock.token
        self.note(node.name, f"LEADS with token {node.token}")
        self._check_alone()
        self._check_notified(node)
        if node.token is None:
            self._fail("late", f"{node.name} leads by a grant that is no longer valid: {node.describe()}")
            return
        if node.token <= self.highest:
            self._fail("token", f"{node.name} leads with token {node.token}, and {self.highest} was there before")
        self.highest = node.token
        self.course.terms += 1
        if self.leaderless_since is not None:
            self.course.gaps_s.append(self._world.now - self.leaderless_since)
            self.leaderless_since = None

    def _check_alone(self) -> None:
        leaders = [each for each in self.nodes if each.acts_as_leader]
        if len(leaders) > 1:
            self._fail("two_leaders", "two leaders at once: " + "; ".join(each.describe() for each in leaders))

    def _check_notified(self, leader: SimulatedNode) -> None:
        for node in self.nodes:
            if node is leader or not node.is_alive or node.is_frozen or node.is_busy:
                continue
            if self._world.now < node.pair_ended_at + 0.1 * self.lease_s:  # :meth:`check_left` looks when that is over
                continue
            if self._world.now < node.thawed_at + 0.1 * self.lease_s:  # it has only just woken up
                continue
            if node.lock.state.leads:
                self._fail("told_late", f"{leader.name} leads, and {node.name} is still LEADER: {node.describe()}")
            notifies = node.is_notifying or node.lock.state.is_recovering
            is_well = self._world.now > node.cable.troubled_at + 2 * self.lease_s
            if notifies and is_well and node.loop.time() < node.trusted_until:
                self._fail("told_late", f"{leader.name} leads before {node.name} has called its on_lost callbacks")

    def check_left(self, node: SimulatedNode, tokens: list[tuple[SimulatedNode, int | None]]) -> None:
        """Check that a leader that is not frozen has left LEADER a while after both its sessions ended."""
        for seat, token in tokens:
            if not node.is_frozen and seat.lock.state.leads and seat.token == token:
                self._fail("told_late", f"{seat.name} leads on without any session: {seat.describe()}")

    def heard(self, node: SimulatedNode, event: Event) -> None:
        """Check an event of an election."""
        if self.course.is_over or event.kind is EventKind.RENEWED:
            return
        if not _is_only_a_try(event):
            self.note(node.name, describe_event(event))
        if event.kind in (EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED):
            self._check_raised(node, event)
        if event.from_state.leads and event.trusted_until is not None:
            node.trusted_until = event.trusted_until
        if event.kind is EventKind.LOST:
            if event.cause == LossCause.UNKNOWN:
                self._fail("cause", f"{node.name} lost its leadership without a known cause: {event}")
            if event.cause == LossCause.STALLED and self._was_awake(node):
                self._fail("cause", f"{node.name} reports that it stalled, and it did not: {event}")
            self.course.losses[event.cause] += 1

    def _was_awake(self, node: SimulatedNode) -> bool:
        """Whether the process and its event loop ran all the time for the last lease and more."""
        return self._world.now > max(node.thawed_at, node.busy_until, node.booted_at) + 1.5 * self.lease_s

    def _check_raised(self, node: SimulatedNode, event: Event) -> None:
        """Fail on an exception of a user's code; the engine's own errors, such as a cancellation, are no bug of it."""
        is_ours = isinstance(event.error, PgLeaderLockError) and event.error.__cause__ is None
        if not is_ours and self._failure is None:
            self._fail("raised", f"{node.name}: {event.cause.replace('_', ' ')}: {event.error!r}")

    def acted(self, node: SimulatedNode, deed: str) -> None:
        """Check that a node does not act as leader too late."""
        others = [each for each in self.nodes if each is not node and each.acts_as_leader]
        if node.token is None:
            self._fail("acted", f"{node.name} {deed!r}, and has never led since it started: {node.describe()}")
        elif others or node.token < self.highest:
            newer = f"{others[0].name} leads" if others else f"the newest term is {self.highest}"
            self._fail("acted", f"{node.name} {deed!r} of term {node.token}, when {newer}: {node.describe()}")

    def failed(self, node: SimulatedNode, context: dict[str, Any]) -> None:
        """Fail on an exception that no code caught."""
        if self._failure is not None and not self.course.is_over:  # that exception is a failure that we raised
            raise self._failure
        error = context.get("exception")
        with contextlib.suppress(SimulationFailed):  # an exception here would be lost: see raise_failure()
            self._fail("raised", f"{node.name}: {context.get('message')}: {error!r}")

    # --- No leader ---------------------------------------------------------------------------------------------

    def disturb(self) -> None:
        """Note that a fault began or ended: the time until a node must lead begins anew."""
        self.course.disturbed_at = self._world.now

    def note_strike(self) -> None:
        """Note that a fault was injected."""
        self.course.struck_at = self._world.now

    def check_dead_holder(self, holder: str, lock: str, since: float) -> None:
        """Check that a session whose client is gone has lost its lock after three leases, if a node could end it."""
        waited_s = self._world.now - max(since, self.course.struck_at)
        if waited_s > _DEAD_HOLDER_LEASES * self.lease_s and self._well_nodes():
            self._fail("stuck", f"lock {lock} has been held for {waited_s:.1f} s by a session of {holder} that is gone")

    def _well_nodes(self) -> list[SimulatedNode]:
        return [each for each in self.nodes if each.is_alive and not each.is_frozen and not each.cable.is_out]

    def _note_leaderless(self) -> None:
        if self.leaderless_since is None:
            self.leaderless_since = self._world.now

    def look(self, patience_s: float) -> None:
        """Check that a node leads if one should. Called periodically."""
        for other in self._others:
            other.look(patience_s)
        if self.leader is not None:
            self.leaderless_since = None  # a leader may have become valid again, in the same term
            return
        self._note_leaderless()
        assert self.leaderless_since is not None  # noqa: S101 - noted just now
        waited_s = self._world.now - max(self.leaderless_since, self.course.disturbed_at)
        # A step-down whose release fails ends in STOPPED, by the specification's table: then a node is no candidate.
        candidates = [each for each in self._well_nodes() if not each.lock.state.is_stopped]
        if candidates and waited_s > patience_s:
            states = "; ".join(each.describe() for each in self.nodes)
            self._fail("no_leader", f"no node leads for {waited_s:.1f} s, without a fault: {states}")

    def note_unrest(self) -> None:
        """Fail because leadership changed although there had been no fault for long."""
        self._fail("unrest", "leadership changed without a fault")

    def check_places(self) -> None:
        """Check that the next leaders are ready: of the followers, one is the heir and another the next heir."""
        places = sorted(each.lock.place for each in self.nodes if each.lock.state.is_following)
        wanted = sorted(["heir", "next heir"][: len(places)])
        if [place for place in places if place] != wanted:
            self._fail("no_heir", f"the followers' places are {places}, long after the last fault")

    def _fail(self, kind: str, what: str) -> None:
        if self.course.is_over:
            return
        self.note("CHECK", what)
        self._failure = SimulationFailed(what, kind, self.transcript()[-_STORY_LINES:], self._replay)
        raise self._failure
