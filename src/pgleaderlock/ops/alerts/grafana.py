"""The dashboard for Grafana: ``dashboard.json``, with the prefix of the metrics filled in."""

import json
from importlib.resources import files
from typing import Any

from pgleaderlock.ops.alerts.rules import check_prefix

__all__ = ["dashboard"]


def dashboard(prefix: str = "pgleaderlock") -> dict[str, Any]:
    """Return the dashboard, ready to be imported. Each prefix gives a dashboard with its own uid."""
    check_prefix(prefix)
    document: dict[str, Any] = json.loads(files(__package__).joinpath("dashboard.json").read_text(encoding="utf-8"))
    document["uid"] = f"leaders-{prefix}"[:40]
    for variable in document["templating"]["list"]:
        if variable["name"] == "prefix":
            variable["query"] = prefix
            variable["current"] = {"selected": False, "text": prefix, "value": prefix}
    return document
