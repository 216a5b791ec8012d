"""The figures that a demo measured: of a script, which repeats each action, and of the buttons that were pressed."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pgleaderlock.errors import LockError
from pgleaderlock.testing.demo._stage import Failover, Said, Stage


@dataclass(slots=True)
class ActionResult:
    """The results of all rounds of one action."""

    action: str
    rounds: int
    failovers: list[Failover] = field(default_factory=list)
    overlaps: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def measured_ms(self) -> list[float]:
        """How long each failover took; rounds without a successor are left out."""
        return [each.failover_ms for each in self.failovers if each.failover_ms is not None]

    @property
    def is_good(self) -> bool:
        """Whether another node led after each round, without a split brain."""
        return len(self.measured_ms) == self.rounds and not self.overlaps and not self.problems

    def figure(self, name: str) -> float | None:
        """Return ``min``, ``median`` or ``max`` in milliseconds; None if nothing was measured."""
        figures: dict[str, Callable[[list[float]], float]] = {"min": min, "median": statistics.median, "max": max}
        return round(figures[name](self.measured_ms), 1) if self.measured_ms else None


class Tally:
    """The results so far of every action, from the messages of the stage."""

    def __init__(self) -> None:
        self._results: dict[str, ActionResult] = {}
        self._last: ActionResult | None = None

    @property
    def results(self) -> list[ActionResult]:
        """One result for each action that was begun, in the order of their first rounds."""
        return list(self._results.values())

    def hear(self, said: Said) -> None:
        """Count the action that began, its measurement, and overlaps, which belong to the last action that began."""
        if said.is_overlap and self._last is not None:
            self._last.overlaps += 1
        if said.action is None or said.from_node is None or said.is_aside or said.is_alarm:
            return
        if said.failover_ms is None:
            self._last = self._results.setdefault(said.action, ActionResult(said.action, 0))
            self._last.rounds += 1
        elif said.action in self._results:
            failover = Failover(said.action, said.from_node, said.node, said.failover_ms, said.stopped_ms)
            self._results[said.action].failovers.append(failover)


async def play(stage: Stage, actions: Sequence[str], rounds: int) -> list[ActionResult]:
    """Do all rounds of one action, then those of the next. A failed round is recorded; the others go on."""
    results = []
    for action in actions:
        result = ActionResult(action, rounds)
        before = len(stage.overlaps)
        for _ in range(rounds):
            await _play_round(stage, result)
        result.overlaps = len(stage.overlaps) - before
        results.append(result)
    return results


async def _play_round(stage: Stage, result: ActionResult) -> None:
    """Do one action, and wait until one node leads and all others are queued: only then has every node reported."""
    try:
        result.failovers.append(await stage.act(result.action))
        await stage.wait_until_whole(stage.lease_s * 2 + 30)
    except LockError as error:
        result.problems.append(str(error))
