"""The server: two locks with a queue for each, sessions that end, and a counter of transactions.

As in PostgreSQL, a lock that becomes free is granted to the first session in the queue at that instant; no session
overtakes another. A session that holds a lock and was silent for a lease *may* be ended at any time from then on, never
before.
"""

from collections.abc import Iterator

from proofs.exhaustive import _places
from proofs.exhaustive._rules import Game
from proofs.exhaustive._world import (
    DEAD,
    HEIR,
    HOLDS,
    NEXT_HEIR,
    NO,
    NO_SESSION,
    NONE,
    NOT_YET,
    OPEN,
    WAITS,
    YES,
    Node,
    Row,
    Session,
    Step,
    World,
    put,
    with_session,
)

__all__ = ["HELD_NOW", "ask", "ask_in_place", "begin", "close", "draw", "end", "restart", "server_moves", "wait"]

HELD_NOW = Session(HOLDS)


def _is_held(world: World, lock: str) -> bool:
    return any(getattr(node, lock).status == HOLDS for node in world.nodes) or any(
        orphaned == lock for orphaned in world.orphans
    )


def ask(world: World, index: int, lock: str, *, waits: bool) -> World:
    """Run a statement that asks for a lock: it is granted, refused, or queued."""
    node = world.nodes[index]
    session: Session = getattr(node, lock)
    if session.status == HOLDS or not _is_held(world, lock):
        return _grant(world, index, lock)
    if not waits:
        return put(world, index, node._replace(answer=NO) if lock == "lock" else node._replace(second=NO))
    place = sum(getattr(other, lock).status == WAITS for other in world.nodes)
    return put(world, index, with_session(node, lock, Session(WAITS, place)))


def ask_in_place(game: Game, world: World, index: int) -> World:
    """Run the statement of a follower: the heir queues for the lock, the next heir for the heir's place.

    Any other follower tries for the lock, and then for the place of the next heir.
    """
    place = world.nodes[index].place
    if place & HEIR:
        return ask(_places.leave(world, index, NEXT_HEIR), index, "lock", waits=True)
    if place:
        return _places.take(world, index, HEIR) or world
    if game.rules.place_is_no_condition and not _is_held(world, "lock"):
        return _grant(world, index, "lock")
    return _places.take(world, index, NEXT_HEIR) or put(world, index, world.nodes[index]._replace(answer=NO))


def _grant(world: World, index: int, lock: str) -> World:
    node = world.nodes[index]
    if lock == "witness":
        return put(world, index, node._replace(second=YES, witness=HELD_NOW))
    answer = YES if node.step in (Step.TRYING, Step.QUEUED) else NOT_YET  # otherwise no request waits for it
    return put(world, index, node._replace(answer=answer, lock=HELD_NOW))


def draw(game: Game, world: World, index: int) -> World:
    """Draw a token on the lock session, and write it to the term row where there is one."""
    token = world.counter + 1
    world = put(world, index, world.nodes[index]._replace(token=token, lock=HELD_NOW))
    return world._replace(counter=token, row=Row(token) if game.lease.term_table else world.row)


def begin(game: Game, world: World, index: int) -> World:
    """Run what comes with the grant, on the lock session: leave the place, and draw the token or read the term row.

    It need not arrive at a time of its own, because no other node can draw a token or write the row while this session
    holds the lock, and because the session must be alive for the next request anyway. That it is a renewal too is left
    out. The program draws the token at the grant only if it was the heir, and with the last request otherwise.
    """
    world = _places.leave(world, index)
    node, row = world.nodes[index], world.row
    if game.lease.term_table:
        ticks = game.past_ticks(node.rate, row.token, node.term, was_released=bool(row.was_released))
        if ticks is not None:
            world = put(world, index, node._replace(settle=ticks))
    draws_now = not game.lease.term_table or not game.rules.claim_comes_last
    return draw(game, world, index) if draws_now and node.lock.status == HOLDS else world


def _freed(world: World, lock: str) -> World:
    """Grant the lock to the first session in the queue, and move all others up."""
    first = None
    for index, node in enumerate(world.nodes):
        status, place = getattr(node, lock)
        if status == WAITS and place == 0:
            first = index
        elif status == WAITS:
            world = put(world, index, with_session(node, lock, Session(WAITS, place - 1)))
    return world if first is None else _grant(world, first, lock)


def _left_queue(world: World, lock: str, place: int) -> World:
    for index, node in enumerate(world.nodes):
        session = getattr(node, lock)
        if session.status == WAITS and session.number > place:
            world = put(world, index, with_session(node, lock, Session(WAITS, session.number - 1)))
    return world


def _replaced(world: World, index: int, lock: str, now: Session) -> World:
    """Replace a session; the lock that it held is granted to the next, and its place in the queue is removed."""
    node = world.nodes[index]
    status, number = getattr(node, lock)
    world = put(world, index, with_session(node, lock, now))
    if status == HOLDS:
        return _freed(world, lock)
    return _left_queue(world, lock, number) if status == WAITS else world


def end(world: World, index: int, lock: str) -> World:
    """End a session by the server; its node will notice later."""
    world = _replaced(world, index, lock, Session(DEAD))
    return _places.leave(world, index) if lock == "lock" else world


def wait(world: World, index: int, lock: str) -> World:
    """End a wait slice without a grant."""
    return _replaced(world, index, lock, Session(OPEN))


def close(world: World, index: int, lock: str) -> World:
    """Close a session by its node. One that holds a lock stays at the server until the server detects the close."""
    if lock == "lock":
        world = _places.abandon(world, index)
    node = world.nodes[index]
    session: Session = getattr(node, lock)
    if session.status == NONE:
        return world
    if session.status == HOLDS:
        world = world._replace(orphans=(*world.orphans, lock))
        return put(world, index, with_session(node, lock, NO_SESSION))
    return _replaced(world, index, lock, NO_SESSION)


def restart(world: World) -> World:
    """Restart the server: every session ends, and every lock is free."""
    nodes = tuple(_cut_off(node) for node in world.nodes)
    return world._replace(nodes=nodes, orphans=(), server_age=0)


def _cut_off(node: Node) -> Node:
    lock = Session(DEAD) if node.lock.status else node.lock
    witness = Session(DEAD) if node.witness.status else node.witness
    return node._replace(lock=lock, witness=witness, place=0)


def server_moves(game: Game, world: World) -> Iterator[tuple[int, str, World]]:
    """Return every possible step of the server, and the number of the node that it concerns (-1: none)."""
    yield from _detected(game, world)
    for index, node in enumerate(world.nodes):
        for lock in ("lock", "witness"):
            session = getattr(node, lock)
            if session.status == HOLDS and session.number >= game.scope.lease_ticks:
                yield (
                    index,
                    f"The server has received nothing from {{}} for a lease, and ends its {lock} session.",
                    end(world, index, lock),
                )
        if node.step in _ON_LOCK and node.answer == NOT_YET and node.lock.status == HOLDS:
            yield _arrives_on_lock(world, index)
        if node.step in _ON_WITNESS and node.second == NOT_YET and node.witness.status in (OPEN, HOLDS):
            yield _arrives_on_witness(world, index)


def _detected(game: Game, world: World) -> Iterator[tuple[int, str, World]]:
    for number, name in enumerate(world.orphans):
        left = world._replace(orphans=world.orphans[:number] + world.orphans[number + 1 :])
        place = next((place for place, its_name in _places.NAMES.items() if its_name == name), None)
        if place is None:
            yield -1, f"The server detects that a client is gone, and ends its {name} session.", _freed(left, name)
        elif not game.scope.places_stay:
            yield -1, f"The server detects that {name} is gone, and frees its place.", _places.free(left, place)


# --- Requests that reach the server at a time of their own --------------------------------------------------------
# Those that carry a time, and those that are sent two at once. All others arrive when they are sent: see the package.

_ON_LOCK = frozenset({Step.PING_LOCK, Step.UNLOCKING})
_ON_WITNESS = frozenset({Step.BEGINNING, Step.PING_WITNESS, Step.UNLOCKING})


def _arrives_on_lock(world: World, index: int) -> tuple[int, str, World]:
    node = world.nodes[index]
    if node.step == Step.UNLOCKING:
        row = world.row
        if row.token and row.token == node.term:
            row = row._replace(was_released=1)
        freed = _replaced(put(world, index, node._replace(answer=YES)), index, "lock", Session(OPEN))
        return index, "The server releases {}'s lock.", freed._replace(row=row)
    return index, "{}'s renewal reaches the server.", put(world, index, node._replace(answer=YES, lock=HELD_NOW))


def _arrives_on_witness(world: World, index: int) -> tuple[int, str, World]:
    node = world.nodes[index]
    if node.step == Step.PING_WITNESS:
        renewed = node._replace(second=YES, witness=HELD_NOW if node.witness.status == HOLDS else node.witness)
        return index, "{}'s renewal of the witness lock reaches the server.", put(world, index, renewed)
    if node.step == Step.UNLOCKING:
        freed = _replaced(put(world, index, node._replace(second=YES)), index, "witness", Session(OPEN))
        return index, "The server releases {}'s witness lock.", freed
    asked = ask(world, index, "witness", waits=False)
    answer = "granted" if asked.nodes[index].second == YES else "refused"
    return index, f"{{}}'s try for the witness lock reaches the server, and is {answer}.", asked
