"""The effect of a node's facts: they are fed to the product's own table, which decides the next state."""

from collections.abc import Iterator
from functools import cache

from pgleaderlock._base.causes import LossCause
from pgleaderlock.engine import election
from pgleaderlock.engine._run import Fact
from pgleaderlock.engine.fsm import Input
from pgleaderlock.errors import ConnectionError, IllegalTransition
from pgleaderlock.models import EventKind, LockState
from proofs.exhaustive._rules import Game
from proofs.exhaustive._server import HELD_NOW, ask, close, draw
from proofs.exhaustive._world import (
    DEAD,
    HOLDS,
    NO_SESSION,
    NONE,
    NOT_YET,
    STATES,
    Node,
    Session,
    Step,
    World,
    put,
)

__all__ = ["Facts", "Move"]

Move = tuple[int, str, World, str | None]
"""The number of the node (or -1), the step in words with a place for its name, the next world, and its violation."""

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


@cache
def _named(fact: Input, cause: LossCause) -> bool:
    """Whether the engine names a cause for this loss."""
    loss = election._loss_cause(Fact(fact, ConnectionError("", cause=cause)))
    return loss is not LossCause.UNKNOWN


class Facts:
    """The next state of one node of a world after each fact."""

    def __init__(self, game: Game, world: World, index: int) -> None:
        self.game = game
        self.rules = game.rules
        self.world = world
        self.index = index
        self.node = world.nodes[index]

    def claims_to_lead(self) -> bool:
        """Return what ``is_leader`` would return in this node."""
        return self._is_valid_by_clock() and not self._sees_lock_ended()

    def _sees_lock_ended(self) -> bool:
        """Whether a check of the socket shows that the lock session has ended."""
        return self.game.scope.ends_are_heard and self.rules.looks_at_sockets and self.node.lock.status == DEAD

    def _is_valid_by_clock(self) -> bool:
        return self.node.state == _LEADER and (
            not self.rules.validity_by_clock or self.game.trusted[self.node.rate][self.node.grant_age]
        )

    # --- The table ---------------------------------------------------------------------------------------------

    def _fed(
        self, text: str, world: World, fact: Input, cause: LossCause = LossCause.CONNECTION_LOST, **changes: int
    ) -> Move:
        """Feed a fact to the real table, and apply the transition."""
        node = world.nodes[self.index]
        source = STATES[node.state]
        transition = self.game.table.get((source, fact))
        if transition is None:
            raise IllegalTransition(f"no row for input {fact.value!r} in state {source.value!r}")
        node = node._replace(step=Step.IDLE, answer=NOT_YET, second=NOT_YET, state=STATES.index(transition.to))
        if transition.to not in (LockState.ACQUIRING, LockState.LEADER):
            node = node._replace(token=0)
        world = put(world, self.index, node._replace(**changes))  # type: ignore[arg-type] # numbers, never sessions
        if transition.closes:
            world = self._closed(world, "lock", "witness")
        complaint = None
        if EventKind.LOST in transition.emits and not _named(fact, cause):
            complaint = f"{{}} lost its leadership by {fact.value}, and the engine names no cause"
        return self.index, text, world, complaint

    def _closed(self, world: World, *locks: str) -> World:
        for lock in locks:
            world = close(world, self.index, lock)
        return world

    def _moved(self, text: str, node: Node) -> Move:
        return self.index, text, put(self.world, self.index, node), None

    # --- From two locks to a leader ----------------------------------------------------------------------------

    def _has_witness(self, text: str) -> Move:
        """Go on with both locks: ask the lock session, or wait first; a leader that has replaced its witness renews."""
        node = self.node._replace(answer=NOT_YET, second=NOT_YET)
        if node.state == _LEADER:
            renewing = node._replace(step=Step.PING_LOCK, asked_age=0)
            return self._moved(text + ". It renews both.", renewing)
        if node.settle:
            return self._moved(text + ", and waits.", node._replace(step=Step.SETTLING))
        return self._asks_last(text) if self._can_ask() else self._failed(text + "; but a session has ended.")

    @property
    def _is_asked_last(self) -> bool:
        return self.rules.claim_comes_last if self.game.lease.term_table else self.rules.lock_answers_last

    def _can_ask(self) -> bool:
        """Whether the lock session is alive; where a rule is switched off, it is not asked."""
        return self.node.lock.status == HOLDS or (self.node.token > 0 and not self._is_asked_last)

    def _settle(self) -> Iterator[Move]:
        node = self.node
        if DEAD in (node.lock.status, node.witness.status):
            yield self._failed()
        if node.settle == 0 and self._can_ask():
            yield self._asks_last("{} has waited")

    def _asks_last(self, text: str) -> Move:
        """Ask the lock session once more, or write the term row there."""
        node = self.node._replace(step=Step.DRAWN, answer=NOT_YET, second=NOT_YET)
        if node.token and self._is_asked_last:
            node = node._replace(lock=HELD_NOW)
        world = put(self.world, self.index, node)
        if node.token:
            return self.index, text + ".", world, None
        world = draw(self.game, world, self.index)
        return self.index, f"{text}. It {self._what_draws} token {world.counter}.", world, None

    @property
    def _what_draws(self) -> str:
        return "writes the term row with" if self.game.lease.term_table else "draws"

    def _leads_or_renews(self) -> Iterator[Move]:
        """Read the token, and lead; after a beginning that took long, renew both sessions first."""
        node = self.node
        if self._may_give_up():
            yield self._gives_up()
        if self.game.lease.term_table:
            node = node._replace(term=node.token)
        reader = type(self)(self.game, put(self.world, self.index, node), self.index)
        if not self.game.is_slow(node.rate, node.asked_age):
            yield reader._confirmed()
        elif node.lock.status == HOLDS:
            yield reader._renews_both()
        else:
            yield reader._failed()

    def _renews_both(self) -> Move:
        """Renew the lock session, and then the witness session.

        The first request arrives at once: the longer the server has received nothing, the earlier it may end the
        session. A leader's renewal is not taken as one step, because that may time out.
        """
        step = Step.PING_WITNESS if self.rules.witness else Step.PING_LOCK
        node = self.node._replace(step=step, answer=NOT_YET, second=NOT_YET, lock=Session(HOLDS), asked_age=0)
        return self._moved("{} reads its token, and renews both sessions.", node)

    def _turns_to_witness(self) -> Move:
        node = self.node._replace(answer=NOT_YET, second=NOT_YET)
        if node.state == _LEADER and node.witness.status == NONE:
            return self._confirmed() if not self.rules.trust_needs_witness else self._replaces_witness(self.world)
        return self._moved(
            "{}'s renewal is answered; it renews the witness lock.", node._replace(step=Step.PING_WITNESS)
        )

    def _replaces_witness(self, world: World) -> Move:
        world = self._closed(world, "witness")
        node = world.nodes[self.index]._replace(step=Step.WITNESS, answer=NOT_YET, second=NOT_YET, asked_age=-1)
        world = ask(put(world, self.index, node), self.index, "witness", waits=True)
        return self.index, "{} has lost the witness lock, and asks for it on a new session.", world, None

    def _confirmed(self) -> Move:
        """Begin or renew the term: both sessions are alive, and valid from when the renewal was sent."""
        node = self.node
        age = node.asked_age if self.rules.trust_from_sending else 0
        if node.state == _LEADER:
            return self._renewed(age)
        if self.rules.late_grant_is_none and not self.game.not_lost[node.rate][age]:
            return self._failed("{} notices that it paused for too long.", LossCause.STALLED)
        if self._sees_lock_ended():  # its answers are older than that, and another node may have led since
            return self._failed("{} notices that its session has ended, before it leads.")
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
            text = "{} reads the answer to its renewal too late."
            return self._fed(text, self.world, Input.HEALTH_FAILED, LossCause.STALLED)
        complaint = None
        if not self._is_valid_by_clock():
            complaint = "{}'s term had ended by the clock, and its work had stopped; now it is back"
        text = "{} reads that its leadership is renewed."
        return *self._fed(text, self.world, Input.HEALTH_OK, grant_age=age, asked_age=-1)[:3], complaint

    # --- What goes wrong ---------------------------------------------------------------------------------------

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

    def _gives_up(self) -> Move:
        if not self.rules.close_on_doubt and self.node.step == Step.QUEUED:
            return self._moved("{} leaves the queue, and keeps its session.", self.node._replace(
                step=Step.IDLE, answer=NOT_YET))  # fmt: skip
        return self._failed("{} times out waiting for an answer.", LossCause.RENEW_TIMEOUT)

    def _failed(self, text: str = "{} finds a session ended.", cause: LossCause = LossCause.SESSION_TERMINATED) -> Move:
        """Handle a failed request: the session on which it was sent is given up."""
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
        if is_late and self._is_asking_witness():  # its last request is cancelled once its validity has ended
            lost = self._fed(text, self.world, Input.HEALTH_FAILED, cause)
            return lost[0], lost[1], self._closed(lost[2], "witness"), lost[3]
        if self.node.step == Step.PING_LOCK or self.node.lock.status == DEAD or is_late:
            return self._gone(text, Input.HEALTH_FAILED, cause)
        if self.node.step == Step.PING_WITNESS:
            if not self.rules.trust_needs_witness:
                closed = self._closed(self.world, "witness")
                return type(self)(self.game, closed, self.index)._confirmed()
            return self._replaces_witness(self.world)
        world = self._closed(self.world, "witness")
        node = world.nodes[self.index]._replace(step=Step.IDLE, answer=NOT_YET, second=NOT_YET, asked_age=-1)
        return self.index, text + " Its validity is not extended.", put(world, self.index, node), None

    def _is_asking_witness(self) -> bool:
        return self.node.step in (Step.PING_WITNESS, Step.WITNESS) and self.node.lock.status != DEAD

    def _gone(self, text: str, fact: Input, cause: LossCause) -> Move:
        """Close the lock session; the table decides about the rest."""
        lost = self._fed(text, self.world, fact, cause)
        unfinished = ["witness"] if self.node.step == Step.WITNESS else []  # a session that was still waiting for it
        return lost[0], lost[1], self._closed(lost[2], "lock", *unfinished), lost[3]

    def _failed_recovering(self, text: str) -> Move:
        """Close the lock session, and the witness session unless it is older: that one keeps a successor waiting."""
        fails_on_witness = self.node.step in (Step.BEGINNING, Step.WITNESS, Step.PING_WITNESS)
        world = self._closed(self.world, "lock", *(["witness"] if fails_on_witness else []))
        node = world.nodes[self.index]
        if node.witness.status == DEAD:
            node = node._replace(witness=NO_SESSION)
        node = node._replace(step=Step.IDLE, answer=NOT_YET, second=NOT_YET, token=0, asked_age=-1)
        return self.index, text, put(world, self.index, node), None
