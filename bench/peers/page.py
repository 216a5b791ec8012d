"""The page in docs/: two tables, what each peer does when its leader is frozen, and why a peer is ahead where it is."""

from collections.abc import Sequence
from pathlib import Path

from peers.arithmetic import median, percentile
from peers.entries import LIMIT, Entry, all_entries
from peers.explanations import ABOUT, why
from peers.judging import METRICS, Verdict, unexplained, verdicts
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


def write_page(run: Run) -> None:
    """Write the page and its picture; refuse where a reader would not be told why ours is not in front."""
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
    parts = [
        _INTRODUCTION.format(
            date=run.date,
            machine=run.machine,
            versions=", ".join(f"{name} {number}" for name, number in run.versions.items()),
        ),
        "## With the defaults of each\n",
        _table(entries, run, "default"),
        "\n## With a lease of 4 s for all\n",
        "Where there is something to set. 4 s is ZooKeeper's shortest session.\n",
        _table(entries, run, "tuned"),
        "\n## The worst of the rounds\n",
        _worst(entries, run),
        "\n## Where a peer is ahead of ours, or beside it\n",
        _reasons(entries, run),
        "\n## What each does when its leader is frozen\n",
        _abouts(),
        _METHOD,
    ]
    return "\n".join(parts)


def _table(entries: Sequence[Entry], run: Run, setting: str) -> str:
    limit = run.figures.get(f"{LIMIT} (default)")
    lines = [f"| | {' | '.join(HEADINGS)} |", f"|---|{'---|' * len(HEADINGS)}"]
    for entry in entries:
        if entry.setting != setting:
            continue
        figures = run.figures[entry.row]
        name = f"**{entry.name}**" if entry.ours else entry.name
        if figures.missing:
            lines.append(f"| {name} | not measured: {figures.missing} |{' |' * (len(HEADINGS) - 1)}")
            continue
        row = list(cells(entry, figures, limit))
        for verdict in _of(entry, run):
            _mark(row, _COLUMNS[verdict.metric], verdict)
        lines.append(f"| {name} | {' | '.join(row)} |")
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


def _reasons(entries: Sequence[Entry], run: Run) -> str:
    titles = {metric.key: metric.title for metric in METRICS}
    lines = []
    for entry in entries:
        causes: dict[str, list[str]] = {}
        for verdict in _of(entry, run):
            title = titles[verdict.metric] + (" (a tie)" if verdict.is_tie else "")
            causes.setdefault(why(entry.name, verdict.metric) or "", []).append(title)
        if causes:
            said = "; ".join(f"*{', '.join(columns)}*: {cause}" for cause, columns in causes.items())
            lines.append(f"- **{entry.row}**, beside `{entry.compared_with}`. {said}.")
    return "\n".join(lines) + "\n"


def _abouts() -> str:
    lines = ["| | as measured by default | frozen, then thawed | a token for fencing |", "|---|---|---|---|"]
    lines += [f"| {name} | {about.default} | {about.freeze} | {about.token} |" for name, about in ABOUT.items()]
    return "\n".join(lines) + "\n"


_INTRODUCTION = """\
# Beside what people use instead

One harness, one machine, one run, on {date}: {machine}. {versions}. Written by `make bench-peers ARGS=--write`, which
needs Debian, `redis-server` and `java`, fetches the other servers' packages without installing them, and takes about
ten minutes. Absolute figures are this machine's; what to look at is how they compare.

![Failover times on a logarithmic scale: ours, the physical limit, and the others](../images/comparison.svg)

A leader and two who wait, each a process of its own. The leader gets SIGTERM and lets go (graceful), dies of `kill -9`,
or is frozen by SIGSTOP; what is timed is how long it takes until another says that it leads. A frozen leader is thawed
0.3 s after that and watched for 3 s: *overlap* is for how long it still acts beside its successor. Medians, for the
overlap the worst; in brackets how many times the physical limit, which is a bare blocking `pg_advisory_lock`. "‹" marks
what is better than ours, "=" a tie; the reasons are below. Ours are in bold; a peer is compared with the one that its
user would take instead.

**In short.** Session locks see a crash at once, and of those only ours survives a freeze too. Whoever has a lease alone
waits for it after every crash; so do ours on Kubernetes, in rows and in a shared folder. Whoever has neither never
fails over at all: with their defaults, that is redis-py's and python-redis-lock's locks after a crash, and all plain
file locks and plain advisory locks after a freeze. Ours costs more than a bare lock: some milliseconds for the renewal,
the witness and the token, a second connection of the leader, about one request in a second of each follower, and
memory.
"""

_METHOD = """
## What this does not show

- All on one machine: no network, no clocks that differ, no host that dies with its sockets open.
- A short overlap is measured in acts, one every 5 ms: shorter ones are seen only by chance. "None" is what was seen,
  not a proof.
- Peers that ask their server before each act are measured as if everybody's code did. Code in a `with lock:` block does
  not.
- Everybody has a default that could be chosen differently. The second table has one lease for all who have one.
- What takes milliseconds is measured alone, in five rounds. What waits for a lease is measured ten at a time, twice:
  there the lease's length and chance decide, and a few milliseconds of disturbance do not show.
- A request is counted by a relay between a follower and its server: where a client speaks after its server spoke.
  Wake-ups are the follower's voluntary context switches, counted for 12 s, 5 s after it came: ours looks less often
  after a minute. Memory is its resident set, the interpreter included.
"""
