"""What a process answers when it is asked over HTTP, or by a command, who leads: each rule once.

The routes for Starlette, the sidecar and ``pgleaderlock leader`` use it. Everything is read from the election when it
is asked, from any thread.
"""

import math
import re
from typing import Any

from pgleaderlock.engine.election import Election
from pgleaderlock.models import LeaderSeen, LeaderUnknown
from pgleaderlock.postgres._dsn import host_of as host_of_session

__all__ = ["host_of", "is_alive", "is_ready", "leader_fields", "own_fields"]

_IDENTITY = re.compile(r"(.+?)_(?:\d+_[0-9a-f]{8}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""A host, and what makes it unique to a process: ours, and that of client-go."""


def own_fields(lock: Election) -> dict[str, Any]:
    """Return what this candidate knows of itself."""
    left_s = lock.time_left_s
    return {
        "is_leader": left_s > 0,
        "state": lock.state.value,
        "token": lock.token,
        "time_left_s": None if math.isinf(left_s) else round(left_s, 3),
    }


def is_alive(lock: Election) -> bool:
    """Return whether the election runs. It has ended for good otherwise, and a restart of the process helps."""
    return not lock.state.is_stopped


def is_ready(lock: Election) -> bool:
    """Return whether the election runs and its end was not requested.

    A follower is as ready as the leader, and so is a candidate whose store is away: taking it out of service would not
    bring that back.
    """
    return is_alive(lock) and not lock.is_stopping


def leader_fields(leader: LeaderSeen | LeaderUnknown | None) -> dict[str, Any]:
    """Return what is known of the leader, under the names that the documentation lists."""
    if not isinstance(leader, LeaderSeen):
        state, error = ("none", None) if leader is None else ("unknown", leader.error)
        return {"state": state, "leader": None, "error": error}
    shown = {"name": leader.name, "address": leader.address, "token": leader.token, "since": leader.since}
    return {"state": "led", "leader": shown, "error": None}


def host_of(name: str) -> str:
    """Return the host, or the pod, of the candidate with this name; all of the name if it has no such part."""
    host = host_of_session(name)
    if host is not None:
        return host
    match = _IDENTITY.fullmatch(name)
    return name if match is None else match[1]
