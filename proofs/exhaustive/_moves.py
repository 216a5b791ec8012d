"""All possible next steps of a world: a node acts, the server acts, a fault occurs, or time passes."""

from collections.abc import Iterator

from pgleaderlock.models import LockState
from proofs.exhaustive._candidate import Candidate
from proofs.exhaustive._facts import Move
from proofs.exhaustive._rules import Game
from proofs.exhaustive._server import close, end, restart, server_moves
from proofs.exhaustive._world import HEIR, HOLDS, NEXT_HEIR, OPEN, STATES, WAITS, Node, Row, Session, Step, World, put

__all__ = ["beginning", "complaint_about", "faults", "moves"]

_FOLLOWER = STATES.index(LockState.FOLLOWER)
_LEADER = STATES.index(LockState.LEADER)
_BEGIN = frozenset({Step.BEGINNING, Step.WITNESS, Step.SETTLING, Step.DRAWN})


def beginning(game: Game) -> World:
    """Return the first world: all nodes are followers without a session, and the server has been up for long."""
    scope = game.scope
    nodes = tuple(Node(min(index, len(scope.rates) - 1), _FOLLOWER) for index in range(scope.nodes))
    kills, restarts, crashes = (min(scope.faults, n) for n in (scope.kills, scope.restarts, scope.crashes))
    all_faults = min(scope.faults, kills + restarts + crashes)
    world = World(nodes, scope.lease_ticks, kills, restarts, crashes, all_faults, calm=_calm_enough(game))
    return _led(game, world) if scope.begins_led else world


def _led(game: Game, world: World) -> World:
    held, scope = Session(HOLDS), game.scope
    has_row = game.lease.term_table
    first, *others = world.nodes
    witness = held if game.rules.witness else first.witness
    leads = first._replace(state=_LEADER, lock=held, witness=witness, token=1, term=1, grant_age=0)
    if others:
        others[0] = others[0]._replace(step=Step.QUEUED, lock=Session(WAITS), place=HEIR if scope.places else 0)
    if others[1:] and scope.places:
        others[1] = others[1]._replace(step=Step.QUEUED, lock=Session(OPEN), place=NEXT_HEIR)
    return world._replace(nodes=(leads, *others), counter=1, last_led=1, row=Row(int(has_row)))


def _calm_enough(game: Game) -> int:
    return game.scope.lease_ticks if game.scope.kills_apart else 0


def moves(game: Game, world: World) -> Iterator[Move]:
    """Return every possible step without a fault."""
    for index in range(len(world.nodes)):
        yield from Candidate(game, world, index).moves()
    for actor, text, then in server_moves(game, world):
        yield actor, text, then, None
    later = _tick(game, world)
    if later != world:
        yield -1, "A tick passes.", later, None


def faults(game: Game, world: World) -> Iterator[Move]:
    """Return every fault that is left, in every place. A freeze is none: a node may always pause."""
    if world.faults == 0:
        return
    fewer = world._replace(faults=world.faults - 1)
    if world.kills and world.calm == _calm_enough(game):
        yield from _sessions_lost(fewer._replace(kills=world.kills - 1, calm=0))
    for index, node in enumerate(world.nodes):
        if world.crashes and node[1:] != Node(0, _FOLLOWER)[1:]:
            stays = " Its session stays, and keeps its place." if game.scope.places_stay and node.place else ""
            yield index, "FAULT: {} crashes, and is started again." + stays, _crashed(fewer, index), None
    if world.restarts:
        restarted = restart(fewer._replace(restarts=world.restarts - 1))
        yield -1, "FAULT: the server restarts, and every session ends.", restarted, None


def _sessions_lost(world: World) -> Iterator[Move]:
    for index, node in enumerate(world.nodes):
        for lock in ("lock", "witness"):
            if getattr(node, lock).status in (HOLDS, WAITS) or (lock == "lock" and node.place):
                text = f"FAULT: {{}}'s {lock} session is killed."
                yield index, text, end(world, index, lock), None


def _crashed(world: World, index: int) -> World:
    for lock in ("lock", "witness"):
        world = close(world, index, lock)
    world = put(world, index, Node(world.nodes[index].rate, _FOLLOWER))
    return world._replace(crashes=world.crashes - 1)


def complaint_about(game: Game, world: World) -> str | None:
    """Return the violation in this world, if any: a split brain, or a lock that its holder does not know of."""
    if sum(Candidate(game, world, index).claims_to_lead() for index in range(len(world.nodes))) > 1:
        return "two nodes claim to lead"
    for node in world.nodes:
        is_idle = node.state == _FOLLOWER and node.step == Step.IDLE
        if is_idle and HOLDS in (node.lock.status, node.witness.status):
            return "a node holds a lock without knowing it, and keeps every other node out"
    return None


def _tick(game: Game, world: World) -> World:
    lease, cap = game.scope.lease_ticks, game.age_cap
    nodes = tuple(
        node._replace(
            lock=_older(node.lock, lease),
            witness=_older(node.witness, lease),
            grant_age=min(cap, node.grant_age + 1) if node.grant_age >= 0 else -1,
            asked_age=min(_asked_cap(game, node), node.asked_age + 1) if node.asked_age >= 0 else -1,
            settle=max(0, node.settle - 1),
        )
        for node in world.nodes
    )
    calm = min(_calm_enough(game), world.calm + 1)
    return world._replace(nodes=nodes, server_age=min(lease, world.server_age + 1), calm=calm)


def _asked_cap(game: Game, node: Node) -> int:
    begins = node.step in _BEGIN or (node.step == Step.PING_WITNESS and not node.token)
    return game.begin_cap if begins else game.age_cap


def _older(session: Session, lease: int) -> Session:
    return Session(HOLDS, min(lease, session.number + 1)) if session.status == HOLDS else session
