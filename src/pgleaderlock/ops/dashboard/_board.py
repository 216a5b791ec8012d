"""The current content of the page, and the messages that update a browser.

A board receives one look at the store after another. Roles are compared with their previous state, and the differences
are encoded once and sent to all open pages as one message. A page that is opened later gets everything.

Most of the time nothing changes except that leaders renew. That takes a few bytes for all roles that were renewed at
once (``leases``): sent whole, two hundred roles would be megabytes a minute to each page.
"""

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pgleaderlock._base.version import __version__
from pgleaderlock.ops.dashboard import _picture
from pgleaderlock.ops.dashboard._alerts import Watched, alert_records
from pgleaderlock.ops.dashboard._changes import changed_fields
from pgleaderlock.ops.dashboard._streams import Streams
from pgleaderlock.ops.registry.audit import Line
from pgleaderlock.ops.registry.reading import RoleStatus

_MOST_NEW_EVENTS = 200
_MOST_NOTES = 400
_JUDGED_FOR_S = 10.0


@dataclass(frozen=True, slots=True)
class _Past:
    """The record of a role's history, and the lines that it was made of."""

    lines: Sequence[Line]
    leads: tuple[str, int | None, bool] | None
    at: float
    record: _picture.Json
    text: str


class Board:
    """The content of the page, and the streams to all open pages."""

    def __init__(
        self, *, kind: str, where: str, can: _picture.Json, most_streams: int = 0, watched: Watched | None = None
    ) -> None:
        self.streams = Streams(self._afresh, most_streams)
        self._kind, self._where = kind, where
        self._watched = watched
        self._can = can
        self._number = 0
        self._at = self._since = self._counted_since = self._seen_at = 0.0
        self._error: str | None = None
        self._stale_since: float | None = None
        self._roles: dict[str, _picture.Json] = {}
        self._texts: dict[str, str] = {}
        self._pasts: dict[str, _Past] = {}
        self._nodes: list[_picture.Json] = []
        self.alerts: list[_picture.Json] = []
        """The records of all alerts: one per finding, or one per alert without any."""
        self.events: list[_picture.Json] = []
        """The newest events, the newest first."""
        self._notes: deque[_picture.Json] = deque(maxlen=_MOST_NOTES)
        self._snapshot: tuple[int, str] = (-1, "")

    @property
    def has_seen(self) -> bool:
        """Whether the store was read at least once."""
        return self._at > 0

    @property
    def is_fresh(self) -> bool:
        """Whether the last attempt to read the store succeeded."""
        return self.has_seen and self._error is None

    @property
    def roles(self) -> list[_picture.Json]:
        return list(self._roles.values())

    def show(self, look: _picture.Look, new_lines: Iterable[Line] = ()) -> None:
        """Update the content from a look at the store, and send what changed."""
        was_stale, self._error, self._stale_since = self._error is not None, None, None
        self._at, self._since, self._counted_since = look.at, look.since, look.counted_since
        self._seen_at = time.monotonic()
        new_lines = list(new_lines)
        changes, leases = self._take_roles(look)
        gone = [lock for lock in self._roles if lock not in {role.lock for role in look.roles}]
        for lock in gone:
            del self._roles[lock], self._texts[lock], self._pasts[lock]
        if new_lines or changes or gone:
            self.events = _picture.shown_events(_picture.newest_lines(look))
        parts: _picture.Json = {"gone": gone, "events": self._newest(new_lines), "roles": changes, "leases": leases}
        before, self._nodes = self._nodes, _picture.node_records(look.roles)
        if [_lasting(node) for node in self._nodes] != [_lasting(node) for node in before]:
            parts["nodes"] = self._nodes
        if (alerts := self._judge_alerts(look.at)) != self.alerts:
            self.alerts = parts["alerts"] = alerts
        if was_stale or self._number == 0:
            parts["source"] = self._source()
        if any(parts.values()):
            self._say_change(parts)

    def _judge_alerts(self, at: float) -> list[_picture.Json]:
        return alert_records(
            self._roles.values(),
            self._nodes,
            at=at,
            error=self._error,
            stale_since=self._stale_since,
            watched=self._watched,
        )

    @property
    def now(self) -> float:
        """The store's time of day, also while it cannot be reached. Zero before the first look."""
        return self._at + time.monotonic() - self._seen_at if self.has_seen else 0.0

    def show_stale(self, error: str) -> None:
        """Mark the content as stale. This is sent once: the page itself counts how long."""
        if self._error == error:
            return
        self._error = error
        self._stale_since = self._stale_since or self.now
        self.alerts = self._judge_alerts(self.now)
        empty: _picture.Json = {"gone": [], "events": [], "roles": [], "leases": []}
        self._say_change({**empty, "alerts": self.alerts, "source": self._source()})

    def beat(self) -> None:
        """Send a heartbeat to all pages, so that they see that the server is alive."""
        self.streams.say(message("beat", json.dumps({"at": self.now})))

    def note(self, record: _picture.Json) -> None:
        """Send a record of the demo to every page, and keep it for pages that are opened or reloaded later."""
        dated = {**record, "at": self.now}
        self._notes.append(dated)
        self._snapshot = (-1, "")
        self.streams.say(message("demo", dumps(dated)))

    def snapshot_parts(self) -> tuple[str, str]:
        """Return the content as JSON, in two texts: the time, and the rest, which is encoded once per change."""
        if self._snapshot[0] != self._number:
            self._snapshot = (self._number, self._encode())
        return f'{{"at":{self.now!r},', self._snapshot[1]

    def part(self, name: str) -> tuple[str, ...]:
        """Return one part of the content as JSON, in several texts; those of the roles are shared."""
        head = f'{{"at":{self.now!r},"source":{dumps(self._source())},"{name}":'
        if name == "roles":
            return head + "[", ",".join(self._texts.values()), "]}"
        shown = {"nodes": self._nodes, "alerts": self.alerts, "events": self.events}[name]
        return head, dumps(shown), "}"

    def _afresh(self) -> tuple[str, str, str]:
        """Return the message with the whole content. Its long part is shared: see :class:`Streams`."""
        time_part, rest = self.snapshot_parts()
        return f"id: {self._number}\nevent: snapshot\ndata: {time_part}", rest, "\n\n"

    def _encode(self) -> str:
        """Return everything but the time as JSON, without the opening brace."""
        rest = dumps(
            {
                "seq": self._number,
                "since": self._since,
                "counted_since": self._counted_since,
                "window_s": round(self._at - self._since, 3),  # "at" advances also without a look
                "version": __version__,
                "source": self._source(),
                "can": self._can,
                "nodes": self._nodes,
                "alerts": self.alerts,
                "events": self.events,
                "demo": list(self._notes),
            }
        )
        return f'{rest[1:-1]},"roles":[{",".join(self._texts.values())}]}}'

    def _source(self) -> _picture.Json:
        return {
            "kind": self._kind,
            "where": self._where,
            "is_fresh": self.is_fresh,
            "error": self._error,
            "stale_since": self._stale_since,
        }

    def _take_roles(self, look: _picture.Look) -> tuple[list[_picture.Json], list[Any]]:
        """Return the changed fields of each role, and the leaders that have renewed."""
        changes = []
        renewed: dict[tuple[int | None, ...], list[str]] = {}
        for role in look.roles:
            past = self._past_of(role, look)
            standing, before = _picture.standing_record(role), self._roles.get(role.lock)
            record = {**standing, **past.record}
            if record == before:
                continue
            self._roles[role.lock] = record
            self._texts[role.lock] = f"{dumps(standing)[:-1]},{past.text[1:]}"
            if change := changed_fields(before, record):
                changes.append(change)
            elif record["leader"] is not None:
                renewed.setdefault(_lease(record["leader"], look.at), []).append(role.lock)
        return changes, [[*times, locks] for times, locks in renewed.items()]

    def _past_of(self, role: RoleStatus, look: _picture.Look) -> _Past:
        """Return the record of a role's history; compute it again if there are new lines, or after some time."""
        lines = look.lines.get(role.lock, ())
        leader = role.leader or role.last_leader
        leads = None if leader is None else (leader.instance, leader.token, role.leader is not None)
        known = self._pasts.get(role.lock)
        if known is None or known.lines is not lines or known.leads != leads or look.at - known.at > _JUDGED_FOR_S:
            record = _picture.past_record(role, lines, since=look.counted_since, at=look.at)
            known = self._pasts[role.lock] = _Past(lines, leads, look.at, record, dumps(record))
        return known

    def _newest(self, lines: Iterable[Line]) -> list[_picture.Json]:
        return _picture.shown_events(lines)[:_MOST_NEW_EVENTS]

    def _say_change(self, parts: _picture.Json) -> None:
        self._number += 1
        self.streams.say(message("change", dumps({**self._times(), **parts}), self._number))

    def _times(self) -> _picture.Json:
        return {"seq": self._number, "at": self.now, "since": self._since, "counted_since": self._counted_since}


def message(event: str, data: str, number: int | None = None) -> str:
    """Return one message of a stream of server-sent events. JSON has no line breaks of its own."""
    identity = "" if number is None else f"id: {number}\n"
    return f"{identity}event: {event}\ndata: {data}\n\n"


def dumps(value: Any) -> str:
    """Return JSON that browsers can read: infinite times, which PostgreSQL allows, become null."""
    try:
        return _encoder.encode(value)
    except ValueError:
        return _encoder.encode(_finite(value))


_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """Return the value with null in place of infinities and NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _lease(leader: _picture.Json, at: float) -> tuple[int | None, ...]:
    """Return when the leader renewed, its end of validity and its next renewal, in milliseconds from now."""
    times = (leader["renewed_at"], leader["lease_until"], leader["renewal_due_at"])
    return tuple(None if time is None or not math.isfinite(time) else round((time - at) * 1000) for time in times)


def _lasting(node: _picture.Json) -> _picture.Json:
    """Return the fields of a node that do not change with every heartbeat."""
    return {name: value for name, value in node.items() if name not in ("seen_at", "silent_at")}
