"""One node: what it may do next, in each state of the real table and with each answer read or outstanding.

The order of a node's requests is that of :mod:`pgleaderlock.backends.leased`; where a fact leads is the product's own
table. A node is never obliged to move: so a frozen process, a slow one and a lost answer need no words of their own.
"""

from collections.abc import Iterator
from functools import cache

from pgleaderlock import election
from pgleaderlock._run import Fact
from pgleaderlock.causes import LossCause
from pgleaderlock.errors import ConnectionError, IllegalTransition
from pgleaderlock.fsm import Input
from pgleaderlock.models import EventKind, LockState
from pgleaderlock.testing.exhaustive._rules import Game
from pgleaderlock.testing.exhaustive._server import ask, close, wait
from pgleaderlock.testing.exhaustive._world import (
    DEAD,
    HOLDS,
    NO,
    NO_SESSION,
    NONE,
    NOT_YET,
    OPEN,
    STATES,
    WAITS,
    Node,
    Row,
    Session,
    Step,
    World,
    put,
)

__all__ = ["Contender", "Move"]

Move = tuple[int, str, World, str | None]
"""Whose move it is, in words with a place for the name; what the world is then; what is wrong with it, if anything."""

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
_LEADING = (LockState.LEADER, LockState.RECONNECTING)


@cache
def _named(fact: Input, cause: LossCause) -> bool:
    """Whether the engine has a word for a loss that came about so."""
    loss = election._loss_cause(Fact(fact, ConnectionError("", cause=cause)))  # noqa: SLF001 - the engine's own word
    return loss is not LossCause.UNKNOWN


class Contender:
    """The moves of one node of a world."""

    def __init__(self, game: Game, world: World, index: int) -> None:
        self.game = game
        self.rules = game.rules
        self.world = world
        self.index = index
        self.node = world.nodes[index]

    def believes(self) -> bool:
        """What ``is_leader`` answers in this node."""
        return self.node.state == _LEADER and (
            not self.rules.belief_by_clock or self.game.trusted[self.node.rate][self.node.grant_age]
        )

    def moves(self) -> Iterator[Move]:
        """Return everything that it may do next."""
        if self.node.state == _STOPPED:
            yield self._fed("{} starts again.", self.world, Input.START)
        elif self.node.step == Step.IDLE:
            yield from self._idle()
        else:
            yield from self._waiting()
        if self.node.state == _RECONNECTING:
            yield self._fed("{}'s grace is over.", self.world, Input.GRACE_EXPIRED)

    # --- The table ---------------------------------------------------------------------------------------------

    def _fed(
        self, text: str, world: World, fact: Input, cause: LossCause = LossCause.CONNECTION_LOST, **changes: int
    ) -> Move:
        """Feed a fact to the real table, and do what comes out of it."""
        node = world.nodes[self.index]
        source = STATES[node.state]
        transition = self.game.table.get((source, fact))
        if transition is None:
            raise IllegalTransition(f"no row for input {fact.value!r} in state {source.value!r}")
        is_new = transition.to not in (*_LEADING, LockState.ACQUIRING, LockState.RELEASING)
        node = node._replace(step=Step.IDLE, answer=NOT_YET, state=STATES.index(transition.to))
        if is_new:
            node = node._replace(token=0, grant_age=-1, asked_age=-1)
        world = put(world, self.index, node._replace(**changes))  # type: ignore[arg-type] # numbers, never sessions
        if transition.closes:
            world = self._closed(world, "lock", "witness")
        complaint = None
        if EventKind.LOST in transition.emits and source in _LEADING and not _named(fact, cause):
            complaint = f"{{}} lost its leadership by {fact.value}, and there is no word for why"
        return self.index, text, world, complaint

    def _closed(self, world: World, *locks: str) -> World:
        for lock in locks:
            world = close(world, self.index, lock)
        return world

    def _moved(self, text: str, node: Node) -> Move:
        return self.index, text, put(self.world, self.index, node), None

    # --- Nothing in flight -------------------------------------------------------------------------------------

    def _idle(self) -> Iterator[Move]:
        if self.node.state == _LEADER:
            yield from self._lead()
        elif self.node.lock.status in (NONE, DEAD):
            yield self._opens()
        else:
            yield from self._ask_for_lock()
        if self.node.state == _RECONNECTING and self.node.witness.status == HOLDS and self.node.witness.number:
            yield self._moved("{} keeps its witness.", self.node._replace(witness=Session(HOLDS)))

    def _opens(self) -> Move:
        asked_age = -1 if self.rules.settle_from_answer else 0
        opening = self.node._replace(step=Step.OPENING, lock=Session(OPEN), asked_age=asked_age, settle=0)
        return self._moved("{} opens a session, and asks the server for its age.", opening)

    def _ask_for_lock(self) -> Iterator[Move]:
        node = self.node
        if node.state == _FOLLOWER and node.lock.status != WAITS:
            lined_up = put(self.world, self.index, node._replace(step=Step.IN_LINE))
            yield self.index, "{} stands in line for the lock.", ask(lined_up, self.index, "lock", waits=True), None
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
            stalled = "{} sees that it stood still for too long."
            yield self._fed(stalled, self.world, Input.HEALTH_FAILED, LossCause.STALLED, grant_age=-1, asked_age=-1)
        if self.game.scope.step_downs:
            yield self._fed("{} is asked to step down.", self.world, Input.RELEASE_REQUESTED, step=Step.UNLOCKING)

    # --- Something in flight -----------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[Move]:
        node = self.node
        match node.step:
            case Step.OPENING | Step.TRYING | Step.IN_LINE | Step.UNLOCKING | Step.PING_LOCK:
                yield from self._hear("lock")
            case Step.WITNESS | Step.PING_WITNESS:
                yield from self._hear("witness")
            case Step.STARTED:
                yield from self._lock_after_token()
            case Step.READING:
                yield self._reads_row() if node.lock.status == HOLDS else self._failed()
            case Step.SETTLING:
                yield from self._settle()
            case _:
                yield self._renews_or_leads()

    def _hear(self, lock: str) -> Iterator[Move]:
        """Read the answer, or of the session's end; or do not wait any longer."""
        session: Session = getattr(self.node, lock)
        if self.node.answer != NOT_YET:  # it was sent before the session ended, if that has ended
            yield self._heard()
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
        """Whether the time is up. That is when it likes; but a leader has a time until when it must have an answer."""
        node = self.node
        if node.state == _LEADER and not self.game.not_lost[node.rate][node.grant_age]:
            return True
        if not self.game.scope.give_ups and self.rules.close_on_doubt:
            return False
        return not self._needs_a_fault_to_give_up()

    def _needs_a_fault_to_give_up(self) -> bool:
        """A leader that closes its witness while it believes is half unprotected: that is counted as a session lost."""
        node = self.node
        is_protected = node.state == _LEADER and node.step == Step.PING_WITNESS and node.witness.status == HOLDS
        return is_protected and self.game.not_lost[node.rate][node.grant_age]

    def loses_witness(self) -> Iterator[Move]:
        """Return the fault that is a leader's own doing: it closes its witness, whose answer did not come in time."""
        if self._needs_a_fault_to_give_up() and self.node.answer == NOT_YET:
            _, _, world, _ = self._replaces_witness(self.world)
            yield self.index, "FAULT: {} hears nothing of its witness in time, and asks for it anew.", world, None

    def _heard(self) -> Move:
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
                return self._fed("{} hears that the lock is released.", released, Input.RELEASE_SUCCEEDED)
            case _:
                return self._confirmed()

    def _opened(self) -> Move:
        """Read the server's age at once: to read it later is to wait for longer, which anybody may do anyway."""
        settle = self.game.settle_ticks(self.node.rate, self.world.server_age, self.node.asked_age)
        opened = self.node._replace(step=Step.IDLE, asked_age=-1, settle=settle)
        return self._moved("The server tells {} its age.", opened)

    def _refused(self) -> Move:
        if self.node.state == _ACQUIRING:
            return self._fed("{} hears that another has the lock.", self.world, Input.ACQUIRE_FAILED)
        lost = self._fed("{} hears that another has the lock.", self.world, Input.REACQUIRE_FAILED,
                         LossCause.HELD_BY_ANOTHER)  # fmt: skip
        return lost[0], lost[1], self._closed(lost[2], "witness"), lost[3]

    def _won(self) -> Move:
        """Hold the lock, and ask for the witness."""
        world, token = self.world, self.node.answer
        if self.node.state == _FOLLOWER:
            world = self._fed("", world, Input.ACQUIRE_ATTEMPT)[2]
        node = world.nodes[self.index]._replace(
            token=token, answer=NOT_YET, asked_age=0 if self.game.times_grants else -1
        )
        text = f"{{}} hears that it has the lock, with token {token}"
        if not self.rules.witness or node.witness.status in (HOLDS, DEAD):
            return self._has_witness(put(world, self.index, node), text + ".")
        world = put(world, self.index, node._replace(step=Step.WITNESS))
        return self.index, text + "; it asks for the witness.", ask(world, self.index, "witness", waits=True), None

    def _has_witness(self, world: World, text: str = "{} hears that it has the witness.") -> Move:
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
        """A slice ends without a grant. In line for the witness, the next begins at once, at the end of the line."""
        world = wait(self.world, self.index, lock)
        if lock == "lock":
            return self.index, "{}'s slice is over.", put(world, self.index, self.node._replace(
                step=Step.IDLE, lock=Session(OPEN), answer=NOT_YET)), None  # fmt: skip
        if world.nodes[self.index].lock.status == DEAD:
            return Contender(self.game, world, self.index)._failed()  # noqa: SLF001 - it is ourselves, a moment later
        return self.index, "{} asks for the witness once more.", ask(world, self.index, lock, waits=True), None

    # --- From two locks to a leader ----------------------------------------------------------------------------

    def _reads_row(self) -> Move:
        node, row = self.node, self.world.row
        ticks = self.game.past_ticks(node.rate, row.token, node.term, was_released=bool(row.was_released))
        settle = node.settle if ticks is None else max(0, ticks - node.asked_age)
        return self._moved("{} reads the term row.", node._replace(step=Step.SETTLING, settle=settle))

    def _settle(self) -> Iterator[Move]:
        node = self.node
        if DEAD in (node.lock.status, node.witness.status):
            yield self._failed()
        if node.settle > 0:
            if node.lock.status == HOLDS and node.lock.number + node.witness.number > 0:
                witness = Session(HOLDS) if node.witness.status == HOLDS else node.witness
                yield self._moved("{} shows that it lives.", node._replace(lock=Session(HOLDS), witness=witness))
        elif self.game.lease.term_table and node.lock.status == HOLDS:
            world = put(self.world, self.index, node._replace(step=Step.CLAIMED))
            yield self.index, "{} writes the term row.", world._replace(row=Row(node.token)), None
        elif not self.game.lease.term_table:
            yield self._renews_or_leads()

    def _renews_or_leads(self) -> Move:
        if not self.rules.renew_before_leading:
            return self._confirmed()
        return self._moved("{} renews both sessions.", self.node._replace(step=Step.PING_LOCK, asked_age=0))

    def _turns_to_witness(self) -> Move:
        node = self.node._replace(answer=NOT_YET)
        if node.state == _LEADER and node.witness.status == NONE:
            return self._confirmed() if not self.rules.trust_needs_witness else self._replaces_witness(self.world)
        return self._moved("{}'s renewal is answered; it renews the witness.", node._replace(step=Step.PING_WITNESS))

    def _replaces_witness(self, world: World) -> Move:
        world = self._closed(world, "witness")
        node = world.nodes[self.index]._replace(step=Step.WITNESS, answer=NOT_YET)
        world = ask(put(world, self.index, node), self.index, "witness", waits=True)
        return self.index, "{} has no witness any more, and asks for it on a new session.", world, None

    def _confirmed(self) -> Move:
        """Both sessions live: believe in that, from when they were asked."""
        node = self.node
        age = node.asked_age if self.rules.trust_from_sending else 0
        if node.state == _LEADER:
            return self._renewed(age)
        if self.rules.late_grant_is_none and not self.game.not_lost[node.rate][age]:
            return self._failed("{} sees that it stood still for too long.", LossCause.STALLED)
        keeps = node.state == _RECONNECTING and not self.rules.new_token_on_recovery
        token = node.term if keeps else node.token
        fact = Input.ACQUIRE_SUCCEEDED if node.state == _ACQUIRING else Input.REACQUIRE_SUCCEEDED
        text = f"{{}} leads, with token {token}."
        index, text, world, _ = self._fed(text, self.world, fact, token=token, term=token, grant_age=age, asked_age=-1)
        complaint = None
        if token < self.world.last_led or (token == self.world.last_led and token != node.term):
            complaint = f"{{}} leads with token {token}, after another has led with {self.world.last_led}"
        return index, text, world._replace(last_led=max(token, self.world.last_led)), complaint

    def _renewed(self, age: int) -> Move:
        node = self.node
        if not self.game.not_lost[node.rate][node.grant_age]:
            text = "{} hears of its renewal too late."
            return self._fed(text, self.world, Input.HEALTH_FAILED, LossCause.STALLED, grant_age=-1, asked_age=-1)
        complaint = None
        if not self.believes():
            complaint = "{}'s term had ended by the clock, and its work had stopped; now it is back"
        text = "{} hears that its leadership is renewed."
        return *self._fed(text, self.world, Input.HEALTH_OK, grant_age=age, asked_age=-1)[:3], complaint

    # --- What goes wrong ---------------------------------------------------------------------------------------

    def _gives_up(self) -> Move:
        if not self.rules.close_on_doubt and self.node.step == Step.IN_LINE:
            return self._moved("{} waits no longer, and keeps its session.", self.node._replace(
                step=Step.IDLE, answer=NOT_YET))  # fmt: skip
        return self._failed("{} waits no longer for an answer.", LossCause.RENEW_TIMEOUT)

    def _failed(self, text: str = "{} finds a session ended.", cause: LossCause = LossCause.SESSION_TERMINATED) -> Move:
        """A request has failed, and the session that it was sent on is given up."""
        match self.node.state:
            case state if state == _LEADER:
                return self._failed_leading(text, cause)
            case state if state == _RECONNECTING:
                return self._failed_recovering(text)
            case state if state == _RELEASING and self.node.lock.status != DEAD:
                return self._fed(text, self.world, Input.RELEASE_TIMED_OUT)
            case _:
                return self._fed(text, self.world, Input.DB_ERROR)

    def _failed_leading(self, text: str, cause: LossCause) -> Move:
        is_late = not self.game.not_lost[self.node.rate][self.node.grant_age]
        if self.node.step == Step.PING_LOCK or self.node.lock.status == DEAD or is_late:
            return self._gone(text, Input.HEALTH_FAILED, cause)
        if self.node.step == Step.PING_WITNESS:
            if not self.rules.trust_needs_witness:
                closed = self._closed(self.world, "witness")
                return Contender(self.game, closed, self.index)._confirmed()  # noqa: SLF001 - ourselves
            return self._replaces_witness(self.world)
        world = self._closed(self.world, "witness")
        node = world.nodes[self.index]._replace(step=Step.IDLE, answer=NOT_YET, asked_age=-1)
        return self.index, text + " No trust is added.", put(world, self.index, node), None

    def _gone(self, text: str, fact: Input, cause: LossCause) -> Move:
        """The lock's own session is given up; the table decides about the rest."""
        lost = self._fed(text, self.world, fact, cause, grant_age=-1, asked_age=-1)
        return lost[0], lost[1], self._closed(lost[2], "lock"), lost[3]

    def _failed_recovering(self, text: str) -> Move:
        """Give up the lock's session, and the witness too unless it was there before: it keeps a successor waiting."""
        fails_on_witness = self.node.step in (Step.WITNESS, Step.PING_WITNESS)
        world = self._closed(self.world, "lock", *(["witness"] if fails_on_witness else []))
        node = world.nodes[self.index]
        if node.witness.status == DEAD:
            node = node._replace(witness=NO_SESSION)
        node = node._replace(step=Step.IDLE, answer=NOT_YET, token=0, asked_age=-1)
        return self.index, text, put(world, self.index, node), None
