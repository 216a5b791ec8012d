"""Alerts on the page: since when they fire, those of a configuration, and what ``config check`` says of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pgleaderlock.cli.commands import cli
from pgleaderlock.ops.alerts.model import Alert
from pgleaderlock.ops.dashboard import Watched
from pgleaderlock.ops.dashboard._alerts import alert_records
from pgleaderlock.ops.dashboard._picture import node_records
from pgleaderlock.ops.registry.reading import RoleStatus
from tests.support.dashboard import candidate, leader, line, record

AT = 1000.0


def find(alerts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in alerts if each["name"] == name)


def terms(*times: float) -> list[Any]:
    return [each for at in times for each in (line("acquired", at, token=int(at)), line("lost", at + 5, token=int(at)))]


# --- Since when -------------------------------------------------------------------------------------------------------


def test_an_alert_fires_since_it_fired_and_not_since_the_first_term():
    restless = record(RoleStatus("l", "role", leader("a", 990, 990.0)), terms(777, 800, 850, 900, 950, 990), at=AT)
    firing = find(alert_records([restless], [], at=AT), "frequent_failovers")
    assert (firing["state"], firing["since"]) == ("firing", 990.0)
    for last, since in ((1060.0, 990.0), (1099.0, 1099.0)):  # from 1077 until 1099 there were five within 300 s
        role = RoleStatus("l", "role", leader("a", int(last), last))
        more = record(role, terms(777, 800, 850, 900, 950, 990, last), at=last + 1)
        assert find(alert_records([more], [], at=last + 1), "frequent_failovers")["since"] == since


def test_no_leader_builds_up_since_the_end_of_the_term_and_fires_since_it_is_overdue():
    nobody = record(RoleStatus("l", "role"), [line("acquired", 10.0), line("lost", 998.0)], at=AT)
    pending, firing = (find(alert_records([nobody], [], at=at), "no_leader") for at in (AT, 1010.0))
    assert (pending["state"], pending["since"]) == ("pending", 998.0)
    assert (firing["state"], firing["since"]) == ("firing", 1003.0)


def test_an_overlap_fires_since_the_second_of_them_began():
    two = [line("acquired", 10.0), line("acquired", 12.0, "b", 2), line("lost", 30.0), line("lost", 40.0, "b", 2)]
    found = find(alert_records([record(RoleStatus("l", "role"), two, at=AT)], [], at=AT), "overlap")
    assert (found["state"], found["since"]) == ("firing", 12.0)


def test_a_silent_node_is_one_until_a_node_of_that_name_is_back():
    dead = candidate("web-1", is_alive=False, seen_at=900.0)
    states = lambda *candidates: find(
        alert_records([], node_records([RoleStatus("l", "r", None, list(candidates))]), at=AT), "silent_node"
    )["state"]
    again = candidate("web-1", seen_at=999.0)
    object.__setattr__(again, "instance", "another process")
    assert (states(dead), states(dead, again)) == ("firing", "ok")


# --- Those of a configuration -----------------------------------------------------------------------------------------


def shown(condition: str, *roles: dict[str, Any], at: float = AT, **settings: Any) -> list[dict[str, Any]]:
    alert = Alert("mine", condition, "critical", **settings)
    return alert_records(roles, [], at=at, watched=Watched([alert], "forge"))


LED = record(RoleStatus("1", "one", leader("a", 1, 100.0)), [line("acquired", 100.0, lock="1")], at=AT)
ENDED = [line("acquired", 10.0, lock="2"), line("lost", 960.0, lock="2")]
UNLED = record(RoleStatus("2", "two"), ENDED, at=AT)
CHANGING = record(RoleStatus("l", "three", leader("a", 990, 990.0)), terms(500, 800, 850, 900, 950, 970, 990), at=AT)


@pytest.mark.parametrize(
    ("condition", "state", "role", "since"),
    [
        ("sum by (role) (forge_leader_is_leader) == 0", "firing", "two", 990.0),
        ("sum(forge_leader_is_leader) by (role) < 1", "firing", "two", 990.0),
        ('sum(forge_leader_is_leader{role="two"}) == 0', "firing", None, 990.0),
        ('sum(forge_leader_is_leader{role="one"}) == 0', "ok", None, None),
        ("sum(forge_leader_is_leader) == 0", "ok", None, None),
        ("sum by (role) (increase(forge_leader_failovers_total[5m])) > 5", "firing", "three", 990.0 + 30),
        ("sum by (role) (rate(forge_leader_failovers_total[5m])) > 5", "firing", "three", 990.0 + 30),
        ("sum by (role) (increase(forge_leader_failovers_total[1m])) > 5", "ok", None, None),
        ("max by (role) (forge_audit_overlaps) > 0", "ok", None, None),
        ("up == 0", "unknown", None, None),
        ("forge_leader_is_leader == 0", "unknown", None, None),
        ('sum(forge_leader_is_leader{node="a"}) == 0', "unknown", None, None),
        ("sum(forge_leader_is_leader) == 0 and up == 1", "unknown", None, None),
        ("histogram_quantile(0.99, forge_leader_renew_seconds_bucket) > 1", "unknown", None, None),
    ],
)
def test_the_alerts_of_a_configuration_are_shown_and_judged_where_that_can_be(
    condition: str, state: str, role: str | None, since: float | None
):
    (found,) = shown(condition, LED, UNLED, CHANGING, at=AT + 60, for_="30s")
    assert (found["name"], found["state"], found["role"]) == ("mine", state, role)
    assert found["since"] == since
    assert found["condition"] == condition


def test_what_an_alert_waits_for_is_building_up_until_then():
    (found,) = shown("sum by (role) (forge_leader_is_leader) == 0", UNLED, for_="1m")
    assert (found["state"], found["since"]) == ("pending", 960.0)


def test_unreachable_store_is_an_alert_beside_those_of_a_configuration():
    alert = Alert("mine", "up == 0", "info")
    names = [each["name"] for each in alert_records([], [], at=AT, error="gone", watched=Watched([alert]))]
    assert names == ["mine", "store_unreachable"]


# --- config check -----------------------------------------------------------------------------------------------------

ALERT = """
[metrics]
prefix = "forge"

[receivers.slack]
api_url_file = "/run/secrets/slack"

[[alerts]]
name = "mine"
condition = {condition}
severity = "critical"
notify = {notify}
"""


def check(tmp_path: Path, condition: str, notify: list[str]) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "node.toml"
    path.write_text(ALERT.format(condition=json.dumps(condition), notify=json.dumps(notify)))
    done = CliRunner().invoke(cli, ["config", "check", "--config", str(path), "--json"])
    told = json.loads(done.stdout)
    plain = CliRunner().invoke(cli, ["config", "check", "--config", str(path)])
    assert plain.exit_code == done.exit_code
    assert all(each["text"] in plain.stderr for each in (*told["problems"], *told["warnings"]))
    return done.exit_code, told


FINE = "sum by (role) (forge_leader_is_leader) == 0 or sum by (role) (absent(forge_leader_is_leader))"


def test_a_check_finds_nothing_where_an_export_finds_nothing(tmp_path: Path):
    assert check(tmp_path, FINE, ["slack:#ops"]) == (0, {"ok": True, "problems": [], "warnings": []})


def test_a_check_finds_a_receiver_that_an_export_would_refuse(tmp_path: Path):
    code, told = check(tmp_path, FINE, ["slack:#ops", "webhook:nobody", "pagerduty"])
    assert (code, told["ok"]) == (2, False)
    assert [each["key"] for each in told["problems"]] == ["alerts[0].notify", "alerts[0].notify"]
    assert 'has "webhook:nobody", which is not configured' in told["problems"][0]["text"]


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("max by (role) (other_audit_overlaps) > 0", 'begin with "other_"'),
        ("sum(forge_leader_is_leader) == 0", "was added"),
        ("rate(forge_leader_failovers_total[5m]) > 5", "became"),
    ],
)
def test_a_check_warns_of_what_an_export_would_warn_of(tmp_path: Path, condition: str, kind: str):
    code, told = check(tmp_path, condition, ["slack:#ops"])
    assert (code, told["ok"]) == (0, True)
    assert [each["key"] for each in told["warnings"]] == ["alerts[0].condition"]
    assert kind in told["warnings"][0]["text"]


def test_check_warns_of_an_alert_without_a_receiver(tmp_path: Path):
    assert "no receiver" in check(tmp_path, FINE, [])[1]["warnings"][0]["text"]


@pytest.mark.parametrize(
    "condition",
    [
        "sum(forge_leader_is_leader) ==",
        "sum by (role)",
        "sum by (role) (forge_leader_is_leader) == 0 or",
        "> 5",
        "(rate(x[5m]) >) > 1",
        "sum(x) by",
        "x +",
    ],
)
def test_a_condition_that_is_cut_off_is_refused(tmp_path: Path, condition: str):
    code, told = check(tmp_path, condition, ["slack:#ops"])
    assert code == 2
    assert "is not PromQL: there is nothing" in told["problems"][0]["text"]
    done = CliRunner().invoke(cli, ["alerts", "export", "--config", str(tmp_path / "node.toml")])
    assert done.exit_code == 2
