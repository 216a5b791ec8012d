"""Breadth-first search through all reachable worlds, and the path back from a violation."""

import contextlib
import gc
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from proofs.exhaustive._candidate import Candidate
from proofs.exhaustive._facts import Move
from proofs.exhaustive._moves import beginning, complaint_about, faults, moves
from proofs.exhaustive._rules import Game, Rules, Scope
from proofs.exhaustive._world import World, canonical

__all__ = ["Explored", "Violation", "explore"]

_NAMES = "ABCDEFGH"
_NO_LEADER = "no node can come to lead from here on, unless there is a further fault"


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation, and the shortest path to it."""

    what: str
    story: tuple[str, ...]
    """One sentence for each step, from the beginning."""

    def __str__(self) -> str:
        steps = "\n".join(f"{number:3}. {step}" for number, step in enumerate(self.story, 1))
        return f"{steps}\n     So {self.what}."


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of a search."""

    states: int
    transitions: int
    depth: int
    """The number of steps to the world that is furthest from the beginning."""
    seconds: float
    is_complete: bool
    """Whether every world was visited: neither a violation nor the limit ended the search.
    That a world is hopeless is found only then."""
    violations: tuple[Violation, ...] = ()
    hopeless: int | None = None
    """From how many worlds no node can come to lead without a further fault; None if that was not requested."""


class _Search:
    def __init__(self, game: Game, limit: int | None, *, hope: bool) -> None:
        self.game = game
        self.limit = limit
        self.transitions = 0
        self.depth = 0
        self.parents: dict[World, World | None] = {}
        self.found: tuple[World, World, str] | None = None
        """The last sound world, the next one, and what is wrong with it or with the step to it; or one world twice."""
        self.ways_back: dict[World, list[World]] | None = {} if hope else None

    def run(self) -> bool:
        """Search, and return whether every world was visited."""
        first = canonical(beginning(self.game))
        self.parents[first] = None
        level = [first]
        while level:
            coming: list[World] = []
            for world in level:
                self._expand(world, coming)
                if self.found is not None or (self.limit is not None and len(self.parents) >= self.limit):
                    return False
            self.depth += bool(coming)
            level = coming
        return True

    def _expand(self, world: World, coming: list[World]) -> None:
        for is_fault, source in ((False, moves(self.game, world)), (True, faults(self.game, world))):
            for _, _, then, complaint in source:
                self.transitions += 1
                reached = canonical(then)
                if complaint is not None:
                    self.found = world, reached, complaint
                    return
                if self.ways_back is not None and not is_fault:
                    self.ways_back.setdefault(reached, []).append(world)
                if reached in self.parents:
                    continue
                self.parents[reached] = world
                wrong = complaint_about(self.game, reached)
                if wrong is not None:
                    self.found = world, reached, wrong
                    return
                coming.append(reached)

    def hopeless(self) -> int | None:
        """Count the worlds from which no path without a fault leads to a leader, and note the nearest of them."""
        if self.ways_back is None:
            return None
        hopeful = {world for world in self.parents if _has_leader(self.game, world)}
        todo = deque(hopeful)
        while todo:
            for earlier in self.ways_back.get(todo.popleft(), ()):
                if earlier not in hopeful:
                    hopeful.add(earlier)
                    todo.append(earlier)
        nearest = next((world for world in self.parents if world not in hopeful), None)
        if nearest is not None:
            self.found = nearest, nearest, _NO_LEADER
        return len(self.parents) - len(hopeful)

    def violation(self) -> Violation | None:
        """Return the violation that was found, with its path; None if there was none."""
        if self.found is None:
            return None
        last, bad, wrong = self.found
        path = [bad] if bad is not last else []
        step: World | None = last
        while step is not None:
            path.append(step)
            step = self.parents[step]
        return _narrated(self.game, path[::-1], wrong)


def _has_leader(game: Game, world: World) -> bool:
    return any(Candidate(game, world, index).claims_to_lead() for index in range(len(world.nodes)))


def _narrated(game: Game, path: list[World], wrong: str) -> Violation:
    """Repeat the path with nodes that keep their names, and describe each step."""
    world = beginning(game)
    story = ["A leads, with token 1, and B is queued."] if game.scope.begins_led else []
    for place, goal in enumerate(path[1:], 2):
        is_last = place == len(path) and wrong != _NO_LEADER
        actor, text, world, complaint = _towards(game, world, goal, must_complain=is_last and wrong)
        name = _NAMES[actor] if actor >= 0 else ""
        leaders = [_NAMES[i] for i in range(len(world.nodes)) if Candidate(game, world, i).claims_to_lead()]
        story.append(text.format(name) + (f" ({' and '.join(leaders)} claim to lead)" if len(leaders) > 1 else ""))
        wrong = complaint.format(name) if complaint else wrong
    return Violation(wrong, tuple(story))


def _towards(game: Game, world: World, goal: World, *, must_complain: str | bool) -> Move:
    for move in (*moves(game, world), *faults(game, world)):
        complaint = move[3] or complaint_about(game, move[2])
        if canonical(move[2]) == goal and (not must_complain or complaint is not None):
            return move
    raise AssertionError("a path that was walked once can be walked again")


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the garbage collector off: to look for cycles among millions of tuples takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def explore(
    scope: Scope | None = None, rules: Rules | None = None, *, limit: int | None = None, hope: bool = False
) -> Explored:
    """Visit every reachable world, or find the shortest path to a violation.

    The search ends with the first violation, or past ``limit`` worlds. With ``hope``, it also counts the worlds from
    which no node can come to lead any more; that takes several times the memory.
    """
    game = Game(scope or Scope(), rules or Rules())
    began = time.perf_counter()
    search = _Search(game, limit, hope=hope)
    with _uncollected():
        is_complete = search.run()
    hopeless = search.hopeless() if is_complete else None
    violation = search.violation()
    return Explored(
        states=len(search.parents),
        transitions=search.transitions,
        depth=search.depth,
        seconds=time.perf_counter() - began,
        is_complete=is_complete,
        violations=() if violation is None else (violation,),
        hopeless=hopeless,
    )
