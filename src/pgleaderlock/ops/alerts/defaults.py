"""The alerts that every election should have. They need no corrections: they are exported as written."""

import json
from collections.abc import Mapping, Sequence

from pgleaderlock._base.checks import check_seconds
from pgleaderlock.ops.alerts.model import Alert, Target, check_name
from pgleaderlock.ops.alerts.rules import check_prefix
from pgleaderlock.stores.times import USUAL_LEASE_S

__all__ = ["default_alerts"]

_SLOW = 3  # renewals are sent every third of a lease: a renewal that takes as long delays the next one
_SEEN_S = 10.0  # the histogram's last bucket is 15 s: a threshold must be below it, or it is never exceeded


def default_alerts(
    prefix: str = "pgleaderlock",
    *,
    lease_s: float = USUAL_LEASE_S,
    roles: Sequence[str] = (),
    notify: Mapping[str, tuple[Target, ...]] | None = None,
) -> tuple[Alert, ...]:
    """Return the default set. With roles, each has its own "no leader".

    Without roles, Prometheus does not know which roles should exist: a role whose nodes are all gone raises the alert
    only when no other role reports either.
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
            "The history of {{ $labels.role }} shows two leaders at once (split brain): check what both of them wrote.",
        ),
        alert(
            "registry_unreachable",
            "warning",
            f"min by (node) ({prefix}_registry_up) == 0",
            "{{ $labels.node }} cannot write to the registry: elections continue, their history has a gap.",
            "1m",
        ),
    )


def _no_leader(metric: str, roles: Sequence[str], notify: tuple[Target, ...]) -> list[Alert]:
    """Return one alert for each role; without roles, one for all that report and for the case that none does."""
    alerts = []
    for role in dict.fromkeys(roles) or (None,):
        # A quoted text in JSON is also valid in PromQL.
        selector = (
            metric if role is None else f"{metric}{{role={json.dumps(check_name('a role', role), ensure_ascii=False)}}}"
        )
        condition = f"sum by (role) ({selector}) == 0 or sum by (role) (absent({selector}))"
        summary = "No leader{{ with $labels.role }} of {{ . }}{{ else }}, or no node reports{{ end }}."
        alerts.append(Alert("no_leader", condition, "critical", "30s", notify, summary, role, as_written=True))
    return alerts
