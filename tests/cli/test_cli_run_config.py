"""``run --config`` obeys its options: each one has an effect on the node, or is refused by its name."""

from pathlib import Path
from typing import Any

import click
import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import MOVED_VARIABLE, STORE_VARIABLES
from pgleaderlock.cli.commands import cli, invoke
from pgleaderlock.ops.config import Config
from pgleaderlock.postgres.keys import LockKey

RUN = cli.commands["run"]
OPTIONS = [option for option in RUN.params if isinstance(option, click.Option)]
FILE = '[cluster.leader_election]\nbackend = "postgresql://db/app"\nroles = [{ name = "x", key = "pair:1/100" }, "y"]\n'
# For options whose type does not say what a value looks like; a new one needs a line here only if "sample" is refused
# by its own check.
SAMPLES = {"dsn": "postgresql://other/app", "url": "postgresql://other/app", "sets": "cluster.node=other"}


def sample(option: click.Option, folder: Path) -> list[str]:
    flag = max(option.opts, key=len)
    if option.is_flag:
        return [flag]
    if option.name == "config_file":
        other = folder / "other.toml"
        other.write_text(FILE + 'lease_duration = "9s"\n')
        return [flag, str(other)]
    if isinstance(option.type, click.Choice):
        return [flag, next(str(each) for each in option.type.choices if each != option.default)]
    if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
        return [flag, "7"]
    return [flag, SAMPLES.get(str(option.name), "sample")]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, dict[str, Any]]]:
    """What was to be run, in place of running it; and an environment that says nothing."""
    for variable in (*STORE_VARIABLES, MOVED_VARIABLE, "PGLEADERLOCK_CONFIG", "PGLEADERLOCK_SCHEMA_OWNER"):
        monkeypatch.delenv(variable, raising=False)
    nodes: list[tuple[Config, dict[str, Any]]] = []

    def run_configured(config: Config, **how: Any) -> int:
        nodes.append((config, how))
        return exit_codes.CLEAN

    monkeypatch.setattr("pgleaderlock.cli.commands.run_configured", run_configured)
    return nodes


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: max(option.opts, key=len))
def test_every_option_of_run_has_an_effect_beside_a_configuration_or_is_refused(
    option: click.Option, nodes: list[Any], file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert invoke(["run", "--config", file]) == exit_codes.CLEAN
    words = sample(option, tmp_path)
    code = invoke(["run", "--config", file, *words])
    if code == exit_codes.CLEAN:
        assert nodes[0] != nodes[1], f"{words} was ignored"
    else:
        assert code == exit_codes.USAGE
        assert words[0] in capsys.readouterr().err


WINS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--dsn", "postgresql://other/app"): {"url": "postgresql://other/app"},
    ("--url", "k8s://ns/{role}", "--role", "y"): {"url": "k8s://ns/{role}"},
    ("--lease", "2.5"): {"lease_s": 2.5},
    ("--lease", "6", "--health-interval", "1"): {"lease_s": 6.0, "health_interval_s": 1.0},
    ("--settle", "0"): {"settle": 0.0},
    ("--wake", "poll"): {"wake": "poll"},
    ("--allow-pooler",): {"allow_pooler": True},
    ("--no-witness",): {"witness": False},
    ("--takeover", "strict", "--term-table"): {"takeover": "strict", "term_table": True},
    ("--schema", "other", "--term-table"): {"schema_name": "other"},
    ("--schema-owner", "ops", "--term-table"): {"schema_owner": "ops"},
    ("--reconnect-grace", "3"): {"reconnect_grace": 3.0},
    ("--pod-label", "pgleaderlock/{role}=leader"): {"pod_label": "pgleaderlock/{role}=leader"},
}


@pytest.mark.parametrize("words", WINS, ids=" ".join)
def test_an_option_wins_over_the_file(words: tuple[str, ...], nodes: list[Any], tmp_path: Path):
    path = tmp_path / "node.toml"
    times = 'lease_duration = "30s"\nrefresh_interval = "5s"\nsettle = "1s"\nreconnect_grace = "1s"\n'
    tables = (
        'wake = "line"\nwitness = true\ntakeover = "fast"\nterm_table = true\nschema = "mine"\nschema_owner = "me"\n'
    )
    if "--term-table" in words:
        tables = tables.replace("term_table = true", "term_table = false")
    of_sessions = words[0] != "--url"
    text = FILE + times + tables if of_sessions else '[cluster.leader_election]\nroles = ["x"]\n'
    path.write_text(text.replace('refresh_interval = "5s"\n', "") if words[0] == "--lease" else text)
    assert invoke(["run", "--config", str(path), *words]) == exit_codes.CLEAN
    election = nodes[0][0].election
    expected = WINS[words]
    assert {name: getattr(election, name) for name in expected} == expected


def test_metrics_are_served_where_the_option_says(nodes: list[Any], file: str):
    assert invoke(["run", "--config", file, "--metrics-port", "0"]) == exit_codes.CLEAN
    assert (nodes[0][0].metrics.enabled, nodes[0][0].metrics.port) == (True, 0)


@pytest.mark.parametrize("variable", ["PG_DSN", "PGLEADERLOCK_URL"])
def test_a_store_whose_password_was_moved_to_the_environment_wins_too(
    variable: str, nodes: list[Any], file: str, monkeypatch: pytest.MonkeyPatch
):
    """The program was executed anew without the option: what it said must not count as a variable of the user's."""
    monkeypatch.setenv(variable, "postgresql://u:p@other/app")
    monkeypatch.setenv(MOVED_VARIABLE, variable)
    monkeypatch.setenv("PGLEADERLOCK_BACKEND", "postgresql://third/app")
    assert invoke(["run", "--config", file]) == exit_codes.CLEAN
    assert nodes[0][0].election.url == "postgresql://u:p@other/app"


def test_a_role_keeps_the_key_that_the_file_gives_it(nodes: list[Any], file: str, monkeypatch: pytest.MonkeyPatch):
    """By its name alone it would be another lock: two leaders of one role."""
    assert invoke(["run", "--config", file, "--role", "x"]) == exit_codes.CLEAN
    assert invoke(["run", "--config", file, "--set", "cluster.leader_election.roles=y,x"]) == exit_codes.CLEAN
    assert invoke(["run", "--config", file, "--role", "x=bigint:7"]) == exit_codes.CLEAN
    monkeypatch.setenv("PGLEADERLOCK_ROLES", "x")
    assert invoke(["run", "--config", file]) == exit_codes.CLEAN
    locks = [{role.name: role.lock_key for role in config.election.roles} for config, _ in nodes]
    pair = LockKey.pair(1, 100)
    assert locks == [{"x": pair}, {"y": LockKey.named("y"), "x": pair}, {"x": LockKey.bigint(7)}, {"x": pair}]


REFUSED = {
    ("--retry-base", "1"): "--retry-base has no effect beside --config and --set",
    ("--retry-max", "1"): "cluster.leader_election.check_interval",
    ("--no-auto-reacquire",): "takes part again after a loss",
    ("--key1", "1"): "--role NAME=pair:1/100",
    ("--dsn", "host=a", "--url", "postgresql://b/c"): "--url and --dsn name the store twice",
    ("--embedded",): "--embedded and the configuration's backend name the store twice",
    ("--lease", "6", "--health-interval", "5"): "--health-interval: refresh_interval = 5s must be less than two thirds",
    ("--lease", "6", "--set", "cluster.leader_election.lease_duration=7s"): "--lease: --set",
    ("--takeover", "strict"): '--takeover: takeover = "strict" decides by the term table',
    ("--schema", "other"): "--schema: schema is only for the term table, and there is none",
    ("--reconnect-grace", "3", "--role", "a,b,c,d,e,f,g,h,i"): "--reconnect-grace: reconnect_grace has no effect",
    ("--wake", "poll", "--set", "cluster.leader_election.max_roles=1"): "--wake: wake has no effect",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_has_no_meaning_beside_a_configuration_is_refused(
    words: tuple[str, ...], nodes: list[Any], file: str, capsys: pytest.CaptureFixture[str]
):
    assert invoke(["run", "--config", file, *words]) == exit_codes.USAGE
    assert REFUSED[words] in " ".join(capsys.readouterr().err.split())
    assert nodes == []


def test_embedded_is_the_store_of_a_configuration_that_names_none(nodes: list[Any], tmp_path: Path):
    path = tmp_path / "node.toml"
    path.write_text('[cluster.leader_election]\nroles = ["x"]\n')
    assert invoke(["run", "--config", str(path), "--embedded"]) == exit_codes.CLEAN
    assert nodes[0][0].election.url is None
