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
from proofs.exhaustive._server import ask, wait
from proofs.exhaustive._world import (
    DEAD,
    HOLDS,
    NO,
    NONE,
    NOT_YET,
    OPEN,
    STATES,
    WAITS,
    Session,
    Step,
    World,
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
        if self.node.state == _RECONNECTING and self.node.witness.status == HOLDS and self.node.witness.number:
            yield self._moved("{} keeps its witness session alive.", self.node._replace(witness=Session(HOLDS)))

    def _opens(self) -> Move:
        asked_age = -1 if self.rules.settle_from_answer else 0
        opening = self.node._replace(step=Step.OPENING, lock=Session(OPEN), asked_age=asked_age, settle=0)
        return self._moved("{} opens a session, and asks the server for its age.", opening)

    def _ask_for_lock(self) -> Iterator[Move]:
        node = self.node
        if node.state == _FOLLOWER and node.lock.status != WAITS:
            lined_up = put(self.world, self.index, node._replace(step=Step.IN_LINE))
            yield self.index, "{} queues for the lock.", ask(lined_up, self.index, "lock", waits=True), None
        if not self.rules.token_after_grant:
            yield self._takes_token_first()
            return
        if node.state == _FOLLOWER:
            trying = self._fed("", self.world, Input.ACQUIRE_ATTEMPT, step=Step.TRYING)[2]
        else:
            trying = put(self.world, self.index, node._replace(step=Step.TRYING))
        yield self.index, "{} tries for the lock.", ask(trying, self.index, "lock", waits=False), None

    def _takes_token_first(self) -> Move:
        token = self.world.counter + 1
        world = self.world._replace(counter=token)
        if self.node.state == _FOLLOWER:
            world = self._fed("", world, Input.ACQUIRE_ATTEMPT)[2]
        node = world.nodes[self.index]._replace(step=Step.STARTED, answer=token)
        return self.index, f"{{}} is given token {token}, before its lock.", put(world, self.index, node), None

    def _lead(self) -> Iterator[Move]:
        node = self.node
        if node.lock.status == DEAD:
            yield self._gone("{} reads that its session has ended.", Input.DB_ERROR, LossCause.SESSION_TERMINATED)
        if self.game.not_lost[node.rate][node.grant_age]:
            renewing = node._replace(step=Step.PING_LOCK, asked_age=0)
            yield self._moved("{} sends a renewal.", renewing)
        else:
            stalled = "{} notices that it paused for too long."
            yield self._fed(stalled, self.world, Input.HEALTH_FAILED, LossCause.STALLED, grant_age=-1, asked_age=-1)
        if self.game.scope.step_downs:
            yield self._fed("{} is asked to step down.", self.world, Input.RELEASE_REQUESTED, step=Step.UNLOCKING)

    # --- Something in flight -----------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[Move]:
        node = self.node
        match node.step:
            case Step.OPENING | Step.TRYING | Step.IN_LINE | Step.UNLOCKING | Step.PING_LOCK:
                yield from self._await_answer("lock")
            case Step.WITNESS | Step.PING_WITNESS:
                yield from self._await_answer("witness")
            case Step.STARTED:
                yield from self._lock_after_token()
            case Step.READING:
                yield self._reads_row() if node.lock.status == HOLDS else self._failed()
            case Step.SETTLING:
                yield from self._settle()
            case _:
                yield self._renews_or_leads()

    def _await_answer(self, lock: str) -> Iterator[Move]:
        """Read the answer, or the end of the session; or time out."""
        session: Session = getattr(self.node, lock)
        if self.node.answer != NOT_YET:  # it was sent before the session ended, if that has ended
            yield self._answered()
        elif session.status == DEAD:
            yield self._failed()
            return
        elif session.status == WAITS:
            yield self._slice_over(lock)
        elif self.node.step == Step.OPENING:
            yield self._opened()
        if self._may_give_up():
            yield self._gives_up()

    def _may_give_up(self) -> bool:
        """Whether it may time out: at any time; a leader only once its term must be declared lost."""
        node = self.node
        if node.state == _LEADER and not self.game.not_lost[node.rate][node.grant_age]:
            return True
        if not self.game.scope.give_ups and self.rules.close_on_doubt:
            return False
        return not (self.rules.silence_is_no_end and self._is_protected())

    def _is_protected(self) -> bool:
        """Whether a leader renews its witness lock: closing that session while it is valid would end its protection."""
        node = self.node
        return node.state == _LEADER and node.step == Step.PING_WITNESS and node.witness.status == HOLDS

    def _answered(self) -> Move:
        node, answer = self.node, self.node.answer
        match node.step:
            case Step.TRYING | Step.IN_LINE:
                return self._refused() if answer == NO else self._won()
            case Step.WITNESS:
                return self._has_witness(put(self.world, self.index, node._replace(answer=NOT_YET)))
            case Step.PING_LOCK if self.rules.witness:
                return self._turns_to_witness()
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
        if self.node.state == _ACQUIRING:
            return self._fed("{} reads that another node holds the lock.", self.world, Input.ACQUIRE_FAILED)
        lost = self._fed("{} reads that another node holds the lock.", self.world, Input.REACQUIRE_FAILED,
                         LossCause.HELD_BY_ANOTHER)  # fmt: skip
        return lost[0], lost[1], self._closed(lost[2], "witness"), lost[3]

    def _won(self) -> Move:
        """Read that the lock is granted, and ask for the witness lock."""
        world, token = self.world, self.node.answer
        if self.node.state == _FOLLOWER:
            world = self._fed("", world, Input.ACQUIRE_ATTEMPT)[2]
        node = world.nodes[self.index]._replace(
            token=token, answer=NOT_YET, asked_age=0 if self.game.times_grants else -1
        )
        text = f"{{}} reads that it holds the lock, with token {token}"
        if not self.rules.witness or node.witness.status in (HOLDS, DEAD):
            return self._has_witness(put(world, self.index, node), text + ".")
        world = put(world, self.index, node._replace(step=Step.WITNESS))
        return self.index, text + "; it asks for the witness lock.", ask(world, self.index, "witness", waits=True), None

    def _has_witness(self, world: World, text: str = "{} reads that it holds the witness lock.") -> Move:
        node = world.nodes[self.index]
        if node.state == _LEADER or not (node.settle or self.game.times_grants):
            renewing = node._replace(step=Step.PING_LOCK, asked_age=0)
            return self.index, text + " It renews both.", put(world, self.index, renewing), None
        step = Step.READING if self.game.lease.term_table else Step.SETTLING
        return self.index, text, put(world, self.index, node._replace(step=step)), None

    def _lock_after_token(self) -> Iterator[Move]:
        if self.node.lock.status == DEAD:
            yield self._failed()
            return
        asked = ask(self.world, self.index, "lock", waits=False)
        node = asked.nodes[self.index]
        yield self.index, "{}'s try reaches the lock.", put(asked, self.index, node._replace(step=Step.TRYING)), None

    def _slice_over(self, lock: str) -> Move:
        """End a wait slice without a grant. For the witness lock the next begins at once, at the end of the queue."""
        world = wait(self.world, self.index, lock)
        if lock == "lock":
            return self.index, "{}'s wait slice ends.", put(world, self.index, self.node._replace(
                step=Step.IDLE, lock=Session(OPEN), answer=NOT_YET)), None  # fmt: skip
        if world.nodes[self.index].lock.status == DEAD:
            return Candidate(self.game, world, self.index)._failed()
        return self.index, "{} asks for the witness lock once more.", ask(world, self.index, lock, waits=True), None
