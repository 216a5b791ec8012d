"""The places in the succession: the heir is queued for the lock, the next heir for the heir's place.

A place is held by the lock session of a node, and ends with it. The server does not end a session for being silent that
holds nothing but a place: so a holder that stands still keeps its place, and the others must be able to lead without.
"""

from proofs.exhaustive._world import HEIR, NEXT_HEIR, NOT_YET, OPEN, PLACED, Node, Step, World, put

__all__ = ["NAMES", "abandon", "free", "leave", "take"]

NAMES = {NEXT_HEIR: "the next heir", HEIR: "the heir"}
"""Whose place each is; a place whose holder is gone has this name among the orphans."""


def take(world: World, index: int, place: int) -> World | None:
    """Grant a place that is free; None for one that is held."""
    if any(node.place & place for node in world.nodes) or NAMES[place] in world.orphans:
        return None
    node = world.nodes[index]
    return put(world, index, node._replace(place=node.place | place, answer=PLACED))


def free(world: World, place: int) -> World:
    """Grant a place that has become free to the node that is queued for it. None is queued for the next heir's."""
    for index, node in enumerate(world.nodes):
        if place == HEIR and _is_queued(node):
            return take(world, index, HEIR) or world
    return world


def _is_queued(node: Node) -> bool:
    """Whether it is queued for the heir's place."""
    has_asked = node.step == Step.QUEUED and node.answer == NOT_YET
    return has_asked and node.place == NEXT_HEIR and node.lock.status == OPEN


def leave(world: World, index: int, places: int = HEIR | NEXT_HEIR) -> World:
    """Free these places of a node."""
    node = world.nodes[index]
    left = node.place & places
    if not left:
        return world
    world = put(world, index, node._replace(place=node.place & ~places))
    for place in NAMES:
        if left & place:
            world = free(world, place)
    return world


def abandon(world: World, index: int) -> World:
    """Leave the places of a node to a session whose client is gone."""
    node = world.nodes[index]
    if not node.place:
        return world
    orphans = *world.orphans, *(name for place, name in NAMES.items() if node.place & place)
    return put(world, index, node._replace(place=0))._replace(orphans=orphans)
