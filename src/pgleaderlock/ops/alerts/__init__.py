"""Alerts in TOML, compiled for Prometheus, Alertmanager and Grafana.

Nothing here takes part in an election or opens a connection: it turns one file into others.

::

    TOML ─► model (Alert, Receiver) ─► rules ─► rules.yml          when to fire
                                   └─► alertmanager ─► alertmanager.yml   which receivers to notify
                           prefix ─► grafana ─► grafana.json       a dashboard

Two conditions that look right are not: a sum over no series is not 0, and a rate is per second. They are corrected,
and each correction is reported (:mod:`~pgleaderlock.ops.alerts.rules`). The output has no secrets, only the paths of
the files that hold them.
"""

from pgleaderlock.ops.alerts.alertmanager import alertmanager_config, unheard
from pgleaderlock.ops.alerts.defaults import default_alerts
from pgleaderlock.ops.alerts.grafana import dashboard
from pgleaderlock.ops.alerts.model import Alert, Config, Receiver, parse
from pgleaderlock.ops.alerts.rules import Remark, prometheus_rules

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
