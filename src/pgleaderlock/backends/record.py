"""A lease that is a record: somebody's name, a term, and how long silence lasts before it is over.

A record store (:class:`RecordStore`) can read one record and replace it if it is still the one that was read. That is
all that an election needs; a row, a Kubernetes Lease, a file and a dictionary can do it. What follows from it is the
same for all of them and is decided here.

**Expiry is judged on our own clock.** A record is over when *we* have not seen it change for as long as the record
itself says. Its times of day are for people: clocks of two hosts are never compared, the store's neither. So a process
that just started waits for one whole lease before it takes over from somebody silent.

**Trust counts from sending.** A write that was sent at *s* was seen by others no earlier than *s*, so none of them
takes over before *s* + T. Our own trust ends at *s* + 0.9 T, and leadership is declared lost at *s* + 2/3 T.

**One failed renewal is not a loss.** It is tried again, for as long as leadership is not declared lost. A write whose
answer was lost may have arrived: the next one then finds another version, reads it, and recognises its own hand.

**A term is a number.** Every acquisition writes the last number plus one; it is the fencing token. Renewing and
releasing are scoped to it, so a process can never renew or release a later term, of its own or of another.

Not promised: a store whose replacement is not atomic. Clock rates that differ by more than 10 %.
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

from pgleaderlock._checks import check_seconds, quoted, shown
from pgleaderlock._logging import get_logger
from pgleaderlock._sighting import Record, Sighting
from pgleaderlock.backends._patience import renew_patiently
from pgleaderlock.backends.base import Backend, leased_grant
from pgleaderlock.causes import LossCause
from pgleaderlock.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.models import Grant, Holder

__all__ = ["Claim", "Record", "RecordBackend", "RecordStore", "check_identity", "default_identity"]

T = TypeVar("T")

_STORE_S = 0.05
_MOST_TRIES = 5  # to replace a record that somebody else keeps touching


def default_identity() -> str:
    """Return a name that no other process has, on this host or another, now or later."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


def check_identity(identity: object) -> str:
    """Return the name if it can be one. An empty one would mean nobody, and a line end is not to be seen."""
    if not isinstance(identity, str) or not identity or not identity.isprintable():
        raise ValueError(
            f"identity must be a name of printable characters, got {quoted(identity)}: an empty one would mean nobody"
        )
    return identity


@dataclass(frozen=True, slots=True)
class Claim:
    """What is to be written."""

    holder: str
    token: int
    lease_s: float
    is_new_term: bool
    """False for a renewal and a release, which keep the time at which the term began."""


class RecordStore(ABC):
    """One record in some place. Errors are ConnectionError; time limits are not the store's business."""

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, object]:
        """What names the record in every log line."""

    @abstractmethod
    async def read(self) -> Record | None:
        """Return the record; None when there is none yet."""

    async def peek(self) -> Record | None:
        """Return the record for people to look at, also where :meth:`read` refuses what must not be decided by."""
        return await self.read()

    @property
    def absence(self) -> str:
        """What it may mean that there is no record, as a sentence for people; empty where it means a free lock."""
        return ""

    @abstractmethod
    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Replace exactly that record, or make the first; None when another was quicker."""

    async def open(self) -> None:  # noqa: B027 - a store that needs no preparation is complete without
        """Get ready. Does nothing when ready already."""

    @property
    def open_s(self) -> float:
        """How long getting ready may take, while nothing is held that could run out meanwhile."""
        return 0.0

    async def close(self) -> None:  # noqa: B027 - nor one that has nothing to let go of
        """Let go of connections and files. Does not raise, does not hang, may be repeated."""

    def is_abandoned(self, record: Record) -> bool:  # noqa: ARG002 - for those that can tell
        """Whether the store knows for certain that the holder of this record is gone."""
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
        """How a person frees the record of a holder that is gone, as a command; empty where there is none to give."""
        return ""

    async def overwritten(self, held: Record) -> Record | None:  # noqa: ARG002 - for those that can
        """Return when the store shows by itself that the record is no longer the one that we hold: what it is now.

        None means that it must be looked at. A store that shows nothing never returns, and does not raise. May be
        cancelled, and asked again.
        """
        await asyncio.get_running_loop().create_future()
        raise NotImplementedError  # that future has no result

    async def changed(self, seen: Record | None, timeout_s: float) -> Record | None:  # noqa: ARG002 - for those that can
        """Return when the record may differ from the one that was seen, at the latest after ``timeout_s``.

        A store that is told what the record is now returns it, and saves a reading; None means that it must be read. A
        change between the two must not be missed: look after beginning to listen. May be cancelled.
        """
        await asyncio.sleep(timeout_s)
        return None


class RecordBackend(Backend):
    """One contender for one record."""

    def __init__(
        self,
        store: RecordStore,
        *,
        identity: str | None = None,
        lease_s: float = 15.0,
        clock: Clock = suspend_aware_clock,
    ) -> None:
        self._store = store
        self._has_own_name = identity is not None
        self._identity = default_identity() if identity is None else check_identity(identity)
        self._pid = os.getpid()
        self._attempted: set[int] = set()  # the tokens that we tried to write, whatever became of them
        self._lease_s = check_seconds("lease_s", lease_s)
        self._clock = clock
        self._held: Record | None = None  # what we wrote last, while the term is ours as far as we know
        self._sighting = Sighting(self._lease_s)
        self._ready: Record | None = None  # what waiting has shown to be free: replacing it will tell if it still is
        self._logger = get_logger().bind(**store.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """As the store is labelled."""
        return self._store.labels

    @property
    def lease_s(self) -> float:
        """Return how long the others wait for a record that does not change."""
        return self._lease_s

    @property
    def identity(self) -> str:
        """Under which name this contender writes."""
        return self._identity

    # --- The verbs ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Get the store ready."""
        self._be_one_process()
        await self._bounded(self._store.open(), at_least_s=self._store.open_s if self._held is None else 0.0)

    async def try_acquire(self) -> Grant | None:
        """Write our name over a record that is free, over, or ours from an attempt whose outcome we never learned."""
        self._be_one_process()
        record = await self._look() if self._ready is None else self._ready
        self._ready = None  # whatever becomes of this attempt
        if not self._may_take(record):
            self._check_end(record)
            return None
        sent = self._clock()
        token = self._next_token(record)
        self._attempted.add(token)
        claim = Claim(self._identity, token, self._lease_s, is_new_term=True)
        self._held = await self._bounded(self._store.write(claim, record))
        if self._held is None:
            await self._look()  # at whoever was quicker: its lease counts from here, not from when we look next
            return None
        self._sighting.highest = self._held.token
        return leased_grant(self._held.token, sent, self._lease_s)

    async def renew(self, grant: Grant) -> Grant:
        """Write our name again, and again until it works or leadership is declared lost."""
        self._check_process(grant)

        async def renew_once() -> Grant | None:
            sent = self._clock()
            is_ours = await self._write_again(grant, self._identity)
            return leased_grant(grant.token, sent, self._lease_s) if is_ours else None

        return await self._unless_taken(renew_patiently(renew_once, grant, self._lease_s, self._clock, self._logger))

    async def lost(self) -> PgLeaderLockError | None:
        """Return as soon as the store shows that another holds the record, or none; None when it is to be looked at."""
        seen = self._held
        try:
            while seen is not None and (record := await self._store.overwritten(seen)) is not None:
                if not self._is_ours(record, seen.token):
                    self._held = None
                    return self._over(seen.token, f"is {_described(record)}")
                seen = record
        except Exception as error:  # noqa: BLE001 - watching only makes the loss known sooner: a renewal finds it too
            self._logger.debug("watch_failed", error=error)
            seen = None
        if seen is None:
            return await super().lost()
        return None

    async def _unless_taken(self, renewal: Coroutine[Any, Any, Grant]) -> Grant:
        """Renew, unless the store shows meanwhile that our term is over: an answer may be long in coming."""
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
        """Write an empty name. Whatever keeps us from it, :meth:`close` tries once more."""
        try:
            self._check_process(grant)
            for _ in range(_MOST_TRIES):
                if await self._write_again(grant, ""):
                    self._held = None
                    return
            raise ConnectionError(f"the record of {self._labels_text()} changes under our hands: it was not released")
        except LeadershipLost as error:
            raise LockError(f"there was nothing to release: {error}", cause=error.cause) from error

    async def holder(self) -> Holder | None:
        """Say whose name is in the record."""
        record = await self._bounded(self._store.peek())
        return None if record is None or not record.holder else Holder(record.holder, since=record.since)

    def lifeline(self) -> tuple[int, ...]:
        """Return what the store has."""
        return self._store.lifeline()

    async def explain_absence(self) -> str:
        """Look once more, and say what is odd about a lock that :meth:`holder` found free; empty when nothing is."""
        return self._store.absence if await self._bounded(self._store.peek()) is None else ""

    async def close(self) -> None:
        """Release what may be ours, if the store answers quickly; then let go of the store."""
        held, self._held, self._ready = self._held, None, None
        if self._pid != os.getpid():
            return  # the record is our parent's, and so are the connections
        try:
            if held is not None:
                await self._release_quickly(held)
        finally:
            await self._store.close()

    async def _release_quickly(self, held: Record) -> None:
        claim = Claim("", held.token, self._lease_s, is_new_term=False)
        try:
            async with asyncio.timeout(min(1.0, self._lease_s / 10)):
                if await self._store.write(claim, held) is None:
                    await self._release_what_is_there(held)
        except Exception as error:  # noqa: BLE001 - a store may raise anything, and to be closed is not to fail
            self._logger.warning("not_released", error=str(error) or type(error).__name__, free_in_s=self._lease_s)

    async def _release_what_is_there(self, held: Record) -> None:
        """An answer of ours was lost, perhaps: the record is a later one than we know of, and may still be ours."""
        record = await self._store.read()
        if record is not None and (record.holder, record.token) == (self._identity, held.token):
            await self._store.write(Claim("", record.token, self._lease_s, is_new_term=False), record)

    async def wait(self, timeout_s: float) -> None:
        """Look whenever the record may have changed, until it can be taken or the time is up."""
        deadline = self._clock() + timeout_s
        self._ready = None
        while (left_s := deadline - self._clock()) > 0:
            if math.isfinite(self._sighting.over_at):
                left_s = min(left_s, max(0.0, self._sighting.over_at - self._clock()))
            began, seen, record = self._clock(), self._sighting.current, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s + _STORE_S):  # the store's own end of waiting comes first
                    record = await self._store.changed(seen, left_s)
            record = await self._look() if record is None else self._noted(record)
            if self._may_take(record):
                self._ready = record
                return
            if record == seen and self._clock() < began + _STORE_S:  # it said that there was news, and there is none
                await asyncio.sleep(_STORE_S)

    # --- The decisions -----------------------------------------------------------------------------------------

    async def _look(self) -> Record | None:
        """Read the record, and note when we first saw it as it is."""
        return self._noted(await self._bounded(self._store.read()))

    def _noted(self, record: Record | None) -> Record | None:
        self._sighting.note(record, self._clock())
        if record is not None:
            self._attempted = {token for token in self._attempted if token >= record.token}
        return record

    def _be_one_process(self) -> None:
        """A forked child must not compete under its parent's name: each would take the other's record for its own."""
        if self._pid == os.getpid():
            return
        if self._has_own_name:
            raise LockError(f"this backend was made as {self._identity} before a fork: make one in each process")
        self._pid, self._identity = os.getpid(), default_identity()
        self._held = self._ready = None
        self._attempted.clear()
        self._sighting.forget()

    def _check_process(self, grant: Grant) -> None:
        if self._pid != os.getpid():
            raise self._over(grant.token, "is held by our parent, if at all")

    def _may_take(self, record: Record | None) -> bool:
        if self._sighting.is_free(self._clock()):
            return True
        is_ours = record is not None and record.holder == self._identity and record.token in self._attempted
        return is_ours or (record is not None and self._store.is_abandoned(record))

    def _next_token(self, record: Record | None) -> int:
        """Return the number of the next term; from the record where what was once seen there leaves none to follow."""
        if self._sighting.highest >= self._store.last_token:
            self._sighting.highest = -1 if record is None else record.token
        return self._sighting.highest + 1

    def _check_end(self, record: Record | None) -> None:
        """Report a record that is held for so long that waiting for its end in silence would be a failure."""
        endless = self._sighting.endless
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
        """Replace what we wrote last. False when it was touched and is still ours: then try once more."""
        assert grant.token is not None  # noqa: S101 - every grant of ours has one
        if grant.token < self._sighting.highest:
            raise self._over(grant.token, f"was taken anew, in term {self._sighting.highest}")
        claim = Claim(holder, grant.token, self._lease_s, is_new_term=False)
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
        """Wait for the store no longer than its answer could be of use."""
        bound_s = max(self._lease_s * 2 / 3, at_least_s)
        try:
            async with asyncio.timeout(bound_s):
                return await call
        except TimeoutError:
            pass
        # Raised here: as its context, the time-out would keep the driver's frames alive, and the socket in them open.
        raise ConnectionError(
            f"the store of {self._labels_text()} did not answer within {bound_s:g} s", cause=LossCause.RENEW_TIMEOUT
        )

    def _labels_text(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.labels.items())


def _described(record: Record | None) -> str:
    return "gone" if record is None else f"held by {shown(record.holder) or 'nobody'} in term {record.token}"
