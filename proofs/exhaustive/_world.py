"""One state of the small world: its nodes, its server, and the faults that are left.

Everything is made of small whole numbers in tuples, so that a world can be hashed, compared and sorted. Times are ages
in ticks, capped where nothing more can follow from them; tokens are ranks. That makes the number of worlds finite.

Nodes have no names: a lock's holder is recorded in the holder's own session, and a queued session has its place in the
queue. So two worlds that differ only in which node is which become equal when their nodes are sorted.
"""

from typing import Final, NamedTuple

from pgleaderlock.models import LockState

__all__ = [
    "DEAD",
    "HOLDS",
    "NO",
    "NONE",
    "NOT_YET",
    "NO_SESSION",
    "OPEN",
    "STATES",
    "WAITS",
    "YES",
    "Node",
    "Row",
    "Session",
    "Step",
    "World",
    "canonical",
    "put",
    "with_session",
]

NONE: Final = 0
OPEN: Final = 1
WAITS: Final = 2
HOLDS: Final = 3
DEAD: Final = 4
"""The server has ended the session, and the node has not noticed yet."""

NO: Final = -1
NOT_YET: Final = 0
YES: Final = 1

STATES: Final = tuple(LockState)
_FOLLOWER: Final = STATES.index(LockState.FOLLOWER)
_LEADING: Final = frozenset({STATES.index(LockState.LEADER), STATES.index(LockState.RECONNECTING)})


class Session(NamedTuple):
    """One session, for one of the two locks."""

    status: int
    number: int = 0
    """How long the server has received nothing on it, while it holds the lock; its place in the queue, while queued."""


NO_SESSION: Final = Session(NONE)


class Step:
    """Which I/O a node has in progress."""

    IDLE: Final = 0
    OPENING: Final = 1
    TRYING: Final = 2
    IN_LINE: Final = 3
    WITNESS: Final = 4
    READING: Final = 5
    SETTLING: Final = 6
    CLAIMED: Final = 7
    PING_LOCK: Final = 8
    PING_WITNESS: Final = 9
    UNLOCKING: Final = 10
    STARTED: Final = 11
    """An attempt that has its token but not its lock: only where a rule is switched off."""


class Node(NamedTuple):
    """One candidate."""

    rate: int
    state: int
    step: int = Step.IDLE
    lock: Session = NO_SESSION
    witness: Session = NO_SESSION
    answer: int = NOT_YET
    """What the server has answered and the node has not read: a token, yes or no."""
    token: int = 0
    term: int = 0
    """The token of its last term."""
    grant_age: int = -1
    """How long ago the request was sent from which the grant's validity counts."""
    asked_age: int = -1
    """How long ago the request in progress, or the first one of its round, was sent."""
    settle: int = 0
    """For how many ticks an earlier leader may still be valid."""


class Row(NamedTuple):
    """The term row."""

    token: int = 0
    was_released: int = 0


class World(NamedTuple):
    """The whole state at one moment."""

    nodes: tuple[Node, ...]
    server_age: int
    """How long ago the server started."""
    kills: int
    restarts: int
    crashes: int
    faults: int
    """How many more faults of each kind there may be, and in all."""
    calm: int = 0
    """How long ago a session was lost by a fault, where that matters."""
    orphans: tuple[str, ...] = ()
    """The locks held by sessions whose client is gone, which the server may detect at any time."""
    counter: int = 0
    """The last transaction id."""
    row: Row = Row()
    last_led: int = 0
    """The greatest token of any leader so far."""


def put(world: World, index: int, node: Node) -> World:
    """Return the world with one node changed."""
    nodes = list(world.nodes)
    nodes[index] = node
    return World(tuple(nodes), *world[1:])  # half of the search's time is spent here; _replace takes twice as long


def with_session(node: Node, lock: str, session: Session) -> Node:
    """Return the node with one of its two sessions changed."""
    return node._replace(lock=session) if lock == "lock" else node._replace(witness=session)


def canonical(world: World) -> World:
    """Return the representative of all worlds that differ only in the names of nodes and tokens."""
    row_token = world.row.token
    live = {0, world.counter, row_token, world.last_led}
    nodes = []
    for node in world.nodes:
        term = node.term
        if term and term != row_token and node.state not in _LEADING:
            node = node._replace(term=0)  # noqa: PLW2901 - nothing can follow from it any more
            term = 0
        live.add(term)
        live.add(node.token)
        if node.answer > 0 and node.step in _ANSWERED_WITH_TOKENS:
            live.add(node.answer)
        nodes.append(node)
    if len(live) <= max(live):
        rank = {token: place for place, token in enumerate(sorted(live))}
        nodes = [_ranked(node, rank) for node in nodes]
        row = world.row._replace(token=rank[world.row.token])
        world = world._replace(counter=rank[world.counter], row=row, last_led=rank[world.last_led])
    orphans = world.orphans
    if len(orphans) > 1:
        world = world._replace(orphans=tuple(sorted(orphans)))
    return World(tuple(sorted(nodes)), *world[1:])


_ANSWERED_WITH_TOKENS: Final = frozenset({Step.TRYING, Step.IN_LINE, Step.STARTED})


def _ranked(node: Node, rank: dict[int, int]) -> Node:
    has_token = node.answer > 0 and node.step in _ANSWERED_WITH_TOKENS
    answer = rank[node.answer] if has_token else node.answer
    return node._replace(token=rank[node.token], term=rank[node.term], answer=answer)
