"""Alerts in TOML, compiled for Prometheus, Alertmanager and Grafana.

Nothing here takes part in an election, or talks to anything: words go in, documents come out.

::

    TOML ─► model (Alert, Receiver) ─► rules ─► rules.yml          what to look at, and when to worry
                                   └─► alertmanager ─► alertmanager.yml   whom to tell
                           prefix ─► grafana ─► grafana.json       what to look at then

Two conditions that look right are not: a sum of nothing is not 0, and a rate is per second. They are mended on the
way, and each change is told (:mod:`~pgleaderlock.alerts.rules`). Secrets never pass through: only the paths of the
files that hold them do.
"""

from pgleaderlock.alerts.alertmanager import alertmanager_config, unheard
from pgleaderlock.alerts.defaults import default_alerts
from pgleaderlock.alerts.grafana import dashboard
from pgleaderlock.alerts.model import Alert, Config, Receiver, parse
from pgleaderlock.alerts.rules import Remark, prometheus_rules

__all__ = [
    "Alert",
    "Config",
    "Receiver",
    "Remark",
    "alertmanager_config",
    "dashboard",
    "default_alerts",
    "parse",
    "prometheus_rules",
    "unheard",
]
