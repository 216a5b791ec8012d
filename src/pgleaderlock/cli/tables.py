"""Tables for people, made to fit where they are shown.

A pipe gets everything on one line per row: whoever reads it there may search it. A terminal has an edge. What does not
fit is folded, and before a name has to be folded the columns that matter least are left out, which is said. Nothing is
ever cut off.
"""

import os
import sys
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console_for", "fitting_table"]

_WIDE = 1000  # for a pipe, in which nothing is folded
_GAP_CELLS = 2  # between two columns
_PROSE_CELLS = 16
"""What a column of prose needs at least; it is folded between words."""


def fitting_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Text]],
    width: int,
    *,
    prose: Sequence[str] = (),
    least_first: Sequence[str] = (),
) -> Table:
    """Return a table for this width. Columns of ``prose`` are folded first, then those of ``least_first`` left out."""
    cells = {heading: [row[place] for row in rows] for place, heading in enumerate(headings)}
    needed = {heading: _needed_cells(heading, cells[heading], is_prose=heading in prose) for heading in headings}
    left_out: list[str] = []
    for heading in least_first:
        if sum(needed.values()) - _GAP_CELLS > width:
            left_out.append(heading)
            del needed[heading]
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        caption=_caption(left_out, headings),
        caption_justify="left",
        caption_style="dim",
    )
    for heading in needed:
        table.add_column(heading, overflow="fold", no_wrap="(UTC)" in heading)  # a time in two parts is none
    for place in range(len(rows)):
        table.add_row(*(cells[heading][place] for heading in needed))
    return table


def _needed_cells(heading: str, cells: Sequence[Text], *, is_prose: bool) -> int:
    widest = max((cell.cell_len for cell in cells), default=0)
    return max(cell_len(heading), min(widest, _PROSE_CELLS) if is_prose else widest) + _GAP_CELLS


def _caption(left_out: Sequence[str], headings: Sequence[str]) -> str | None:
    if not left_out:
        return None
    return f"no room for {', '.join(heading for heading in headings if heading in left_out)}: see --json"


class _Terminal(Console):
    """One that never hides the cursor: whoever kills or suspends us finds it where it was."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - rich's own signature
        return False


def console_for() -> Console:
    """Return where tables go: a terminal, or a pipe, in which nothing is folded or coloured."""
    if not sys.stdout.isatty():
        return Console(file=sys.stdout, width=_WIDE, color_system=None, force_terminal=False)
    wants_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return _Terminal(file=sys.stdout, force_terminal=True, color_system="standard" if wants_colour else None)
