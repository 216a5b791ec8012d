"""The report of a torture as one HTML page, which loads nothing and runs no script.

Its values come from a server, a command line or a log: every value is escaped.
"""

from collections.abc import Iterable, Sequence
from html import escape

from pgleaderlock.testing.torture._checker import Verdict, percentile
from pgleaderlock.testing.torture._picture import legend, strips
from pgleaderlock.testing.torture._plan import FAULTS
from pgleaderlock.testing.torture._style import STYLE
from pgleaderlock.testing.torture._summary import PERCENTS, Setting, failed_terms_words, ms, seconds


def page(verdict: Verdict, setting: Setting) -> str:
    """Return the report as one HTML page."""
    kept = verdict.is_good
    total_s = verdict.logs.ended_at - verdict.logs.began_at
    title = f"Never two leaders in {seconds(total_s)}" if kept else "The promise was not kept"
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}: pgleaderlock torture</title><style>{STYLE}</style></head><body><main>",
            f'<header class="{"good" if kept else "bad"}"><p class="brand">pgleaderlock torture</p>',
            f"<h1>{escape(title)}</h1><p>{escape(setting.sentence())}</p></header>",
            _problems(verdict),
            _tiles(verdict, setting),
            f'<section><h2>Who led when</h2>{legend()}<div class="strips">{"".join(strips(verdict))}</div></section>',
            '<div class="columns">',
            _section("Failover times", _failovers(verdict), _FAILOVER_NOTE),
            _section("Time without a leader", _leaderless(verdict), _LEADERLESS_NOTE),
            _section("Why terms ended", _endings(verdict), failed_terms_words(verdict)),
            _section("Injected faults", _done(setting), setting.not_done()),
            "</div>",
            _section("How to read this", "", setting.limits(verdict)),
            f"<footer>Again: <code>{escape(setting.command)}</code></footer></main></body></html>\n",
        )
    )


_FAILOVER_NOTE = (
    "From the fault to the next leader, where the leader was hit and its term ended by it. A percentile is a value "
    "that was measured. “several at once”: another fault was active before the next leader led. "
    "No node leads until a lease after the server's last start, so a restart takes longer than a lease."
)
_NUMBERS = frozenset({"times", "p50", "p90", "p99", "max"})
_LEADERLESS_NOTE = (
    "By the last fault that hit the former leader; “the beginning” is until the first leader. A frozen leader that "
    "still led afterwards is counted too."
)


def _problems(verdict: Verdict) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in verdict.problems())
    return f'<ul class="problems">{items}</ul>' if items else ""


def _tiles(verdict: Verdict, setting: Setting) -> str:
    total_s = max(verdict.logs.ended_at - verdict.logs.began_at, 0.001)
    leaderless_s = sum(verdict.leaderless_s().values())
    slowest = max((times[-1] for times in verdict.failovers_s().values()), default=None)
    tiles = (
        (str(len(verdict.overlaps)), "times two led at once"),
        (str(len(verdict.terms)), "terms, each with a greater token"),
        (str(sum(setting.done.values())), "faults"),
        (f"{100 * (1 - leaderless_s / total_s):.1f} %", f"of {seconds(total_s)} with a leader"),
        (
            "-" if slowest is None else seconds(slowest),
            f"the slowest failover; the lease is {setting.options.lease_s:g}\N{NO-BREAK SPACE}s",
        ),
    )
    shown = "".join(f"<div><b>{escape(figure)}</b><span>{escape(words)}</span></div>" for figure, words in tiles)
    return f'<section class="tiles">{shown}</section>'


def _section(title: str, body: str, note: str) -> str:
    note = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{body}{note}</section>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    kinds = [' class="number"' if each in _NUMBERS else "" for each in headings]
    head = "".join(f"<th{kind}>{escape(each)}</th>" for kind, each in zip(kinds, headings, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _failovers(verdict: Verdict) -> str:
    headings = ("after", "times", *(f"p{percent}" for percent in PERCENTS[:-1]), "max")
    rows = [
        (cause, str(len(times)), *(ms(percentile(times, percent)) for percent in PERCENTS))
        for cause, times in verdict.failovers_s().items()
    ]
    return _table(headings, rows)


def _leaderless(verdict: Verdict) -> str:
    found = verdict.leaderless_s()
    longest = max(found.values(), default=1.0) or 1.0
    rows = "".join(
        f"<tr><td>{escape(cause)}</td><td>{escape(seconds(lasted_s))}</td>"
        f'<td class="wide"><i class="bar" style="width:{100 * lasted_s / longest:.1f}%"></i></td></tr>'
        for cause, lasted_s in found.items()
    )
    head = "<tr><th>after</th><th>in all</th><th></th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def _endings(verdict: Verdict) -> str:
    return _table(("cause", "times"), [(cause, str(times)) for cause, times in verdict.endings().items()])


def _done(setting: Setting) -> str:
    rows = [(kind, str(times), FAULTS.get(kind, "")) for kind, times in sorted(setting.done.items())]
    return _table(("fault", "times", "what it is"), rows)
