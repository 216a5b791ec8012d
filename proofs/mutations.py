"""The product with one mechanism taken out, and the profile in which the simulation must miss it.

    python -m proofs.mutations [WORD ...]   look for the first seed that finds each, and print how it ended

The exhaustive check has a list of its own (``proofs.exhaustive``): rules of a model. Here it is the real
code that is mutilated, by patches that exist only in the tests.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from pgleaderlock import Election, LockState
from pgleaderlock._base.causes import LossCause
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import Grant
from pgleaderlock.postgres import _keys_sql, _sql, advisory, terms
from pgleaderlock.postgres._server_start import ServerStart
from pgleaderlock.postgres._session_setup import ReadySession
from pgleaderlock.postgres.advisory import LeasedLockBackend
from pgleaderlock.postgres.group import CHANNEL, Group
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.pair import SessionPair, Validity
from pgleaderlock.postgres.succession import LockGrant
from pgleaderlock.postgres.warm_session import WarmSession
from pgleaderlock.stores import base
from pgleaderlock.stores.file._folder import Folder
from pgleaderlock.stores.kubernetes.api import LeaseObject
from pgleaderlock.stores.kubernetes.lease import read_lease
from pgleaderlock.stores.kubernetes.store import LeaseStore
from pgleaderlock.stores.lease_observation import LeaseObservation
from pgleaderlock.stores.record import Claim, Record, RecordBackend
from pgleaderlock.testing import SimulationFailed, simulate
from pgleaderlock.testing.simulation import FAULT_PROFILES, STORES, STORM, FaultProfile, Store

Patch = Callable[[ExitStack], None]

SEEDS = 30
"""In so many each must be missed."""


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is missing."""

    name: str
    finds: str
    """The kind of failure."""
    take_out: Patch
    store: Store = STORES["postgres"]
    profile: FaultProfile = STORM
    nodes: int = 3

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.take_out(stack)
            yield

    def run(self, seed: int) -> SimulationFailed | None:
        """Return how it ended, if it did."""
        with self.applied():
            try:
                simulate(seed, self.nodes, self.profile, store=self.store, hours=0.5)
            except SimulationFailed as failure:
                return failure
        return None


def only(*faults: str, **changes: Any) -> FaultProfile:
    return STORM.but("only " + ", ".join(faults), faults=dict.fromkeys(faults, 1.0), **changes)


def store(name: str, **lease: Any) -> Store:
    given = STORES[name]
    return replace(given, lease={**given.lease, **lease})


def nothing(_: ExitStack) -> None:
    """Some mechanisms are settings, and the store says that they are off."""


def replaced(target: Any, name: str, value: Any) -> Patch:
    return lambda stack: stack.enter_context(patch.object(target, name, value))


def without_words(name: str, *words: str) -> Patch:
    """Take some words out of a statement."""

    def take_out(stack: ExitStack) -> None:
        statement = getattr(_sql, name)
        for word in words:
            assert word in statement, f"{name} has no {word!r} any more: this mutation mutates nothing"
            statement = statement.replace(word, "NULL")
        stack.enter_context(patch.object(_sql, name, statement))

    return take_out


def both(*patches: Patch) -> Patch:
    def take_out(stack: ExitStack) -> None:
        for each in patches:
            each(stack)

    return take_out


# --- The mechanisms --------------------------------------------------------------------------------------------------

_renew_pair, _confirm = SessionPair._renew, LeasedLockBackend._confirm
_renew_record = RecordBackend.renew


async def renew_from_arrival(self: SessionPair) -> bool:
    is_renewed = await _renew_pair(self)
    if is_renewed:
        self.validity.extend(self._lease, self._clock())
    return is_renewed


async def renew_record_from_arrival(self: RecordBackend, grant: Grant) -> Grant:
    renewed = await _renew_record(self, grant)
    return base.leased_grant(renewed.token, self._clock(), self._lease_s)


async def confirm_from_arrival(self: LeasedLockBackend, granted: LockGrant) -> Grant:
    grant = await _confirm(self, granted)
    self._pair.validity.extend(self._lease, self._clock())
    return self._pair.validity.grant(grant.token)


async def begin_without_witness(self: SessionPair, _: LockKey, statement: str) -> tuple[Any, bool]:
    """Hold the second session, but not the lock on it."""
    if self._witness is None and self._lease.witness:
        await self.open_witness()
    return await self.ask_lock(statement or _sql.PING), True


async def confirm_without_the_last_answer(self: LeasedLockBackend, granted: LockGrant) -> Grant:
    """Ask the lock session before the witness lock is held, and not again."""
    if granted.last_answer is not None:
        return await _confirm(self, granted)
    token = await self._last_answer(granted)

    async def answered(_: LockGrant) -> int:
        return token

    with patch.object(self, "_last_answer", answered):
        return await _confirm(self, granted)


async def granted_before_the_answer(self: WarmSession) -> ReadySession | None:
    return self._ready


async def confirm_after_claim(self: LeasedLockBackend, granted: LockGrant) -> Grant:
    """Write the term before the witness lock is held and the waiting is over."""
    assert self._terms is not None
    assert granted.token is None
    self._pair.held.add(self._key)
    row = await self._pair.ask_lock(self._succession.begin_sql() + self._terms.read_sql())
    ends_at, reason = self._predecessor_ends(row, self._clock())
    token = await self._claim(self._terms)
    _, has_witness = await self._pair.begin_term(self._key, _sql.PING)
    if not has_witness:
        await self._queue_for_witness(self._clock() + self._lease.lease_s)
    await self._wait_out_predecessor(ends_at, reason)
    sent = self._clock()
    await self._pair.ping_both()
    self._pair.validity.extend(self._lease, sent)
    self._term = token
    return self._pair.validity.grant(token)


async def confirm_with_the_old_token(self: LeasedLockBackend, granted: LockGrant) -> Grant:
    former, recovering = self._term, self._pair.has_witness
    grant = await _confirm(self, granted)
    if recovering and former is not None:
        self._term = former
        return replace(grant, token=former)
    return grant


def unlock_everything(self: _sql.LockStatements) -> str:
    """Free the lock with the place, as pg_advisory_unlock_all() would."""
    return f"SELECT pg_advisory_unlock({_sql.numbers(self._key)});SELECT pg_advisory_unlock({_sql.numbers(_KEY)});"


_lease_limit = _sql.LockStatements._lease_limit


def limit_of_the_lock_alone(self: _sql.LockStatements) -> str:
    return str(_lease_limit.__get__(self)) if self.granted == "lock" else "''"


def bare_state(self: Election) -> float:
    return 1.0 if self.state is LockState.LEADER else 0.0


async def notify_without_waiting(self: Election, run: Any, applied: Any) -> None:
    self._notify(run, applied.before)


async def pretend_to_replace(self: SessionPair, _: Collection[LockKey]) -> bool:
    await self.close_witness()
    return True


_note_witness_end, _note_lock_end = SessionPair._note_witness_end, SessionPair._note_lock_end
_replace_witness, _adopt = SessionPair._replace_witness, SessionPair._adopt


def replace_a_slow_witness(self: SessionPair, admitted: Any, error: Any) -> None:
    """Treat a witness session that is only slow as one that has ended."""
    if error.cause is LossCause.RENEW_TIMEOUT:
        error.cause = LossCause.CONNECTION_LOST
    _note_witness_end(self, admitted, error)


async def ask_witness_briefly(self: SessionPair, statement: str, parameters: Any = ()) -> bool:
    try:
        await self.ask_witness(statement, parameters, bound_s=self._lease.renew_every_s / 2)
    except ConnectionError:
        return False
    return True


def valid_without_a_look(self: SessionPair, validity: Validity) -> float:
    return validity.until if validity is self.validity else -math.inf


_replacing: set[SessionPair] = set()


async def replace_unwatched(self: SessionPair, keys: Collection[LockKey]) -> bool:
    _replacing.add(self)
    try:
        return await _replace_witness(self, keys)
    finally:
        _replacing.discard(self)


def adopt_with_former_notes(self: SessionPair, ready: ReadySession | None) -> bool:
    """Note what all witness sessions answer in one set."""
    witnessed = self._witnessed
    is_adopted = _adopt(self, ready)
    self._witnessed = witnessed
    return is_adopted


def note_end_in_one_set(self: SessionPair, admitted: Any, error: Any) -> None:
    witnessed = self._witnessed
    _note_witness_end(self, admitted, error)
    if admitted is self._witness:
        witnessed.clear()
    self._witnessed = witnessed


async def take_these_alone(self: SessionPair, keys: Collection[LockKey]) -> set[LockKey]:
    return await self._take_witness_locks(keys)


def note_at_rest(self: SessionPair, admitted: Any, error: Any) -> None:
    if self not in _replacing:
        _note_lock_end(self, admitted, error)


def declare_without_ending(self: SessionPair, error: Any) -> None:
    """Notify the roles one by one, and let each be valid until then."""
    if self.ended is not None and not self.ended.done():
        self.ended.set_result(error)


_open_pair = SessionPair.open


async def open_and_listen(self: SessionPair, prepare: Any, keys: Any) -> None:
    """Listen on the channel on the lock session too."""

    async def prepare_and_listen(session: Any) -> None:
        await prepare(session)
        await session.listen(CHANNEL)

    await _open_pair(self, prepare_and_listen, keys)


def trust_the_clock(self: ServerStart, _: str, age_s: float, read_at: float) -> None:
    self.quiet_until = read_at - max(0.0, age_s) + self._settle_s


def trust_any_age(self: ServerStart, _: str, age_s: float, read_at: float) -> None:
    self.quiet_until = read_at - age_s + self._settle_s


async def end_nothing(*_: Any) -> None:
    pass


def hand_out_what_is_being_left(self: Group, key: LockKey, grant: Any) -> None:
    """Hand out a lock that a run which has ended left while it was being won: it is freed next."""
    left = self._leaving.pop(key, None)
    try:
        _hand_out(self, key, grant)
    finally:
        if left is not None:
            self._leaving[key] = left


_hand_out = Group._hand_out


def forget_the_timeline(past: terms.Past, lease: Any, *, ours: int | None) -> float | None:
    return terms.past_s(replace(past, timeline=past.timeline_here), lease, ours=ours)


def take_any_table_for_whole(past: terms.Past, lease: Any, *, ours: int | None) -> float | None:
    return terms.past_s(replace(past, is_whole=True), lease, ours=ours)


async def make_ready_anywhere(self: terms.Terms, session: Any) -> bool:
    """Take every server for the one that it was before."""
    await _make_ready(self, session)
    return False


_make_ready = terms.Terms.make_ready


def over_as_soon_as_seen(self: LeaseObservation) -> float:
    return self._seen_at


def in_time_or_not(self: Election, grant: Grant | None) -> Grant | None:
    return grant


_send = LeaseStore._send


async def send_without_looking(self: LeaseStore, claim: Claim, replacing: Record | None) -> LeaseObject:
    """Write over whatever is there, as a PATCH without a version does."""
    there = await self._get()
    return await _send(self, claim, replacing if there is None else read_lease(there))


_KEY = LockKey.pair(42, 1)  # the lock of every simulation on PostgreSQL
_EMIT = "pg_logical_emit_message(true, 'pgleaderlock', '')"
_ALONE = replace(STORES["postgres"], name="postgres without a witness", lease={"witness": False})

# The look at the socket hides from these what a frozen process, or one with a busy event loop, would do without it.
_NO_LOOK = replaced(SessionPair, "valid_until", valid_without_a_look)

SESSION_PROTOCOL = (
    Mutation("validity counts from sending", "two_leaders",
             both(replaced(SessionPair, "_renew", renew_from_arrival), _NO_LOOK),
             profile=only("late_answers_and_freeze", lasts=1.5, slow_share=0.0)),
    Mutation("the witness", "two_leaders", nothing, _ALONE, only("ambush", "kill_session")),
    Mutation("a silent witness is not closed", "two_leaders",
             both(replaced(SessionPair, "_note_witness_end", replace_a_slow_witness),
                  replaced(SessionPair, "_try_witness", ask_witness_briefly), _NO_LOOK),
             profile=only("late_answers_and_kill", every=1.3, slow_share=0.0)),
    Mutation("no validity is added without a witness", "two_leaders",
             replaced(SessionPair, "_replace_witness", pretend_to_replace),
             profile=only("kill_session", "ambush", every=0.6)),
    Mutation("a restart is waited out", "two_leaders", nothing, store("postgres", settle_s=0.0),
             only("cut_and_restart")),
    Mutation("a crash recovery is a restart", "two_leaders",
             without_words("_FACTS", "(SELECT stats_reset FROM pg_stat_bgwriter)"),
             profile=only("cut_and_crash", "crash", every=1.0)),
    Mutation("a silent session is ended", "no_leader",
             both(replaced(_sql.LockStatements, "_lease_limit", "''"),
                  replaced(_keys_sql, "_idle_limit", lambda *_: "")),
             profile=only("freeze", "host_crash", every=10.0, lasts=40.0)),
    Mutation("both sessions are watched while one is replaced", "two_leaders",
             both(replaced(SessionPair, "_note_lock_end", note_at_rest),
                  replaced(SessionPair, "_replace_witness", replace_unwatched),
                  replaced(SessionPair, "valid_until", valid_without_a_look)),
             profile=only("end_apart", every=3.0, slow_share=0.0)),
    Mutation("a leader without sessions leaves at once, also while it replaces one", "told_late",
             both(replaced(SessionPair, "_note_lock_end", note_at_rest),
                  replaced(SessionPair, "_replace_witness", replace_unwatched)),
             profile=only("end_apart", every=3.0, slow_share=0.0)),
    Mutation("is_leader looks at the socket", "two_leaders",
             replaced(SessionPair, "valid_until", valid_without_a_look),
             profile=only("frozen_end_both", every=3.0, slow_share=0.0)),
    Mutation("one step ends the validity of all keys", "two_leaders",
             both(replaced(SessionPair, "declare_lost", declare_without_ending),
                  replaced(SessionPair, "valid_until", valid_without_a_look)),
             profile=only("end_both", every=3.0, slow_share=0.0)),
    Mutation("the server's clock does not decide alone", "two_leaders",
             replaced(ServerStart, "learn", trust_the_clock),
             profile=only("cut_and_restart_and_step", every=4.0, slow_share=0.0)),
    Mutation("an age below zero is a start just now", "no_leader", replaced(ServerStart, "learn", trust_any_age),
             profile=only("restart_and_step", every=4.0, slow_share=0.0)),
    Mutation("a backend that waits for a standby is ended", "stuck",
             both(replaced(SessionPair, "_end_given_up", end_nothing),
                  replaced(SessionPair, "look_for_stuck", end_nothing)),
             profile=FAULT_PROFILES["absent-standby"]),
)  # fmt: skip
"""Mechanisms of :mod:`pgleaderlock.postgres.pair`: each is one line, and missing for a lock and for a group alike."""


_IN_A_GROUP: dict[str, FaultProfile] = {
    "the witness": only("ambush", every=1.5),
}
"""Other profile for what would be rare there."""


def in_a_group(mutation: Mutation) -> Mutation:
    given = STORES["group"]
    lease = {name: value for name, value in mutation.store.lease.items() if name in ("witness", "settle_s")}
    store = replace(given, lease={**given.lease, **lease})
    profile = _IN_A_GROUP.get(mutation.name, mutation.profile)
    return replace(mutation, name=f"{mutation.name}, in a group", store=store, profile=profile)


MUTATIONS = (
    *SESSION_PROTOCOL,
    *map(in_a_group, SESSION_PROTOCOL),
    Mutation("a group hands out no lock that is being left", "told_late",
             replaced(Group, "_hand_out", hand_out_what_is_being_left), STORES["group"],
             only("hasty_step_down", "stop_and_start", every=0.3)),
    Mutation("a group's lock session hears no notifications", "two_leaders",
             replaced(SessionPair, "open", open_and_listen), STORES["group"],
             only("flood_and_end_both", every=3.0, slow_share=0.0)),
    Mutation("trust counts from sending, in records", "two_leaders",
             replaced(RecordBackend, "renew", renew_record_from_arrival), STORES["records"],
             only("freeze", every=1.5, lasts=2.0, slow_share=0.15, slowness=0.33)),
    Mutation("trust ends at 0.9 T", "two_leaders", both(replaced(base, "TRUST_SHARE", 1.0), _NO_LOOK),
             profile=only("freeze", lasts=2.0, slow_share=0.0)),
    Mutation("a loss is declared at 2/3 T", "told_late", replaced(base, "LOST_SHARE", 1.1), profile=only("cut")),
    Mutation("is_leader compares with the clock", "two_leaders",
             replaced(Election, "time_left_s", property(bare_state)), profile=only("freeze")),
    Mutation("a grant that is read too late is none", "late", replaced(Election, "_in_time", in_time_or_not),
             profile=only("freeze", "crash", every=0.4, slow_share=0.4, slowness=0.6)),
    Mutation("the validity of a new term counts from sending", "two_leaders",
             both(replaced(LeasedLockBackend, "_confirm", confirm_from_arrival), _NO_LOOK),
             replace(STORES["postgres-alone"], name="postgres-alone"),
             only("freeze", "crash", every=0.4, slow_share=0.3, slowness=0.6)),
    Mutation("an heir leads with the witness lock only", "two_leaders",
             replaced(SessionPair, "begin_term", begin_without_witness),
             profile=only("ambush", "kill_session")),
    Mutation("an answer says nothing of a witness session that was opened after it", "two_leaders",
             both(replaced(SessionPair, "_adopt", adopt_with_former_notes),
                  replaced(SessionPair, "_note_witness_end", note_end_in_one_set)),
             profile=only("end_newcomers_witness", "late_answers_and_kill", every=0.7, slow_share=0.0)),
    Mutation("a group takes all its witness locks back before it takes more", "two_leaders",
             replaced(SessionPair, "take_witness_locks", take_these_alone), STORES["group"],
             only("end_newcomers_witness", "late_answers_and_kill", every=0.7, slow_share=0.0)),
    Mutation("the lock session answers while the witness lock is held", "token",
             replaced(LeasedLockBackend, "_confirm", confirm_without_the_last_answer),
             profile=only("overtake_heir", every=3.0, slow_share=0.0)),
    Mutation("an heir asks its lock session last only when the witness lock is held", "token",
             replaced(WarmSession, "granted_early", granted_before_the_answer),
             profile=only("overtake_heir", every=3.0, slow_share=0.0)),
    Mutation("a term is claimed after the witness lock and all waiting", "two_leaders",
             both(replaced(LeasedLockBackend, "_confirm", confirm_after_claim), _NO_LOOK), STORES["postgres-strict"],
             only("double_ambush_and_kill", every=3.0, slow_share=0.0), nodes=2),
    Mutation("leaving a place frees nothing else", "two_leaders",
             replaced(_sql.LockStatements, "unlock", property(unlock_everything)),
             profile=only("kill_session", "crash", every=1.0)),
    Mutation("a leader's lock session hears no notifications", "two_leaders",
             replaced(_sql, "STOP_LISTENING", ""),
             profile=only("flood_and_end_both", every=3.0, slow_share=0.0)),
    Mutation("a wait slice looks whether it was granted the lock after all", "no_heir",
             replaced(_sql, "_WAIT_SLICE", _sql._WAIT_SLICE.replace("FROM pg_locks", "FROM pg_class")),
             profile=only("crash", "step_down", race_share=0.3)),
    Mutation("a place is taken under the lease", "no_heir",
             replaced(_sql.LockStatements, "_lease_limit", property(limit_of_the_lock_alone)),
             profile=only("host_crash", "crash", every=2.0)),
    Mutation("a promotion is a restart", "two_leaders", replaced(advisory, "past_s", forget_the_timeline),
             STORES["postgres-terms"], only("cut_and_promote", "crash", every=1.0)),
    Mutation("a term table that is younger than the server's start says nothing", "two_leaders",
             replaced(advisory, "past_s", take_any_table_for_whole), STORES["postgres-terms"],
             only("cut_and_replace", every=4.0)),
    Mutation("another server is waited out, whatever its term row says", "two_leaders",
             replaced(terms.Terms, "make_ready", make_ready_anywhere), STORES["postgres-terms"],
             only("cut_and_switch", every=4.0, slow_share=0.0)),
    Mutation("a strict take-over", "two_leaders", nothing, replace(
        STORES["postgres-terms"], faults=STORES["postgres-strict"].faults), only("double_ambush")),
    Mutation("a recovery has a new token", "token", replaced(LeasedLockBackend, "_confirm", confirm_with_the_old_token),
             profile=only("kill_session", "step_down")),
    Mutation("tokens reach the disk", "token",
             both(without_words("NEXT_TOKEN", _EMIT + "::text"), without_words("_DRAW", _EMIT + "::text")),
             profile=only("server_crash", "power", "crash", every=1.0)),
    Mutation("callbacks are told before the session is closed", "told_late",
             replaced(Election, "_notify_and_wait", notify_without_waiting),
             profile=only("kill_session", slow_share=0.0)),
    Mutation("a record is waited out for a lease", "two_leaders",
             replaced(LeaseObservation, "over_at", property(over_as_soon_as_seen)), STORES["records"],
             only("cut", "crash")),
    Mutation("a Lease is replaced only if it is the one that was read", "two_leaders",
             replaced(LeaseStore, "_send", send_without_looking), STORES["kubernetes"],
             only("crash", "freeze", "cut", "down", every=1.0)),
    Mutation("a leader watches its own Lease", "two_leaders", replaced(RecordBackend, "lost", base.Backend.lost),
             STORES["kubernetes"],
             only("empty_holder", every=3.0, slow_share=0.0, insists=frozenset({"empty_holder"}))),
    Mutation("a Lease is waited out", "two_leaders",
             replaced(LeaseObservation, "over_at", property(over_as_soon_as_seen)),
             STORES["kubernetes"], only("cut", "crash")),
    Mutation("a term in a file is over when it is not locked", "two_leaders",
             replaced(Folder, "is_free", lambda *_: True), STORES["file"], only("freeze")),
    Mutation("an epoch is waited out", "two_leaders",
             replaced(LeaseObservation, "over_at", property(over_as_soon_as_seen)),
             STORES["nfs"], only("cut", "crash")),
)  # fmt: skip


def main() -> None:
    words = sys.argv[1:]
    for mutation in (each for each in MUTATIONS if not words or any(word in each.name for word in words)):
        for seed in range(200):
            failure = mutation.run(seed)
            if failure is not None and failure.kind == mutation.finds:
                sys.stdout.write(f"{mutation.name}: seed {seed}, {failure.kind}: {failure.what}\n")
                break
        else:
            sys.stdout.write(f"{mutation.name}: NOTHING FOUND\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
