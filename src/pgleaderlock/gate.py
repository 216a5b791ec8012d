"""The gate between leadership and the work that may run only under it.

The engine turns it in the very step in which leadership begins or ends, before any callback is heard: what a callback
does can neither delay the start of work nor keep it from being told to stop. In the same step the engine asks here
whether everything has stopped, and keeps the lock for as long as it has not and the grant can still be trusted.

What has not stopped when trust has run out is an overrun: others may lead from then on. It is reported, once, with
the names of the work.

Not promised: that work stops. A coroutine that swallows its cancellation, and a thread that never asks its term, run
on; only the hard fence ends those.
"""

import asyncio
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from pgleaderlock._bodies import Body, Host, Stint, Work, WorkPolicy, is_on_a_loop
from pgleaderlock.clock import Clock
from pgleaderlock.errors import WorkOverrun
from pgleaderlock.models import EventKind, Grant
from pgleaderlock.term import Term

__all__ = ["Gate"]


class _HeldTerm(Term):
    """A term with its strings attached: the gate alone pulls them."""

    def __init__(self, grant: Grant, grant_now: Callable[[], Grant | None], clock: Clock, described: str) -> None:
        super().__init__(grant, grant_now, clock, described)
        self._shares: weakref.WeakSet[_HeldTerm] = weakref.WeakSet()  # a term may see many come and go

    def share(self) -> "_HeldTerm":
        """Return the same term for one that may have to stop before the others do."""
        shared = _HeldTerm(self._grant, self._grant_now, self._clock, self._described)
        self._shares.add(shared)
        return shared

    def ask(self, hand_over_at: float | None = None) -> None:
        """Say that it is time to stop."""
        if hand_over_at is not None:
            self._hand_over_at = hand_over_at
        self._asked.set()
        self._asked_here.set()
        for shared in self._shares:
            shared.ask(hand_over_at)

    def close(self, grant: Grant) -> None:
        """Say that the term is over, with the last grant that counted: how long there is to stop in."""
        self._grant = grant
        for shared in self._shares:
            shared.close(grant)
        self.ask()


class Gate:
    """All gated work of one election."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._bodies: list[Body] = []
        self._term: _HeldTerm | None = None
        self._stints: list[Stint] = []
        """What may still run, of this term and of earlier ones."""
        self._removable: dict[Body, _HeldTerm | None] = {}
        """Work that may be taken away, each with a term of its own while there is one."""

    @property
    def host(self) -> Host:
        """The election that all of it belongs to."""
        return self._host

    @property
    def term(self) -> Term | None:
        """The term that is open, if one is."""
        return self._term

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return all(stint.is_over for stint in self._stints)

    @property
    def is_here(self) -> bool:
        """Whether the caller is a piece of this work."""
        return any(stint.is_here and not stint.is_over for stint in self._stints)

    def follow(self, grant: Grant | None, *, leads: bool) -> None:
        """Open or close with the election. To be called in the step that changed its state."""
        if leads and self._term is None and grant is not None:
            self._open(grant)
        elif not leads and self._term is not None and grant is not None:
            self._close(replace(grant, trusted_until=grant.successor_from, kept_until=None))

    def add(self, fn: Work, policy: WorkPolicy, name: str | None = None, *, removable: bool = False) -> Body:
        """Run this in every term from now on; in the present one too, if there is one."""
        body = Body(fn, policy, self._host, name)
        self._bodies.append(body)
        if removable:
            self._removable[body] = None
            body.stint = self._left_of(fn)
        if self._term is not None and not self._term.is_ending:
            self._begin(body, self._term)
        return body

    def remove(self, body: Body) -> asyncio.Future[None] | None:
        """Run this no more. Returns what is done when it has stopped; None if it has."""
        self._bodies.remove(body)
        term = self._removable.pop(body, None)
        if body.stint is None or body.stint.is_over:
            return None
        if term is not None:
            term.ask()  # a thread hears of it in no other way
        body.stint.end()
        return body.stint.over

    def _left_of(self, fn: Work) -> Stint | None:
        """What still runs of this function, which was taken away and comes back: it must not run twice at once."""
        left = [stint for stint in self._stints if stint.fn == fn and not stint.is_over]
        return left[-1] if left and all(body.fn != fn for body in self._bodies[:-1]) else None

    async def drain(self, bound_s: float) -> None:
        """Before a hand-over: ask everything to stop, and wait until it has. Whoever waits sets the bound."""
        if self._term is None:
            return
        self._term.ask(self._host.clock() + bound_s)
        for stint in self._stints:
            stint.ask()
        await self.stopped()

    async def stopped(self, *, or_until: asyncio.Future[None] | None = None, timeout_s: float | None = None) -> None:
        """Wait until nothing runs any more, or the other thing has happened, or the time is up."""
        ends_at = math.inf if timeout_s is None else self._host.clock() + timeout_s
        while running := [stint.over for stint in self._stints if not stint.is_over]:
            left_s = None if timeout_s is None else ends_at - self._host.clock()
            if (left_s is not None and left_s <= 0) or (or_until is not None and or_until.done()):
                return
            either = {running[0], *([] if or_until is None else [or_until])}
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def judge(self) -> None:
        """Report what still runs although nobody may rely on leadership any more."""
        self._report([stint for stint in self._stints if not stint.is_over])

    def _open(self, grant: Grant) -> None:
        host = self._host
        held = _HeldTerm(grant, lambda: host.grant_now() if self._term is held else None, host.clock, host.described)
        self._term = held
        for body in self._bodies:
            self._begin(body, held)

    def _begin(self, body: Body, term: _HeldTerm) -> None:
        if body in self._removable:
            term = self._removable[body] = term.share()
        body.begin(term)
        assert body.stint is not None  # noqa: S101 - which the line before has made
        self._stints = [*(stint for stint in self._stints if not stint.is_over), body.stint]
        body.stint.over.add_done_callback(lambda _: self._note_end())

    def _note_end(self) -> None:
        if self.is_idle:
            self._host.note_rest()

    def _close(self, grant: Grant) -> None:
        """End everything, and look again when it should have ended."""
        term, self._term = self._term, None
        assert term is not None  # noqa: S101 - its caller looked
        term.close(grant)
        running = [stint for stint in self._stints if not stint.is_over]
        for stint in running:
            stint.end()
        self._look_again(running, grant)

    def _look_again(self, running: Sequence[Stint], grant: Grant) -> None:
        if not running or not is_on_a_loop():  # closed under the feet of an election, which is told much later
            return
        left_s = grant.trusted_until - self._host.clock()
        patience_s = self._host.patience_s if math.isinf(left_s) else max(0.0, left_s)
        asyncio.get_running_loop().call_later(patience_s, self._report, running)

    def _report(self, stints: Sequence[Stint]) -> None:
        late = [stint for stint in stints if not stint.is_over and not stint.is_reported]
        if not late or self._term is not None:  # leadership came back: nobody else has it
            return
        for stint in late:
            stint.is_reported = True
        names = tuple(stint.name for stint in late)
        error = WorkOverrun(
            f"{', '.join(names)} did not stop in time: another may lead {self._host.described} while it runs on. "
            "Let it look at term.is_ending, or be cancelled, or set hard_fence=True",
            names=names,
        )
        self._host.report(EventKind.OVERRUN, "work_overrun", error)
