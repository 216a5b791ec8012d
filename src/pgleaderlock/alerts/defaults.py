"""The alerts that every election should have. They need no mending: they are written as they are exported."""

import json
from collections.abc import Mapping, Sequence

from pgleaderlock._checks import check_seconds
from pgleaderlock.alerts.model import Alert, Target, check_name
from pgleaderlock.alerts.rules import check_prefix

__all__ = ["default_alerts"]

_SLOW = 3  # renewals are sent every third of a lease: one that takes as long has used up its turn
_SEEN_S = 10.0  # what takes longer than the histogram's last bucket, 15 s, is shown as 15 s, and never as more


def default_alerts(
    prefix: str = "pgleaderlock",
    *,
    lease_s: float = 15.0,
    roles: Sequence[str] = (),
    notify: Mapping[str, tuple[Target, ...]] | None = None,
) -> tuple[Alert, ...]:
    """Return the default set. With roles, each has its own "no leader".

    Nobody can miss what was never named: without roles, a role whose nodes are all gone is missed only when no other
    role reports either.
    """
    check_prefix(prefix)
    slow_s = min(check_seconds("lease_s", lease_s) / _SLOW, _SEEN_S)
    tell = notify or {}
    metric = f"{prefix}_leader"

    def alert(name: str, severity: str, condition: str, summary: str, for_: str | None = None) -> Alert:
        return Alert(name, condition, severity, for_, tell.get(severity, ()), summary, as_written=True)

    renewals = f"sum by (role, le) (rate({metric}_renew_seconds_bucket[5m]))"
    return (
        *_no_leader(f"{metric}_is_leader", roles, tell.get("critical", ())),
        alert(
            "frequent_failovers",
            "warning",
            f"floor(sum by (role) (increase({metric}_failovers_total[5m]))) > 5",
            "The leader of {{ $labels.role }} changed {{ $value }} times in 5 minutes.",
        ),
        alert(
            "slow_renewals",
            "warning",
            f"histogram_quantile(0.99, {renewals}) > {slow_s:g}",
            f"Renewing {{{{ $labels.role }}}} takes {{{{ $value | humanizeDuration }}}}, of a lease of {lease_s:g} s.",
        ),
        alert(
            "overlapping_terms",
            "critical",
            f"max by (role) ({prefix}_audit_overlaps) > 0",
            "The history of {{ $labels.role }} shows two leaders at once: look at what both of them wrote.",
        ),
        alert(
            "registry_unreachable",
            "warning",
            f"min by (node) ({prefix}_registry_up) == 0",
            "{{ $labels.node }} cannot write to the registry: elections go on, their history has a gap.",
            "1m",
        ),
    )


def _no_leader(metric: str, roles: Sequence[str], notify: tuple[Target, ...]) -> list[Alert]:
    """Return one alert for each role; or one for all that report, and for none reporting at all."""
    alerts = []
    for role in dict.fromkeys(roles) or (None,):
        # A quoted text of JSON is one of PromQL too.
        selector = (
            metric if role is None else f"{metric}{{role={json.dumps(check_name('a role', role), ensure_ascii=False)}}}"
        )
        condition = f"sum by (role) ({selector}) == 0 or sum by (role) (absent({selector}))"
        summary = "Nobody leads {{ with $labels.role }}{{ . }}{{ else }}anything, or nobody reports{{ end }}."
        alerts.append(Alert("no_leader", condition, "critical", "30s", notify, summary, role, as_written=True))
    return alerts
