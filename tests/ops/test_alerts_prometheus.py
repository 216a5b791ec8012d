"""What we export, judged by the real programs: promtool, amtool, and a Prometheus and an Alertmanager that run.

The unit tests of rules ask Prometheus' own engine about series that are made up; the last test has real candidates on a
real PostgreSQL, kills them, and waits for the page.
"""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgleaderlock.ops.alerts import Alert, alertmanager_config, dashboard, default_alerts, parse, prometheus_rules
from pgleaderlock.ops.alerts.export import yaml_text
from pgleaderlock.ops.alerts.model import Target
from pgleaderlock.postgres.keys import LockKey
from tests.conftest import Postgres, free_port
from tests.support.processes import Process
from tests.support.programs import needs

PROGRAMS = ("promtool", "amtool", "prometheus", "prometheus-alertmanager")
pytestmark = needs(*PROGRAMS)

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

[receivers.pagerduty]
routing_key_file = "/run/secrets/pagerduty"

[receivers.slack]
api_url_file = "/run/secrets/slack"
"""


def specified(*, as_written: bool = False) -> list[Alert]:
    config = parse(tomllib.loads(OF_THE_SPECIFICATION))
    return [replace(alert, as_written=as_written) for alert in config.alerts]


def tool(*command: str | Path) -> str:
    """Run a program that judges, and return what it says; it must agree."""
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_rules(folder: Path, alerts: list[Alert], prefix: str = "forge") -> Path:
    path = folder / "rules.yml"
    path.write_text(yaml_text(prometheus_rules(alerts, prefix)[0]), encoding="utf-8")
    return path


# --- The documents --------------------------------------------------------------------------------------------------


def odd_alerts() -> list[Alert]:
    """Names, roles and texts that would break out of a document that is put together by hand."""
    texts = [
        'q"uote',
        "a: b",
        "# no comment",
        "{{ no template }}",
        "Anführer",
        "back\\slash",
        "it's",
        "- item",
        "*x &y",
    ]
    return [
        Alert(text, f"sum(x{{a={json.dumps(text)}}}) == 0", "info", "1m", (Target("slack", "#ops"),), role=text)
        for text in texts
    ]


@pytest.mark.parametrize(
    "alerts",
    [
        specified(),
        list(default_alerts("forge")),
        list(default_alerts("forge", roles=["a/b", 'q"', "{{ x }}"])),
        odd_alerts(),
    ],
    ids=["specified", "defaults", "roles", "odd"],
)
def test_promtool_takes_the_rules(alerts: list[Alert], tmp_path: Path):
    assert f"{len(alerts)} rules found" in tool(
        "promtool", "check", "rules", "--lint-fatal", write_rules(tmp_path, alerts)
    )


def test_promtool_takes_conditions_that_were_mended(tmp_path: Path):
    conditions = [
        "0 == sum(x)",
        "SUM BY (role) (x) == 0 OR y > 1",
        "sum(x) by (role) < 1",
        "count(x == 1) == 0 # nobody",
        "(max without (node) (x offset 5m) == 0)",
        "sum(rate(x[5m])) == 0",
        "5 < sum(rate(forge_leader_losses_total{cause='x'}[5m])) and on() up == 1",
    ]
    alerts = [Alert(f"a{number}", condition, "info") for number, condition in enumerate(conditions)]
    rules = write_rules(tmp_path, alerts)
    changed = [rule["expr"] for rule in yaml.safe_load(rules.read_text())["groups"][0]["rules"]]
    assert not set(changed) & set(conditions)
    assert f"{len(conditions)} rules found" in tool("promtool", "check", "rules", rules)


def test_promtool_takes_every_query_of_the_dashboard(tmp_path: Path):
    targets = [target for panel in dashboard("forge")["panels"] for target in panel["targets"]]
    rules = []
    for number, target in enumerate(targets):
        expr = target["expr"].replace("${prefix}", "forge").replace("$role", ".*").replace("$__rate_interval", "5m")
        assert "$" not in expr
        rules.append({"record": f"panel_{number}", "expr": expr})
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(targets)} rules found" in tool("promtool", "check", "rules", path)


def test_amtool_takes_the_configuration_and_sends_each_alert_to_whom_it_names(tmp_path: Path):
    config = parse(
        tomllib.loads(OF_THE_SPECIFICATION + "[receivers.webhook.plain]\nurl = 'https://alerts.example/hook'")
    )
    both = (Target("pagerduty"), Target("webhook", "plain"), Target("webhook", "http://127.0.0.1:9/hook"))
    alerts = [*config.alerts, Alert('q"uo\\te', "up == 0", "info", notify=both), Alert("silent", "up == 0", "info")]
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml_text(alertmanager_config(alerts, config.receivers)), encoding="utf-8")
    tool("amtool", "check-config", path)

    def receiver(name: str) -> str:
        return tool(
            "amtool", "config", "routes", "test", f"--config.file={path}", f"alertname={json.dumps(name)}"
        ).strip()

    assert receiver("no_scheduler_leader") == "pagerduty"
    assert receiver("frequent_failovers") == "slack:#ops"
    assert receiver('q"uo\\te') == "pagerduty + webhook:plain + webhook:http://127.0.0.1:9/hook"
    assert receiver("silent") == receiver("somebody_else_s") == "none"


# --- The rules, asked about series that are made up -----------------------------------------------------------------


class Unit:
    """One run of ``promtool test rules``: series in, and at which second which alerts fire."""

    def __init__(self, folder: Path, alerts: list[Alert], interval_s: int = 1) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._rules = write_rules(folder, alerts)

    def firing(self, series: dict[str, str], expected: dict[int, list[str]]) -> None:
        """Expect these alerts, each by its name and role, to fire at these seconds, and no others."""
        asked = [
            {
                "expr": 'count by (alertname, role) (ALERTS{alertstate="firing"})',
                "eval_time": f"{second}s",
                "exp_samples": [{"labels": labels, "value": 1} for labels in firing],
            }
            for second, firing in expected.items()
        ]
        test = {
            "interval": f"{self._interval_s}s",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": asked,
        }
        document = {"rule_files": [str(self._rules)], "evaluation_interval": "1s", "tests": [test]}
        path = self._folder / "test.yml"
        path.write_text(yaml.safe_dump(document))
        tool("promtool", "test", "rules", path)


def leader(role: str, node: str) -> str:
    return f'forge_leader_is_leader{{role="{role}", node="{node}"}}'


NO_SCHEDULER = '{alertname="no_scheduler_leader"}'
SPECIFIED = pytest.param(specified(), NO_SCHEDULER, id="specified")
BY_ROLE = pytest.param(
    list(default_alerts("forge", roles=["scheduler"])), '{alertname="no_leader", role="scheduler"}', id="by role"
)


@pytest.mark.parametrize(("alerts", "label"), [SPECIFIED, BY_ROLE])
def test_no_leader_fires_after_30_seconds_and_stops_when_one_leads(alerts: list[Alert], label: str, tmp_path: Path):
    series = {leader("scheduler", "a"): "1x10 0x40 1x20", leader("scheduler", "b"): "0x80"}
    Unit(tmp_path, alerts).firing(series, {10: [], 40: [], 41: [label], 50: [label], 53: []})


@pytest.mark.parametrize(("alerts", "label"), [SPECIFIED, BY_ROLE])
def test_no_leader_fires_also_when_every_node_has_vanished(alerts: list[Alert], label: str, tmp_path: Path):
    series = {leader("scheduler", "a"): "1x10 stale", leader("scheduler", "b"): "0x10 stale"}
    Unit(tmp_path, alerts).firing(series, {40: [], 42: [label], 60: [label]})


@pytest.mark.parametrize(("alerts", "label"), [SPECIFIED, BY_ROLE])
def test_a_follower_that_dies_after_the_leader_does_not_begin_the_30_seconds_again(
    alerts: list[Alert], label: str, tmp_path: Path
):
    series = {leader("scheduler", "a"): "1x10 stale", leader("scheduler", "b"): "0x30 stale"}
    Unit(tmp_path, alerts).firing(series, {40: [], 42: [label]})


def test_as_written_the_specified_alert_stays_silent_when_every_node_has_vanished(tmp_path: Path):
    """The trap itself: were Prometheus to change its mind, we would have nothing to mend."""
    series = {leader("scheduler", "a"): "1x10 stale"}
    Unit(tmp_path, specified(as_written=True)).firing(series, {42: [], 300: []})


def test_without_roles_a_role_that_reports_is_missed_and_so_is_everything_at_once(tmp_path: Path):
    series = {leader("x", "a"): "1x60 stale", leader("y", "a"): "0x60 stale"}
    firing = ['{alertname="no_leader", role="y"}']
    Unit(tmp_path, list(default_alerts("forge"))).firing(series, {29: [], 31: firing, 92: ['{alertname="no_leader"}']})


def test_a_role_that_is_led_elsewhere_does_not_hide_one_that_is_not(tmp_path: Path):
    alerts = list(default_alerts("forge", roles=["x", "y"]))
    Unit(tmp_path, alerts).firing({leader("x", "a"): "1x60"}, {29: [], 31: ['{alertname="no_leader", role="y"}']})


def steps(count: int, *, interval_s: int) -> str:
    """A counter that was 0 for ten minutes, and then grows by one every half minute."""
    samples = [min(count, max(0, (second - 600) // 30)) for second in range(0, 1200, interval_s)]
    return " ".join(map(str, samples))


@pytest.mark.parametrize("interval_s", [1, 15, 30])
@pytest.mark.parametrize(("failovers", "is_frequent"), [(5, False), (6, True)])
@pytest.mark.parametrize("as_specified", [True, False], ids=["specified", "defaults"])
def test_five_failovers_in_five_minutes_are_not_frequent_and_six_are(
    tmp_path: Path, interval_s: int, failovers: int, is_frequent: bool, as_specified: bool
):
    everybody = specified() if as_specified else list(default_alerts("forge"))
    alerts = [alert for alert in everybody if alert.name == "frequent_failovers"]
    series = {'forge_leader_failovers_total{role="x", node="a"}': steps(failovers, interval_s=interval_s)}
    firing = ['{alertname="frequent_failovers", role="x"}'] if is_frequent else []
    # Each at a moment when all of them are in the window, and when none is any more.
    Unit(tmp_path, alerts, interval_s).firing(series, {599: [], 825: firing, 1199: []})


def test_failovers_between_many_nodes_add_up(tmp_path: Path):
    alerts = [alert for alert in default_alerts("forge") if alert.name == "frequent_failovers"]
    series = {f'forge_leader_failovers_total{{role="x", node="{node}"}}': steps(2, interval_s=1) for node in "abc"}
    Unit(tmp_path, alerts).firing(series, {599: [], 800: ['{alertname="frequent_failovers", role="x"}']})


def test_as_written_the_alert_misses_six_failovers(tmp_path: Path):
    alerts = [alert for alert in specified(as_written=True) if alert.name == "frequent_failovers"]
    series = {'forge_leader_failovers_total{role="x", node="a"}': steps(6, interval_s=1)}
    Unit(tmp_path, alerts).firing(series, {825: []})


def histogram(quick: int, slow: int) -> dict[str, str]:
    """Renewals per second that take up to 1 s, and up to 10 s."""
    buckets = {"1.0": quick, "5.0": quick, "10.0": quick + slow, "+Inf": quick + slow}
    return {
        f'forge_leader_renew_seconds_bucket{{role="x", node="a", le="{le}"}}': f"0+{per_second}x600"
        for le, per_second in buckets.items()
    }


def test_slow_renewals_are_those_of_which_more_than_one_in_a_hundred_takes_a_third_of_the_lease(tmp_path: Path):
    alerts = [alert for alert in default_alerts("forge", lease_s=15) if alert.name == "slow_renewals"]
    unit = Unit(tmp_path, alerts)
    unit.firing(histogram(quick=100, slow=0), {400: []})
    unit.firing(histogram(quick=97, slow=3), {400: ['{alertname="slow_renewals", role="x"}']})


def test_an_overlap_in_the_history_fires_at_once(tmp_path: Path):
    series = {'forge_audit_overlaps{role="x", node="a"}': "0x10 1x10"}
    alerts = [alert for alert in default_alerts("forge") if alert.name == "overlapping_terms"]
    Unit(tmp_path, alerts).firing(series, {10: [], 12: ['{alertname="overlapping_terms", role="x"}']})


def test_a_registry_that_is_away_for_a_minute_fires(tmp_path: Path):
    series = {'forge_registry_up{node="a"}': "1x10 0x100", 'forge_registry_up{node="b"}': "1x110"}
    alerts = [alert for alert in default_alerts("forge") if alert.name == "registry_unreachable"]
    Unit(tmp_path, alerts).firing(series, {69: [], 72: ['{alertname="registry_unreachable"}']})


# --- All of it, running ---------------------------------------------------------------------------------------------

PATIENCE_S = 30.0

_NODE = """
import asyncio, sys
from prometheus_client import CollectorRegistry
from pgleaderlock import FixedInterval, LeaderLock, LockKey
from pgleaderlock.ops.metrics import Metrics, serve_metrics

async def main(dsn, key, node):
    registry = CollectorRegistry()
    lock = LeaderLock(dsn, key=LockKey.parse(key), retry_strategy=FixedInterval(0.1), settle_s=0)
    Metrics("forge", registry).watch(lock, role="scheduler", node=node)
    with serve_metrics(0, registry=registry) as server:
        await lock.start()
        print("serves", server.port, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def node(dsn: str, key: LockKey, name: str) -> Process:
    """Start a candidate that shows its metrics."""
    return Process(sys.executable, "-c", _NODE, dsn, str(key), name)


@contextlib.contextmanager
def webhook() -> Iterator[tuple[int, "queue.Queue[dict[str, Any]]"]]:
    """A server that an operator on call would have: it keeps what it receives."""
    told: queue.Queue[dict[str, Any]] = queue.Queue()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port, told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as response:
        body = response.read()
        return json.loads(body) if "json" in response.headers.get("Content-Type", "") else body


def wait_until(condition: Callable[[], bool], what: str, *processes: Process) -> None:
    """Ask again and again. A program that ended, or that does not come to it, is shown with its last output."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and all(process.is_alive for process in processes):
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.05)
    for process in processes:
        with contextlib.suppress(AssertionError):
            process.wait_for("\0", timeout_s=0.1)
    raise AssertionError(f"{what} did not come true; {[process.lines[-5:] for process in processes]}")


LIVE = """
[[alerts]]
name = "no_scheduler_leader"
condition = "sum(forge_leader_is_leader{{role='scheduler'}}) == 0"
for = "3s"
severity = "critical"
notify = ["webhook:http://127.0.0.1:{port}/page"]
"""


def configure(folder: Path, hook_port: int, alertmanager_port: int, node_ports: list[str]) -> None:
    """Write what an operator would export, and how they would configure their Prometheus."""
    config = parse(tomllib.loads(LIVE.format(port=hook_port)))
    write_rules(folder, list(config.alerts))
    told = alertmanager_config(config.alerts, config.receivers)
    (folder / "alertmanager.yml").write_text(yaml_text(told), encoding="utf-8")
    prometheus = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": ["rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}]},
        "scrape_configs": [
            {"job_name": "nodes", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in node_ports]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(prometheus))


def run_alertmanager(folder: Path, port: int) -> Process:
    return Process(
        "prometheus-alertmanager",
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )


def run_prometheus(folder: Path, port: int) -> Process:
    return Process(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )


@pytest.mark.proof
@pytest.mark.timeout(150)
def test_when_every_candidate_is_killed_the_page_goes_out(postgres: Postgres, key: LockKey, tmp_path: Path):
    prometheus_port, alertmanager_port = free_port(), free_port()
    with contextlib.ExitStack() as running:
        hook_port, told = running.enter_context(webhook())
        nodes = [running.enter_context(node(postgres.tcp_dsn, key, name)) for name in ("a", "b")]
        node_ports = [each.wait_for("serves").split()[1] for each in nodes]
        configure(tmp_path, hook_port, alertmanager_port, node_ports)
        alertmanager = running.enter_context(run_alertmanager(tmp_path, alertmanager_port))
        prometheus = running.enter_context(run_prometheus(tmp_path, prometheus_port))
        both = (alertmanager, prometheus)
        asked = f"http://127.0.0.1:{prometheus_port}/api/v1"
        wait_until(lambda: bool(answer(f"http://127.0.0.1:{alertmanager_port}/-/ready")), "Alertmanager's start", *both)

        def leads() -> str | None:
            found = answer(f"{asked}/query?query=sum(forge_leader_is_leader)")["data"]["result"]
            return found[0]["value"][1] if found else None

        def states() -> set[str]:
            return {alert["state"] for alert in answer(f"{asked}/alerts")["data"]["alerts"]}

        wait_until(lambda: leads() == "1", "that Prometheus sees one leader of two nodes", *both, *nodes)
        wait_until(lambda: not states(), "that nothing is wrong", *both, *nodes)
        assert told.empty()

        for each in nodes:
            each.__exit__()  # kill -9, and the end of it waited for

        wait_until(lambda: states() == {"firing"}, "that the alert fires", *both)
        assert leads() is None
        page = told.get(timeout=PATIENCE_S)
        assert page["status"] == "firing"
        (alert,) = page["alerts"]
        assert (alert["labels"]["alertname"], alert["labels"]["severity"]) == ("no_scheduler_leader", "critical")
        assert "absent" in alert["annotations"]["exported_as"]
