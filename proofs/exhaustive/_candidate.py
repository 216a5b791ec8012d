"""One node: its possible next steps, in each state of the real table and with each answer read or outstanding.

The order of a node's requests is that of :mod:`pgleaderlock.postgres.advisory`; the product's own table decides which
state follows from a fact. A node may always pause: so a frozen process, a slow one and a lost answer need no steps of
their own.
"""

from collections.abc import Iterator

from pgleaderlock._base.causes import LossCause
from pgleaderlock.engine.fsm import Input
from pgleaderlock.models import LockState
from proofs.exhaustive._facts import Facts, Move
from proofs.exhaustive._server import ask, ask_in_place, begin, close, wait
from proofs.exhaustive._world import (
    DEAD,
    HOLDS,
    NO,
    NONE,
    NOT_YET,
    OPEN,
    PLACED,
    STATES,
    WAITS,
    YES,
    Session,
    Step,
    put,
)

__all__ = ["Candidate"]

_STOPPED, _FOLLOWER, _ACQUIRING, _LEADER, _RECONNECTING, _RELEASING = (
    STATES.index(state)
    for state in (
        LockState.STOPPED,
        LockState.FOLLOWER,
        LockState.ACQUIRING,
        LockState.LEADER,
        LockState.RECONNECTING,
        LockState.RELEASING,
    )
)
_IN_PLACE = (
    "{} tries for the lock, and then for the place of the next heir.",
    "{}, the next heir, queues for the place of the heir.",
    "{}, the heir, queues for the lock.",
    "{}, the new heir, leaves the place of the next heir, and queues for the lock.",
)


class Candidate(Facts):
    """The possible steps of one node of a world."""

    def moves(self) -> Iterator[Move]:
        """Return every possible next step of this node."""
        if self.node.state == _STOPPED:
            yield self._fed("{} starts again.", self.world, Input.START)
        elif self.node.step == Step.IDLE:
            yield from self._idle()
        else:
            yield from self._waiting()
        if self.node.state == _RECONNECTING:
            yield self._fed("{}'s grace period ends.", self.world, Input.GRACE_EXPIRED)

    # --- Nothing in flight -------------------------------------------------------------------------------------

    def _idle(self) -> Iterator[Move]:
        if self.node.state == _LEADER:
            yield from self._lead()
        elif self.node.lock.status in (NONE, DEAD):
            yield self._opens()
        else:
            yield from self._ask_for_lock()

    def _opens(self) -> Move:
        asked_age = -1 if self.rules.settle_from_answer else 0
        opening = self.node._replace(step=Step.OPENING, lock=Session(OPEN), asked_age=asked_age, settle=0)
        return self._moved("{} opens a session, and asks the server for its age.", opening)

    def _ask_for_lock(self) -> Iterator[Move]:
        node = self.node
        queued = put(self.world, self.index, node._replace(step=Step.QUEUED))
        if node.state == _FOLLOWER and self.game.scope.places:
            # To try for the lock is part of this, where it is not the same as a wait slice that ends at once.
            yield self.index, _IN_PLACE[node.place], ask_in_place(self.game, queued, self.index), None
            return
        if node.state == _FOLLOWER and node.lock.status != WAITS:
            yield self.index, "{} queues for the lock.", ask(queued, self.index, "lock", waits=True), None
        if node.state == _FOLLOWER:
            trying = self._fed("", self.world, Input.ACQUIRE_ATTEMPT, step=Step.TRYING)[2]
        else:
            trying = put(self.world, self.index, node._replace(step=Step.TRYING))
        yield self.index, "{} tries for the lock.", ask(trying, self.index, "lock", waits=False), None

    def _lead(self) -> Iterator[Move]:
        node = self.node
        if node.lock.status == DEAD:
            yield self._gone("{} reads that its session has ended.", Input.DB_ERROR, LossCause.SESSION_TERMINATED)
        if self.game.not_lost[node.rate][node.grant_age]:
            renewing = node._replace(step=Step.PING_LOCK, asked_age=0)
            yield self._moved("{} sends a renewal.", renewing)
        else:
            stalled = "{} notices that it paused for too long."
            yield self._fed(stalled, self.world, Input.HEALTH_FAILED, LossCause.STALLED)
        if self.game.scope.step_downs:
            yield self._fed("{} is asked to step down.", self.world, Input.RELEASE_REQUESTED, step=Step.UNLOCKING)

    # --- Something in flight -----------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[Move]:
        match self.node.step:
            case Step.BEGINNING:
                yield from self._await_beginning()
            case Step.UNLOCKING if self._unlocks_witness():
                yield from self._await_second()
            case Step.WITNESS | Step.PING_WITNESS:
                yield from self._await_answer("witness", self.node.second)
            case Step.SETTLING:
                yield from self._settle()
            case Step.DRAWN:
                yield from self._leads_or_renews()
            case _:
                yield from self._await_answer("lock", self.node.answer)

    def _await_answer(self, lock: str, answer: int) -> Iterator[Move]:
        """Read the answer, or the end of the session; or time out."""
        session: Session = getattr(self.node, lock)
        if answer != NOT_YET:  # it was sent before the session ended, if that has ended
            yield self._answered()
        elif session.status == DEAD:
            yield self._failed()
            return
        elif session.status == WAITS or self._is_queued_for_place():
            yield self._slice_over(lock)
        elif self.node.step == Step.OPENING:
            yield self._opened()
        if self._may_give_up():
            yield self._gives_up()

    def _is_queued_for_place(self) -> bool:
        return self.node.step == Step.QUEUED and self.node.lock.status == OPEN

    def _unlocks_witness(self) -> bool:
        """Whether the release of the witness lock is not answered yet, while its session has not ended."""
        return self.node.second == NOT_YET and self.node.witness.status == HOLDS

    def _await_second(self) -> Iterator[Move]:
        if self.node.answer == NOT_YET and self.node.lock.status == DEAD:
            yield self._failed()
        elif self._may_give_up():
            yield self._gives_up()

    def _await_beginning(self) -> Iterator[Move]:
        """Read the answers of the first round trip of a term; or the end of either session; or time out."""
        node = self.node
        has_second = node.second != NOT_YET or not self.rules.witness
        if has_second:
            yield self._begun()
        if node.lock.status == DEAD or (not has_second and node.witness.status == DEAD):
            yield self._failed()
        if self._may_give_up():
            yield self._gives_up()
            if node.witness.status in (HOLDS, DEAD):
                yield self._tries_on_fresh_session()

    def _tries_on_fresh_session(self) -> Move:
        world = close(self.world, self.index, "witness")
        node = world.nodes[self.index]._replace(witness=Session(OPEN), second=NOT_YET)
        text = "{} gets no answer soon, and tries for the witness lock on a fresh session."
        return self.index, text, put(world, self.index, node), None

    def _answered(self) -> Move:
        node = self.node
        match node.step:
            case Step.TRYING | Step.QUEUED:
                return self._won() if node.answer == YES else self._refused()
            case Step.WITNESS:
                return self._has_witness("{} reads that it holds the witness lock")
            case Step.PING_LOCK if self.rules.witness:
                return self._turns_to_witness()
            case Step.PING_WITNESS if node.state == _RECONNECTING and not node.token:
                return self._has_witness("{} reads that it holds both locks")
            case Step.UNLOCKING:
                released = self._closed(self.world, "witness")
                return self._fed("{} reads that the lock is released.", released, Input.RELEASE_SUCCEEDED)
            case _:
                return self._confirmed()

    def _opened(self) -> Move:
        """Read the server's age at once: to read it later has the effect of a longer wait, which is possible anyway."""
        settle = self.game.settle_ticks(self.node.rate, self.world.server_age, self.node.asked_age)
        opened = self.node._replace(step=Step.IDLE, asked_age=-1, settle=settle)
        return self._moved("{} reads the server's age.", opened)

    def _refused(self) -> Move:
        if self.node.state == _FOLLOWER:
            what = "it has a place" if self.node.answer == PLACED else "other nodes hold the lock and the place"
            return self._moved(f"{{}} reads that {what}.", self.node._replace(step=Step.IDLE, answer=NOT_YET))
        if self.node.state == _ACQUIRING:
            return self._fed("{} reads that another node holds the lock.", self.world, Input.ACQUIRE_FAILED)
        lost = self._fed("{} reads that another node holds the lock.", self.world, Input.REACQUIRE_FAILED,
                         LossCause.HELD_BY_ANOTHER)  # fmt: skip
        return lost[0], lost[1], self._closed(lost[2], "witness"), lost[3]

    def _won(self) -> Move:
        """Read that the lock is granted, and send the first request of a term and the try for the witness lock.

        In a recovery, which has the witness lock, that session is renewed instead.
        """
        world = self.world
        if self.node.state == _FOLLOWER:
            world = self._fed("", world, Input.ACQUIRE_ATTEMPT)[2]
        node = world.nodes[self.index]._replace(step=Step.BEGINNING, answer=NOT_YET, second=NOT_YET, asked_age=0)
        does = "begins its term"
        if self.rules.witness and node.witness.status in (HOLDS, DEAD):
            node, does = node._replace(step=Step.PING_WITNESS), "renews its witness session"
        elif self.rules.witness:
            node, does = node._replace(witness=Session(OPEN)), "tries for the witness lock"
        world = begin(self.game, put(world, self.index, node), self.index)
        draws = f" It {self._what_draws} token {world.counter}." if world.nodes[self.index].token else ""
        return self.index, f"{{}} reads that it holds the lock, and {does}.{draws}", world, None

    def _begun(self) -> Move:
        """Read the first answers of a term. If the witness lock was refused, queue for it."""
        node = self.node._replace(step=Step.WITNESS, answer=NOT_YET, second=NOT_YET)
        if self.game.lease.term_table and node.token:
            node = node._replace(term=node.token)
        world = put(self.world, self.index, node)
        if self.node.second == NO and self.rules.waits_for_witness:
            text = "{} reads that the witness lock is held, and queues for it."
            return self.index, text, ask(world, self.index, "witness", waits=True), None
        held = "both locks" if self.rules.witness and self.node.second == YES else "the lock"
        return Candidate(self.game, world, self.index)._has_witness(f"{{}} reads that it holds {held}")

    def _slice_over(self, lock: str) -> Move:
        """End a wait slice without a grant. For the witness lock the next begins at once, at the end of the queue."""
        if self._is_queued_for_place() and self.rules.place_is_no_condition:
            tried = ask(self.world, self.index, "lock", waits=False)
            if tried.nodes[self.index].answer == YES:
                return self.index, "{}'s wait slice ends, and it is granted the lock.", tried, None
        world = wait(self.world, self.index, lock)
        if lock == "lock":
            return self.index, "{}'s wait slice ends.", put(world, self.index, self.node._replace(
                step=Step.IDLE, lock=Session(OPEN), answer=NOT_YET)), None  # fmt: skip
        if world.nodes[self.index].lock.status == DEAD:
            return Candidate(self.game, world, self.index)._failed()
        return self.index, "{} asks for the witness lock once more.", ask(world, self.index, lock, waits=True), None
