"""The alerts and receivers that an operator writes in TOML.

The file may hold other tables; only ``[[alerts]]`` and ``[receivers]`` are read. Within them an unknown key is an
error, because a misread alert would be noticed only when it does not fire.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pgleaderlock.ops.alerts import _receivers
from pgleaderlock.ops.alerts._receivers import Receiver, Target
from pgleaderlock.ops.alerts._table import Table
from pgleaderlock.ops.alerts.promql import read

__all__ = ["SEVERITIES", "Alert", "Config", "Receiver", "Target", "check_name", "parse"]

SEVERITIES = ("critical", "warning", "info")
"""The severities, worst first."""

_ALERT_KEYS = ("name", "condition", "for", "severity", "notify", "summary", "as_written")
# Prometheus' own form of a duration: units from large to small, each once.
_DURATION = re.compile(r"(?=\d)(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?|0")
_LONGEST_FIGURE = 6  # a thousand years of days; Prometheus counts in nanoseconds and overflows after 292 years
_LIKELY_SLIPS = {"alert": "[[alerts]]", "receiver": "[receivers.*]"}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert: its condition, its severity, and the receivers to notify."""

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
    """The alerts and receivers of one file. ``notify`` has default receivers by severity, for alerts without any."""

    alerts: tuple[Alert, ...]
    receivers: tuple[Receiver, ...]
    notify: Mapping[str, tuple[Target, ...]]

    @property
    def addressed(self) -> tuple[Alert, ...]:
        """The alerts, each with its receivers: those that it names, or the default ones of its severity."""
        return tuple(
            alert if alert.notify else replace(alert, notify=self.notify.get(alert.severity, ()))
            for alert in self.alerts
        )


def parse(content: dict[str, Any], source: str = "the configuration") -> Config:
    """Return the alerts of a file that ``tomllib`` has parsed. A ``ValueError`` names the place of a mistake."""
    whole = Table(content, source)
    for slip, meant in _LIKELY_SLIPS.items():
        if slip in whole:
            raise whole.wrong(slip, f"is an unknown table: did you mean {meant}?")
    receivers = whole.part("receivers", f"{source}: [receivers]")
    notify = _notify_by_severity(receivers, source)
    alerts = [_alert(entry, number, source) for number, entry in enumerate(whole.parts("alerts"), 1)]
    _refuse_twins(alerts, source)
    return Config(tuple(alerts), _receivers.parse(receivers, source), notify)


def check_name(what: str, name: str) -> str:
    """Return a name that Prometheus accepts as the value of a label, and that a person can type into a silence."""
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
                f'{source}: alert "{alert.name}": name is used twice, but routes to receivers go by name: rename one'
            )
        seen.add(alert.name)
