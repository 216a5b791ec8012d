"""What a demo measured, as figures: of a script, which does each action so many times, and of whatever was pressed."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pgleaderlock.demo._stage import Failover, Said, Stage
from pgleaderlock.errors import LockError

__all__ = ["ActionResult", "Tally", "play"]


@dataclass(slots=True)
class ActionResult:
    """What the rounds of one action came to."""

    action: str
    rounds: int
    failovers: list[Failover] = field(default_factory=list)
    overlaps: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def measured_ms(self) -> list[float]:
        """How long each failover took that was one."""
        return [each.failover_ms for each in self.failovers if each.failover_ms is not None]

    @property
    def is_good(self) -> bool:
        """Whether another led after each round, and never two at once."""
        return len(self.measured_ms) == self.rounds and not self.overlaps and not self.problems

    def figure(self, name: str) -> float | None:
        """Return ``min``, ``median`` or ``max`` in milliseconds; None if nothing was measured."""
        figures: dict[str, Callable[[list[float]], float]] = {"min": min, "median": statistics.median, "max": max}
        return round(figures[name](self.measured_ms), 1) if self.measured_ms else None


class Tally:
    """The results so far of every action, from what the stage says of them."""

    def __init__(self) -> None:
        self._results: dict[str, ActionResult] = {}
        self._last: ActionResult | None = None

    @property
    def results(self) -> list[ActionResult]:
        """One for each action that was begun, in the order in which they first were."""
        return list(self._results.values())

    def hear(self, said: Said) -> None:
        """Count what was begun, what was measured, and overlaps, which are those of the action before."""
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
    """Do all rounds of one action, then those of the next. What fails is noted; the rest goes on."""
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
    """One round, from a stage that is whole to one that is whole again: only then has everybody had their say."""
    try:
        result.failovers.append(await stage.act(result.action))
        await stage.wait_until_whole(stage.lease_s * 2 + 30)
    except LockError as error:
        result.problems.append(str(error))
