"""What the contenders for one lock must agree on, and what follows from it: the times of a lease, the other two keys.

All of a lease's times count from when a request was *sent*, never from when its answer came.
"""

import hashlib
import logging
import re
from dataclasses import dataclass
from typing import Literal

from pgleaderlock._checks import check_flag, check_seconds, quoted
from pgleaderlock.backends._ownership import check_owner
from pgleaderlock.backends.base import leased_grant
from pgleaderlock.keys import LockKey
from pgleaderlock.models import Grant

__all__ = ["DEFAULT_SCHEMA", "Lease", "check_schema", "fence_key", "settling_level", "witness_key"]

DEFAULT_SCHEMA = "pgleaderlock"
"""Where our tables are, unless somebody says otherwise."""
_LONG_S = 3.0
_SHORTEST_UNLOGGED_S = 0.05  # 20 statements a second for each follower
_SHORT_LEASE_SLICE_S = 0.1  # for a lease of which a third would be less
_LONGEST_LEASE_S = 20 * 24 * 3600.0  # PostgreSQL counts milliseconds in 31 bits
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)


def settling_level(left_s: float) -> int:
    """How loudly to say that the past is waited out: so that whoever waits for so long that they wonder, reads why."""
    return logging.WARNING if left_s >= _LONG_S else logging.INFO


def witness_key(key: LockKey) -> LockKey:
    """Return the key of the second lock. Frozen for ever: contenders of all versions must agree on it."""
    return _derived(key, "witness")


def fence_key(key: LockKey) -> LockKey:
    """Return the key that shows who is fenced: all of a term's transactions share it. Frozen, as the witness's is."""
    return _derived(key, "fence")


def _derived(key: LockKey, purpose: str) -> LockKey:
    digest = hashlib.sha256(f"pgleaderlock/{purpose}/1/{key}".encode()).digest()
    return LockKey.bigint(int.from_bytes(digest[:8], "big", signed=True))


def check_schema(name: str) -> str:
    """Return the name if it is a plain one, which nothing in could end the quotes around it."""
    if not _SCHEMA_NAME.fullmatch(str(name)) or name.startswith("pg_"):
        raise ValueError(f"schema must be a plain name of letters, digits and _, not pg_, got {quoted(name)}")
    return name


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a silent leader keeps the lock, how it is waited for, and how it is taken over."""

    lease_s: float
    wake: Literal["line", "poll"] = "line"
    slice_s: float | None = None
    """How long one slice of standing in line lasts; by default less than the server's ``deadlock_timeout``."""
    settle_s: float | None = None
    """How long after a server's start a grant is not yet used; by default the lease."""
    witness: bool = True
    allow_pooler: bool = False
    takeover: Literal["fast", "strict"] = "fast"
    """Strict waits out the recorded lease of a leader that did not release cleanly."""
    term_table: bool = False
    """Whether each term is written down before it begins."""
    schema: str = DEFAULT_SCHEMA
    """Where the term table is."""
    schema_owner: str | None = None
    """Whose it may be, besides our own user's and a superuser's."""
    fence_wait_s: float | None = None
    """How long a new term waits for the fenced transactions of the last; by default the lease."""
    statement_timeout_s: float | None = None
    """After how long the server gives a statement of ours up; by default a second more than the lease."""

    def __post_init__(self) -> None:
        if check_seconds("lease_s", self.lease_s) > _LONGEST_LEASE_S:
            raise ValueError(f"lease_s must be at most {_LONGEST_LEASE_S:g} s, got {self.lease_s:g}")
        if self.wake not in ("line", "poll"):
            raise ValueError(f"wake must be 'line' or 'poll', got {quoted(self.wake)}")
        for name in ("slice_s", "settle_s", "fence_wait_s", "statement_timeout_s"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name), zero_ok=name == "settle_s")
        for name in ("witness", "allow_pooler", "term_table"):
            check_flag(name, getattr(self, name))
        self._check_takeover()
        check_schema(self.schema)
        check_owner(self.schema_owner)

    def _check_takeover(self) -> None:
        if self.takeover not in ("fast", "strict"):
            raise ValueError(f"takeover must be 'fast' or 'strict', got {quoted(self.takeover)}")
        if self.takeover == "strict" and not self.term_table:
            raise ValueError("takeover='strict' decides by the term table: pass term_table=True as well")

    @property
    def agreement(self) -> str:
        """What all contenders must have in common, short enough for the name of a session.

        ``15s wft``: 15 s, a **w**itness or **n**one, **f**ast or **s**trict, with a **t**able or without; a schema of
        another name than the usual adds four digits of its hash.
        """
        table = ""
        if self.term_table:
            digest = hashlib.sha256(self.schema.encode()).hexdigest()[:4]
            table = "t" if self.schema == DEFAULT_SCHEMA else f"t-{digest}"
        return f"{self.lease_s:g}s {'w' if self.witness else 'n'}{self.takeover[0]}{table}"

    @property
    def answer_bound_s(self) -> float:
        """How long any one answer is waited for."""
        return self.lease_s * 2 / 3

    @property
    def renew_every_s(self) -> float:
        """How often a session is shown to be alive while something else is waited for."""
        return self.lease_s / 3

    def slice_for(self, deadlock_timeout_s: float) -> float:
        """Return how long one wait slice lasts: not so long that the server looks for a deadlock, or misses us.

        A wait that outlasts ``deadlock_timeout`` is written into the server's log where ``log_lock_waits`` is on, with
        the whole statement. Under a time-out so short that slices below it would be a load of their own, every slice
        is logged whatever its length: then there are as few of them as the lease allows.
        """
        longest_s = max(_SHORT_LEASE_SLICE_S, self.renew_every_s)
        unlogged_s = 0.9 * deadlock_timeout_s
        fitting_s = min(unlogged_s, longest_s) if unlogged_s >= _SHORTEST_UNLOGGED_S else longest_s
        return min(self.slice_s or fitting_s, self.statement_ms / 2000)  # to wait in the queue is a statement too

    @property
    def statement_ms(self) -> int:
        """The limit of one statement as PostgreSQL takes it."""
        limit_s = self.lease_s + 1.0 if self.statement_timeout_s is None else self.statement_timeout_s
        return max(1, round(limit_s * 1000))

    @property
    def lease_ms(self) -> int:
        """The lease as PostgreSQL takes it; never 0, which would be no limit at all."""
        return max(1, round(self.lease_s * 1000))

    def grant(self, token: int | None, sent: float) -> Grant:
        """Return what an answer to a request that was sent then is worth."""
        return leased_grant(token, sent, self.lease_s)
