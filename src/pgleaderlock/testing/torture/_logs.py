"""The logs of one torture: when each process claimed to lead, its events, and the faults that were injected.

Standard library only, as in the judge: no election code is imported.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pgleaderlock.testing._claim import read_claims

FAULT_LOG = "faults.jsonl"
"""The injected faults, a line for each, written by the conductor."""
RUN_LOG = "run.json"
"""When the run began and ended, its lease duration and its nodes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An interval in which one process claimed to be the leader. Times are by the machine's one clock."""

    node: str
    process: int
    """The number of this process among those of its node, from 1."""
    token: int
    began_at: float
    seen_at: float


@dataclass(frozen=True, slots=True)
class Told:
    """An event that a node's election notified its listeners of, such as ``on_lost``."""

    node: str
    process: int
    at: float
    event: str
    token: int | None = None
    cause: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was injected, and into which node."""

    kind: str
    at: float
    until: float
    """When the fault ended; equal to ``at`` if it took no time."""
    node: str | None = None
    """None: the server was hit, and so every node."""
    process: int = 0
    detail: str = ""

    def hits(self, node: str) -> bool:
        """Whether this fault affects this node."""
        return self.node is None or self.node == node


@dataclass(slots=True)
class Logs:
    """Everything that one torture recorded."""

    began_at: float
    ended_at: float
    lease_s: float
    nodes: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def write_line(path: Path, record: Any) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read_logs(folder: Path) -> Logs:
    """Read all logs of one torture from its folder."""
    run = json.loads((folder / RUN_LOG).read_text(encoding="utf-8"))
    logs = Logs(run["began_at"], run["ended_at"], run["lease_s"], run["nodes"])
    for path in sorted(folder.glob("*.beliefs")):
        node, process = _named(path)
        logs.claims += [Claim(node, process, token, began, seen) for began, seen, token in read_claims(path)]
    for path in sorted(folder.glob("*.events")):
        node, process = _named(path)
        logs.told += [Told(node, process, **record) for record in _lines(path)]
    logs.faults = [_with_absence(Fault(**record), logs) for record in _lines(folder / FAULT_LOG)]
    return logs


def _with_absence(fault: Fault, logs: Logs) -> Fault:
    """Return the fault; a kill lasts until the next process of the same node takes part."""
    if fault.kind != "kill":
        return fault
    back = [told.at for told in logs.told if told.node == fault.node and told.process > fault.process]
    return replace(fault, until=max(fault.at, min(back, default=logs.ended_at)))


def _named(path: Path) -> tuple[str, int]:
    node, _, process = path.stem.rpartition(".")
    return node, int(process)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # the last line of a killed process may be half a line
                yield json.loads(line)
