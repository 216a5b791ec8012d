"""How long until another candidate leads when the next ones are hit too, on a real server and with real processes.

    python -m proofs.succession_torture --rounds 10
    python -m proofs.succession_torture --only "heir frozen" --rounds 3

Each scenario is played several times, and a table of medians and maxima is printed. :data:`SCENARIOS` is the one place
where the bounds stand: what is promised on a machine that has nothing else to do, and from which median on no busy
machine explains it. Exit code 1 when a median is above that, or when two candidates ever led at once: each process
writes down when it claims to lead, and the intervals are compared (``proofs/succession_crowd.py``).
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pgleaderlock import LockKey
from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.testing.embedded import Server
from proofs.succession_crowd import Crowd, Places, Term
from tests.conftest import free_port
from tests.support.silent_proxy import SilentProxy

__all__ = ["SCENARIOS", "Outcome", "Scenario", "play"]

_KEY = LockKey.pair(777, 1)
_CANDIDATES = 5
_ATTEMPTS = 20
_DEADLOCK_TIMEOUT_S = 1.0  # PostgreSQL's default


class Stage:
    """An election of five candidates, in which something is done to the first ones, again and again."""

    def __init__(self, crowd: Crowd, lease_s: float, tcp_dsn: str) -> None:
        self.crowd = crowd
        self.lease_s = lease_s
        self.tcp_dsn = tcp_dsn
        self._missing = _CANDIDATES
        self.random = random.Random()

    def settled(self) -> Places:
        """Return who has which place once all candidates are there and the heir is ready."""
        for _ in range(self._missing):
            self.crowd.add()
        self._missing = 0
        sessions = _CANDIDATES + 2  # a second one of the leader and of the heir
        return self.crowd.observer.until(
            lambda places: places.is_settled and len(places.sessions) == sessions, "leader, heir and next heir"
        )

    def kill(self, *names: str | None) -> float:
        self._missing += len(names)
        return self.crowd.kill(*names)

    def wait(self, seconds: float) -> None:
        """Choose a moment: this is no synchronisation."""
        time.sleep(seconds)

    def next_leader(self, *, other_than: str | None = None) -> Term:
        while (term := self.crowd.next_leader()).name == other_than:
            pass
        return term


def _kill(number: int) -> Callable[[Stage], float]:
    """Kill the leader and those next to it, so many in all; all three when the others have not just come."""

    def play(stage: Stage) -> float:
        places = stage.settled()
        stage.crowd.drop_reports()
        stage.wait(stage.random.uniform(0, stage.lease_s / 3) if number == 3 else 0)
        began = stage.kill(*[places.leader, places.heir, places.next_heir][:number])
        return stage.next_leader().at - began

    return play


def _step_down(stage: Stage) -> float:
    places = stage.settled()
    stage.crowd.drop_reports()
    assert places.leader is not None
    began = clock()
    stage.crowd.signal(places.leader, signal.SIGUSR1)
    return stage.next_leader(other_than=places.leader).at - began


def _freeze_heir_between_slices(stage: Stage) -> float:
    """Freeze the heir, and kill the leader when the heir's wait slice has ended: it is queued for nothing.

    The next heir's slices began with the heir's, so the leader is killed at some moment of the next one.
    """
    places = stage.settled()
    stage.crowd.drop_reports()
    heir = places.heir
    assert heir is not None
    stage.crowd.signal(heir, signal.SIGSTOP)
    stage.crowd.observer.until(lambda now: not now.waits(heir, stage.crowd.key), "the end of the heir's slice")
    stage.wait(stage.random.uniform(0, _slice_s(stage.lease_s)))
    began = stage.kill(places.leader)
    took_s = stage.next_leader().at - began
    stage.crowd.signal(heir, signal.SIGCONT)
    stage.settled()
    return took_s


def _freeze_heir_in_a_slice(stage: Stage, thaw: Callable[[Stage, str], None] | None = None) -> float:
    """Freeze the heir and kill the leader within one wait slice: the frozen heir is granted the lock."""
    for _ in range(_ATTEMPTS):
        heir, began = _freeze_heir_and_kill_leader(stage)
        is_granted = stage.crowd.observer.look().leader == heir
        if is_granted and thaw is not None:
            thaw(stage, heir)
        took_s = stage.next_leader().at - began if is_granted else 0.0
        stage.crowd.signal(heir, signal.SIGCONT)
        stage.settled()
        if is_granted:
            return took_s
    raise TimeoutError(f"in {_ATTEMPTS} attempts the heir was never frozen within a wait slice")


def _freeze_heir_and_kill_leader(stage: Stage) -> tuple[str, float]:
    """Do both directly after the begin of a wait slice; return the heir, and when the leader was killed."""
    places = stage.settled()
    stage.crowd.drop_reports()
    heir, leader = places.heir, places.leader
    assert heir is not None
    before = _slice_began(places, heir, stage.crowd.key)
    stage.crowd.observer.until(
        lambda now: _slice_began(now, heir, stage.crowd.key) not in ("", before), "another slice of the heir"
    )
    stage.crowd.signal(heir, signal.SIGSTOP)
    began = stage.kill(leader)
    stage.crowd.observer.until(lambda now: not now.of(leader), "the end of the killed leader")
    return heir, began


def _slice_began(places: Places, name: str, key: LockKey) -> str:
    return next((each.query_start for each in places.of(name) if each.waits_for(key)), "")


def _thaw_at_some_time(stage: Stage, heir: str) -> None:
    """Thaw it at a moment within its lease, or shortly after that."""
    stage.wait(stage.random.uniform(0, 1.1) * stage.lease_s)
    stage.crowd.signal(heir, signal.SIGCONT)


def _silence_second_session(*, only_answers: bool) -> Callable[[Stage], float]:
    """Let the heir's second session be dead without a notice when the leader is killed."""

    def play(stage: Stage) -> float:
        crowd = stage.crowd
        crowd.drop_reports()
        with SilentProxy(stage.tcp_dsn) as proxy:
            leader = crowd.add("leader")
            assert crowd.next_leader().name == leader
            heir = crowd.add("heir", second_dsn=proxy.dsn)
            crowd.observer.until(lambda now: now.heir == heir and len(now.of(heir)) == 2, "an heir with two sessions")
            third = crowd.add("third")
            crowd.observer.until(lambda now: now.is_settled, "a next heir")
            (proxy.lose_answers if only_answers else proxy.mute)()
            proxy.let_pass()
            began = crowd.kill(leader)
            term = crowd.next_leader()
            crowd.observer.until(lambda _: any(claim.node == heir for claim in crowd.claims()), "a claim of the heir")
            crowd.kill(heir, third)
        crowd.observer.until(lambda now: not now.sessions, "the end of all sessions")
        return term.at - began

    return play


@dataclass(frozen=True)
class Scenario:
    """What is done, at which lease, and how long it may take until another candidate leads."""

    name: str
    play: Callable[[Stage], float]
    lease_s: float
    promised_s: float
    fails_above_s: float
    retry_s: float = 60.0
    """Between attempts of the engine: so long that they are not what is measured."""


def _slice_s(lease_s: float) -> float:
    return Lease(lease_s).slice_for(_DEADLOCK_TIMEOUT_S)


_USUAL_S, _SHORT_S = 15.0, 3.0

SCENARIOS = [
    # A candidate that has stepped down rests for this delay, and is needed for the next round.
    Scenario("hand-over by step-down", _step_down, _USUAL_S, 0.010, 0.2, retry_s=0.2),
    Scenario("leader killed", _kill(1), _USUAL_S, 0.020, 0.25),
    Scenario("leader and heir killed", _kill(2), _USUAL_S, 0.1, 0.5),
    Scenario("leader, heir and next heir killed", _kill(3), _SHORT_S, _SHORT_S / 3 + 1, _SHORT_S / 3 + 3),
    Scenario(
        "heir frozen, its slice over, leader killed",
        _freeze_heir_between_slices,
        _USUAL_S,
        _slice_s(_USUAL_S) + 0.1,
        _slice_s(_USUAL_S) + 1,
    ),
    Scenario(
        "heir frozen and granted the lock",
        _freeze_heir_in_a_slice,
        _SHORT_S,
        _slice_s(_SHORT_S) + _SHORT_S,
        _slice_s(_SHORT_S) + _SHORT_S + 2,
    ),
    Scenario(
        "the same, thawed at a random time",
        lambda stage: _freeze_heir_in_a_slice(stage, _thaw_at_some_time),
        _SHORT_S,
        _slice_s(_SHORT_S) + _SHORT_S,
        _slice_s(_SHORT_S) + _SHORT_S + 2,
    ),
    Scenario("heir's second session silent", _silence_second_session(only_answers=False), _USUAL_S, 0.3, 1.0),
    Scenario("the same, only answers are lost", _silence_second_session(only_answers=True), _USUAL_S, 0.3, 1.0),
]


@dataclass
class Outcome:
    """The times of one scenario, and how often two candidates led at once."""

    scenario: Scenario
    times_s: list[float] = field(default_factory=list)
    overlaps: int = 0
    terms: int = 0

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    def problems(self) -> Iterator[str]:
        if self.overlaps:
            yield f"{self.scenario.name}: two candidates led at once, {self.overlaps} times"
        if self.median_s > self.scenario.fails_above_s:
            yield (
                f"{self.scenario.name}: {self.median_s:.3f} s in the median, which no busy machine explains above "
                f"{self.scenario.fails_above_s:.3f} s"
            )

    def line(self) -> str:
        columns = [self.median_s, max(self.times_s), self.scenario.promised_s, self.scenario.fails_above_s]
        kept = "kept" if self.median_s <= self.scenario.promised_s else "ABOVE"
        words = "".join(f"{column:10.3f}" for column in columns)
        return f"{self.scenario.name:<44}{len(self.times_s):4}{words}  {kept:<6}{self.overlaps:4} of {self.terms}"


HEADER = f"{'seconds until another led':<44}   n    median       max  promised     fails  median  two at once"


def play(scenario: Scenario, server: Server, folder: Path, rounds: int, key: LockKey = _KEY) -> Outcome:
    """Play it so many times in one election."""
    outcome = Outcome(scenario)
    with Crowd(server.dsn, key, folder, lease_s=scenario.lease_s, retry_s=scenario.retry_s) as crowd:
        stage = Stage(crowd, scenario.lease_s, server.tcp_dsn)
        outcome.times_s = [scenario.play(stage) for _ in range(rounds)]
        outcome.terms = len({(claim.node, claim.token) for claim in crowd.claims()})
        outcome.overlaps = len(crowd.overlaps())
    return outcome


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="scenarios whose name has this text")
    options = parser.parse_args()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pgll-succession-") as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder) / "server", tcp_port=free_port())
        server.start()
        try:
            _say(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} processors")
            _say(HEADER)
            for scenario in SCENARIOS:
                if options.only in scenario.name:
                    outcome = play(scenario, server, Path(folder), options.rounds)
                    _say(outcome.line())
                    problems += outcome.problems()
        finally:
            server.stop("immediate")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
