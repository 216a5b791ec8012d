"""The content of a claim file: which process made it, and after how long without a heartbeat it expires (its lifetime).

The first line holds all fields. When a holder changes its lifetime, it appends a line; the last complete one counts. An
incomplete line, left by a full disk, does not count; the holder uses the new lifetime only after it has appended a
complete one. A claim that cannot be read is of an unknown process, and is given the lifetime of the reading candidate.
"""

import json
import os
import re
import secrets
from dataclasses import dataclass
from typing import Any

from pgleaderlock.stores.nfs._intervals import LONGEST_S

_LONGEST_PART = 80  # of the 255 bytes that a name may have
# With any separator. Strict, because a file of another program may begin with "claim" too, and must not be removed.
_NAME = re.compile(r"claim(?P<sep>.+?).*(?P=sep).*(?P=sep)[0-9]+(?P=sep)[0-9]+", re.DOTALL)
_NOTE = re.compile(r"claim\|seen\|[0-9A-Fa-f-]{8,64}\|0\|[0-9]+")
_BEGINNING = b'{"name": "'


@dataclass(frozen=True, slots=True)
class Claimant:
    """The process that made a claim."""

    name: str
    host: str
    pid: int
    lockfile: str
    lifetime_s: float
    boot_id: str | None = None
    """Of the kernel that knows whether this process lives; None where the claim is not locked with flock(2)."""
    claimfile: str = ""
    """Distinguishes two claims with the same name."""
    address: str | None = None
    """Where clients reach this process."""


def new_name(lock: str, host: str, separator: str = "|") -> str:
    parts = (_shortened(lock), _shortened(host), str(os.getpid()), str(secrets.randbelow(2**63)))
    return separator.join(("claim", *parts))


def is_name(name: str) -> bool:
    return name.startswith("claim") and name[-1] in "0123456789" and _NAME.fullmatch(name) is not None


def is_note(name: str) -> bool:
    """Whether this is the name of a note (:mod:`._notes`): that of a claim of process 0, which makes no claims."""
    return _NOTE.fullmatch(name) is not None


def is_beginning(text: bytes) -> bool:
    """Whether a claim begins like this. An empty one may not be written yet, or was lost in a power cut."""
    text = text.strip(b"\0")[: len(_BEGINNING)]
    return _BEGINNING.startswith(text)


def _shortened(part: str) -> str:
    """Cut to the bytes that are left for this part of a file name, between two characters."""
    text = os.fsencode(part.replace("/", "_"))
    end = min(len(text), _LONGEST_PART)
    while 0 < end < len(text) and text[end] & 0xC0 == 0x80:  # noqa: PLR2004 - inside a character of UTF-8
        end -= 1
    return os.fsdecode(text[:end])


def encode(claimant: Claimant) -> bytes:
    """Return the first line of a claim."""
    fields = {
        "name": claimant.name,
        "host": claimant.host,
        "pid": claimant.pid,
        "lockfile": claimant.lockfile,
        "lifetime_s": claimant.lifetime_s,
        "boot_id": claimant.boot_id,
        "claimfile": claimant.claimfile,
    }
    if claimant.address is not None:
        fields["address"] = claimant.address
    return json.dumps(fields).encode() + b"\n"


def encode_lifetime(lifetime_s: float) -> bytes:
    """Return the line that changes the lifetime."""
    return json.dumps({"lifetime_s": lifetime_s}).encode() + b"\n"


def decode(text: bytes) -> Claimant | None:
    """Return the process that wrote this claim; None when it cannot be read."""
    lines = [_fields(line) for line in text.split(b"\n")[:-1]]  # a line without end is still being written
    if not lines or lines[0] is None:
        return None
    fields = dict(lines[0])
    for line in lines[1:]:
        if line is not None:
            fields["lifetime_s"] = line.get("lifetime_s")
    return _claimant(fields)


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _claimant(fields: dict[str, Any]) -> Claimant | None:
    texts = [fields.get(name) for name in ("name", "host", "lockfile")]
    pid, lifetime_s = fields.get("pid"), fields.get("lifetime_s")
    if not all(isinstance(text, str) for text in texts) or not isinstance(pid, int):
        return None
    if isinstance(lifetime_s, bool) or not isinstance(lifetime_s, int | float):
        return None
    if not 0 < lifetime_s <= LONGEST_S:
        return None
    name, host, lockfile = map(str, texts)
    boot_id, claimfile = _text(fields.get("boot_id")), _text(fields.get("claimfile"))
    address = _text(fields.get("address")) or None
    return Claimant(name, host, pid, lockfile, float(lifetime_s), boot_id or None, claimfile, address)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
