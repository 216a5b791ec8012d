"""What the page shows now, and what it takes to bring a browser up to date.

A board is given one look after another. Roles are compared with how they were, encoded once, and said to everybody as
one message. Whoever comes later gets the whole, made of the same texts.
"""

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock._version import __version__
from pgleaderlock.dashboard._alerts import alert_records
from pgleaderlock.dashboard._picture import (
    Json,
    Look,
    node_records,
    past_record,
    shown_events,
    standing_record,
)
from pgleaderlock.dashboard._streams import Streams
from pgleaderlock.registry.audit import Line
from pgleaderlock.registry.reading import RoleStatus

__all__ = ["Board", "dumps", "message"]

_MOST_NEW_EVENTS = 200
_MOST_NOTES = 400
_JUDGED_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class _Past:
    """What was made of a role's history, and of what."""

    lines: Sequence[Line]
    leads: tuple[str, int | None] | None
    at: float
    record: Json


class Board:
    """The picture, and everybody who looks at it."""

    def __init__(self, *, kind: str, where: str, can: Json, most_streams: int = 0) -> None:
        self.streams = Streams(self._afresh, most_streams)
        self._kind, self._where = kind, where
        self._can = can
        self._number = 0
        self._at = self._since = self._seen_at = 0.0
        self._error: str | None = None
        self._stale_since: float | None = None
        self._roles: dict[str, Json] = {}
        self._texts: dict[str, str] = {}
        self._pasts: dict[str, _Past] = {}
        self._nodes: list[Json] = []
        self._alerts: list[Json] = []
        self._events: list[Json] = []
        self._notes: deque[Json] = deque(maxlen=_MOST_NOTES)
        self._snapshot: tuple[int, str] = (-1, "")

    @property
    def has_seen(self) -> bool:
        """Whether there was ever anything to show."""
        return self._at > 0

    @property
    def is_fresh(self) -> bool:
        """Whether what is shown is what the store said last."""
        return self.has_seen and self._error is None

    @property
    def roles(self) -> list[Json]:
        """What is shown of each role."""
        return list(self._roles.values())

    @property
    def alerts(self) -> list[Json]:
        """What is wrong, or once for each kind that it is not."""
        return self._alerts

    @property
    def events(self) -> list[Json]:
        """What happened last, the newest first."""
        return self._events

    def show(self, look: Look, new_lines: Iterable[Line] = ()) -> None:
        """Take a look in, and tell everybody what changed."""
        was_stale, self._error, self._stale_since = self._error is not None, None, None
        self._at, self._since = look.at, look.since
        self._seen_at = time.monotonic()
        changed = self._take_roles(look)
        gone = [lock for lock in self._roles if lock not in {role.lock for role in look.roles}]
        for lock in gone:
            del self._roles[lock], self._texts[lock], self._pasts[lock]
        self._events = shown_events(
            line for role in look.roles for line in look.lines.get(role.lock, ()) if line.at >= look.since
        )
        parts: Json = {"gone": gone, "events": self._newest(new_lines)}
        if (nodes := node_records(look.roles)) != self._nodes:
            self._nodes = parts["nodes"] = nodes
        if (alerts := alert_records(self._roles.values(), nodes, at=look.at)) != self._alerts:
            self._alerts = parts["alerts"] = alerts
        if was_stale or self._number == 0:
            parts["source"] = self._source()
        if changed or any(parts.values()):
            self._say_change(changed, parts)

    @property
    def now(self) -> float:
        """The store's time of day, also while it cannot be asked. Zero before the first look."""
        return self._at + time.monotonic() - self._seen_at if self.has_seen else 0.0

    def show_stale(self, error: str) -> None:
        """Say that what is shown is old. Once: the page counts on by itself."""
        if self._error == error:
            return
        self._error = error
        self._stale_since = self._stale_since or self.now
        self._alerts = alert_records(
            self._roles.values(), self._nodes, at=self.now, error=error, stale_since=self._stale_since
        )
        self._say_change([], {"gone": [], "events": [], "alerts": self._alerts, "source": self._source()})

    def beat(self) -> None:
        """Show that somebody is there."""
        self.streams.say(message("beat", json.dumps({"at": self.now})))

    def note(self, record: Json) -> None:
        """Send what the demo did or measured to every page, and keep it for pages that are opened or reloaded later."""
        dated = {**record, "at": self.now}
        self._notes.append(dated)
        self._snapshot = (-1, "")
        self.streams.say(message("demo", dumps(dated)))

    def snapshot(self) -> str:
        """Return the whole as JSON, of this moment."""
        return "".join(self.snapshot_parts())

    def snapshot_parts(self) -> tuple[str, str]:
        """Return the same as two texts: the time, and all the rest, which is made once for each change and shared."""
        if self._snapshot[0] != self._number:
            self._snapshot = (self._number, self._encode())
        return f'{{"at":{self.now!r},', self._snapshot[1]

    def part(self, name: str) -> tuple[str, ...]:
        """Return one part of the whole as JSON, in texts of which those of the roles are shared."""
        head = f'{{"at":{self.now!r},"source":{dumps(self._source())},"{name}":'
        if name == "roles":
            return head + "[", ",".join(self._texts.values()), "]}"
        shown = {"nodes": self._nodes, "alerts": self._alerts, "events": self._events}[name]
        return head, dumps(shown), "}"

    def _afresh(self) -> tuple[str, str, str]:
        """Return the message that tells everything. The long part of it is shared: see :class:`Streams`."""
        time_part, rest = self.snapshot_parts()
        return f"id: {self._number}\nevent: snapshot\ndata: {time_part}", rest, "\n\n"

    def _encode(self) -> str:
        """Everything but the time, and without the brace that it begins with."""
        rest = dumps(
            {
                "seq": self._number,
                "since": self._since,
                "window_s": round(self._at - self._since, 3),  # "at" goes on without a look
                "version": __version__,
                "source": self._source(),
                "can": self._can,
                "nodes": self._nodes,
                "alerts": self._alerts,
                "events": self._events,
                "demo": list(self._notes),
            }
        )
        return f'{rest[1:-1]},"roles":[{",".join(self._texts.values())}]}}'

    def _source(self) -> Json:
        return {
            "kind": self._kind,
            "where": self._where,
            "is_fresh": self.is_fresh,
            "error": self._error,
            "stale_since": self._stale_since,
        }

    def _take_roles(self, look: Look) -> list[str]:
        changed = []
        roles: dict[str, Json] = {}
        for role in look.roles:
            record = {**standing_record(role), **self._past_of(role, look)}
            roles[role.lock] = record
            if _essence(record) != _essence(self._roles.get(role.lock)):
                changed.append(role.lock)
                self._texts[role.lock] = dumps(record)
        self._roles = {**self._roles, **roles}
        return changed

    def _past_of(self, role: RoleStatus, look: Look) -> Json:
        """Judge the history of a role anew when there is more of it, and now and then because time passes."""
        lines = look.lines.get(role.lock, ())
        leads = None if role.leader is None else (role.leader.instance, role.leader.token)
        known = self._pasts.get(role.lock)
        if known is None or known.lines is not lines or known.leads != leads or look.at - known.at > _JUDGED_FOR_S:
            record = past_record(role, lines, since=look.since, at=look.at)
            known = self._pasts[role.lock] = _Past(lines, leads, look.at, record)
        return known.record

    def _newest(self, lines: Iterable[Line]) -> list[Json]:
        return shown_events(lines)[:_MOST_NEW_EVENTS]

    def _say_change(self, changed: list[str], parts: Json) -> None:
        self._number += 1
        rest = dumps({"seq": self._number, "at": self.now, "since": self._since, **parts})
        roles = ",".join(self._texts[lock] for lock in changed)
        self.streams.say(message("change", f'{rest[:-1]},"roles":[{roles}]}}', self._number))


def message(event: str, data: str, number: int | None = None) -> str:
    """Return one message of a stream of server-sent events. JSON has no line breaks of its own."""
    identity = "" if number is None else f"id: {number}\n"
    return f"{identity}event: {event}\ndata: {data}\n\n"


def dumps(value: Any) -> str:
    """Return JSON that browsers can read. They know no infinity, which a time in PostgreSQL can be."""
    try:
        return _encoder.encode(value)
    except ValueError:
        return _encoder.encode(_finite(value))


_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """Return the same with null for what is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _essence(record: Json | None) -> Json | None:
    """What counts as a change of a role: not that time has passed, which figures with an open end show too."""
    if record is None:
        return None
    return {name: value for name, value in record.items() if name not in ("leaderless_s", "availability")}
