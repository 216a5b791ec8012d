"""``while_leader`` and ``run_while_leader``: functions that run in each term, and only there.

The functions are registered here and run by the :class:`~pgleaderlock.gate.Gate`, which the engine turns.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar, overload

from pgleaderlock._bodies import AfterWork, Work, WorkPolicy
from pgleaderlock.callbacks import Callbacks
from pgleaderlock.gate import Gate
from pgleaderlock.term import Term

__all__ = ["Gated", "gate_of"]

W = TypeVar("W", bound=Work)


class Gated(Callbacks):
    """Registration of work that runs only while leading."""

    _gate: Gate

    @property
    def term(self) -> Term | None:
        """The term that this process leads in, as gated work sees it. None when not leading."""
        return self._gate.term

    @property
    def is_in_gated_work(self) -> bool:
        """Whether the caller is a function that runs because this process leads, in its task or its thread."""
        return self._gate.is_here

    @overload
    def while_leader(self, fn: W) -> W: ...
    @overload
    def while_leader(
        self,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
        drains: bool = False,
    ) -> Callable[[W], W]: ...
    def while_leader(
        self,
        fn: W | None = None,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
        drains: bool = False,
    ) -> W | Callable[[W], W]:
        """Run ``fn(term)``, or ``fn()``, in each term, and never twice at once in this process.

        A coroutine function is cancelled when leadership ends, and awaited. A plain function runs in a thread and has
        to look: ``while not term.wait(5): ...``. The lock is kept until it has stopped, for as long as leadership can
        be trusted; what runs longer is an overrun (:meth:`on_overrun`).

            @lock.while_leader
            async def work(term: Term) -> None:
                while True:
                    await do_one_thing(fence=term.token)

        When it returns or raises although the term goes on: ``restart`` it after a pause that grows, ``step_down``, or
        ``stop`` the election. With ``drains`` a coroutine function is not cancelled at once when leadership is handed
        over on request, but asked (``term.is_ending``) and left alone for up to ``drain_s``.
        """
        policy = WorkPolicy(on_return, on_failure, drains)

        def register(work: W) -> W:
            self._gate.add(work, policy, name)
            return work

        return register if fn is None else register(fn)

    async def run_while_leader(
        self,
        fn: Work,
        *,
        name: str | None = None,
        on_return: AfterWork = "restart",
        on_failure: AfterWork = "restart",
        drains: bool = False,
    ) -> object:
        """Take part, run ``fn`` in each term as :meth:`while_leader` does, and return when the election has stopped.

        Starts the election unless it runs, and then also shuts it down when the caller is cancelled. What the work
        returned is returned; what it raised is raised, if that is why the election stopped (``stop``).
        """
        policy = WorkPolicy(on_return, on_failure, drains)
        return await self._run_work(fn, policy, name, is_ours=not self._is_running())

    async def _run_work(self, fn: Work, policy: WorkPolicy, name: str | None, *, is_ours: bool) -> object:
        """Do so in an election that is ours to shut down, or is not."""
        body = self._gate.add(fn, policy, name, removable=True)
        try:
            await self.start()
            await self._until_stopped()
        finally:
            try:
                if is_ours:
                    await self.shutdown()
            finally:  # also when the caller is cancelled once more: or it would run in the next term, unasked
                stopping = self._gate.remove(body)
            if stopping is not None and not is_ours:  # a shutdown has waited for as long as there was to wait
                await asyncio.wait({stopping})
        if body.error is not None:
            raise body.error
        return body.result

    @abstractmethod
    def _is_running(self) -> bool:
        raise NotImplementedError

    @abstractmethod
    async def _until_stopped(self) -> None:
        raise NotImplementedError

    @abstractmethod
    async def start(self) -> None:
        """Begin to take part."""
        raise NotImplementedError

    @abstractmethod
    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Stop."""
        raise NotImplementedError


def gate_of(election: Gated) -> Gate:
    """Return the gate of an election, for whatever of this library runs more than a function under it."""
    return election._gate  # noqa: SLF001 - of its own class
