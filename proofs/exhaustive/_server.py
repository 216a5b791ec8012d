"""The server: two locks with a queue for each, sessions that end, and a counter of transactions.

As in PostgreSQL, a lock that becomes free is granted to the first session in the queue at that instant; no session
overtakes another. A session that holds a lock and was silent for a lease *may* be ended at any time from then on, never
before.
"""

from collections.abc import Iterator

from proofs.exhaustive._rules import Game
from proofs.exhaustive._world import (
    DEAD,
    HOLDS,
    NO,
    NO_SESSION,
    NOT_YET,
    OPEN,
    WAITS,
    YES,
    Node,
    Session,
    Step,
    World,
    put,
    with_session,
)

__all__ = ["ask", "close", "end", "restart", "server_moves", "wait"]

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
        return put(world, index, node._replace(answer=NO))
    place = sum(getattr(other, lock).status == WAITS for other in world.nodes)
    return put(world, index, with_session(node._replace(answer=NOT_YET), lock, Session(WAITS, place)))


def _grant(world: World, index: int, lock: str) -> World:
    node = world.nodes[index]
    if lock == "witness":
        return put(world, index, node._replace(answer=YES, witness=HELD_NOW))
    if node.step == Step.STARTED:  # its token was taken before
        return put(world, index, node._replace(lock=HELD_NOW))
    token = world.counter + 1
    answer = token if node.step in (Step.TRYING, Step.IN_LINE) else NOT_YET  # otherwise no request waits for it
    return put(world, index, node._replace(answer=answer, lock=HELD_NOW))._replace(counter=token)


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
    return _replaced(world, index, lock, Session(DEAD))


def wait(world: World, index: int, lock: str) -> World:
    """End a wait slice without a grant."""
    return _replaced(world, index, lock, Session(OPEN))


def close(world: World, index: int, lock: str) -> World:
    """Close a session by its node. One that holds a lock stays at the server until the server detects the close."""
    node = world.nodes[index]
    session: Session = getattr(node, lock)
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
    return node._replace(lock=lock, witness=witness)


def server_moves(game: Game, world: World) -> Iterator[tuple[int, str, World]]:
    """Return every possible step of the server, and the number of the node that it concerns (-1: none)."""
    for place, lock in enumerate(world.orphans):
        left = world.orphans[:place] + world.orphans[place + 1 :]
        yield (
            -1,
            f"The server detects that a client is gone, and ends its {lock} session.",
            _freed(world._replace(orphans=left), lock),
        )
    for index, node in enumerate(world.nodes):
        for lock in ("lock", "witness"):
            session = getattr(node, lock)
            if session.status == HOLDS and session.number >= game.scope.lease_ticks:
                yield (
                    index,
                    f"The server has received nothing from {{}} for a lease, and ends its {lock} session.",
                    end(world, index, lock),
                )
        yield from _answers(world, index, node)


def _answers(world: World, index: int, node: Node) -> Iterator[tuple[int, str, World]]:
    """Let requests that carry a time reach the server at any time. All others do so at once: see the package."""
    if node.answer != NOT_YET:
        return
    if node.step == Step.PING_LOCK and node.lock.status == HOLDS:
        yield index, "{}'s renewal reaches the server.", put(world, index, node._replace(answer=YES, lock=HELD_NOW))
    elif node.step == Step.PING_WITNESS and node.witness.status == HOLDS:
        renewed = node._replace(answer=YES, witness=HELD_NOW)
        yield index, "{}'s renewal of the witness lock reaches the server.", put(world, index, renewed)
    elif node.step == Step.UNLOCKING and node.lock.status == HOLDS:
        row = world.row
        if row.token and row.token == node.term:
            row = row._replace(was_released=1)
        freed = _replaced(put(world, index, node._replace(answer=YES)), index, "lock", Session(OPEN))
        yield index, "The server releases {}'s lock.", freed._replace(row=row)
