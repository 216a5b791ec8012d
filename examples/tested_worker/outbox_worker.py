"""A worker to be tested: it sends what is in its outbox while this process leads, and counts the terms it lost."""

import asyncio

from pgleaderlock import Election, Event
from pgleaderlock.sync import Election as BlockingElection


class Worker:
    """Sends numbers, one a second, while ``lock`` leads."""

    def __init__(self, lock: Election) -> None:
        self.sent: list[int] = []
        self.lost: list[str] = []
        self._lock = lock
        lock.while_leader(self._send)
        lock.on_lost(attempts=False)(self._note_loss)

    async def _send(self) -> None:
        while True:
            self.sent.append(len(self.sent))
            await asyncio.sleep(1)

    def _note_loss(self, event: Event) -> None:
        assert not self._lock.is_leader  # this is how a callback sees a loss
        self.lost.append(event.cause)


class BlockingWorker:
    """The same, for threads: sends when it is asked to, and only as the leader."""

    def __init__(self, lock: BlockingElection) -> None:
        self.sent: list[str] = []
        self.lost: list[str] = []
        self._lock = lock
        lock.on_lost(attempts=False)(lambda event: self.lost.append(event.cause))

    def send(self, message: str) -> bool:
        """Send the message if this process leads; return whether it did."""
        if self._lock.is_leader:
            self.sent.append(message)
        return self._lock.is_leader
