"""A command for one slot of the ledger: run by the one process that claimed it, under a guardian as in a term.

The supervisor runs commands in terms of an election. Here the term is the claim: an election of this process alone,
which no lease ends. The guardian gets a copy of the claim's session, so that the slot counts as running until every
process of the command is dead, also when the wrapper was killed.
"""

from collections.abc import Callable, Mapping

from pgleaderlock.engine.election import Election
from pgleaderlock.models import EventKind, Grant, Holder
from pgleaderlock.stores.base import Backend
from pgleaderlock.work.exec.supervisor import Ending

__all__ = ["ClaimedSlot", "CommandFailedError", "SlotElection"]

_FAILURES = (EventKind.ERROR, EventKind.OVERRUN)


class CommandFailedError(Exception):
    """Raised in the block of a slot whose command did not end with the exit code 0: the slot has failed."""

    def __init__(self, why: str, ending: Ending) -> None:
        super().__init__(why)
        self.ending = ending


class ClaimedSlot(Backend):
    """The backend of an election that this process has won: it claimed the slot."""

    def __init__(self, labels: Mapping[str, object], lifeline: Callable[[], tuple[int, ...]]) -> None:
        self._labels = labels
        self._lifeline = lifeline

    @property
    def labels(self) -> Mapping[str, object]:
        """The labels of the lock."""
        return self._labels

    async def open(self) -> None:
        """Do nothing: the session of the claim is open."""

    async def try_acquire(self) -> Grant | None:
        """Return a grant without an end."""
        return Grant()

    async def renew(self, grant: Grant) -> Grant:
        """Return the same grant."""
        return grant

    async def release(self, grant: Grant) -> None:
        """Do nothing: the claim ends when its outcome is recorded."""

    async def holder(self) -> Holder | None:
        """Return None: there is only this candidate."""
        return None

    async def close(self) -> None:
        """Do nothing."""

    def lifeline(self) -> tuple[int, ...]:
        """Return the descriptor of the claim's session."""
        return self._lifeline()


class SlotElection(Election):
    """The election on a claimed slot. It logs failures only: no process leads, so no change of leader is reported."""

    def __init__(self, slot: ClaimedSlot) -> None:
        super().__init__(slot)
        log = self._log_event
        self._listeners.remove(log)
        self.subscribe(lambda event: log(event) if event.kind in _FAILURES else None)
