"""The page in docs/: two tables, what each peer does when its leader is frozen, and why a peer is ahead where it is."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from peers.arithmetic import median, percentile
from peers.entries import LIMIT, Entry, all_entries
from peers.explanations import ABOUT, why
from peers.judging import Verdict, unexplained, verdicts
from peers.plot import plot
from peers.results import Run
from peers.terminal import HEADINGS, cells

__all__ = ["page", "write_page"]

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "explanation" / "comparison.md", DOCS / "images" / "comparison.svg"

_COLUMNS = {
    "graceful": 0, "crash": 1, "freeze": 2, "overlap": 3, "requests": 4, "wakeups": 5, "leader": 6, "follower": 6,
    "memory": 7,
}  # fmt: skip
_SHORT = {"crash": "kill -9", "leader": "connections", "follower": "follower's connection", "wakeups": "wake-ups"}


def write_page(run: Run) -> None:
    """Write the page and its picture; refuse where the page would not explain why ours is not in front."""
    entries = all_entries()
    missing = unexplained(entries, run.figures, why)
    if missing:
        raise SystemExit("the page is not written: explanations.py does not say why\n  " + "\n  ".join(missing))
    PAGE.write_text(page(run), encoding="utf-8")
    PICTURE.write_text(plot(entries, run), encoding="utf-8")
    print(f"written: {PAGE}, {PICTURE}")


def page(run: Run) -> str:
    """Return the whole page; the same figures make the same page."""
    entries = all_entries()
    causes = _Causes()
    parts = [
        _INTRODUCTION.format(begin=fill(_begin(run), 120)),
        "## With the defaults of each\n",
        _table(entries, run, "default", causes),
        "## With a lease of 4 s for all\n",
        "Where there is something to set. 4 s is ZooKeeper's shortest session.\n",
        _table(entries, run, "tuned", causes),
        "## Where a peer is ahead of ours, or beside it\n",
        "The numbers in the last column of the tables:\n",
        causes.text(),
        "## The worst of the rounds\n",
        _worst(entries, run),
        "## What each does when its leader is frozen\n",
        _abouts(),
        _METHOD,
    ]
    return "\n".join(parts)


def _begin(run: Run) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    return _BEGIN.format(date=run.date, machine=run.machine, load=run.load, versions=versions)


class _Causes:
    """Numbers for reasons, in the order in which a reader meets them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, entry: Entry, found: Sequence[Verdict]) -> str:
        """Return one row's, each column with the number of its reason."""
        columns: dict[int, list[str]] = {}
        for verdict in found:
            cause = why(entry.name, verdict.metric) or ""
            number = self._numbers.setdefault(cause, len(self._numbers) + 1)
            columns.setdefault(number, []).append(_SHORT.get(verdict.metric, verdict.metric))
        return "; ".join(f"{', '.join(titles)}: {number}" for number, titles in columns.items())

    def text(self) -> str:
        return "".join(f"{number}. {cause[0].upper()}{cause[1:]}.\n" for cause, number in self._numbers.items())


def _table(entries: Sequence[Entry], run: Run, setting: str, causes: _Causes) -> str:
    limit = run.figures.get(f"{LIMIT} (default)")
    lines = [f"| | {' | '.join(HEADINGS)} | why it is ahead |", f"|---|{'---|' * (len(HEADINGS) + 1)}"]
    for entry in entries:
        if entry.setting != setting:
            continue
        figures = run.figures[entry.row]
        name = f"**{entry.name}**" if entry.ours else entry.name
        if figures.missing:
            lines.append(f"| {name} | not measured: {figures.missing} |{' |' * len(HEADINGS)}")
            continue
        row, found = list(cells(entry, figures, limit)), _of(entry, run)
        for verdict in found:
            _mark(row, _COLUMNS[verdict.metric], verdict)
        lines.append(f"| {name} | {' | '.join(row)} | {causes.of(entry, found)} |")
    return "\n".join(lines) + "\n"


def _mark(row: list[str], column: int, verdict: Verdict) -> None:
    sign = " =" if verdict.is_tie else " ‹"
    if not row[column].endswith((" =", " ‹")):
        row[column] += sign


def _of(entry: Entry, run: Run) -> list[Verdict]:
    ours = run.figures.get(f"{entry.compared_with} ({entry.setting})")
    return [] if entry.ours or ours is None else verdicts(run.figures[entry.row], ours)


def _worst(entries: Sequence[Entry], run: Run) -> str:
    lines = ["| | graceful: median, 90 %, worst | kill -9: median, 90 %, worst |", "|---|---|---|"]
    for entry in entries:
        figures = run.figures[entry.row]
        if entry.dies_quickly and not figures.missing:
            lines.append(f"| {entry.row} | {_spread(figures.graceful_ms)} | {_spread(figures.crash_ms)} |")
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return " / ".join(f"{each:.1f}" for each in (median(values) or 0.0, percentile(values, 0.9), max(values))) + " ms"


def _abouts() -> str:
    lines = ["| | as measured by default | frozen, then thawed | a token for fencing |", "|---|---|---|---|"]
    lines += [f"| {name} | {about.default} | {about.freeze} | {about.token} |" for name, about in ABOUT.items()]
    return "\n".join(lines) + "\n"


_BEGIN = (
    "One harness, one machine, one run, on {date}: {machine}, load average {load:.1f} as it began; {versions}. Written "
    "by `make bench-peers ARGS=--write`, which needs Debian, `redis-server` and `java`, fetches the other servers' "
    "packages without installing them, and takes about a quarter of an hour. Absolute figures are this machine's, and "
    "those of whatever else ran on it; what to look at is how they compare."
)

_INTRODUCTION = """\
# Beside what people use instead

{begin}

![Failover times on a logarithmic scale: ours, the physical limit, and the others](../images/comparison.svg)

A leader and two followers, each a process of its own. The leader gets SIGTERM and releases (graceful), dies of `kill
-9`, or is frozen by SIGSTOP; what is timed is how long it takes until another says that it leads. A frozen leader is
thawed 0.3 s after that and watched for 3 s: *overlap* is for how long it still acts beside its successor. Medians, for
the overlap the worst; in brackets how many times the physical limit, which is a bare blocking `pg_advisory_lock`. "‹"
marks what is better than ours, "=" a tie; the reasons are below the tables. Ours are in bold; a peer is compared with
the one that its user would take instead: locks in files with `file://`, those that may be shared between hosts with
`pgleaderlock.stores.nfs.Lock`, client-go with `k8s://`, all others with `postgresql://`.

**In short.** Session locks see a crash at once, and of those only ours survives a freeze too. With a lease alone,
a follower waits for it after every crash; so do ours on Kubernetes, in rows and in a shared folder. With neither,
it never fails over: with their defaults, that is redis-py's and python-redis-lock's locks after a crash, and all plain
file locks and plain advisory locks after a freeze. Ours costs more than a bare lock: a hand-over and a failover take
two to three times as long, for the witness lock on a second connection and the token on the disk, and some peers that
wake one waiter are quicker at a hand-over; the leader and its heir have a second connection, the next two leaders ask
about once in a second, and there is the memory.
"""

_METHOD = """
## What this does not show

- All on one machine: no network, no clocks that differ, no host that dies with its sockets open.
- A short overlap is measured in acts, one every 5 ms: shorter ones are seen only by chance. "None" is what was seen,
  not a proof.
- Peers that ask their server before each act are measured as if everybody's code did. Code in a `with lock:` block does
  not.
- Everybody has a default that could be chosen differently. The second table has one lease for all who have one.
- What takes milliseconds is measured alone, in fifteen rounds. What waits for a lease is measured ten at a time, twice:
  there the lease's length and chance decide, and a few milliseconds of disturbance do not show.
- A request is counted by a relay between a follower and its server: where a client speaks after its server spoke.
  Wake-ups are the follower's voluntary context switches, counted for 12 s, 5 s after it came: ours looks less often
  after a minute. Memory is its resident set, the interpreter included.
"""
