"""The settings that all candidates for one lock must share, and what is derived from them: lease times, more keys.

All of a lease's times count from when a request was *sent*, never from when its answer came.
"""

import enum
import hashlib
import logging
from dataclasses import dataclass, field

from pgleaderlock._base.checks import address_fault
from pgleaderlock.models import Grant
from pgleaderlock.options import DEFAULT_SCHEMA, SETTINGS, LockSettings
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.stores.base import leased_grant
from pgleaderlock.stores.times import RENEWALS_PER_LEASE, answer_bound_s, choose_times

__all__ = [
    "LONGEST_ADDRESS",
    "OF_BACKEND",
    "Lease",
    "Place",
    "advertised_address",
    "advertising_name",
    "fence_key",
    "heir_key",
    "is_led",
    "next_heir_key",
    "place_channel",
    "quiet_period_log_level",
    "waiting_name",
    "witness_key",
]

OF_BACKEND = tuple(each.name for each in SETTINGS if each.scope != "every store")
"""The settings that the backend alone acts on: the other ones are the lease, and those of every election."""
_LONG_S = 3.0
_ADVERTISES = "pgl:"
_WAITS = "waits for the end of earlier terms"  # no address: it has blanks
LONGEST_ADDRESS = 51
"""Of the 63 bytes of an ``application_name``, a pid and what is around it take 12."""
_SHORTEST_UNLOGGED_S = 0.05  # 20 statements a second for each follower
_SHORT_LEASE_SLICE_S = 0.1  # for a lease of which a third would be less


def quiet_period_log_level(left_s: float) -> int:
    """Return the log level: WARNING from 3 s on, so that an operator sees why no leader is elected."""
    return logging.WARNING if left_s >= _LONG_S else logging.INFO


def witness_key(key: LockKey) -> LockKey:
    """Return the key of the second lock. Frozen for ever: candidates of all versions must agree on it."""
    return _derived(key, "witness")


class Place(enum.Enum):
    """A follower's place in the succession. The value is how it is shown to people."""

    NONE = ""
    NEXT_HEIR = "next heir"
    HEIR = "heir"


def heir_key(key: LockKey) -> LockKey:
    """Return the key of the heir's place (S1). Frozen, like the witness key."""
    return _derived(key, "heir")


def next_heir_key(key: LockKey) -> LockKey:
    """Return the key of the next heir's place (S2). Frozen, like the witness key."""
    return _derived(key, "next-heir")


def place_channel(key: LockKey) -> str:
    """Return the channel on which followers are notified that a place is free."""
    return f"pgleaderlock_{heir_key(key).numbers[0] % 2**64:016x}"


def advertising_name(address: str, lock_pid: int) -> str:
    """Return the name of the witness session of a leader with this address: ``pgl:4711 http://10.0.0.7:8080``.

    The server shows it to every user. It names the lock session by its pid: while a successor waits for the witness
    lock, the two locks have different holders.
    """
    return f"{_ADVERTISES}{lock_pid} {address}"


def advertised_address(witness_name: str | None, lock_pid: int | None) -> str | None:
    """Return the address in the name of a witness session; None if it has none, or is of another lock session."""
    pid, _, address = (witness_name or "").removeprefix(_ADVERTISES).partition(" ")
    is_of_holder = (witness_name or "").startswith(_ADVERTISES) and pid == str(lock_pid)
    return address if is_of_holder and address_fault(address) is None else None


def waiting_name(lock_pid: int) -> str:
    """Return the name of the witness session of a candidate that holds both locks, and may not lead yet."""
    return f"{_ADVERTISES}{lock_pid} {_WAITS}"


def is_led(witness_name: str | None, lock_pid: int | None) -> bool:
    """Return whether the holder of the lock leads, as far as the name of the session with the witness lock shows."""
    if not (witness_name or "").startswith(_ADVERTISES):
        return True
    pid, _, rest = (witness_name or "").removeprefix(_ADVERTISES).partition(" ")
    return pid == str(lock_pid) and rest != _WAITS


def fence_key(key: LockKey) -> LockKey:
    """Return the key of the lock that all fenced transactions of a term share. Frozen, like the witness key."""
    return _derived(key, "fence")


def _derived(key: LockKey, purpose: str) -> LockKey:
    digest = hashlib.sha256(f"pgleaderlock/{purpose}/1/{key}".encode()).digest()
    return LockKey.bigint(int.from_bytes(digest[:8], "big", signed=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(LockSettings):
    """The settings of a lock with a chosen lease duration, and the times that follow from them."""

    lease_s: float = field(kw_only=False)

    def __post_init__(self) -> None:
        LockSettings.__post_init__(self)
        if self.address is not None and len(self.address) > LONGEST_ADDRESS:
            raise ValueError(
                f"address must have at most {LONGEST_ADDRESS} characters on PostgreSQL sessions, where it is part of a "
                f"session's name, got {len(self.address)}: use an IP address or a shorter host name"
            )

    @classmethod
    def choose(cls, settings: LockSettings) -> "Lease":
        """Return the settings with both times; the one that was not given follows from the other."""
        times = choose_times(settings.lease_s, settings.health_interval_s)
        return cls(**{**settings.values(), **times._asdict()})

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
