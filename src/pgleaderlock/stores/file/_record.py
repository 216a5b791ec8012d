"""The content of the files: one JSON object, readable for operators and other programs too.

``holder``, ``renewTime`` (RFC 3339) and ``leaseDuration`` (as Go prints and parses durations) are the fields that other
programs with such files use; the rest is ours. Times of day are for display: no candidate ever decides by them.

Every text has a random ``nonce``, so no two are equal, and a text that is seen twice was written once.

**Two texts of one entry differ in ``renewTime`` and ``nonce`` only**, byte by byte. So any mixture of two renewals that
a reader sees, while one overwrites the other in place, is valid JSON with the same holder, token and lease.
"""

import functools
import hashlib
import json
import math
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LARGEST_TOKEN = 10**18 - 1
COUNTED_BY_NAME = 10**15
"""Up to here the name of a term's file is enough: see _folder. With a term per millisecond, it takes 30,000 years."""

_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Entry:
    """One term, as a file describes it."""

    holder: str
    """Empty when the holder has released the lock."""
    token: int
    lease_s: float
    acquire_time: str = ""
    boot_id: str | None = None
    """Of the holder's boot: only the kernel of this boot knows whether the holder still has its flock(2) lock."""
    pid: int | None = None
    host: str = ""
    address: str | None = None
    """Where clients reach the holder."""


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def encode(entry: Entry) -> bytes:
    """Return a text for this entry. No two texts are equal."""
    fields = {
        "holder": entry.holder,
        "renewTime": now_text(),
        "leaseDuration": _duration_text(entry.lease_s),
        "acquireTime": entry.acquire_time,
        "transitions": entry.token,
        "token": entry.token,
        "host": entry.host,
        "pid": entry.pid,
        "boot_id": entry.boot_id,
        "nonce": secrets.token_hex(8),
    }
    if entry.address is not None:
        fields["address"] = entry.address
    return (json.dumps(fields, indent=1) + "\n").encode()


def padded(text: bytes, size: int) -> bytes:
    """Return the text padded to this size, with spaces after the holder: only that is shorter after a release."""
    return text.replace(b",\n", b"," + b" " * (size - len(text)) + b"\n", 1)


@functools.lru_cache(maxsize=32)  # a waiting candidate reads the same text again and again
def decode(text: bytes) -> Entry | None:
    """Return the entry; None when the text cannot be read for any reason: then the holder is unknown."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("holder"), str):
        return None
    lease_s = _seconds_of(fields.get("leaseDuration"))
    token = _whole_number(fields.get("token", 0))
    if lease_s is None or token is None or token > LARGEST_TOKEN:
        return None
    return Entry(
        fields["holder"],
        token,
        lease_s,
        acquire_time=_text(fields.get("acquireTime")),
        boot_id=_text(fields.get("boot_id")) or None,
        pid=_whole_number(fields.get("pid")),
        host=_text(fields.get("host")),
        address=_text(fields.get("address")) or None,
    )


def digest_of(text: bytes) -> str:
    """Return a digest that differs for every text."""
    return hashlib.sha256(text).hexdigest()


def _duration_text(seconds: float) -> str:
    return f"{max(seconds, 1e-9):.9f}".rstrip("0").rstrip(".") + "s"


def _seconds_of(text: Any) -> float | None:
    """Return the seconds of a duration such as ``15s`` or ``1m30.5s``; None when it is not a positive one."""
    if not isinstance(text, str):
        return None
    parts = _DURATION_PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = math.fsum(float(number) * _UNIT_S[unit] for number, unit in parts)
    return seconds if 0 < seconds < math.inf else None


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
