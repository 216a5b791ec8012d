"""What the checks of the doctor report, in words that the command line shows and never has to understand.

In a module of its own, so that the checks and the code that prints their findings share nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a finding means for an election, the least serious first."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    PROBLEM = "problem"


_SERIOUSNESS = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. Names and values in it are the server's own and may hold any character."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A part of a finding."""

    verdict: Verdict
    found: str
    advice: str = ""


def together(name: str, notes: Sequence[Note]) -> Finding:
    """Make one finding of several notes, the most serious first; it is as serious as they are."""
    ordered = sorted(notes, key=lambda note: -_SERIOUSNESS[note.verdict])
    found = "; ".join(note.found for note in ordered)
    return Finding(name, ordered[0].verdict, found, "; ".join(note.advice for note in ordered if note.advice))
