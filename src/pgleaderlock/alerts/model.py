"""What an operator writes: alerts, whom to tell, and how to reach them.

The file may hold other tables; only ``[[alerts]]`` and ``[receivers]`` are read. Within them an unknown key is an
error, because an alert that was misunderstood is found out on the night when it stays silent.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pgleaderlock.alerts import _receivers
from pgleaderlock.alerts._receivers import Receiver, Target
from pgleaderlock.alerts._table import Table
from pgleaderlock.alerts.promql import read

__all__ = ["SEVERITIES", "Alert", "Config", "Receiver", "Target", "check_name", "parse"]

SEVERITIES = ("critical", "warning", "info")
"""How bad it is, worst first."""

_ALERT_KEYS = ("name", "condition", "for", "severity", "notify", "summary", "as_written")
# Prometheus' own form of a duration: units from large to small, each once.
_DURATION = re.compile(r"(?=\d)(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?|0")
_LONGEST_FIGURE = 6  # a thousand years of days; Prometheus counts in nanoseconds and overflows after 292 years
_LIKELY_SLIPS = {"alert": "[[alerts]]", "receiver": "[receivers.*]"}


@dataclass(frozen=True, slots=True)
class Alert:
    """When to worry, how much, and whom to tell."""

    name: str
    condition: str
    severity: str
    for_: str | None = None
    notify: tuple[Target, ...] = ()
    summary: str | None = None
    role: str | None = None
    as_written: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """All that one file says. ``notify`` is by severity: it is for alerts that name nobody themselves."""

    alerts: tuple[Alert, ...]
    receivers: tuple[Receiver, ...]
    notify: Mapping[str, tuple[Target, ...]]

    @property
    def addressed(self) -> tuple[Alert, ...]:
        """The alerts, each with whom it is told to: who it names, or who is told of its severity."""
        return tuple(
            alert if alert.notify else replace(alert, notify=self.notify.get(alert.severity, ()))
            for alert in self.alerts
        )


def parse(content: dict[str, Any], source: str = "the configuration") -> Config:
    """Return what the file says, as ``tomllib`` gives it. Anything wrong is a ``ValueError`` that names its place."""
    whole = Table(content, source)
    for slip, meant in _LIKELY_SLIPS.items():
        if slip in whole:
            raise whole.wrong(slip, f"is not read by anything: did you mean {meant}?")
    receivers = whole.part("receivers", f"{source}: [receivers]")
    notify = _notify_by_severity(receivers, source)
    alerts = [_alert(entry, number, source) for number, entry in enumerate(whole.parts("alerts"), 1)]
    _refuse_twins(alerts, source)
    return Config(tuple(alerts), _receivers.parse(receivers, source), notify)


def check_name(what: str, name: str) -> str:
    """Return a name that Prometheus takes as the value of a label, and that a person can type into a silence."""
    if not name.isprintable() or name != name.strip() or not name:
        raise ValueError(f"{what} must be printable, without line breaks, and not begin or end with a space")
    return name


def _alert(entry: Any, number: int, source: str) -> Alert:
    table = Table(entry, f"{source}: [[alerts]] number {number}")
    name = table.needed("name", '"no_leader"')
    try:
        check_name(f"{table.place}: name", name)
    except ValueError as error:
        raise ValueError(f"{error}: choose letters, digits and _") from None
    table.place = f'{source}: alert "{name}"'
    table.only(_ALERT_KEYS)
    return Alert(
        name=name,
        condition=_condition(table),
        severity=_severity(table),
        for_=_duration(table),
        notify=_targets(table, "notify"),
        summary=table.text("summary"),
        as_written=table.flag("as_written"),
    )


def _condition(table: Table) -> str:
    condition = table.needed("condition", "a PromQL expression in quotes").strip()
    try:
        read(condition)
    except ValueError as error:
        raise table.wrong("condition", f"is not PromQL: {error}") from None
    return condition


def _severity(table: Table) -> str:
    severity = table.needed("severity", '"critical", "warning" or "info"')
    if severity not in SEVERITIES:
        raise table.wrong("severity", f'must be "critical", "warning" or "info", not {severity!r}')
    return severity


def _duration(table: Table) -> str | None:
    written = table.text("for")
    if written is None:
        return None
    figures = re.findall(r"\d+", written)
    if not _DURATION.fullmatch(written) or any(len(figure) > _LONGEST_FIGURE for figure in figures):
        raise table.wrong("for", f'must be a duration such as "30s", "5m" or "1h30m", not {written!r}')
    return written


def _targets(table: Table, key: str) -> tuple[Target, ...]:
    targets = [_receivers.parse_target(table, key, written) for written in table.texts(key) or ()]
    return tuple(dict.fromkeys(targets))


def _notify_by_severity(receivers: Table, source: str) -> dict[str, tuple[Target, ...]]:
    table = receivers.part("default", f"{source}: [receivers.default]")
    table.only(SEVERITIES)
    return {severity: _targets(table, severity) for severity in table}


def _refuse_twins(alerts: list[Alert], source: str) -> None:
    seen = set[str]()
    for alert in alerts:
        if alert.name in seen:
            raise ValueError(
                f'{source}: alert "{alert.name}": name is used twice, but who is told goes by name: rename one'
            )
        seen.add(alert.name)
