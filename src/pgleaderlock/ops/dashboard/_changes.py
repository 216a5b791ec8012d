"""The difference between two records of a role, small enough to update each page often. Pure.

A list of terms or gaps grows at its end and shrinks at its beginning. So the difference of such a list is how many to
drop from its front, how many to keep after that, and what to append: ``"terms_change": [drop, keep, [...]]``.
"""

from collections.abc import Sequence
from typing import Any

from pgleaderlock.ops.dashboard._picture import Json

_LISTS = ("terms", "gaps")
_FIGURES = ("leaderless_s", "availability", "counted_since", "judged_at")
_RENEWED = ("renewed_at", "lease_until", "renewal_due_at")


def changed_fields(before: Json | None, now: Json) -> Json | None:
    """Return the fields of a role that changed, with its lock; None if only time has passed.

    A renewal is no change, and neither is a figure that grows with time. Without a record before, return all fields.
    """
    if before is None:
        return now
    changed = {name: value for name, value in now.items() if not _is_same(name, before.get(name), value)}
    if not changed.keys() - set(_FIGURES):
        return None
    for name in _LISTS:
        if name in changed:
            changed[f"{name}_change"] = _spliced(before[name], changed.pop(name))
    return {"lock": now["lock"], **changed}


def _is_same(name: str, before: Any, now: Any) -> bool:
    if name == "leader" and before is not None and now is not None:
        return {**before, **dict.fromkeys(_RENEWED)} == {**now, **dict.fromkeys(_RENEWED)}
    return bool(before == now)


def _spliced(before: Sequence[Json], now: Sequence[Json]) -> list[Any]:
    first = now[0]["began_at"] if now else None
    drop = next((index for index, each in enumerate(before) if each["began_at"] == first), len(before))
    keep = 0
    for old, new in zip(before[drop:], now, strict=False):
        if old != new:
            break
        keep += 1
    return [drop, keep, list(now[keep:])]
