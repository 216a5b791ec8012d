"""A lease kept in a record: the holder's name, the term, and the lease duration.

A record store (:class:`RecordStore`) can read one record and replace it if it is still the one that was read
(compare-and-swap). An election needs nothing more; a row, a Kubernetes Lease, a file and a dictionary can do it. The
election rules are the same for all of these stores and are implemented here.

**Expiry is judged on the candidate's own clock.** A record has expired when *this candidate* has not seen it change for
the lease duration that the record states. The times of day in it are for display: clocks of two hosts are never
compared, nor is the store's. So a process that has just started waits for one whole lease before it takes over from a
holder that does not renew.

**Validity counts from sending.** A write that was sent at *s* was seen by other candidates no earlier than *s*, so none
of them takes over before *s* + T (the lease duration). The leader's own validity ends at *s* + 0.9 T, and leadership is
declared lost at *s* + 2/3 T.

**One failed renewal is not a loss.** The leader retries it until leadership is declared lost. A write whose answer was
lost may have arrived: the next one then fails on the version, reads the record, and finds its own name and term in it.

**A term is a number.** Every acquisition writes the last number plus one; it is the fencing token. Renewals and
releases apply to that number only, so a process can never renew or release a later term, its own or another's. A store
that numbers its writes itself may assign a greater number (:attr:`Record.claimed_token`).

Not guaranteed: a store whose replacement is not atomic; clock rates that differ by more than 10 %.
"""

import asyncio
import contextlib
import math
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import check_address, check_seconds, quoted, shown
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._logging import get_logger
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.models import Grant, Holder
from pgleaderlock.stores._renewal_retry import renew_patiently
from pgleaderlock.stores.base import Backend, leased_grant
from pgleaderlock.stores.lease_observation import LeaseObservation, Record
from pgleaderlock.stores.times import USUAL_LEASE_S, answer_bound_s

__all__ = ["Claim", "Record", "RecordBackend", "RecordStore", "check_identity", "default_identity"]

T = TypeVar("T")

_STORE_S = 0.05
_MOST_TRIES = 5  # to replace a record that another client keeps modifying


def default_identity() -> str:
    """Return a candidate name that is unique across processes, hosts and time."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


def check_identity(identity: object) -> str:
    """Return the identity; ValueError when it is empty, which marks a free lock, or not printable."""
    if not isinstance(identity, str) or not identity or not identity.isprintable():
        raise ValueError(
            f"identity must be a name of printable characters, got {quoted(identity)}: an empty one marks a free lock"
        )
    return identity


@dataclass(frozen=True, slots=True)
class Claim:
    """The values of a write: an acquisition, a renewal, or a release (an empty ``holder``)."""

    holder: str
    token: int
    lease_s: float
    is_new_term: bool
    """False for a renewal and a release, which keep the time at which the term began."""
    address: str | None = None
    """Where clients reach the holder; None if it advertises no address."""


class RecordStore(ABC):
    """One record in a store. Its failures are ConnectionError; time limits are set by the caller."""

    carries_address = False
    """Whether :meth:`write` keeps the address of a claim, and :meth:`read` returns it in the record."""

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, object]:
        """The fields that identify the record in every log line."""

    @abstractmethod
    async def read(self) -> Record | None:
        """Return the record; None when there is none yet."""

    async def peek(self) -> Record | None:
        """Return the record for display, also one that :meth:`read` refuses because no candidate may decide by it."""
        return await self.read()

    @property
    def absence(self) -> str:
        """A sentence for the operator on why there may be no record; empty where that just means a free lock."""
        return ""

    @abstractmethod
    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Replace exactly that record, or create the first; return None when another client's write came first.

        The record of a new term may have a greater token than the claim, such as the number that the store gives to
        this write. Then it has the claim's as ``claimed_token``, and so has :meth:`read` until the first renewal: by
        that a candidate finds its own term when the answer to a write was lost.
        """

    def only_read(self) -> None:  # noqa: B027 - most stores change nothing when they are read
        """From now on, change nothing: the store is used by a process that takes no part."""

    async def open(self) -> None:  # noqa: B027 - a store that needs no preparation is complete without
        """Connect to the store. Does nothing when connected already."""

    @property
    def open_s(self) -> float:
        """How many seconds :meth:`open` may take while no lease is held that could expire meanwhile."""
        return 0.0

    async def close(self) -> None:  # noqa: B027 - nor does every store have something to close
        """Close connections and files. Does not raise, does not hang, may be repeated."""

    def is_abandoned(self, record: Record) -> bool:  # noqa: ARG002 - for those that can tell
        """Whether the store knows for certain that the holder of this record has ended."""
        return False

    def lifeline(self) -> tuple[int, ...]:
        """Return the descriptors of which a copy keeps :meth:`is_abandoned` False, as a Backend's does."""
        return ()

    @property
    def last_token(self) -> float:
        """The greatest token that can be written; :meth:`write` refuses a greater one with a LockError."""
        return math.inf

    @property
    def freeing(self) -> str:
        """The command with which an operator frees the record of a holder that has ended; empty where none exists."""
        return ""

    async def overwritten(self, held: Record) -> Record | None:  # noqa: ARG002 - for those that can
        """Return the current record as soon as the store reports by itself that it is no longer the one that we hold.

        None means that the caller must read it. A store without such reports never returns, and does not raise. May be
        cancelled, and called again.
        """
        await asyncio.get_running_loop().create_future()
        raise NotImplementedError  # that future has no result

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:  # noqa: ARG002 - for those that can
        """Return when the record may differ from the one that was seen, at the latest after ``timeout_s``.

        A store that is notified of the new record returns it and saves a read; None means that the caller must read it.
        No change may be missed in between: subscribe first, then read. May be cancelled.
        """
        await asyncio.sleep(timeout_s)
        return None


class RecordBackend(Backend):
    """One candidate for one record."""

    def __init__(
        self,
        store: RecordStore,
        *,
        identity: str | None = None,
        lease_s: float = USUAL_LEASE_S,
        clock: Clock = suspend_aware_clock,
        address: str | None = None,
    ) -> None:
        self._store = store
        self._address = check_address(address) if store.carries_address else None
        self._has_own_name = identity is not None
        self._identity = default_identity() if identity is None else check_identity(identity)
        self._pid = os.getpid()
        self._attempted: set[int] = set()  # the tokens that we tried to write, successfully or not
        self._lease_s = check_seconds("lease_s", lease_s)
        self._clock = clock
        self._held: Record | None = None  # the record that we wrote last, while we hold the term as far as we know
        self._observation = LeaseObservation(self._lease_s)
        self._ready: Record | None = None  # the record that wait() found free: try_acquire replaces it if unchanged
        self._refused: Record | None = None  # the record that wait() read last and found held: try_acquire reads none
        self._logger = get_logger().bind(**store.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of the store."""
        return self._store.labels

    @property
    def lease_s(self) -> float:
        """The lease duration in seconds: other candidates take over from a record that is unchanged for so long."""
        return self._lease_s

    @property
    def identity(self) -> str:
        """The name that this candidate writes into the record."""
        return self._identity

    @property
    def address(self) -> str | None:
        """The address that the record has while we hold it."""
        return self._address

    @property
    def store(self) -> RecordStore:
        """The store of the record, to read it without taking part."""
        return self._store

    def _claim(self, holder: str, token: int, *, is_new_term: bool = False) -> Claim:
        return Claim(holder, token, self._lease_s, is_new_term, self._address if holder else None)

    # --- The verbs ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect to the store."""
        self._adopt_process()
        await self._bounded(self._store.open(), at_least_s=self._store.open_s if self._held is None else 0.0)

    async def try_acquire(self) -> Grant | None:
        """Write our name into a record that is free, expired, or ours from an attempt whose answer was lost."""
        self._adopt_process()
        record, refused = self._ready, self._refused
        self._ready = self._refused = None  # used once, whether this attempt succeeds or not
        if record is None:  # a record whose lease has expired since is read again
            record = refused if refused is not None and not self._may_take(refused) else await self._look()
        if not self._may_take(record):
            self._check_end(record)
            return None
        sent = self._clock()
        token = self._next_token(record)
        self._attempted.add(token)
        claim = self._claim(self._identity, token, is_new_term=True)
        self._held = await self._bounded(self._store.write(claim, record))
        if self._held is None:
            await self._look()  # so that the winner's lease counts from now on, not from our next look
            return None
        self._observation.highest = self._held.token
        return leased_grant(self._held.token, sent, self._lease_s)

    async def renew(self, grant: Grant) -> Grant:
        """Renew the record; retry until that succeeds or leadership is declared lost."""
        self._check_process(grant)

        async def renew_once() -> Grant | None:
            sent = self._clock()
            is_ours = await self._write_again(grant, self._identity)
            return leased_grant(grant.token, sent, self._lease_s) if is_ours else None

        return await self._unless_taken(renew_patiently(renew_once, grant, self._lease_s, self._clock, self._logger))

    async def lost(self) -> PgLeaderLockError | None:
        """Return the reason as soon as the store reports another holder or none; None when :meth:`renew` must check."""
        seen = self._held
        try:
            while seen is not None and (record := await self._store.overwritten(seen)) is not None:
                if not self._is_ours(record, seen.token):
                    self._held = None
                    return self._over(seen.token, f"is {_described(record)}")
                seen = record
        except Exception as error:  # noqa: BLE001 - watching only detects a loss sooner: a renewal detects it too
            self._logger.debug("watch_failed", error=error)
            seen = None
        if seen is None:
            return await super().lost()
        return None

    async def _unless_taken(self, renewal: Coroutine[Any, Any, Grant]) -> Grant:
        """Renew, unless the store reports the end of our term first: the answer to a renewal may take long."""
        loop = asyncio.get_running_loop()
        renewing, losing = tasks = loop.create_task(renewal), loop.create_task(self.lost())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not renewing.done() and (error := losing.result()) is not None:
                raise error
            return await renewing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                _ = task.cancelled() or task.exception()  # retrieved, so that asyncio does not report it as forgotten

    async def release(self, grant: Grant) -> None:
        """Release the lock by writing an empty holder. If that fails, :meth:`close` tries once more."""
        try:
            self._check_process(grant)
            for _ in range(_MOST_TRIES):
                if await self._write_again(grant, ""):
                    self._held = None
                    return
            raise ConnectionError(f"the record of {self._labels_text()} was modified concurrently: it was not released")
        except LeadershipLost as error:
            raise LockError(f"there was nothing to release: {error}", cause=error.cause) from error

    async def holder(self) -> Holder | None:
        """Return the holder that the record names; None when the lock is free."""
        record = await self._bounded(self._store.peek())
        return None if record is None or not record.holder else Holder(record.holder, since=record.since)

    def lifeline(self) -> tuple[int, ...]:
        """Return the descriptors of the store."""
        return self._store.lifeline()

    async def explain_absence(self) -> str:
        """Return why the lock that :meth:`holder` found free may have no record; empty when there is one."""
        return self._store.absence if await self._bounded(self._store.peek()) is None else ""

    async def close(self) -> None:
        """Release the record if we may hold it and the store answers quickly; then close the store."""
        held, self._held, self._ready, self._refused = self._held, None, None, None
        if self._pid != os.getpid():
            return  # the record is our parent's, and so are the connections
        try:
            if held is not None:
                await self._release_quickly(held)
        finally:
            await self._store.close()

    async def _release_quickly(self, held: Record) -> None:
        claim = self._claim("", held.token)
        try:
            async with asyncio.timeout(min(1.0, self._lease_s / 10)):
                if await self._store.write(claim, held) is None:
                    await self._release_what_is_there(held)
        except Exception as error:  # noqa: BLE001 - a store may raise anything, and close() must not fail
            self._logger.warning("not_released", error=str(error) or type(error).__name__, free_in_s=self._lease_s)

    async def _release_what_is_there(self, held: Record) -> None:
        """Release the record as it is now, if it is ours: the answer to our last write may have been lost."""
        record = await self._store.read()
        if record is not None and (record.holder, record.token) == (self._identity, held.token):
            await self._store.write(self._claim("", record.token), record)

    async def wait(self, timeout_s: float) -> None:
        """Read the record whenever it may have changed, until it can be acquired or ``timeout_s`` is over."""
        deadline = self._clock() + timeout_s
        self._ready = self._refused = None
        while (left_s := deadline - self._clock()) > 0:
            if math.isfinite(self._observation.over_at):
                left_s = min(left_s, max(0.0, self._observation.over_at - self._clock()))
            began, seen, record = self._clock(), self._observation.current, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s + _STORE_S):  # the store's own end of waiting comes first
                    record = await self._store.changed(seen, left_s)
            record = await self._look() if record is None else self._noted(record)
            if self._may_take(record):
                self._ready, self._refused = record, None
                return
            self._refused = record
            if record == seen and self._clock() < began + _STORE_S:  # the store reported a change, but there was none
                await asyncio.sleep(_STORE_S)

    # --- The decisions -----------------------------------------------------------------------------------------

    async def _look(self) -> Record | None:
        """Read the record, and note when we first saw this version of it."""
        return self._noted(await self._bounded(self._store.read()))

    def _noted(self, record: Record | None) -> Record | None:
        self._observation.note(record, self._clock())
        if record is not None:
            self._attempted = {token for token in self._attempted if token >= _claimed(record)}
        return record

    def _adopt_process(self) -> None:
        """In a forked child, take a new identity: with a shared one, child and parent would renew each other's term."""
        if self._pid == os.getpid():
            return
        if self._has_own_name:
            raise LockError(f"this backend was made as {self._identity} before a fork: make one in each process")
        self._pid, self._identity = os.getpid(), default_identity()
        self._held = self._ready = self._refused = None
        self._attempted.clear()
        self._observation.forget()

    def _check_process(self, grant: Grant) -> None:
        if self._pid != os.getpid():
            raise self._over(grant.token, "is held by our parent, if at all")

    def _may_take(self, record: Record | None) -> bool:
        if self._observation.is_free(self._clock()):
            return True
        is_ours = record is not None and record.holder == self._identity and _claimed(record) in self._attempted
        return is_ours or (record is not None and self._store.is_abandoned(record))

    def _next_token(self, record: Record | None) -> int:
        """Return the next token: above the highest seen, or above the current record's if the highest is the last."""
        if self._observation.highest >= self._store.last_token:
            self._observation.highest = -1 if record is None else record.token
        return self._observation.highest + 1

    def _check_end(self, record: Record | None) -> None:
        """Raise LockError for a lease so long that it would be wrong to wait for its end without a message."""
        endless = self._observation.endless
        if record is None or endless is None or record.holder == self._identity:
            return
        by_hand = f": {self._store.freeing}" if self._store.freeing else ""
        raise LockError(
            f"the lease of {self._labels_text()} is held by {shown(endless.holder)} for {endless.lease_s:.0f} s after "
            "each renewal: no other candidate can lead before that. If that holder does not run any more, empty the "
            f"name of the holder by hand{by_hand}"
        )

    def _is_ours(self, record: Record, token: int | None) -> bool:
        return record.holder == self._identity and record.token == token

    async def _write_again(self, grant: Grant, holder: str) -> bool:
        """Replace the record that we wrote last. Return False when it was modified but is still ours: try again."""
        assert grant.token is not None  # noqa: S101 - every grant of ours has one
        if grant.token < self._observation.highest:
            raise self._over(grant.token, f"was acquired again, in term {self._observation.highest}")
        claim = self._claim(holder, grant.token)
        if self._held is not None:
            written = await self._bounded(self._store.write(claim, self._held))
            if written is not None:
                self._held = written
                return True
        record = await self._bounded(self._store.read())
        if record is None or not self._is_ours(record, grant.token):
            self._held = None
            raise self._over(grant.token, f"is {_described(record)}")
        self._held = record
        return False

    def _over(self, token: int | None, what_happened: str) -> LeadershipLost:
        return LeadershipLost(
            f"the lease of {self._labels_text()} {what_happened}: our term {token} is over",
            cause=LossCause.HELD_BY_ANOTHER,
        )

    async def _bounded(self, call: Awaitable[T], at_least_s: float = 0.0) -> T:
        """Await the store's answer, for ``answer_bound_s`` at most."""
        bound_s = max(answer_bound_s(self._lease_s), at_least_s)
        try:
            async with asyncio.timeout(bound_s):
                return await call
        except TimeoutError:
            pass
        # Raised outside the except block: as its context, the TimeoutError would keep the driver's frames and socket.
        raise ConnectionError(
            f"the store of {self._labels_text()} did not answer within {bound_s:g} s", cause=LossCause.RENEW_TIMEOUT
        )

    def _labels_text(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.labels.items())


def _claimed(record: Record) -> int:
    """Return the token that the candidate wrote, which the store may have replaced by a greater one."""
    return record.token if record.claimed_token is None else record.claimed_token


def _described(record: Record | None) -> str:
    if record is None:
        return "gone"
    holder = shown(record.holder)
    return f"held by {holder} in term {record.token}" if holder else f"free after term {record.token}"
