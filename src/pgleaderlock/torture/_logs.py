"""The logs of one torture, read back: what each process believed, what it said, and what was done to whom.

Standard library only, as all that judges: nothing here knows how a leader is elected.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pgleaderlock.torture._belief import read_beliefs

__all__ = ["FAULT_LOG", "RUN_LOG", "Belief", "Fault", "Logs", "Told", "read_logs", "write_line"]

FAULT_LOG = "faults.jsonl"
"""What was done, a line for each, written by whoever did it."""
RUN_LOG = "run.json"
"""When it began and ended, and how it was asked for."""


@dataclass(frozen=True, slots=True)
class Belief:
    """An interval in which one process was seen to believe that it leads. Times by the machine's one clock."""

    node: str
    process: int
    """The how-manyeth process in the place of this node, from 1."""
    token: int
    began_at: float
    seen_at: float


@dataclass(frozen=True, slots=True)
class Told:
    """What an election told, such as ``on_lost``."""

    node: str
    process: int
    at: float
    event: str
    token: int | None = None
    cause: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done, and to whom."""

    kind: str
    at: float
    until: float
    """When it was over; the same moment if it took none."""
    node: str | None = None
    """None: to the server, so to everybody."""
    process: int = 0
    detail: str = ""

    def hits(self, node: str) -> bool:
        """Whether this node had to do with it."""
        return self.node is None or self.node == node


@dataclass(slots=True)
class Logs:
    """All of it."""

    began_at: float
    ended_at: float
    lease_s: float
    nodes: list[str] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def write_line(path: Path, record: Any) -> None:
    """Add one record to a log."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read_logs(folder: Path) -> Logs:
    """Read all that the processes of one torture left in a folder."""
    run = json.loads((folder / RUN_LOG).read_text(encoding="utf-8"))
    logs = Logs(run["began_at"], run["ended_at"], run["lease_s"], run["nodes"])
    for path in sorted(folder.glob("*.beliefs")):
        node, process = _named(path)
        logs.beliefs += [Belief(node, process, token, began, seen) for began, seen, token in read_beliefs(path)]
    for path in sorted(folder.glob("*.events")):
        node, process = _named(path)
        logs.told += [Told(node, process, **record) for record in _lines(path)]
    logs.faults = [_with_absence(Fault(**record), logs) for record in _lines(folder / FAULT_LOG)]
    return logs


def _with_absence(fault: Fault, logs: Logs) -> Fault:
    """A kill is over when another process takes part in the place of the one that was killed."""
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
            with contextlib.suppress(ValueError):  # the last line of one who was killed may be half a line
                yield json.loads(line)
