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
    "HEIR",
    "HOLDS",
    "NEXT_HEIR",
    "NO",
    "NONE",
    "NOT_YET",
    "NO_SESSION",
    "OPEN",
    "PLACED",
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
PLACED: Final = 2
"""Not the lock was granted, but a place in the succession."""

NEXT_HEIR: Final = 1
HEIR: Final = 2
"""The places, S2 and S1: parts of a sum, because a new heir holds both until its next statement."""

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
    QUEUED: Final = 3
    BEGINNING: Final = 4
    """The try for the witness lock is on its way; sent with it, on the lock session, the first request of the term."""
    WITNESS: Final = 5
    SETTLING: Final = 6
    DRAWN: Final = 7
    """The lock session has answered last: the token is there, and the term row is written where there is one."""
    PING_LOCK: Final = 8
    PING_WITNESS: Final = 9
    UNLOCKING: Final = 10
    """Two requests at once, one on each session."""


class Node(NamedTuple):
    """One candidate."""

    rate: int
    state: int
    step: int = Step.IDLE
    lock: Session = NO_SESSION
    witness: Session = NO_SESSION
    answer: int = NOT_YET
    """What the server has answered on the lock session and the node has not read."""
    second: int = NOT_YET
    """What the server has answered on the witness session and the node has not read."""
    place: int = 0
    """The places in the succession that its lock session holds."""
    token: int = 0
    """The token of the term that begins or lasts."""
    term: int = 0
    """The token of its last term; with a term row, of the last one that it has written there."""
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
    """The locks and places held by sessions whose client is gone, which the server may detect at any time."""
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
    live = {0, row_token, world.last_led}
    nodes = []
    for node in world.nodes:
        term = node.term
        if term and term != row_token and node.state not in _LEADING:
            node = node._replace(term=0)  # noqa: PLW2901 - nothing can follow from it any more
            term = 0
        live.add(term)
        live.add(node.token)
        nodes.append(node)
    newest = max(live)
    if world.counter > newest:  # the next token is newer than all that are still in use, and that is all that counts
        world = world._replace(counter=newest)
    if len(live) <= newest:
        rank = {token: place for place, token in enumerate(sorted(live))}
        nodes = [node._replace(token=rank[node.token], term=rank[node.term]) for node in nodes]
        row = world.row._replace(token=rank[world.row.token])
        world = world._replace(counter=rank[world.counter], row=row, last_led=rank[world.last_led])
    orphans = world.orphans
    if len(orphans) > 1:
        world = world._replace(orphans=tuple(sorted(orphans)))
    return World(tuple(sorted(nodes)), *world[1:])
