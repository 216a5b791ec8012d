"""The summary of a torture, in words and in figures: the same on the page, in the terminal and in JSON."""

from dataclasses import dataclass, field
from typing import Any

from pgleaderlock.testing._claim import GAP_S
from pgleaderlock.testing.torture._checker import Verdict, percentile
from pgleaderlock.testing.torture._options import Options

PERCENTS = (50, 90, 99, 100)
"""The percentiles that are shown of the failover times; the last is the longest."""
_MINUTE_S = 60


@dataclass(slots=True)
class Setting:
    """The server and the settings of a torture."""

    where: str
    version: str
    options: Options
    command: str
    done: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    impossible: dict[str, str] = field(default_factory=dict)
    """Faults that were not possible here, and why."""
    is_cut_short: bool = False
    most_connections: int = 0

    def sentence(self) -> str:
        """Return the server, the number of nodes and the settings of the run as one sentence."""
        cut, options = "cut short, " if self.is_cut_short else "", self.options
        return (
            f"{options.nodes} processes on PostgreSQL {self.version} ({self.where}), {cut}"
            f"lease {options.lease_s:g} s, take-over {options.takeover}, seed {options.seed}"
        )

    def not_done(self) -> str:
        """Return which faults were not injected, and why."""
        words = [f"{kind} was not possible here: {why}." for kind, why in self.impossible.items()]
        if self.left_out:
            words.append(f"Skipped, because not possible when their turn came: {self.left_out}.")
        return " ".join(words)

    def limits(self, verdict: Verdict) -> str:
        """Return how the figures were measured, and what they do not show."""
        return (
            "Each process was sampled about every millisecond for whether it claims to lead, by the machine's one "
            "monotonic clock, and the samples were written into a file that outlives the process. The judge, which "
            f"shares no code with the election, read those files. For {seconds(verdict.not_sampled_s())} in all, the "
            f"leader was not sampled for longer than {GAP_S * 1000:.0f} ms at a time, because the machine was busy: "
            "nothing was seen in that time. A torture finds failures, and proves nothing: it runs for a limited time, "
            "on one machine. Wall clocks are never used to decide who leads."
        )


def ms(value_s: float) -> str:
    """Format a duration for a column."""
    return f"{value_s * 1000:,.1f} ms"


def seconds(value_s: float) -> str:
    """Format a duration for a sentence."""
    if value_s >= 2 * _MINUTE_S:
        return f"{value_s / _MINUTE_S:.1f} min"
    return f"{value_s:.2f} s" if value_s >= 1 else f"{value_s * 1000:.0f} ms"


def failed_terms_words(verdict: Verdict) -> str:
    """Return a note on whether every term ended for a known reason."""
    unknown = len(verdict.unexplained)
    if unknown:
        return f"{unknown} terms ended without a known reason."
    return "By the nodes' own event logs. “killed”: the process could log nothing; “the end”: it led to the end."


def as_record(verdict: Verdict, setting: Setting) -> dict[str, Any]:
    """Return the result for programs, as JSON. Times are in milliseconds unless their names say otherwise."""
    logs = verdict.logs
    return {
        "good": verdict.is_good,
        "problems": verdict.problems(),
        "where": setting.where,
        "server_version": setting.version,
        **{name: getattr(setting.options, name) for name in ("seed", "nodes", "lease_s", "takeover")},
        "lasted_s": round(logs.ended_at - logs.began_at, 3),
        "cut_short": setting.is_cut_short,
        "overlaps": [
            {
                "nodes": [each.first.node, each.second.node],
                "tokens": [each.first.token, each.second.token],
                "at_s": round(each.began_at - logs.began_at, 6),
                "ms": round(each.lasted_s * 1000, 3),
            }
            for each in verdict.overlaps
        ],
        "repeated_tokens": verdict.repeated_tokens,
        "backward_tokens": verdict.backward_tokens,
        "terms": len(verdict.terms),
        "endings": [{"cause": cause, "times": times} for cause, times in verdict.endings().items()],
        "failovers": [
            {
                "after": cause,
                "times": len(times),
                **{f"p{percent}_ms": round(percentile(times, percent) * 1000, 1) for percent in PERCENTS[:-1]},
                "max_ms": round(times[-1] * 1000, 1),
            }
            for cause, times in verdict.failovers_s().items()
        ],
        "leaderless": [{"after": cause, "s": round(lasted_s, 3)} for cause, lasted_s in verdict.leaderless_s().items()],
        "not_sampled_s": round(verdict.not_sampled_s(), 3),
        "faults": [{"fault": kind, "times": times} for kind, times in sorted(setting.done.items())],
        "left_out": setting.left_out,
        "impossible": [{"fault": kind, "why": why} for kind, why in setting.impossible.items()],
        "most_connections": setting.most_connections,
    }
