"""What is known of one role, judged: its history, and what the tables of leaders and candidates add to it. Pure.

The history alone does not know two things. A leader that died and has no successor yet wrote no end, and no one wrote
one for it: its row in the table of leaders fell silent, and its term is taken to have ended then. And a leader of long
standing may have begun before the oldest line that is kept: its row says when.

``pgleaderlock audit`` and the dashboard both judge here, so that they cannot disagree.
"""

from collections.abc import Sequence
from dataclasses import replace

from pgleaderlock.ops.registry.audit import BEGINS, Line, Orderly, RoleAudit, audit
from pgleaderlock.ops.registry.reading import Leader, RoleStatus

__all__ = ["judge"]


def judge(
    role: RoleStatus, lines: Sequence[Line], *, since: float, until: float, orderly: Orderly | None = None
) -> RoleAudit:
    """Return what is known of a role between two times.

    Counted from when it was first known. The time before its first term is leaderless then. The time after the last
    candidate has left in order is not: no one misses a leader.
    """
    lines = [line for line in lines if line.lock == role.lock]
    known = [*lines, *_from_leaders(role, lines)]
    first_at = min((line.at for line in known), default=until)
    since = min(until, max(since, first_at if role.first_at is None else role.first_at))
    if role.is_closed and role.last_at is not None:
        until = min(until, max(since, role.last_at))
    if not known:
        return RoleAudit(role.lock, role.role, since, until, leaderless_s=until - since)
    (found,) = audit(known, since=since, until=until, orderly={role.lock: orderly} if orderly else None)
    found.role = role.role
    if found.terms:
        found.leaderless_s += max(0.0, found.terms[0].began_at - since)
    return found


def _from_leaders(role: RoleStatus, lines: Sequence[Line]) -> list[Line]:
    """Return the lines that the history lacks: that the leader of now began, and that it fell silent."""
    leader = role.leader or role.last_leader
    if leader is None:
        return []
    begun = _began(role, leader)
    is_known = any(
        line.event in BEGINS and (line.instance, line.token) == (leader.instance, leader.token) for line in lines
    )
    more = [] if is_known else [begun]
    if role.leader is None:
        more.append(replace(begun, event="vanished", at=leader.renewed_at))
    return more


def _began(role: RoleStatus, leader: Leader) -> Line:
    return Line(role.lock, role.role, leader.node, leader.instance, "acquired", None, leader.token, leader.acquired_at)
