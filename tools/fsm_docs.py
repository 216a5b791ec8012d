"""Write the transition table and its diagram into the documentation, from the table that the engine runs on.

    python tools/fsm_docs.py            write them
    python tools/fsm_docs.py --check    exit 1 when what is written is not what the code says

Only the parts between ``<!-- generated: NAME -->`` and ``<!-- end -->`` are ours; the rest of the page is prose.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from pgleaderlock.engine.fsm import ROWS, Destination, Input, Policy, Row, table_for
from pgleaderlock.models import EventKind, LockState

__all__ = ["diagram", "main", "regenerate", "table"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "state-machine.md"

_PART = re.compile(r"(?P<begin><!-- generated: (?P<name>[a-z]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)

# The state that the specification's table prints in front of each footnote's mark.
_USUALLY = {
    Destination.REACQUIRE: LockState.FOLLOWER,
    Destination.RESUME: LockState.STOPPED,
    Destination.GRACE: LockState.RECONNECTING,
}


def _input_name(fact: Input) -> str:
    """Spell it as the specification does: ``HealthFailed``."""
    return "".join(word.capitalize() for word in fact.value.split("_"))


def _destination(row: Row) -> str:
    return f"{_USUALLY[row.to].name}{row.to.value}" if isinstance(row.to, Destination) else row.to.name


def _event_name(kind: EventKind) -> str:
    if kind is EventKind.ATTEMPT_FAILED:
        return f"*{kind.value}* (calls `on_lost`⁴)"
    return f"`{kind.value}`" if kind.value.startswith("on_") else f"*{kind.value}* (log only)"


def table() -> str:
    """Return the rows as a Markdown table, in their own order."""
    heads = ("From", "Input", "To", "Emits", "Closes the session", "Ends the term", "Notifies first", "Fence armed")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in ROWS:
        to = _destination(row) if row.to is not row.source else f"*(stays {row.source.name})*"
        emits = ", ".join(map(_event_name, row.emits)) or "–"
        made = table_for(Policy(grace=True), stopping=row.to is Destination.RESUME)[row.source, row.input]
        closes = row.closes or row.to is LockState.STOPPED
        marks = (closes, made.ends_term, made.notifies_first, made.keeps_fence and row.source.is_in_term)
        cells = (row.source.name, f"`{_input_name(row.input)}`", to, emits, *("yes" if mark else "–" for mark in marks))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _edges() -> dict[tuple[LockState, LockState], list[str]]:
    """Collect what leads from one state to another under any policy, with the mark of its footnote."""
    edges: dict[tuple[LockState, LockState], list[str]] = {}
    policies = [Policy(auto_reacquire=auto, grace=grace) for auto, grace in product([True, False], repeat=2)]
    for row in ROWS:
        mark = row.to.value if isinstance(row.to, Destination) else ""
        for policy, stopping in product(policies, [False, True]):
            to = table_for(policy, stopping=stopping)[row.source, row.input].to
            labels = edges.setdefault((row.source, to), [])
            label = _input_name(row.input) + mark
            if label not in labels:
                labels.append(label)
    return edges


def _diagram_lines() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    [*] --> STOPPED"
    for (source, to), labels in _edges().items():
        yield f"    {source.name} --> {to.name}: {' / '.join(labels)}"


def diagram() -> str:
    """Return the same as a Mermaid diagram, one arrow per pair of states."""
    return "\n".join(["```mermaid", *_diagram_lines(), "```"]) + "\n"


_GENERATORS: dict[str, Callable[[], str]] = {"table": table, "diagram": diagram}


def regenerate(page: str) -> str:
    """Return the page with its generated parts written anew."""
    found = [match["name"] for match in _PART.finditer(page)]
    if sorted(found) != sorted(_GENERATORS):
        raise ValueError(f"the page must have each of {sorted(_GENERATORS)} between markers once, it has {found}")
    return _PART.sub(lambda match: f"{match['begin']}\n{_GENERATORS[match['name']]()}\n{match['end']}", page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the state machine's page.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when the page is out of date")
    parser.add_argument("--page", type=Path, default=PAGE, help="another page than %(default)s")
    options = parser.parse_args(arguments)
    page: Path = options.page
    before = page.read_text(encoding="utf-8")
    after = regenerate(before)
    if before == after:
        return 0
    if options.check:
        print(f"{page} is not what fsm.ROWS says. Write it anew with: make docs", file=sys.stderr)
        return 1
    page.write_text(after, encoding="utf-8")
    print(f"wrote {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
