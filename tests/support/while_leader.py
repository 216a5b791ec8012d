"""What tests of while leader share with others."""

import asyncio

from pgleaderlock import Term
from pgleaderlock.models import Grant
from tests.support.doubles import ScriptedBackend, make_election


def now() -> float:
    return asyncio.get_running_loop().time()


class Diary:
    """What work did, and whether it was ever there twice."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self.inside = 0
        self.most = 0

    async def work(self, term: Term) -> None:
        self.enter()
        try:
            await asyncio.sleep(1e6)
        finally:
            self.leave()

    def enter(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.note("begin")

    def leave(self) -> None:
        self.inside -= 1
        self.note("end")

    def note(self, word: str) -> None:
        self.lines.append((round(now(), 3), word))

    @property
    def words(self) -> list[str]:
        return [word for _, word in self.lines]

    def times(self, word: str) -> list[float]:
        return [at for at, said in self.lines if said == word]


def leased(**settings):
    """An election whose grants last for ten seconds from when they were asked for; lost two seconds earlier."""
    backend = ScriptedBackend()

    async def grant() -> Grant:
        return Grant(1, trusted_until=now() + 10, lost_at=now() + 8)

    backend.defaults["try_acquire"] = backend.defaults["renew"] = grant
    settings.setdefault("health_interval_s", 1.0)
    return make_election(backend, **settings)
