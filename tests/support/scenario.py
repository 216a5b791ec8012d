"""A script of faults, and the transcript of the cluster's reaction, to be read and reviewed as a diff.

    # A leader is killed, and the follower that is first in the queue takes over.
    store postgres
    at 20s crash leader for 30s
    until 60s
    ---
           0.512  n1      LEADS with token 701
           ...

Above the line is the script, below it the transcript: every event of every node, on the world's clock. Everything is
deterministic, so the transcript is the same each time, and a change of it is a change of the protocol.

A line of the script is a setting (``store``, ``nodes``, ``lease``, ``grace``, ``until``) or a fault: ``at TIME FAULT
[NODE] [for TIME]``, with a fault's name as :class:`~pgleaderlock.testing.simulation.fault_injector.FaultInjector` has
it, and a node's name or ``leader``.
"""

import re
from dataclasses import dataclass, field

from pgleaderlock._base.durations import parse_duration
from pgleaderlock.retry import FixedInterval
from pgleaderlock.testing.simulation.checks import SimulationFailed
from pgleaderlock.testing.simulation.fault_profiles import CALM
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.simulation import Simulation, quiet

__all__ = ["Scenario", "read_scenario"]

_FAULT = re.compile(r"at (?P<at>\S+) (?P<fault>\w+)(?: (?P<node>leader|n\d+))?(?: for (?P<lasts>\S+))?")
_SETTING = re.compile(r"(store|nodes|lease|grace|until) (\S+)")
_LINE = "---"


@dataclass(slots=True)
class _Strike:
    at_s: float
    fault: str
    node: str
    lasts_s: float


@dataclass(slots=True)
class Scenario:
    """A parsed script."""

    script: str
    store: str = "postgres"
    nodes: int = 3
    lease_s: float = 15.0
    grace_s: float | None = None
    until_s: float = 60.0
    strikes: list[_Strike] = field(default_factory=list)

    def play(self) -> str:
        """Return the script with its transcript under it."""
        settings = {
            "retry_strategy": FixedInterval(self.lease_s / 3),
            "health_interval_s": self.lease_s / 3,
            "reconnect_grace_s": self.grace_s,
        }
        with quiet(1):
            simulation = Simulation(
                1,
                nodes=self.nodes,
                profile=CALM,
                store=self.store,
                lease_s=self.lease_s,
                keep_transcript=True,
                settings=settings,
            )
            try:
                self._run(simulation)
            except SimulationFailed:
                pass  # the violation is the last line of the transcript
            finally:
                told = simulation.checker.transcript()
                simulation.end()
        return "\n".join([self.script.rstrip(), _LINE, *told]) + "\n"

    def _run(self, simulation: Simulation) -> None:
        simulation.start()
        for strike in self.strikes:
            simulation.run(strike.at_s - simulation.world.now)
            simulation.faults.strike(strike.fault, _chosen(simulation, strike.node), strike.lasts_s)
        simulation.run(self.until_s - simulation.world.now)


def _chosen(simulation: Simulation, name: str) -> SimulatedNode:
    if name == "leader":
        leader = simulation.checker.leader
        return simulation.nodes[0] if leader is None else leader
    return next(node for node in simulation.nodes if node.name == name)


def read_scenario(text: str) -> Scenario:
    """Parse a script; what is under the ``---`` is ignored. ValueError names the line that cannot be parsed."""
    script = text.partition(f"\n{_LINE}\n")[0]
    scenario = Scenario(script)
    for line in script.splitlines():
        words = line.partition("#")[0].strip()
        if words:
            try:
                _read_line(scenario, words)
            except ValueError as error:
                raise ValueError(f"this line of a scenario makes no sense: {words!r}") from error
    scenario.strikes.sort(key=lambda strike: strike.at_s)
    return scenario


def _read_line(scenario: Scenario, line: str) -> None:
    if found := _FAULT.fullmatch(line):
        lasts_s = parse_duration(found["lasts"]) if found["lasts"] else 0.0
        scenario.strikes.append(
            _Strike(parse_duration(found["at"]), found["fault"], found["node"] or "leader", lasts_s)
        )
    elif found := _SETTING.fullmatch(line):
        name, value = found.groups()
        if name == "store":
            scenario.store = value
        elif name == "nodes":
            scenario.nodes = int(value)
        else:
            setattr(scenario, f"{name}_s", parse_duration(value))
    else:
        raise ValueError(line)
