"""The configuration of Alertmanager: routes from each alert to its receivers, with the paths of the secrets' files."""

from collections.abc import Iterable, Sequence
from typing import Any

from pgleaderlock.ops.alerts.model import Alert, Receiver, Target
from pgleaderlock.ops.alerts.rules import Remark

__all__ = ["NO_RECEIVER", "alertmanager_config", "unheard"]

_Known = dict[tuple[str, str], Receiver]

NO_RECEIVER = "none"
"""The receiver of alerts without ``notify``: they only show on Alertmanager's own page."""

_ADVICE = {
    "pagerduty": 'add [receivers.pagerduty] with routing_key_file = "/run/secrets/pagerduty"',
    "slack": 'add [receivers.slack] with api_url_file = "/run/secrets/slack"',
}


def alertmanager_config(
    alerts: Iterable[Alert], receivers: Sequence[Receiver], source: str = "the configuration"
) -> dict[str, Any]:
    """Return the document of ``alertmanager.yml``. ValueError if an alert names a receiver that is not configured."""
    known: _Known = {(receiver.kind, receiver.name): receiver for receiver in receivers}
    routes, reached = {}, {NO_RECEIVER: {"name": NO_RECEIVER}}
    for alert in alerts:
        name = " + ".join(map(str, alert.notify)) or NO_RECEIVER
        if name not in reached:
            reached[name] = _receiver(name, alert, known, source)
        routes[alert.name] = {"matchers": [f"alertname={_quoted(alert.name)}"], "receiver": name}
    return {
        "route": {
            "receiver": NO_RECEIVER,
            "group_by": ["alertname", "role"],
            "group_wait": "5s",  # instead of 30 s: a missing leader has lasted for 30 s already
            "group_interval": "1m",
            "repeat_interval": "4h",
            "routes": list(routes.values()),
        },
        "receivers": list(reached.values()),
    }


def unheard(alerts: Iterable[Alert]) -> list[Remark]:
    """Return a remark for each alert that no receiver is notified of."""
    silent = dict.fromkeys((alert.name, alert.severity) for alert in alerts if not alert.notify)
    return [
        Remark(
            name, "no_receiver", f"no receiver: give it a notify, or write {severity} = [...] into [receivers.default]."
        )
        for name, severity in silent
    ]


def _quoted(name: str) -> str:
    """Quote a label's value for a matcher."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _receiver(name: str, alert: Alert, known: _Known, source: str) -> dict[str, Any]:
    receiver: dict[str, Any] = {"name": name}
    for target in alert.notify:
        receiver.setdefault(f"{target.kind}_configs", []).append(_settings(target, alert, known, source))
    return receiver


def _settings(target: Target, alert: Alert, known: _Known, source: str) -> dict[str, Any]:
    if target.is_address:
        return {"url": target.detail}
    found = known.get((target.kind, target.detail if target.kind == "webhook" else ""))
    if found is None:
        advice = _ADVICE.get(target.kind, f'add [receivers.webhook.{target.detail}] with url = "https://..."')
        raise ValueError(f'{source}: alert "{alert.name}": notify has "{target}", which is not configured: {advice}')
    settings: dict[str, Any] = {found.key: found.value}
    match target.kind:
        case "slack":
            settings |= {"channel": target.detail, "send_resolved": True}
        case "pagerduty":
            settings |= {"severity": "{{ .CommonLabels.severity }}"}
        case "webhook":
            pass
    return settings
