"""The settings that all candidates for one lock must share, and what is derived from them: lease times, two more keys.

All of a lease's times count from when a request was *sent*, never from when its answer came.
"""

import hashlib
import logging
import re
from dataclasses import dataclass
from typing import Literal

from pgleaderlock._base.checks import check_flag, check_seconds, quoted
from pgleaderlock.models import Grant
from pgleaderlock.postgres._ownership import check_owner
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores.base import leased_grant
from pgleaderlock.stores.times import RENEWALS_PER_LEASE, answer_bound_s

__all__ = ["DEFAULT_SCHEMA", "Lease", "check_schema", "fence_key", "quiet_period_log_level", "witness_key"]

DEFAULT_SCHEMA = "pgleaderlock"
"""The schema of our tables, unless another is configured."""
_LONG_S = 3.0
_SHORTEST_UNLOGGED_S = 0.05  # 20 statements a second for each follower
_SHORT_LEASE_SLICE_S = 0.1  # for a lease of which a third would be less
_LONGEST_LEASE_S = 20 * 24 * 3600.0  # PostgreSQL counts milliseconds in 31 bits
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)


def quiet_period_log_level(left_s: float) -> int:
    """Return the log level: WARNING from 3 s on, so that an operator sees why no leader is elected."""
    return logging.WARNING if left_s >= _LONG_S else logging.INFO


def witness_key(key: LockKey) -> LockKey:
    """Return the key of the second lock. Frozen for ever: candidates of all versions must agree on it."""
    return _derived(key, "witness")


def fence_key(key: LockKey) -> LockKey:
    """Return the key of the lock that all fenced transactions of a term share. Frozen, like the witness key."""
    return _derived(key, "fence")


def _derived(key: LockKey, purpose: str) -> LockKey:
    digest = hashlib.sha256(f"pgleaderlock/{purpose}/1/{key}".encode()).digest()
    return LockKey.bigint(int.from_bytes(digest[:8], "big", signed=True))


def check_schema(name: str) -> str:
    """Return the name if it is a plain one, so that it needs no escaping inside quotes; else raise ValueError."""
    if not _SCHEMA_NAME.fullmatch(str(name)) or name.startswith("pg_"):
        raise ValueError(f"schema must be a plain name of letters, digits and _, not pg_, got {quoted(name)}")
    return name


@dataclass(frozen=True, slots=True)
class Lease:
    """How long a silent leader keeps the lock, how followers wait for it, and how a successor takes over."""

    lease_s: float
    wake: Literal["line", "poll"] = "line"
    slice_s: float | None = None
    """How long one wait slice in the queue lasts; by default less than the server's ``deadlock_timeout``."""
    settle_s: float | None = None
    """The quiet period after a server start, in which no term begins; by default the lease."""
    witness: bool = True
    allow_pooler: bool = False
    takeover: Literal["fast", "strict"] = "fast"
    """``strict`` waits for the end of the recorded lease of a leader that did not release cleanly."""
    term_table: bool = False
    """Whether each term is written to the term table before it begins."""
    schema: str = DEFAULT_SCHEMA
    """The schema of the term table."""
    schema_owner: str | None = None
    """The role that may own it, besides our own user and superusers."""
    fence_wait_s: float | None = None
    """How long a new term waits for the fenced transactions of the last; by default the lease."""
    statement_timeout_s: float | None = None
    """After how long the server cancels a statement of ours; by default a second more than the lease."""

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
        """The settings that all candidates must share, short enough for the ``application_name`` of a session.

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
        """How long to wait for one answer."""
        return answer_bound_s(self.lease_s)

    @property
    def renew_every_s(self) -> float:
        """How often to send a heartbeat on a session while waiting for something else."""
        return self.lease_s / RENEWALS_PER_LEASE

    def slice_for(self, deadlock_timeout_s: float) -> float:
        """Return how long one wait slice lasts: shorter than ``deadlock_timeout``, and a third of the lease at most.

        A wait that outlasts ``deadlock_timeout`` is written into the server's log where ``log_lock_waits`` is on, with
        the whole statement. Under a time-out so short that slices below it would be a load of their own, every slice
        is logged whatever its length: then there are as few of them as the lease allows.
        """
        longest_s = max(_SHORT_LEASE_SLICE_S, self.renew_every_s)
        unlogged_s = 0.9 * deadlock_timeout_s
        fitting_s = min(unlogged_s, longest_s) if unlogged_s >= _SHORTEST_UNLOGGED_S else longest_s
        return min(self.slice_s or fitting_s, self.statement_ms / 2000)  # waiting in the queue is a statement too

    @property
    def statement_ms(self) -> int:
        """The ``statement_timeout`` in milliseconds."""
        limit_s = self.lease_s + 1.0 if self.statement_timeout_s is None else self.statement_timeout_s
        return max(1, round(limit_s * 1000))

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds, for PostgreSQL; never 0, which would be no limit."""
        return max(1, round(self.lease_s * 1000))

    def grant(self, token: int | None, sent: float) -> Grant:
        """Return the grant that follows from an answer to a request that was sent at ``sent``."""
        return leased_grant(token, sent, self.lease_s)
