"""Tables for people, fitted to the terminal.

A pipe gets one line per row with everything on it, so that it can be searched. In a terminal, cells that do not fit are
folded; before a name has to be folded, the least important columns are left out, and the caption says so. No cell is
ever cut off.
"""

import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgleaderlock.cli.console import wants_colour

PIPE_CELLS = 1000
"""The width for a pipe, in which nothing is folded."""
_GAP_CELLS = 2  # between two columns
_PROSE_CELLS = 16
"""The least width of a column of prose, which is folded between words."""
_LONGEST_WORD_CELLS = 24
"""A longer word is folded too: it is a path or a name."""


def fitting_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Text]],
    width: int,
    *,
    prose: Sequence[str] = (),
    once: Sequence[str] = (),
    least_first: Sequence[str] = (),
) -> Table:
    """Return a table for this width. Columns of ``prose`` are folded between words first.

    Then empty columns are removed, columns of ``once`` with the same value on every line are moved into the caption,
    and finally those of ``least_first`` are left out.
    """
    cells = {heading: [row[place] for row in rows] for place, heading in enumerate(headings)}
    needed = {heading: _needed_cells(heading, cells[heading], is_prose=heading in prose) for heading in headings}
    same: list[str] = []
    left_out: list[str] = []

    def fits() -> bool:
        return sum(needed.values()) + _GAP_CELLS * (len(needed) - 1) <= width

    for heading, kind in [*((each, None) for each in headings), *((each, same) for each in once)]:
        values = {cell.plain for cell in cells[heading]}
        is_superfluous = values <= {""} if kind is None else len(values - {""}) == 1 and len(rows) > 1
        if is_superfluous and rows and not fits() and heading in needed:
            del needed[heading]
            if kind is not None:
                kind.append(f"{heading} {max(values)}")
    for heading in least_first:
        if not fits() and heading in needed:
            left_out.append(heading)
            del needed[heading]
    table = _empty_table(_caption(same, left_out, headings))
    widest = {heading: _widest(cells[heading]) for heading in prose if heading in cells}
    widths = _widths(needed, widest, width) if fits() else {}
    for heading in needed:  # a time folded into two parts cannot be read
        table.add_column(heading, overflow="fold", no_wrap="(UTC)" in heading, width=widths.get(heading))
    for place in range(len(rows)):
        table.add_row(*(cells[heading][place] for heading in needed))
    return table


def _empty_table(caption: str | None) -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        header_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        caption=caption,
        caption_justify="left",
        caption_style="dim",
    )


def _widths(needed: Mapping[str, int], prose: Mapping[str, int], width: int) -> dict[str, int]:
    """Return the width of each column: what it needs, and for prose the rest. By default, rich would split words."""
    room = width - sum(needed.values()) - _GAP_CELLS * (len(needed) - 1)
    widths = dict(needed)
    for heading, widest in prose.items():
        if heading in widths:
            more = max(0, min(room, widest - widths[heading]))
            widths[heading] += more
            room -= more
    return widths


def _widest(cells: Sequence[Text]) -> int:
    return max((cell.cell_len for cell in cells), default=0)


def _needed_cells(heading: str, cells: Sequence[Text], *, is_prose: bool) -> int:
    if not is_prose:
        return max(cell_len(heading), _widest(cells))
    longest_word = max((cell_len(word) for cell in cells for word in cell.plain.split()), default=0)
    return max(cell_len(heading), min(_widest(cells), max(_PROSE_CELLS, min(longest_word, _LONGEST_WORD_CELLS))))


def _caption(same: Sequence[str], left_out: Sequence[str], headings: Sequence[str]) -> str | None:
    missing = ", ".join(heading for heading in headings if heading in left_out)
    parts = (
        f"on every line: {', '.join(same)}" if same else "",
        f"no room for {missing}: see --json" if missing else "",
    )
    return "; ".join(filter(None, parts)) or None


class _Terminal(Console):
    """A console that never hides the cursor, so that it is visible after this process is killed or suspended."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - rich's own signature
        return False


def console_for() -> Console:
    """Return the console for tables: of a terminal, or of a pipe, in which nothing is folded or coloured."""
    if not sys.stdout.isatty():
        return Console(file=sys.stdout, width=PIPE_CELLS, color_system=None, force_terminal=False)
    # Without a colour system rich writes no escape codes at all; no_color=True would leave bold and underlined.
    has_colours = wants_colour(sys.stdout)
    return _Terminal(file=sys.stdout, force_terminal=True, color_system="standard" if has_colours else None)
