"""``pgleaderlock acquire``: try once to acquire the lock, and hold it for a while.

It is an election with one attempt and no second term, so the holder has the same guarantees as a leader.
"""

import asyncio
import signal
from typing import Any

import click

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import describe_holder, holder_fields, print_folded, print_json, visible
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.participant import Participant
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.cli.status import ANSWER_TIMEOUT_S, glance
from pgleaderlock.cli.target import Target
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import Event, EventKind, RetryContext

_SILENT_S = 2.0
_AFTER_ERROR_S = 1.0


class Attempts:
    """The retry strategy of ``acquire``: retry until ``wait_s`` have passed; with 0, try once."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def next_delay_s(self, ctx: RetryContext) -> float | None:
        """Return the rest of the time, since most stores notify a follower earlier; None when the time is over."""
        left_s = self._wait_s - ctx.elapsed_s
        if left_s <= 0:
            return None
        return left_s if ctx.last_error is None else min(left_s, _AFTER_ERROR_S)


async def acquire_once(lock: Election, target: Target, *, hold_s: float, wait_s: float, as_json: bool) -> int:
    """Acquire, hold and release; return the exit code. ``lock`` must be made with :class:`Attempts`."""
    attempt = _Attempt(lock, target, wait_s, as_json=as_json)
    with call_on_signal(attempt.participant.stop):
        try:
            return await attempt.run(hold_s)
        finally:
            await attempt.participant.leave()


class _Attempt:
    """One attempt to acquire the lock, and its outcome."""

    def __init__(self, lock: Election, target: Target, wait_s: float, *, as_json: bool) -> None:
        self._wait_s = wait_s
        self.participant = Participant(lock)
        self._lock = lock
        self._target = target
        self._name = target.name
        self._as_json = as_json
        self._answer: asyncio.Future[EventKind] = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._was_lost = self._was_refused = False
        lock.subscribe(self._hear)

    async def run(self, hold_s: float) -> int:
        await self._lock.start()
        ends: set[asyncio.Future[Any]] = {self._answer, self.participant.ended, self.participant.stop_asked}
        await asyncio.wait(ends, timeout=_SILENT_S, return_when=asyncio.FIRST_COMPLETED)
        if not any(end.done() for end in ends):
            await self._wait_longer(ends)
        if not self._answer.done() and not self._gave_up:
            return await self._end_without_answer()
        if not self._answer.done() or self._answer.result() is EventKind.ACQUIRE_FAILED:
            await self._report_held()
            return exit_codes.NOT_ACQUIRED
        self._report("acquired", f"acquired {self._name}", hold_s=hold_s)
        ends = {self.participant.ended, self.participant.stop_asked}
        await asyncio.wait(ends, timeout=hold_s, return_when=asyncio.FIRST_COMPLETED)
        return await self._end_term()

    async def _wait_longer(self, ends: set[asyncio.Future[Any]]) -> None:
        """Wait for one of the ends, and print meanwhile what the command is waiting for."""
        telling = asyncio.ensure_future(self._tell_what_it_waits_for())
        patience_s = self._wait_s + ANSWER_TIMEOUT_S - _SILENT_S
        await asyncio.wait(ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if any(end.done() for end in ends):
            telling.cancel()
        await asyncio.wait({telling})

    async def _tell_what_it_waits_for(self) -> None:
        if self._wait_s <= 0:
            _, note = await glance(self._target)
            why = visible(note) or "quiet period after a server start, one lease long"
            click.echo(f"still waiting for {self._name}: {why}", err=True)

    @property
    def _gave_up(self) -> bool:
        """Whether another process held the lock for the whole time."""
        return self._was_refused and self.participant.ended.done() and not self.participant.stop_asked.done()

    async def _end_without_answer(self) -> int:
        asked = self.participant.stop_asked
        if asked.done() and asked.result() is not None:
            await self.participant.leave()
            return exit_codes.TERMINATED if asked.result() is signal.SIGTERM else exit_codes.INTERRUPTED
        _, note = await glance(self._target)  # before leaving: this may show our own session as queued
        await self.participant.leave()
        if note:  # the store answers, and its note is the reason
            raise UnreachableError(f"{self._name} could not be acquired: {visible(note)}")
        silence = ConnectionError(f"the store did not answer about lock {self._name} in {ANSWER_TIMEOUT_S:g} s")
        raise UnreachableError.from_error(self._error or silence, self._target.advice)

    async def _end_term(self) -> int:
        await self.participant.leave()
        if self._was_lost:
            self._report("lost", f"lost {self._name} while holding it: {self._error}")
            return exit_codes.LEADERSHIP_ENDED
        if not self.participant.ended_cleanly:
            self._report("closed", f"closed the session of {self._name}, its release was not confirmed: {self._error}")
            return exit_codes.LEADERSHIP_ENDED
        self._report("released", f"released {self._name}")
        return exit_codes.CLEAN

    async def _report_held(self) -> None:
        holder, note = await glance(self._target)
        fields = None if holder is None else holder_fields(holder)
        who = "another process" if holder is None else describe_holder(holder)
        more = {"note": note} if note else {}
        problem = f"\n  problem: {visible(note)}" if note else ""
        self._report("held_by_another", f"{self._name} is held by {who}{problem}", holder=fields, **more)

    def _report(self, outcome: str, text: str, **fields: Any) -> None:
        if self._as_json:
            print_json({"outcome": outcome, **self._target.fields, **fields})
        else:
            print_folded(text)

    def _hear(self, event: Event) -> None:
        if event.kind is EventKind.ACQUIRE_FAILED and self._wait_s > 0:
            self._was_refused = True
        elif event.kind in {EventKind.ACQUIRED, EventKind.ACQUIRE_FAILED} and not self._answer.done():
            self._answer.set_result(event.kind)
        elif event.kind is EventKind.ERROR and self._error is None:
            self._error = event.error
        elif event.kind is EventKind.LOST:
            self._was_lost = True
