"""Alerts: what is read, what is refused and how it is said, what is mended, and what lands on the disk.

Whether Prometheus agrees is in test_alerts_prometheus.py.
"""

import json
import os
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.alerts import alerts as alerts_group
from pgleaderlock.cli.commands import invoke
from pgleaderlock.ops._measures.tally import BUCKETS_S
from pgleaderlock.ops.alerts import (
    Alert,
    alertmanager_config,
    dashboard,
    default_alerts,
    export,
    parse,
    prometheus_rules,
    promql,
)
from pgleaderlock.ops.alerts.model import Target
from pgleaderlock.ops.alerts.rules import METRICS
from pgleaderlock.ops.metrics import Metrics
from tests.support.json_shapes import assert_shape, documented

SECRET = "hunter2MustNotBeSeen"

OF_THE_SPECIFICATION = """
[[alerts]]
name = "no_scheduler_leader"
condition = "sum(forge_leader_is_leader{role='scheduler'}) == 0"
for = "30s"
severity = "critical"
notify = ["pagerduty"]

[[alerts]]
name = "frequent_failovers"
condition = "rate(forge_leader_failovers_total[5m]) > 5"
severity = "warning"
notify = ["slack:#ops"]
"""

RECEIVERS = """
[receivers.pagerduty]
routing_key_file = "/run/secrets/pagerduty"

[receivers.slack]
api_url_file = "/run/secrets/slack"

[receivers.webhook.oncall]
url_file = "/run/secrets/oncall"

[receivers.webhook.plain]
url = "https://alerts.example/hook"

[receivers.default]
critical = ["pagerduty"]
warning = ["slack:#ops", "webhook:plain"]
"""

ONE = '[[alerts]]\nname = "a"\ncondition = "up == 0"\nseverity = "info"\n'


def parsed(text: str) -> Any:
    return parse(tomllib.loads(text), "forge.toml")


def refusal(text: str) -> str:
    with pytest.raises(ValueError, match=r"^forge\.toml: ") as caught:
        parsed(text)
    assert SECRET not in str(caught.value)
    return str(caught.value).removeprefix("forge.toml: ")


def alert(condition: str, **others: Any) -> Alert:
    return Alert("a", condition, "warning", **others)


def exported(condition: str, **others: Any) -> tuple[str, list[str]]:
    """The condition as Prometheus gets it, and the kinds of what was said about it."""
    document, remarks = prometheus_rules([alert(condition, **others)], "forge")
    return document["groups"][0]["rules"][0]["expr"], [remark.kind for remark in remarks]


# --- What is read ---------------------------------------------------------------------------------------------------


def test_the_specified_example_is_read_as_it_stands():
    first, second = parsed(OF_THE_SPECIFICATION).alerts
    assert (first.name, first.for_, first.severity, first.notify) == (
        "no_scheduler_leader",
        "30s",
        "critical",
        (Target("pagerduty"),),
    )
    assert (second.for_, second.notify, second.as_written) == (None, (Target("slack", "#ops"),), False)


def test_other_tables_of_the_file_are_ignored():
    assert parsed('[cluster.leader_election]\ncheck_interval = "5s"\n' + ONE).alerts[0].name == "a"


def test_receivers_are_read_with_the_paths_of_their_secrets():
    found = {(receiver.kind, receiver.name): (receiver.key, receiver.value) for receiver in parsed(RECEIVERS).receivers}
    assert found == {
        ("pagerduty", ""): ("routing_key_file", "/run/secrets/pagerduty"),
        ("slack", ""): ("api_url_file", "/run/secrets/slack"),
        ("webhook", "oncall"): ("url_file", "/run/secrets/oncall"),
        ("webhook", "plain"): ("url", "https://alerts.example/hook"),
    }


def test_target_that_is_named_twice_is_notified_once():
    found = parsed(ONE + 'notify = ["slack:#a", "webhook:x", "slack:#a"]').alerts[0]
    assert list(map(str, found.notify)) == ["slack:#a", "webhook:x"]


@pytest.mark.parametrize("written", ["0", "30s", "5m", "1h30m", "1d", "2w", "1y", "500ms", "1h2m3s4ms"])
def test_durations_are_those_of_prometheus(written: str):
    assert parsed(ONE + f'for = "{written}"').alerts[0].for_ == written


@pytest.mark.parametrize("name", ["no_leader", "Kein Anführer", 'quo"ted', "a:b/c-d.e"])
def test_a_name_may_be_anything_that_is_printable(name: str):
    config = parse({"alerts": [{"name": name, "condition": "up == 0", "severity": "info"}]})
    assert config.alerts[0].name == name


# --- What is refused, and how it is said ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[alert]]", "alert is an unknown table: did you mean [[alerts]]?"),
        ("[receiver.slack]", "receiver is an unknown table: did you mean [receivers.*]?"),
        ("[alerts]\nname = 'a'", "alerts must be an array of tables: write [[alerts]], in double brackets"),
        ("alerts = [1]", "[[alerts]] number 1 must be a table, not a number"),
        ("[[alerts]]\nseverity = 'info'", '[[alerts]] number 1: name is missing: add name = "no_leader"'),
        ("[[alerts]]\nname = ''", "[[alerts]] number 1: name is empty: give it a value, or leave the key out"),
        ("[[alerts]]\nname = 'a '", "[[alerts]] number 1: name must be printable"),
        ('[[alerts]]\nname = "a\\nb"', "[[alerts]] number 1: name must be printable"),
        (ONE + ONE, 'alert "a": name is used twice'),
        (ONE + "expr = 'x'", 'alert "a": expr is an unknown key: the keys here are name, condition, for,'),
        (ONE + "for = 30", 'alert "a": for must be a text in quotes, not a number: for = "..."'),
        (ONE + "for = '30 s'", 'alert "a": for must be a duration such as "30s", "5m" or "1h30m", not \'30 s\''),
        (ONE + "for = '5s3m'", "must be a duration"),
        (ONE + "for = '1.5h'", "must be a duration"),
        (ONE + "for = '9999999y'", "must be a duration"),
        (ONE + "as_written = 'false'", 'alert "a": as_written must be true or false, without quotes, not a text'),
        (ONE + "notify = 'slack:#a'", 'alert "a": notify must be a list of texts: notify = ["slack:#ops"]'),
        (ONE + "notify = [1]", "must be a list of texts"),
        (ONE + "notify = ['pagerdutty']", "must be made of \"pagerduty\", \"slack:#channel\", \"webhook:https://...\""),
        (ONE + "notify = ['pagerdutty']", "there is 'pagerdutty'"),
        (ONE + "summary = 2024-01-01", 'alert "a": summary must be a text in quotes, not date'),
        ("[[alerts]]\nname='a'\nseverity='info'", 'alert "a": condition is missing'),
        ("[[alerts]]\nname='a'\ncondition='up == 0'", 'alert "a": severity is missing'),
        (ONE.replace("info", "page"), 'severity must be "critical", "warning" or "info", not \'page\''),
        (ONE.replace("up == 0", "sum(up == 0"), 'alert "a": condition is not PromQL: ( at character 4 is not closed'),
        (ONE.replace("up == 0", "up) == 0"), "condition is not PromQL: ) at character 3 closes nothing"),
        (ONE.replace("up == 0", "up(] == 0"), "condition is not PromQL: ] at character 4 closes nothing"),
        (ONE.replace("up == 0", "up{a='b} == 0"), "the text that begins with ' at character 6 does not end"),
        ("receivers = 5", "[receivers] must be a table, not a number"),
        ("[receivers.email]\nto='x'", "[receivers]: email is an unknown key: the keys here are default, pager"),
        ("[receivers.pagerduty]", "[receivers.pagerduty]: routing_key_file is missing: add routing_key_file = \"/run"),
        ("[receivers.slack]\napi_url_file='/x'\nchannel='#a'", "[receivers.slack]: channel is an unknown key"),
        ("[receivers.webhook.'a b']\nurl='https://x'", "[receivers.webhook]: 'a b' is not a name for a receiver"),
        ("[receivers.webhook]\nurl='https://x'", "[receivers.webhook.url] must be a table, not a text"),
        ("[receivers.webhook.x]", "[receivers.webhook.x]: url or url_file is required, and only one of them"),
        ("[receivers.webhook.x]\nurl='https://x'\nurl_file='/x'", "and only one of them"),
        ("[receivers.default]\nerror=['pagerduty']", "[receivers.default]: error is an unknown key"),
        ("[receivers.default]\ninfo='pagerduty'", "[receivers.default]: info must be a list of texts"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_alert_and_its_key_and_what_to_do(text: str, said: str):
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("text", "key", "instead"),
    [
        (f"[receivers.pagerduty]\nrouting_key='{SECRET}'", "routing_key", "routing_key_file ="),
        (f"[receivers.pagerduty]\nservice_key='{SECRET}'", "service_key", "routing_key_file ="),
        (f"[receivers.pagerduty]\nrouting_key_file='{SECRET}'", "routing_key_file", "absolute path"),
        (f"[receivers.slack]\napi_url='https://hooks.slack.com/{SECRET}'", "api_url", "api_url_file ="),
        (f"[receivers.slack]\napi_url_file='https://hooks.slack.com/{SECRET}'", "api_url_file", "absolute path"),
        (f"[receivers.webhook.x]\nurl='https://me:{SECRET}@host/'", "url", "url_file ="),
        (f"[receivers.webhook.x]\nurl='https://{SECRET}@host/'", "url", "url_file ="),
        (f"[receivers.webhook.x]\nurl='https://host/?access_token={SECRET}'", "url", "url_file ="),
        (f"[receivers.webhook.x]\nurl='https://hooks.slack.com/services/{SECRET}'", "url", "url_file ="),
        (f"[receivers.webhook.x]\nurl='https://acme.webhook.office.com/{SECRET}'", "url", "url_file ="),
        (f"[receivers.webhook.x]\ntoken='{SECRET}'", "token", "url_file ="),
        (f"{ONE}notify=['webhook:https://host/?sig={SECRET}']", "notify", "url_file ="),
        (f"{ONE}notify=['pagerduty:{SECRET}']", "notify", "[receivers.pagerduty]"),
        (f"{ONE}notify=['slack:https://hooks.slack.com/{SECRET}']", "notify", "[receivers.slack]"),
        (f"{ONE}notify=['https://hooks.slack.com/{SECRET}']", "notify", '"webhook:https://..."'),
        (f"{ONE}notify=['{SECRET}:x']", "notify", "may be a secret"),
    ],
)
def test_a_secret_is_refused_by_the_name_of_its_key_and_never_repeated(text: str, key: str, instead: str):
    said = refusal(text)
    assert f": {key} " in said
    assert instead in said


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/",
        "https://",
        "https:///x",
        "https://host:port/",
        "https://[::1/",
        "https://host/{{.x}}",
        "https://a b/",
    ],
)
def test_what_is_no_address_is_refused(address: str):
    assert "not http://host... or https://host..." in refusal(f"{ONE}notify=['webhook:{address}']")


@pytest.mark.parametrize("target", ["slack:", "slack:#a b", "slack:{{.x}}", "webhook:", "webhook:a b"])
def test_what_is_no_channel_and_no_name_is_refused(target: str):
    assert 'alert "a": notify takes' in refusal(f"{ONE}notify=['{target}']")


# --- The traps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "mended"),
    [
        ("sum(x) == 0", "sum(x) == 0 or sum(absent(x))"),
        ("sum(x) < 1", "sum(x) < 1 or sum(absent(x))"),
        ("sum(x) <= 0", "sum(x) <= 0 or sum(absent(x))"),
        ("sum(x) != 1", "sum(x) != 1 or sum(absent(x))"),
        ("0 == sum(x)", "0 == sum(x) or sum(absent(x))"),
        ("1 > sum(x)", "1 > sum(x) or sum(absent(x))"),
        ("(sum(x) == 0)", "(sum(x) == 0 or sum(absent(x)))"),
        ("max(x) == 0", "max(x) == 0 or max(absent(x))"),
        ("SUM BY (role) (x) == 0 OR y > 1", "SUM BY (role) (x) == 0 or SUM BY (role) (absent(x)) OR y > 1"),
        ("count(x == 1) == 0", "count(x == 1) == 0 or count(absent(x == 1))"),
        ("sum by (role) (x) == 0", "sum by (role) (x) == 0 or sum by (role) (absent(x))"),
        ("sum(x) by (role) == 0", "sum(x) by (role) == 0 or sum(absent(x)) by (role)"),
        ("sum(x{a=')'}) == 0", "sum(x{a=')'}) == 0 or sum(absent(x{a=')'}))"),
        ('sum(x{a="\\")"}) == 0 # none', 'sum(x{a="\\")"}) == 0 or sum(absent(x{a="\\")"})) # none'),
        ("sum(x) == 0 or y > 3", "sum(x) == 0 or sum(absent(x)) or y > 3"),
        ("sum(x) == 0 or sum(y) == 0", "sum(x) == 0 or sum(absent(x)) or sum(y) == 0 or sum(absent(y))"),
    ],
)
def test_a_sum_of_nothing_counts_as_zero(condition: str, mended: str):
    text, kinds = exported(condition)
    assert text == mended
    assert set(kinds) == {"absent"}


@pytest.mark.parametrize(
    "condition",
    [
        "sum(x) > 1",  # which zero does not make true
        "sum(x) == 2",
        "x == 0",
        "avg(x) == 0",
        "sum(x) == bool 0",
        "sum(x) == sum(y)",
        "sum(x) == 0 or absent(x)",
        "(sum(x) or vector(0)) == 0",
        "sum(x) + 1 < 1",
        'x{a="sum(y) == 0"} > 1',
    ],
)
def test_a_condition_without_the_trap_stays_as_it_is(condition: str):
    assert exported(condition) == (condition, [])


@pytest.mark.parametrize(
    "condition", ["sum(x) == 0 and on() y > 3", "y > 3 unless (sum(x) == 0)", "y > 2 or on () sum(x) < 1"]
)
def test_where_an_or_would_change_the_meaning_the_trap_is_only_shown(condition: str):
    assert exported(condition) == (condition, ["not-absent"])


@pytest.mark.parametrize(
    ("condition", "mended"),
    [
        ("rate(forge_leader_failovers_total[5m]) > 5", "floor(increase(forge_leader_failovers_total[5m])) > 5"),
        ("5 < rate(forge_leader_losses_total[5m])", "5 < floor(increase(forge_leader_losses_total[5m]))"),
        (
            "sum by (role) (rate(forge_leader_losses_total{cause='x'}[1h])) >= 1",
            "floor(sum by (role) (increase(forge_leader_losses_total{cause='x'}[1h]))) >= 1",
        ),
        (
            "y > 1 and rate(forge_leader_failovers_total[5m]) > 5",
            "y > 1 and floor(increase(forge_leader_failovers_total[5m])) > 5",
        ),
    ],
)
def test_whole_events_are_counted_and_not_their_rate_per_second(condition: str, mended: str):
    assert exported(condition) == (mended, ["increase"])


@pytest.mark.parametrize(
    "condition",
    [
        "rate(forge_leader_failovers_total[5m]) > 0.5",
        "rate(forge_leader_failovers_total[5m]) < 5",
        "rate(forge_leader_failovers_total[5m]) * 300 > 5",
        "increase(forge_leader_failovers_total[5m]) > 5",
        "rate(http_requests_total[5m]) > 5",
        "rate(forge_leader_elections_total[5m]) > 5",  # attempts, of which every follower makes many
    ],
)
def test_a_rate_that_makes_sense_stays_a_rate(condition: str):
    assert exported(condition) == (condition, [])


@pytest.mark.parametrize("condition", ["sum(x) == 0", "rate(forge_leader_failovers_total[5m]) > 5"])
def test_as_written_means_as_written(condition: str):
    assert exported(condition, as_written=True) == (condition, [])


def test_change_of_a_condition_is_described_in_a_sentence_that_says_what_and_why():
    document, (absent, increase) = prometheus_rules(parsed(OF_THE_SPECIFICATION).alerts, "forge")
    assert "\"or sum(absent(forge_leader_is_leader{role='scheduler'}))\" was added: a sum over no series" in absent.text
    assert '"rate(forge_leader_failovers_total[5m])" became "floor(increase(' in increase.text
    assert "per second" in increase.text
    rules = document["groups"][0]["rules"]
    assert [rule["annotations"]["exported_as"] for rule in rules] == [absent.text, increase.text]


def test_a_metric_under_another_prefix_is_pointed_out():
    condition = "forge_leader_is_leader == 0 and other_leader_renew_seconds_bucket > 1"
    _, remarks = prometheus_rules([alert(condition)], "pgleaderlock")
    assert [(remark.kind, remark.text.split('"')[1]) for remark in remarks] == [
        ("prefix", "forge_"),
        ("prefix", "other_"),
    ]
    assert exported("forge_leader_is_leader == 0 and up == 0") == ("forge_leader_is_leader == 0 and up == 0", [])


def test_braces_in_a_label_are_not_run_as_a_template():
    document, _ = prometheus_rules([alert('sum(x{a="{{ boom }}"}) == 0')], "forge")
    assert '{{ "{{" }} boom' in document["groups"][0]["rules"][0]["annotations"]["exported_as"]


def test_what_promql_calls_a_number_is_one():
    (found,) = promql.comparisons(promql.read("x > 1.5e3"))
    assert found.threshold == 1500
    assert list(promql.comparisons(promql.read("x > y"))) == []


@pytest.mark.parametrize("prefix", ["", "a-b", "1a", "a{", "a:b"])
def test_a_prefix_that_no_metric_can_have_is_refused_everywhere(prefix: str):
    for compile_it in (lambda: prometheus_rules([], prefix), lambda: dashboard(prefix), lambda: default_alerts(prefix)):
        with pytest.raises(ValueError, match="prefix of the metrics"):
            compile_it()


# --- Whom to notify -------------------------------------------------------------------------------------------------


def test_each_alert_goes_to_whom_it_names_and_all_of_them_at_once():
    notify = 'notify = ["pagerduty", "slack:#ops", "slack:#dev", "webhook:oncall", "webhook:http://127.0.0.1:9/x"]'
    config = parsed(ONE + notify + RECEIVERS)
    document = alertmanager_config(config.alerts, config.receivers)
    (route,) = document["route"]["routes"]
    assert route["matchers"] == ['alertname="a"']
    (receiver,) = [receiver for receiver in document["receivers"] if receiver["name"] == route["receiver"]]
    assert receiver["pagerduty_configs"][0]["routing_key_file"] == "/run/secrets/pagerduty"
    assert [slack["channel"] for slack in receiver["slack_configs"]] == ["#ops", "#dev"]
    assert {slack["api_url_file"] for slack in receiver["slack_configs"]} == {"/run/secrets/slack"}
    assert receiver["webhook_configs"] == [{"url_file": "/run/secrets/oncall"}, {"url": "http://127.0.0.1:9/x"}]


def test_two_alerts_for_the_same_people_share_a_receiver_and_unknown_alerts_have_none():
    config = parsed(ONE + 'notify = ["pagerduty"]\n' + ONE.replace('"a"', '"b"') + 'notify = ["pagerduty"]' + RECEIVERS)
    document = alertmanager_config(config.alerts, config.receivers)
    assert [receiver["name"] for receiver in document["receivers"]] == ["none", "pagerduty"]
    assert document["route"]["receiver"] == "none"


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("pagerduty", "add [receivers.pagerduty] with routing_key_file ="),
        ("slack:#a", "add [receivers.slack] with api_url_file ="),
        ("webhook:x", "add [receivers.webhook.x] with url ="),
    ],
)
def test_target_that_is_not_configured_is_an_error_that_says_what_to_add(target: str, advice: str):
    config = parsed(f'{ONE}notify = ["{target}"]')
    with pytest.raises(ValueError, match="which is not configured") as caught:
        alertmanager_config(config.alerts, config.receivers, "forge.toml")
    assert str(caught.value).startswith(f'forge.toml: alert "a": notify has "{target}"')
    assert advice in str(caught.value)


# --- The default set ------------------------------------------------------------------------------------------------


def test_the_default_set_has_what_every_election_needs():
    found = {alert.name: alert.severity for alert in default_alerts()}
    assert found == {
        "no_leader": "critical",
        "frequent_failovers": "warning",
        "slow_renewals": "warning",
        "overlapping_terms": "critical",
        "registry_unreachable": "warning",
    }


def test_the_default_set_needs_no_mending_and_uses_the_prefix_throughout():
    alerts = default_alerts("forge", roles=["a"])
    assert all("forge_" in alert.condition for alert in alerts)
    document, remarks = prometheus_rules([replace(alert, as_written=False) for alert in alerts], "forge")
    assert remarks == []
    assert [rule["expr"] for rule in document["groups"][0]["rules"]] == [alert.condition for alert in alerts]
    assert "pgleaderlock_" not in json.dumps(document)


def test_each_role_is_missed_by_name_and_once():
    alerts = [alert for alert in default_alerts(roles=["a/b", 'q"', "a/b"]) if alert.name == "no_leader"]
    assert [alert.role for alert in alerts] == ["a/b", 'q"']
    assert 'absent(pgleaderlock_leader_is_leader{role="a/b"})' in alerts[0].condition
    assert '{role="q\\""}' in alerts[1].condition


def test_default_alerts_notify_the_targets_that_the_file_names_for_each_severity():
    tell = {"critical": (Target("pagerduty"),)}
    assert {alert.notify for alert in default_alerts(notify=tell) if alert.severity == "critical"} == {tell["critical"]}
    assert {alert.notify for alert in default_alerts(notify=tell) if alert.severity == "warning"} == {()}


@pytest.mark.parametrize(("lease_s", "threshold"), [(15, "> 5"), (1.5, "> 0.5"), (600, "> 10")])
def test_a_renewal_is_slow_at_a_third_of_the_lease_and_never_beyond_what_the_histogram_can_show(
    lease_s: float, threshold: str
):
    (slow,) = [alert for alert in default_alerts(lease_s=lease_s) if alert.name == "slow_renewals"]
    assert slow.condition.endswith(threshold)


@pytest.mark.parametrize("lease_s", [0, -1, float("nan")])
def test_a_lease_that_is_none_is_refused(lease_s: float):
    with pytest.raises(ValueError, match="lease_s"):
        default_alerts(lease_s=lease_s)


def test_the_metrics_that_alerts_ask_for_are_those_that_elections_export():
    exported_names = {family.name for family in Metrics("x", CollectorRegistry()).describe()}
    asked_for = {f"x_{name}".removesuffix("_total") for name in METRICS if name.startswith("leader_")}
    assert asked_for <= exported_names


def test_the_histogram_can_show_more_than_what_is_called_slow_for_the_longest_lease():
    assert 10.0 in BUCKETS_S
    assert BUCKETS_S[-1] > 10.0


# --- The dashboard --------------------------------------------------------------------------------------------------


def test_the_dashboard_has_what_grafana_needs_to_import_it():
    document = dashboard("forge")
    assert document["uid"] == "leaders-forge"
    assert document["title"]
    assert document["schemaVersion"] >= 36
    assert "id" not in document  # Grafana gives it; one of another server's would be taken for an update
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids) == 9
    for panel in document["panels"]:
        assert set(panel["gridPos"]) == {"x", "y", "w", "h"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["expr"] and target["refId"] for target in panel["targets"])


def test_the_panels_of_the_dashboard_do_not_lie_on_each_other():
    cells = [
        (column, row)
        for place in (panel["gridPos"] for panel in dashboard()["panels"])
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


def test_the_prefix_is_a_constant_of_the_dashboard_and_nothing_else_knows_it():
    document = dashboard("forge")
    (constant,) = [variable for variable in document["templating"]["list"] if variable["name"] == "prefix"]
    assert (constant["type"], constant["query"], constant["current"]["value"]) == ("constant", "forge", "forge")
    exprs = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    asked_for = {name for expr in exprs for name in re.findall(r"\$\{prefix\}_(\w+)", expr)}
    assert asked_for >= {"registry_up", "registry_dropped_events_total", "audit_overlaps"}
    assert {name.removesuffix("_bucket") for name in asked_for} <= set(METRICS)
    assert all("${prefix}_" in expr for expr in exprs)
    assert "pgleaderlock_" not in json.dumps(document)


# --- The command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "forge.toml"
    path.write_text(OF_THE_SPECIFICATION + RECEIVERS, encoding="utf-8")
    return path


def run(*words: str | Path) -> Result:
    group = click.Group()
    group.add_command(alerts_group)
    return CliRunner().invoke(group, ["alerts", "export", *map(str, words)])


def test_without_a_folder_the_rules_are_printed_and_nothing_is_written(config: Path):
    result = run("--config", config, "--prefix", "forge")
    assert result.exit_code == exit_codes.CLEAN
    names = [rule["alert"] for rule in yaml.safe_load(result.stdout)["groups"][0]["rules"]]
    assert names == ["no_scheduler_leader", "frequent_failovers"]
    assert result.stderr.count('Warning: alert "') == 2
    assert list(config.parent.iterdir()) == [config]


def test_with_a_folder_three_files_are_written_and_named(config: Path, tmp_path: Path):
    out = tmp_path / "new" / "out"
    result = run("--config", config, "--prefix", "forge", "--out", out)
    assert result.exit_code == exit_codes.CLEAN
    assert result.stdout.split() == [str(out / name) for name in ("rules.yml", "alertmanager.yml", "grafana.json")]
    assert sorted(path.name for path in out.iterdir()) == ["alertmanager.yml", "grafana.json", "rules.yml"]
    for name in ("rules.yml", "alertmanager.yml"):
        assert (out / name).read_text().startswith("# Written by pgleaderlock ")
    assert json.loads((out / "grafana.json").read_text())["uid"] == "leaders-forge"


def test_the_files_can_be_read_by_a_prometheus_that_is_another_user(config: Path, tmp_path: Path):
    before = os.umask(0o022)
    try:
        run("--config", config, "--out", tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out" / "rules.yml").stat().st_mode & 0o777 == 0o644


def test_for_programs_there_is_one_object_with_what_was_written_and_what_was_said(config: Path, tmp_path: Path):
    result = run("--config", config, "--prefix", "forge", "--out", tmp_path / "out", "--json")
    shown = json.loads(result.stdout)
    assert [Path(path).name for path in shown["written"]] == ["rules.yml", "alertmanager.yml", "grafana.json"]
    assert [warning["kind"] for warning in shown["warnings"]] == ["absent", "increase"]
    assert {"name", "severity", "condition", "for", "role"} == set(shown["alerts"][0])
    assert json.loads(run("--config", config, "--json").stdout)["written"] == []


def test_what_we_wrote_is_written_again(config: Path, tmp_path: Path):
    run("--config", config, "--out", tmp_path)
    before = (tmp_path / "rules.yml").read_text()
    config.write_text(config.read_text().replace("no_scheduler_leader", "renamed"))
    assert run("--config", config, "--out", tmp_path).exit_code == exit_codes.CLEAN
    assert (tmp_path / "rules.yml").read_text() == before.replace("no_scheduler_leader", "renamed")


@pytest.mark.parametrize("name", ["rules.yml", "alertmanager.yml", "grafana.json"])
@pytest.mark.parametrize("content", [b"groups: []\n", b"{}", b"[]", b'{"description": 5}', b"\xff", b""])
def test_file_that_the_command_did_not_write_is_kept_and_then_nothing_is_written(
    config: Path, tmp_path: Path, name: str, content: bytes
):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(content)
    result = run("--config", config, "--out", out)
    assert result.exit_code == exit_codes.USAGE
    assert f"{out / name} was not written by this command: move it away, or replace it with --force" in result.stderr
    assert [path.name for path in out.iterdir()] == [name]
    assert (out / name).read_bytes() == content
    assert run("--config", config, "--out", out, "--force").exit_code == exit_codes.CLEAN
    assert (out / name).read_bytes() != content


def test_a_folder_that_cannot_be_written_to_is_named(config: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    result = run("--config", config, "--out", tmp_path / "file" / "out")
    assert result.exit_code == exit_codes.NOT_ACQUIRED
    assert f"cannot write to {tmp_path}/file/out: Not a directory" in result.stderr


def test_a_write_that_fails_leaves_the_file_of_before_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export.write(tmp_path, {"rules.yml": export.yaml_text({"a": 1})})

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        export.write(tmp_path, {"rules.yml": export.yaml_text({"a": 2})})
    assert [path.name for path in tmp_path.iterdir()] == ["rules.yml"]
    assert yaml.safe_load((tmp_path / "rules.yml").read_text()) == {"a": 1}


def test_file_without_alerts_gets_the_default_ones_and_a_message_says_so(config: Path, tmp_path: Path):
    config.write_text(RECEIVERS)
    result = run("--config", config, "--out", tmp_path / "out", "--role", "scheduler")
    assert result.exit_code == exit_codes.CLEAN
    assert f"{config} has no [[alerts]]: the default ones are exported." in result.stderr
    routes = yaml.safe_load((tmp_path / "out" / "alertmanager.yml").read_text())["route"]["routes"]
    by_name = {route["matchers"][0]: route["receiver"] for route in routes}
    assert by_name['alertname="no_leader"'] == "pagerduty"
    assert by_name['alertname="slow_renewals"'] == "slack:#ops + webhook:plain"


def test_default_alerts_need_no_file_and_warn_that_they_have_no_receiver(tmp_path: Path):
    result = run("--defaults", "--out", tmp_path, "--prefix", "forge", "--lease-s", "30")
    assert result.exit_code == exit_codes.CLEAN
    assert "> 10" in (tmp_path / "rules.yml").read_text()
    assert 'alert "no_leader": no receiver: give it a notify, or write critical = [...]' in result.stderr


def test_an_alert_of_the_file_takes_the_place_of_the_default_one_of_its_name(config: Path):
    shown = json.loads(run("--config", config, "--prefix", "forge", "--defaults", "--json").stdout)
    names = [alert["name"] for alert in shown["alerts"]]
    assert names.count("frequent_failovers") == 1
    assert {"no_scheduler_leader", "no_leader"} <= set(names)
    (kept,) = [alert for alert in shown["alerts"] if alert["name"] == "frequent_failovers"]
    assert kept["condition"] == "floor(increase(forge_leader_failovers_total[5m])) > 5"


def test_alert_without_notify_goes_to_the_receivers_of_its_severity(config: Path, tmp_path: Path):
    config.write_text(ONE.replace("info", "critical") + RECEIVERS)
    run("--config", config, "--out", tmp_path)
    assert yaml.safe_load((tmp_path / "alertmanager.yml").read_text())["route"]["routes"][0]["receiver"] == "pagerduty"


@pytest.mark.parametrize(
    ("content", "words", "said"),
    [
        (None, [], "cannot read {config}: No such file or directory"),
        (b"\xff", [], "{config} is not text in UTF-8"),
        (b"[[alerts", [], "{config} is not TOML: "),
        (b"[[alerts]]\nname = 'a'", [], '{config}: alert "a": condition is missing'),
        (ONE.encode(), ["--role", "x"], "--role is for the default alerts: add --defaults"),
        (ONE.encode(), ["--prefix", "a-b"], "the prefix of the metrics must be"),
        (b"", ["--role", "a\nb"], "a role must be printable"),
        (b"", ["--lease", "0"], "lease_s must be greater than zero"),
        (
            (ONE + "notify = ['pagerduty']").encode(),
            ["--out", "out"],
            '{config}: alert "a": notify has "pagerduty", which',
        ),
    ],
)
def test_what_cannot_be_exported_is_wrong_usage_and_named_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "forge.toml"
    if content is not None:
        path.write_bytes(content)
    result = run("--config", path, *words)
    assert result.exit_code == exit_codes.USAGE
    assert said.format(config=path) in result.stderr
    assert result.stdout == ""


def test_nothing_to_export_is_wrong_usage():
    result = run()
    assert result.exit_code == exit_codes.USAGE
    assert "give it --config FILE, or --defaults" in result.stderr


def test_without_pyyaml_the_extra_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert invoke(["alerts", "export", "--config", str(config)]) == exit_codes.USAGE
    assert 'pip install "pgleaderlock[alerts]"' in capsys.readouterr().err


# --- The documentation ----------------------------------------------------------------------------------------------


def test_the_example_of_the_documentation_can_be_exported_and_says_what_the_page_says(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "alert.md").read_text(encoding="utf-8")
    example = tmp_path / "forge.toml"
    example.write_text(page.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    result = run("--config", example, "--prefix", "forge", "--out", tmp_path / "out", "--json")
    assert result.exit_code == exit_codes.CLEAN
    shown = json.loads(result.stdout)
    assert [warning["kind"] for warning in shown["warnings"]] == ["absent", "increase"]
    assert_shape(shown, documented("alerts export"))
    assert all(f"`{alert.name}` | {alert.severity}" in page for alert in default_alerts())


def test_what_the_file_says_of_the_nodes_counts_for_the_default_alerts(tmp_path: Path):
    path = tmp_path / "pgleaderlock.toml"
    path.write_text(
        """
        [cluster.leader_election]
        roles = ["scheduler", "mails"]
        lease_duration = "6s"
        [metrics]
        prefix = "forge"
        """
    )
    result = CliRunner().invoke(alerts_group, ["export", "--config", str(path)])
    assert result.exit_code == 0, result.output
    assert "pgleaderlock_leader" not in result.stdout
    assert 'forge_leader_is_leader{role="mails"}' in result.stdout
    assert "> 2" in result.stdout  # a third of the lease
