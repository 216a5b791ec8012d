"""Hold every module to its floor of branch coverage, from the coverage.json that pytest-cov writes.

    pytest --cov --cov-report=json && python tools/coverage_floors.py

The modules that decide who leads have to be covered whole, every other one by more than 90 %; those whose faults are
drawn at random in real time by what every run reaches, because a busy machine draws fewer. A module that the report
does not mention counts as not covered at all: nothing escapes by never being imported, or by a new name.
Exit code 1 names those below their floor, 2 says that there is no report to judge by.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Coverage", "main", "measure"]

ROOT = Path(__file__).parents[1]
WHOLE = frozenset({"engine/fsm.py", "retry.py", "engine/election.py", "models.py"})
RANDOM = frozenset({"testing/torture/_conductor.py", "testing/torture/_ground.py"})
FLOOR = 90.0
RANDOM_FLOOR = 75.0
_NEAR = 95.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the report says of one module."""

    path: str
    lines: int
    missing_lines: int
    branches: int
    missing_branches: int
    reported: bool = True

    @property
    def percent(self) -> float:
        """Lines and branches together, as coverage itself counts them. An empty module is covered."""
        if not self.reported:
            return 0.0
        total = self.lines + self.branches
        return 100.0 * (total - self.missing_lines - self.missing_branches) / total if total else 100.0

    @property
    def floor(self) -> str:
        """What is asked of it, in words."""
        return "100 %" if self.path in WHOLE else f"> {self._least:g} %"

    @property
    def _least(self) -> float:
        return RANDOM_FLOOR if self.path in RANDOM else FLOOR

    @property
    def is_enough(self) -> bool:
        """Whether it keeps its floor. Whole means none missing: a percentage would be rounded."""
        if self.path in WHOLE:
            return self.reported and self.missing_lines == self.missing_branches == 0
        return self.percent > self._least


def measure(report: Mapping[str, Any], package: Path, root: Path) -> list[Coverage]:
    """Pair each module of the package with its entry in the report."""
    if not report["meta"].get("branch_coverage"):
        raise ValueError("the report has no branches: run coverage with branch = true")
    # coverage.py writes paths relative to where it ran, or absolute ones.
    entries = {(root / name).resolve(): entry["summary"] for name, entry in report["files"].items()}
    modules = {path.relative_to(package).as_posix() for path in package.rglob("*.py")} | WHOLE
    found = []
    for name in sorted(modules):
        summary = entries.get((package / name).resolve())
        if summary is None:
            found.append(Coverage(name, 0, 0, 0, 0, reported=False))
        else:
            found.append(
                Coverage(
                    name,
                    summary["num_statements"],
                    summary["missing_lines"],
                    summary["num_branches"],
                    summary["missing_branches"],
                )
            )
    return found


def _print_table(modules: Sequence[Coverage], *, everything: bool) -> None:
    """Show what is below its floor or not far above it; of hundreds that are well covered, only their number."""
    shown = [module for module in modules if everything or not module.is_enough or module.percent < _NEAR]
    width = max((len(module.path) for module in shown), default=len("module"))
    print(f"{'module':{width}}  {'lines':>11}  {'branches':>11}  {'covered':>8}  floor")
    for module in shown:
        lines = f"{module.lines - module.missing_lines}/{module.lines}"
        branches = f"{module.branches - module.missing_branches}/{module.branches}"
        verdict = "" if module.is_enough else "   BELOW" if module.reported else "   NOT IN THE REPORT"
        print(f"{module.path:{width}}  {lines:>11}  {branches:>11}  {module.percent:7.2f}%  {module.floor}{verdict}")
    print(f"and {len(modules) - len(shown)} more, each covered by {_NEAR:g} % and more")


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the report, and return the exit code."""
    parser = argparse.ArgumentParser(description="Hold every module to its floor of coverage.")
    parser.add_argument("report", type=Path, nargs="?", default=ROOT / "coverage.json")
    parser.add_argument("--package", type=Path, default=ROOT / "src" / "pgleaderlock")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that the report's paths start from")
    parser.add_argument("--all", action="store_true", help="show the modules that are well covered too")
    options = parser.parse_args(arguments)
    try:
        modules = measure(json.loads(options.report.read_text(encoding="utf-8")), options.package, options.root)
    except (OSError, ValueError, KeyError) as error:
        print(f"cannot judge {options.report}: {error!r}", file=sys.stderr)
        return 2
    _print_table(modules, everything=options.all)
    below = [module for module in modules if not module.is_enough]
    if below:
        names = ", ".join(f"{module.path} ({module.percent:.2f} %, floor {module.floor})" for module in below)
        print(f"below their floor: {names}", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
