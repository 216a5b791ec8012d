"""The size of the world (a scope), and the rules of the protocol.

A rule is a mechanism of the protocol that a test can switch off, to check that its absence is found. The product has no
such switches, apart from its settings ``witness`` and ``takeover``.
"""

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pgleaderlock.engine.fsm import Policy, Table, table_for
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.terms import Past, past_s
from pgleaderlock.stores.times import SOON_SHARE

__all__ = ["Game", "Rules", "Scope"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The mechanisms, each of which can be switched off."""

    trust_from_sending: bool = True
    """Off: validity counts from when the answer came."""
    trust_ends_early: bool = True
    """Off: a grant is valid for the whole lease, not for 0.9 of it."""
    validity_by_clock: bool = True
    """Off: a node in the state LEADER claims to lead, whatever the clock says."""
    looks_at_sockets: bool = True
    """Off: neither ``is_leader`` nor the engine, before it announces a term, checks whether that session has ended."""
    loss_is_final: bool = True
    """Off: a renewal that comes after leadership had to be declared lost still counts."""
    late_grant_is_none: bool = True
    """Off: a grant begins a term even if it was read when it had to be declared lost."""
    witness: bool = True
    """Off: there is no second lock."""
    waits_for_witness: bool = True
    """Off: a node whose try for the witness lock was refused leads all the same."""
    silence_is_no_end: bool = True
    """Off: a leader closes its witness session, and acquires a new one, when a renewal is not answered soon."""
    trust_needs_witness: bool = True
    """Off: a renewal without the witness lock extends validity all the same."""
    settle_after_restart: bool = True
    """Off: there is no quiet period after a server start."""
    settle_from_answer: bool = True
    """Off: the server's age is taken to be its age when it was asked, not when it answered."""
    close_on_doubt: bool = True
    """Off: a follower that leaves the queue keeps its session."""
    new_token_on_recovery: bool = True
    """Off: a leader that recovers goes on with the token it had."""
    lock_answers_last: bool = True
    """Off: the lock session is not asked again when the witness lock is held; its token was drawn at the grant."""
    claim_comes_last: bool = True
    """Off: the term row is written when it is read, beside the try for the witness lock and before all waits."""
    place_is_no_condition: bool = True
    """Off: only the heir asks for the lock."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How large the world is, and what may go wrong in it."""

    nodes: int = 2
    lease_ticks: int = 3
    """A lease in ticks. With two, a grant is one tick old, or lost; with more there is something between the two."""
    rates: tuple[float, ...] = (0.9,)
    """The speed of the nodes' clocks relative to the server's; the last one applies to every further node."""
    takeover: Literal["fast", "strict"] = "fast"
    term_row: bool = False
    grace: bool = False
    """Whether a leader that lost its session tries to recover first."""
    faults: int = 1
    """How many faults there may be in all."""
    kills: int = 1
    """How many sessions may be ended by the server, at most."""
    kills_apart: bool = False
    """Whether sessions are lost at least a lease apart from each other."""
    ends_are_heard: bool = False
    """Whether the end of a session reaches its node's host at once: the kernel knows, the process may not have read it.
    Not so where a network is slow or cut; and never of a restart, behind the back of a node that is cut off."""
    restarts: int = 1
    crashes: int = 1
    step_downs: bool = True
    """Whether a leader may be asked to release."""

    give_ups: bool = True
    """Whether a node may at any time give up waiting for an answer, as it does after a time-out."""

    places: bool = False
    """Whether only the heir is queued for the lock, as with a server that can end silent sessions; else all are."""

    places_stay: bool = False
    """Whether the server never detects that the holder of a place is gone."""

    begins_led: bool = False
    """Whether the first world has a leader and a queued follower, instead of followers without a session."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.lease_ticks < 1 or not self.rates:
            raise ValueError(f"there must be a node, a tick and a rate, got {self}")
        if self.ends_are_heard and self.restarts and self.faults:
            raise ValueError("a restart ends sessions of nodes that are cut off: ends_are_heard needs restarts=0")
        if self.places_stay and not self.places:
            raise ValueError("places_stay needs places")


@dataclass(frozen=True)
class Game:
    """A scope and its rules, and the validity of each age under both. Computed once, by the product's own code."""

    scope: Scope
    rules: Rules = field(default_factory=Rules)

    @cached_property
    def lease(self) -> Lease:
        """The product's lease, one second to a tick."""
        has_row = self.scope.term_row or self.scope.takeover == "strict"
        return Lease(float(self.scope.lease_ticks), takeover=self.scope.takeover, term_table=has_row)

    @cached_property
    def table(self) -> Table:
        """The product's table."""
        return table_for(Policy(grace=self.scope.grace))

    @cached_property
    def age_cap(self) -> int:
        """The age at which a request is no longer valid by any clock, so that nothing more can follow from it."""
        until = max(self._trusted_until, self.lease.grant(1, sent=0.0).lost_at)
        return next(age for age in itertools.count() if min(self.scope.rates) * age >= until)

    @cached_property
    def trusted(self) -> tuple[tuple[bool, ...], ...]:
        """Whether a grant of that age is valid, for each rate and age."""
        return self._by_age(self._trusted_until)

    @property
    def _trusted_until(self) -> float:
        return self.lease.grant(1, sent=0.0).trusted_until if self.rules.trust_ends_early else self.lease.lease_s

    @cached_property
    def not_lost(self) -> tuple[tuple[bool, ...], ...]:
        """Whether leadership of that age need not be declared lost yet, for each rate and age."""
        return self._by_age(self.lease.grant(1, sent=0.0).lost_at if self.rules.loss_is_final else math.inf)

    def _by_age(self, until: float) -> tuple[tuple[bool, ...], ...]:
        return tuple(tuple(rate * age < until for age in range(self.age_cap + 1)) for rate in self.scope.rates)

    def is_slow(self, rate: int, age: int) -> bool:
        """Whether a term whose first request is so old is renewed before it is announced."""
        return self.scope.rates[rate] * age > self.lease.lease_s * SOON_SHARE

    @cached_property
    def begin_cap(self) -> int:
        """The age at which the first request of a term is too old by any clock for a term without another renewal."""
        rates = range(len(self.scope.rates))
        return next(age for age in itertools.count() if all(self.is_slow(rate, age) for rate in rates))

    def settle_ticks(self, rate: int, server_age: int, asked_age: int) -> int:
        """Return how many more ticks to wait, given the server's age at some time since the node asked for it."""
        if not self.rules.settle_after_restart:
            return 0
        since = 0 if self.rules.settle_from_answer else asked_age
        return max(0, self._ticks(self.lease.lease_s - server_age, rate) - since)

    def past_ticks(self, rate: int, token: int, ours: int, *, was_released: bool) -> int | None:
        """Return for how many ticks after a term has begun the last leader may be valid, by the row; None: unknown."""
        past = Past(token or None, self.lease.lease_s, 1, was_released, 1)
        left_s = past_s(past, self.lease, ours=ours or None)
        return None if left_s is None else self._ticks(left_s, rate)

    def _ticks(self, own_s: float, rate: int) -> int:
        return math.ceil(own_s / self.scope.rates[rate] - 1e-9)
