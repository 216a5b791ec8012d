"""What is to be written down and is not yet: bounded, in order, and honest about what it had to forget."""

from collections import deque
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the history, before it is written."""

    lock: str
    role: str
    event: str
    at: float
    """On the clock of this process."""
    cause: str | None = None
    token: int | None = None
    detail: str | None = None
    number: int = 0
    missing: int = 0
    """How many before this one were forgotten."""


def clean(text: str) -> str:
    """Return the text as PostgreSQL takes it: without NUL, and without halves of characters."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")


class Outbox:
    """Happenings that wait for the database. When there are too many, the oldest are forgotten and counted."""

    def __init__(self, capacity: int) -> None:
        self._waiting: deque[Happening] = deque()
        self._capacity = capacity
        self._count = 0
        self._missing = 0
        self.dropped = 0
        """How many were forgotten, ever."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, happening: Happening) -> None:
        """Keep one, under the next number."""
        self._count += 1
        self._waiting.append(replace(happening, number=self._count))
        self._forget_the_oldest()

    def take(self, count: int) -> list[Happening]:
        """Hand out the oldest, to be written. The first of them tells what is missing before it."""
        batch = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        if batch and self._missing:
            batch[0] = replace(batch[0], missing=self._missing)
            self._missing = 0
        return batch

    def put_back(self, batch: list[Happening]) -> None:
        """Keep what could not be written, or was written for all that is known: the database drops a second copy."""
        for happening in reversed(batch):
            self._missing += happening.missing
            self._waiting.appendleft(replace(happening, missing=0))
        self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        while len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self._missing += 1
            self.dropped += 1
