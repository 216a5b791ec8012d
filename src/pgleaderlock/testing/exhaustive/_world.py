"""One moment of the small world: its nodes, its server, and what is left of its faults.

Everything is made of small whole numbers in tuples, so that a world can be hashed, compared and put in order. Times are
ages in ticks, capped where nothing more can follow from them; tokens are ranks. That is what makes the number of worlds
finite.

No node is named anywhere: who holds a lock is written in the holder's own session, and who waits carries the place in
line. So two worlds that differ only in which node is which become equal when their nodes are put in order.
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
"""The server ended it, and the node has not read the news."""

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
    """How long the server has heard nothing on it, while it holds; its place in line, while it waits."""


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
    """A try that has its token and not its lock: only where a rule is switched off."""


class Node(NamedTuple):
    """One contender."""

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
    """How long ago the request was sent that the grant counts from."""
    asked_age: int = -1
    """How long ago the request in progress, or the first one of its round, was sent."""
    settle: int = 0
    """For how many ticks the past may still be believed in by somebody."""


class Row(NamedTuple):
    """The term row."""

    token: int = 0
    was_released: int = 0


class World(NamedTuple):
    """Everything, at one moment."""

    nodes: tuple[Node, ...]
    server_age: int
    """How long ago the server started."""
    kills: int
    restarts: int
    crashes: int
    faults: int
    """How many more there may be of each kind, and in all."""
    calm: int = 0
    """How long ago a session was lost by a fault, where that matters."""
    orphans: tuple[str, ...] = ()
    """Sessions whose client is gone, which the server may find out at any time: the lock that each of them holds."""
    counter: int = 0
    """The last transaction id."""
    row: Row = Row()
    last_led: int = 0
    """The greatest token that anybody led with."""


def put(world: World, index: int, node: Node) -> World:
    """Return the world with one node changed."""
    nodes = list(world.nodes)
    nodes[index] = node
    return World(tuple(nodes), *world[1:])  # half of the search's time goes by here, and _replace takes twice as long


def with_session(node: Node, lock: str, session: Session) -> Node:
    """Return the node with one of its two sessions changed."""
    return node._replace(lock=session) if lock == "lock" else node._replace(witness=session)


def canonical(world: World) -> World:
    """Return the one world that stands for all that differ only in names: of nodes, and of tokens."""
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
