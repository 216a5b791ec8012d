"""The configuration: what is read, what wins, what is refused and where that is said, and that no secret is shown."""

import asyncio
import json
import math
import pickle
import re
import sys
import time
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pgleaderlock import Event, EventKind, LeaderLock, LockKey, LockState, PgLeaderLockError
from pgleaderlock._base.durations import parse_duration, show_duration
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.config import config as config_group
from pgleaderlock.cli.config import config_options
from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops.config import Config, ConfigError, in_force, load, load_config
from pgleaderlock.ops.config.model import ClusterConfig, LeaderElectionConfig, RoleConfig
from pgleaderlock.ops.config.settings import SETTINGS, Setting
from pgleaderlock.retry import FixedInterval
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.missing_packages import without_packages

ROOT = Path(__file__).parents[2]
SECRET = "hunter2MustNotBeSeen"
ELECTION = "cluster.leader_election"
OF_THE_SPECIFICATION = """
# forge.toml

[cluster.leader_election]
# How often standbys check leader health
check_interval = "5s"

# Lease duration (leader must refresh before expiry)
lease_duration = "60s"

# Lease refresh interval
refresh_interval = "30s"

# Timeout for acquiring lock
lock_timeout = "10s"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files have short names, as in messages."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (folder / "node.toml").write_text(text, encoding="utf-8")
        return "node.toml"

    return write


def refusal(path: str | None, environ: Mapping[str, str] | None = None, *sets: str) -> list[str]:
    """Return the lines of what is wrong, of which there must be some."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ or {}, sets=sets)
    return str(caught.value).splitlines()


def election(text: str) -> str:
    return f"[{ELECTION}]\n{text}\n"


# --- What is read ----------------------------------------------------------------------------------------------------


def test_nothing_at_all_is_a_configuration():
    config = load_config(environ={})
    assert config == Config()
    assert (config.election.lease_s, config.election.health_interval_s) == (15.0, 5.0)  # those of LeaderLock
    assert config.election.on_sessions
    assert config.registry_is_on
    assert not config.metrics.enabled
    assert config.election.url is None
    assert config.election.url_of(RoleConfig(name="a")) is None


def test_the_file_of_the_specification(write):
    election = load_config(write(OF_THE_SPECIFICATION), environ={}).election
    assert (election.check_interval, election.lock_timeout) == (5.0, 10.0)
    assert (election.lease_s, election.health_interval_s) == (60.0, 30.0)
    assert election.retry_strategy() == FixedInterval(5.0)
    assert election.slice_s == 0.9  # ten seconds are longer than any wait slice


def test_the_example_is_complete_and_right():
    path = ROOT / "examples" / "pgleaderlock.toml"
    config = load_config(path, environ={})
    assert [role.name for role in config.election.roles] == ["scheduler", "metrics-aggregator"]
    assert [alert.name for alert in config.alerting.alerts] == ["no_scheduler_leader", "frequent_failovers"]
    text = path.read_text(encoding="utf-8")
    missing = [each.key for each in SETTINGS if not re.search(rf"^(# |\[+)?{each.path[-1]}\b", text, re.MULTILINE)]
    assert missing == []


def test_commented_out_settings_of_the_example_are_valid_too(write):
    text = (ROOT / "examples" / "pgleaderlock.toml").read_text(encoding="utf-8")
    config = load_config(write(re.sub(r"(?m)^# (?!max_roles)(\w+ = )", r"\1", text)), environ={})
    assert config.cluster.node == "web-1"
    assert config.election.settle == 60.0
    shared = load_config(write(text.replace("# max_roles = ", "max_roles = ")), environ={})
    assert shared.election.max_roles is not None


@pytest.mark.parametrize(
    ("written", "lease_s", "health_interval_s"),
    [
        ("", 15.0, 5.0),
        ('lease_duration = "60s"', 60.0, 20.0),
        ('refresh_interval = "10s"', 30.0, 10.0),
        ('refresh_interval = "100ms"', 1.5, 0.1),
        ('lease_duration = "60s"\nrefresh_interval = "39s"', 60.0, 36.0),  # in time to be repeated
        ("lease_duration = 6\nrefresh_interval = 1.5", 6.0, 1.5),
    ],
)
def test_of_lease_and_refresh_interval_each_follows_from_the_other(write, written, lease_s, health_interval_s):
    found = load_config(write(election(written)), environ={}).election
    assert (found.lease_s, found.health_interval_s) == (pytest.approx(lease_s), pytest.approx(health_interval_s))


@pytest.mark.parametrize(
    ("lock_timeout", "lease", "slice_s"),
    [(None, "15s", None), ("10s", "15s", 0.9), ("200ms", "15s", 0.2), ("10s", "1500ms", 0.5), ("10s", "150ms", 0.1)],
)
def test_lock_timeout_makes_slices_shorter_and_never_longer(lock_timeout, lease, slice_s):
    found = LeaderElectionConfig.model_validate({"lease_duration": lease, "lock_timeout": lock_timeout})
    assert found.slice_s == (None if slice_s is None else pytest.approx(slice_s))


def test_roles_are_names_or_tables(write):
    plain = load_config(write(election('roles = ["scheduler", "metrics"]')), environ={}).election.roles
    assert [role.lock_key for role in plain] == [LockKey.named("scheduler"), LockKey.named("metrics")]
    table = f'[[{ELECTION}.roles]]\nname = "scheduler"\nkey = "pair:1/2"\n[[{ELECTION}.roles]]\nname = "b"'
    keyed = load_config(write(table), environ={}).election.roles
    assert [role.lock_key for role in keyed] == [LockKey.pair(1, 2), LockKey.named("b")]
    mixed = load_config(write(election('roles = ["a", { name = "b", key = "bigint:7" }]')), environ={}).election.roles
    assert [role.lock_key for role in mixed] == [LockKey.named("a"), LockKey.bigint(7)]


def test_other_stores_name_a_lock_for_each_role(write):
    in_files = write(election('backend = "file:///run/{role}.lock"\nroles = ["a/b", "c"]'))
    found = load_config(in_files, environ={}).election
    assert [found.url_of(role) for role in found.roles] == ["file:///run/a%2Fb.lock", "file:///run/c.lock"]
    rows = load_config(write(election('backend = "PostgreSQL+Lease://u@h/db"\nroles = ["a", "b"]')), environ={})
    assert {rows.election.url_of(role) for role in rows.election.roles} == {"postgresql+lease://u@h/db"}
    assert rows.registry_dsn == "postgresql://u@h/db"
    assert rows.registry_is_on


@pytest.mark.parametrize(
    "backend", ["postgresql://u@h/db", "postgres://u@h/db", "host=h dbname=db", "POSTGRESQL://h/db"]
)
def test_every_form_of_a_connection_string_is_postgresql(write, backend):
    config = load_config(write(election(f'backend = "{backend}"')), environ={})
    assert config.election.on_sessions
    assert config.registry_dsn == config.election.url
    LeaderLock(str(config.election.url), role="a", **config.election.settings.keywords())


def test_the_registry_is_off_where_the_store_is_another_unless_it_has_a_database_of_its_own(write):
    elsewhere = load_config(write(election('backend = "memory://x"')), environ={})
    assert not elsewhere.registry_is_on
    assert elsewhere.registry_dsn is None
    own = load_config(write(election('backend = "memory://x"') + '[registry]\ndsn = "postgresql://h/db"'), environ={})
    assert own.registry_is_on
    assert own.registry_dsn == "postgresql://h/db"
    off = load_config(write("[registry]\nenabled = false"), environ={})
    assert not off.registry_is_on


def test_a_store_whose_package_is_missing_can_be_configured_nevertheless(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pgleaderlock.stores.kubernetes", None)
    assert load_config(write(election('backend = "k8s://ns/name"')), environ={}).election.url == "k8s://ns/name"


def test_a_file_with_a_mark_of_byte_order_and_windows_line_ends_is_read(folder):
    (folder / "node.toml").write_bytes(b"\xef\xbb\xbf[metrics]\r\nport = 1\r\n\r\nprt = 2\r\n")
    assert refusal("node.toml") == ["node.toml: metrics.prt: unknown key; did you mean port?"]


def test_the_configuration_is_frozen(write):
    config = load_config(environ={})
    with pytest.raises(ValidationError):
        config.cluster.leader_election.check_interval = 1.0


def test_one_made_in_python_is_held_to_the_same_relations():
    with pytest.raises(ValidationError, match="two thirds"):
        times = {"lease_duration": 6, "refresh_interval": 5}
        Config(cluster=ClusterConfig(leader_election=LeaderElectionConfig.model_validate(times)))
    with pytest.raises(ValidationError, match="severity"):
        Config(alerts=[{"name": "a", "condition": "up == 0"}])
    assert RoleConfig(name="a", key=LockKey.pair(1, 2)).lock_key == LockKey.pair(1, 2)


# --- Durations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5), ("5s", 5.0), ("1m", 60.0), ("1h", 3600.0), ("1m30s", 90.0), ("1h1m1s1ms", 3661.001),
        ("1.5s", 1.5), ("0s", 0.0), ("90", 90.0), ("2.5", 2.5), (5, 5.0), (0.25, 0.25), (0, 0.0), ("0.1s", 0.1),
        ("1h 30m", 5400.0), ("1m 0.5s", 60.5),
    ],
)  # fmt: skip
def test_durations(written, seconds):
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "", "s", "5 s", " 5s", "5S", "-5s", "5s1m", "5s5s", "1d", "1e3s", "٥s", "5s\n", "inf", "nan", ".5s", "1ms0.1",
        "1 h", "1h  ", "1m 1h",
        True, None, [], {}, -1, math.inf, math.nan, 10**400, 1e300, "0.5ms", 1e-9, "9999999999h",
    ],
)  # fmt: skip
def test_what_is_no_duration(written):
    with pytest.raises(ValueError, match="must be") as caught:
        parse_duration(written)
    assert type(caught.value) is ValueError


@given(st.one_of(st.just(0.0), st.floats(0.001, 3e9), st.integers(1, 10**9).map(lambda ms: ms / 1000)))
def test_a_duration_that_is_shown_can_be_read_again(seconds):
    assert parse_duration(show_duration(seconds)) == seconds


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_whole_durations_are_shown_as_people_write_them(hours, minutes, seconds):
    shown = show_duration(float(hours * 3600 + minutes * 60 + seconds))
    assert re.fullmatch(r"0s|(?=.)([1-9]\d?h)?([1-9]\d?m)?([1-9]\d?s)?", shown)


@pytest.mark.parametrize(("seconds", "shown"), [(0.25, "250ms"), (1.5, "1.5s"), (90.0, "1m30s"), (3600.0, "1h")])
def test_how_durations_are_shown(seconds, shown):
    assert show_duration(seconds) == shown


# --- Any TOML --------------------------------------------------------------------------------------------------------


def toml_of(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml_of(item)}" for key, item in value.items()) + " }"
        case list():
            return "[\n" + ",\n".join(map(toml_of, value)) + "\n]"
        case bool():
            return str(value).lower()
        case float():
            return repr(value) if math.isfinite(value) else {"inf": "inf", "-inf": "-inf"}.get(str(value), "nan")
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case _:
            return str(value)


words = st.text(st.characters(max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=8)
scalars = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), words, st.just(SECRET))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)


# --- What wins -------------------------------------------------------------------------------------------------------

SAMPLES: dict[str, tuple[str, str, str]] = {
    f"{ELECTION}.pod_label": ("x/a=1", "x/a=2", "x/a=3"),
    "cluster.node": ("one", "two", "three"),
    "cluster.about": ("a=1", "b=2", "c=3"),
    f"{ELECTION}.backend": ("postgresql://one/db", "postgresql://two/db", "postgresql://three/db"),
    f"{ELECTION}.roles": ("one", "two,too", "three=pair:1/2"),
    f"{ELECTION}.lease_duration": ("61s", "62s", "63s"),
    f"{ELECTION}.refresh_interval": ("1s", "2s", "3s"),
    f"{ELECTION}.wake": ("line", "poll", "line"),
    f"{ELECTION}.takeover": ("fast", "fast", "fast"),
    f"{ELECTION}.max_roles": ("1", "2", "3"),
    "registry.dsn": ("postgresql://one/db", "postgresql://two/db", "postgresql://three/db"),
    "registry.keep_days": ("1", "2", "3"),
    "metrics.port": ("1001", "1002", "1003"),
    "dashboard.port": ("1001", "1002", "1003"),
    "dashboard.token": ("the-token-of-the-file", "the-token-of-a-variable", "the-token-of-a-flag"),
    "alerts": tuple(f'[{{ name = "{name}", condition = "up == 0", severity = "info" }}]' for name in "abc"),  # type: ignore[dict-item]
    "receivers": tuple(f'{{ webhook = {{ {name} = {{ url = "https://h/" }} }} }}' for name in "abc"),  # type: ignore[dict-item]
}
BY_KIND = {
    "duration": ("1s", "2s", "3s"),
    "flag": ("true", "false", "true"),
    "text": ("one", "two", "three"),
}


TERM_TABLE = {"PGLEADERLOCK_TERM_TABLE": "true"}


def beside(setting: Setting) -> dict[str, str]:
    """Return the variables without which this setting would be refused: it would have no effect."""
    return TERM_TABLE if setting.key in (f"{ELECTION}.schema", f"{ELECTION}.schema_owner") else {}


def samples(setting: Setting) -> tuple[str, str, str]:
    return SAMPLES.get(setting.key) or BY_KIND[setting.kind]


def in_file(setting: Setting, text: str) -> str:
    value = setting.read(text)
    table = f"[{'.'.join(setting.path[:-1])}]\n" if setting.path[:-1] else ""
    return f"# first\n{table}{setting.path[-1]} = {toml_of(value)}\n"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
@pytest.mark.parametrize("said", [each for n in range(4) for each in combinations(("file", "environment", "flag"), n)])
def test_flags_win_over_variables_over_the_file_over_defaults(write, setting, said):
    in_toml, in_environ, in_flag = samples(setting)
    loaded = load(
        write(in_file(setting, in_toml)) if "file" in said else None,
        environ=beside(setting) | ({setting.variable: in_environ} if "environment" in said else {}),
        sets=[f"{setting.key}={in_flag}"] if "flag" in said else [],
    )
    text, origin = None, "default"
    for layer, written, place in (
        ("file", in_toml, "node.toml"),
        ("environment", in_environ, f"${setting.variable}"),
        ("flag", in_flag, "--set"),
    ):
        text, origin = (written, place) if layer in said else (text, origin)
    assert loaded.origins[setting.key] == origin
    expected = Config() if text is None else load_config(environ=beside(setting), sets=[f"{setting.key}={text}"])
    assert setting.value_in(loaded.config) == setting.value_in(expected)
    others = {key: place for key, place in loaded.origins.items() if key != setting.key}
    assert set(others.values()) - {f"${name}" for name in beside(setting)} == {"default"}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_value_in_the_file_and_the_same_as_text_mean_the_same(write, setting):
    for text in samples(setting):
        by_file = load_config(write(in_file(setting, text)), environ=beside(setting))
        assert by_file == load_config(environ={**beside(setting), setting.variable: text})


def test_variables_are_called_by_one_rule_and_none_like_another():
    names = [setting.variable for setting in SETTINGS]
    assert len(set(names)) == len(names)
    assert not {"PGLEADERLOCK_URL", "PGLEADERLOCK_STATE_DIR", "PGLEADERLOCK_PG_BIN", "PGLEADERLOCK_CONFIG"} & set(names)
    assert "PGLEADERLOCK_LEASE_DURATION" in names
    assert "PGLEADERLOCK_REGISTRY_DSN" in names


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_variable_that_is_empty_was_not_filled_in(setting):
    (line,) = refusal(None, {setting.variable: " "})
    assert line == f"${setting.variable}: is empty: give it a value, or leave it out"


def test_a_variable_that_is_almost_ours_is_a_slip_and_others_are_left_alone():
    line = refusal(None, {"PGLEADERLOCK_LEASE_DURRATION": "5s"})
    assert line == ["$PGLEADERLOCK_LEASE_DURRATION: unknown; did you mean $PGLEADERLOCK_LEASE_DURATION?"]
    load(environ={
        "PGLEADERLOCK_STATE_DIR": "/x", "PGLEADERLOCK_TEST_DSN": "x", "PGLEADERLOCK_SERVICE_HOST": "10.0.0.1",
        "PGLEADERLOCK_PORT": "tcp://10.0.0.1:80", "PGLEADERLOCK_PORT_80_TCP": "x", "PGLEADERLOCK_SERVICE_PORT": "80",
        "PGLEADERLOCK_METRICS_SERVICE_PORT": "80", "PGLEADERLOCK_CONFIG": "x", "PGLEADERLOCK_PG_BIN": "x", "HOME": "/",
    })  # fmt: skip


def test_a_port_that_kubernetes_made_of_a_service_says_what_it_is():
    (line,) = refusal(None, {"PGLEADERLOCK_METRICS_PORT": "tcp://10.0.0.1:9464"})
    assert line.startswith("$PGLEADERLOCK_METRICS_PORT: must be a whole number, but is an address: Kubernetes")


def test_pg_dsn_names_the_store_only_where_nothing_of_ours_does(write):
    general, ours = {"PG_DSN": "postgresql://general/db"}, "postgresql://ours/db"
    key = f"{ELECTION}.backend"
    assert load(environ=general).origins[key] == "$PG_DSN"
    assert load_config(environ=general).election.url == "postgresql://general/db"
    assert load_config(write(election(f'backend = "{ours}"')), environ=general).election.url == ours
    assert load_config(environ={**general, "PGLEADERLOCK_BACKEND": ours}).election.url == ours
    assert load_config(environ={**general, "PGLEADERLOCK_URL": ours}).election.url == ours
    assert load_config(environ=general, sets=[f"{key}={ours}"]).election.url == ours
    assert refusal(None, {"PG_DSN": ""}) == ["$PG_DSN: is empty: give it a value, or leave it out"]


def test_the_variable_of_url_is_as_good_as_ours_and_both_may_not_differ(write):
    file = write(election('backend = "memory://file"'))
    loaded = load(file, environ={"PGLEADERLOCK_URL": "memory://url"})
    assert (loaded.config.election.url, loaded.origins[f"{ELECTION}.backend"]) == ("memory://url", "$PGLEADERLOCK_URL")
    both = {"PGLEADERLOCK_URL": "memory://x", "PGLEADERLOCK_BACKEND": "memory://x"}
    assert load(None, environ=both).origins[f"{ELECTION}.backend"] == "$PGLEADERLOCK_BACKEND"
    assert refusal(None, {**both, "PGLEADERLOCK_URL": "memory://y"}) == [
        "$PGLEADERLOCK_URL: names another store than $PGLEADERLOCK_BACKEND"
    ]


def test_the_last_of_two_flags_counts_and_mends_what_the_file_has_wrong(write):
    file = write("[metrics]\nport = 'x'")
    config = load_config(file, environ={"PGLEADERLOCK_METRICS_PORT": "1"}, sets=["metrics.port=2", "metrics.port=3"])
    assert config.metrics.port == 3


def test_what_is_laid_over_a_mistake_is_the_only_thing_that_is_judged(write):
    file = write("[metrics]\nport = 'x'")
    assert refusal(file, {"PGLEADERLOCK_METRICS_PORT": "y"}) == ["$PGLEADERLOCK_METRICS_PORT: must be a whole number"]


def test_by_default_the_environment_is_the_process_s(monkeypatch):
    monkeypatch.setenv("PGLEADERLOCK_NODE", "of-the-process")
    assert load_config().cluster.node == "of-the-process"


# --- What is refused, and where that is said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lease_durration = 5", f"node.toml: {ELECTION}.lease_durration: unknown key; did you mean lease_duration?"),
        ("port = 1", f"node.toml: {ELECTION}.port: unknown key; it belongs into [metrics] or [dashboard]"),
        ("check_interval = 0", f"node.toml: {ELECTION}.check_interval: must be longer than 0"),
        ("\n\npoll_interval = '0s'", f"node.toml: {ELECTION}.poll_interval: must be longer than 0"),
        ("settle = -1", f"node.toml: {ELECTION}.settle: must be a duration such as"),
        ("lease_duration = '481h'", f"node.toml: {ELECTION}.lease_duration: must be at most 480h"),
        ("refresh_interval = '161h'", f"node.toml: {ELECTION}.refresh_interval: must be at most 160h"),
        ("lock_timeout = '99ms'", f"node.toml: {ELECTION}.lock_timeout: must be at least 100ms"),
        ("max_roles = 0", f"node.toml: {ELECTION}.max_roles: must be between 1 and 100000"),
        ("max_roles = '1'", f"node.toml: {ELECTION}.max_roles: must be a whole number, without quotes"),
        ("max_roles = true", f"node.toml: {ELECTION}.max_roles: must be a whole number, without quotes"),
        ("witness = 'yes'", f"node.toml: {ELECTION}.witness: must be true or false, without quotes"),
        ("wake = 'now'", f'node.toml: {ELECTION}.wake: must be "line" or "poll"'),
        ("schema = 'pg_x'", f"node.toml: {ELECTION}.schema: must be a plain name"),
        ("schema = 5", f"node.toml: {ELECTION}.schema: must be a text in quotes"),
        ("backend = 'file:'", f"node.toml: {ELECTION}.backend: is not a valid PostgreSQL connection string"),
        ("backend = 'redis://h'", f"node.toml: {ELECTION}.backend: is not the URL of a store: known: postgresql://"),
        ("backend = 'file://'", f"node.toml: {ELECTION}.backend: is not the URL of a store"),
        ("backend = 'postgresql://h:0/db'", f"node.toml: {ELECTION}.backend: has a port that is not a number"),
        ("roles = 'a'", f"node.toml: {ELECTION}.roles: must be a list of names"),
        ("roles = [\n'a',\n'b c']", f"node.toml: {ELECTION}.roles[1].name: is not usable as a role's name"),
        ("roles = [1]", f"node.toml: {ELECTION}.roles[0]: must be a table"),
        ("roles = [\n{ name = 'a', key = 'x' }]", f"node.toml: {ELECTION}.roles[0].key: is not a lock key"),
        ("roles = [{ name = 'a', key = 5 }]", f"node.toml: {ELECTION}.roles[0].key: is not a lock key"),
        ("roles = [{ key = 'pair:1/2' }]", f"node.toml: {ELECTION}.roles[0].name: is missing"),
        ("roles = [{ name = 'a', nme = 1 }]", f"node.toml: {ELECTION}.roles[0].nme: unknown key; did you mean name?"),
    ],
)  # fmt: skip
def test_error_in_the_election_is_reported_with_file_and_key(write, text, line):
    (found,) = refusal(write(election(text)))
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cluster = 3", "node.toml: cluster: must be a table"),
        ("[cluster]\nleader_election = []", "node.toml: cluster.leader_election: must be a table"),
        ("[cluster]\nnode = 'postgresql://x'", "node.toml: cluster.node: must be a name"),
        ("[cluster]\nabout = { zone = [] }", "node.toml: cluster.about: must hold texts"),
        ("[cluster]\nabout = 'x'", "node.toml: cluster.about: must be a table of texts"),
        ("[cluster.about]\nx = nan", "node.toml: cluster.about: must hold texts"),
        ("\n[clutser]\nx = 1", "node.toml: clutser: unknown key; did you mean cluster?"),
        ("[cron]", "node.toml: cron: unknown key; the keys here are cluster, registry"),
        ("'a b' = 1", "node.toml: (a key that is not shown): unknown key"),
        ("[metrics]\nport = 65536", "node.toml: metrics.port: must be between 0 and 65535"),
        ("[metrics]\nhost = ''", "node.toml: metrics.host: must be a name"),
        ("[metrics]\nprefix = '9'", "node.toml: metrics.prefix: the prefix of the metrics must be"),
        ("metrics.port = 1.5", "node.toml: metrics.port: must be a whole number, without quotes"),
        ("[registry]\ndsn = 'file:///x'", "node.toml: registry.dsn: must be a connection string of libpq"),
        ("[registry]\nkeep_days = 0", "node.toml: registry.keep_days: must be between 1 and 36500"),
        ("[dashboard]\nenabled = 1", "node.toml: dashboard.enabled: must be true or false, without quotes"),
        ("[alerts]\nname = 'a'", "node.toml: alerts: must be an array of tables"),
        ("receivers = 1", "node.toml: receivers: must be a table"),
        ("alert = 1", "node.toml: alert: unknown key; did you mean alerts?"),
    ],
)
def test_error_in_other_tables_is_reported_too(write, text, line):
    (found,) = refusal(write(text))
    assert found.startswith(line)


ALERT = '[[alerts]]\nname = "{}"\ncondition = "up == 0"\nseverity = "{}"\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ALERT.format("a", "info") + ALERT.format("b", "bad"), 'node.toml: alerts[1].severity: must be "critical"'),
        (ALERT.format("a", "info") * 2, "node.toml: alerts[1].name: is used twice"),
        (
            "[[alerts]]\nname = 'a'\ncondtion = 'x'\nseverity = 'info'",
            "node.toml: alerts[0].condtion: is an unknown key",
        ),
        ("[[alerts]]\nseverity = 'info'\ncondition = 'x'", "node.toml: alerts[0].name: is missing"),
        (ALERT.format(" a", "info"), "node.toml: alerts[0].name: must be printable"),
        ("alerts = [1]", "node.toml: alerts[0]: must be a table"),
        ("[receivers.slack]\n\napi_url = 'x'", "node.toml: receivers.slack.api_url: is a secret"),
        ("[receivers]\nslack = 1", "node.toml: receivers.slack: must be a table"),
        ("[receivers]\nemail = 1", "node.toml: receivers.email: is an unknown key"),
        ("[receivers.default]\ncritical = ['x']", "node.toml: receivers.default.critical: must be made of"),
        ("[receivers.webhook.'a b']\nurl = 'https://h'", "node.toml: receivers.webhook: 'a b' is not a name"),
    ],
)
def test_error_in_the_alerts_is_reported_with_its_key(write, text, line):
    (found,) = refusal(write(text))
    assert found.startswith(line)


def test_every_wrong_alert_and_receiver_is_named(write):
    text = ALERT.format("a", "bad") + ALERT.format("b", "info") + ALERT.format("c", "bad")
    text += "[receivers.slack]\nurl = 'x'\n[receivers.pagerduty]\nkey = 'x'\n"
    assert [line.split(": ")[1] for line in refusal(write(text))] == [
        "alerts[0].severity", "alerts[2].severity", "receivers.slack.url", "receivers.pagerduty.key",
    ]  # fmt: skip


RELATIONS = [
    ('lease_duration = "6s"\nrefresh_interval = "4s"', "refresh_interval", "lease_duration: node.toml"),
    ('takeover = "strict"', "takeover", "term_table: default"),
    ('takeover = "strict"\nterm_table = false', "takeover", "term_table: node.toml"),
    ('backend = "memory://x"\nwitness = true', "witness", "backend: node.toml"),
    ('backend = "memory://x"\nallow_pooler = true', "allow_pooler", "backend: node.toml"),
    ('backend = "memory://x"\nterm_table = true', "term_table", "backend: node.toml"),
    ('backend = "postgresql+lease://h/d"\nsettle = "1s"', "settle", "backend: node.toml"),
    ('backend = "memory://x"\nwake = "poll"', "wake", "backend: node.toml"),
    ('backend = "memory://x"\nschema = "x"', "schema", "backend: node.toml"),
    ('schema = "x"', "schema", "term_table: default"),
    ('term_table = false\nschema_owner = "x"', "schema_owner", "term_table: node.toml"),
    ('backend = "memory://x"\nroles = [{ name = "a", key = "bigint:1" }]', "roles[0].key", "backend: node.toml"),
    ('backend = "memory://x"\nroles = ["a", "b"]', "backend", "roles: node.toml"),
    ('roles = ["a", "b"]\npod_label = "x/leader={role}"', "pod_label", "roles: node.toml"),
    ('roles = ["a/b"]\npod_label = "x/leader={role}"', "pod_label", "roles[0]: node.toml"),
    ('roles = ["a",\n"b",\n"a"]', "roles[2]", "roles[0]: node.toml"),
    ('roles = ["a",\n{ name = "b", key = "named:a" }]', "roles[1]", "roles[0]: node.toml"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "other"), RELATIONS)
def test_what_cannot_be_together_names_both_keys_and_both_places(write, text, key, other):
    (found,) = refusal(write(election(text)))
    assert found.startswith(f"node.toml: {ELECTION}.{key}: ")
    assert found.endswith(f"({ELECTION}.{other})")


def test_a_pod_label_is_checked_where_it_stands(write):
    file = write(election('roles = ["a", "b"]\npod_label = "x/{role}=leader"'))
    assert load(file, environ={}).config.election.pod_label == "x/{role}=leader"
    assert load(None, environ={"PGLEADERLOCK_POD_LABEL": "x=y"}).config.election.pod_label == "x=y"
    (found,) = refusal(write(election('pod_label = "leader"')))
    assert found == f"node.toml: {ELECTION}.pod_label: must be KEY=VALUE, such as pgleaderlock/leader=billing"


def test_a_registry_needs_a_postgresql(write):
    (found,) = refusal(write(election('backend = "memory://x"') + "[registry]\nenabled = true"))
    assert found.startswith("node.toml: registry.enabled: the registry is in PostgreSQL")
    assert f"{ELECTION}.backend: node.toml" in found
    assert "registry.dsn: default" in found


BOTH = "[metrics]\nenabled = true\nport = {}\n{}\n[dashboard]\nenabled = true\nport = {}\n{}\n"


@pytest.mark.parametrize("hosts", [("", ""), ("host = '0.0.0.0'", ""), ("", "host = '::'")])
def test_metrics_and_the_dashboard_cannot_share_a_port(write, hosts):
    (found,) = refusal(write(BOTH.format(80, hosts[0], 80, hosts[1])))
    assert found.startswith("node.toml: dashboard.port: metrics and the dashboard cannot both listen on port 80")
    assert found.endswith("(metrics.port: node.toml)")


def test_ports_that_do_not_meet_may_be_the_same(write):
    load(write(BOTH.format(80, "host = '10.0.0.1'", 80, "")), environ={})
    load(write(BOTH.format(0, "", 0, "")), environ={})
    load(write(BOTH.format(80, "", 80, "").replace("true", "false", 1)), environ={})


def test_error_names_the_source_of_each_setting(write):
    file = write(election('lease_duration = "60s"'))
    (found,) = refusal(file, {"PGLEADERLOCK_REFRESH_INTERVAL": "50s"})
    assert found.startswith("$PGLEADERLOCK_REFRESH_INTERVAL: refresh_interval = 50s must be less than two thirds of")
    assert found.endswith(f"({ELECTION}.lease_duration: node.toml)")
    (found,) = refusal(file, {}, f"{ELECTION}.refresh_interval=50s")
    assert found.startswith(f"--set {ELECTION}.refresh_interval: refresh_interval = 50s")
    assert refusal(None, {"PGLEADERLOCK_ROLES": "a,b c"})[0].startswith("$PGLEADERLOCK_ROLES: [1].name: is not usable")


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("metrics.port=x", "--set metrics.port: must be a whole number"),
        ("metrics.port=", "--set metrics.port: is empty"),
        ("registry.enabled=maybe", "--set registry.enabled: must be true or false"),
        ("cluster.about=x", "--set cluster.about: must be name=value"),
        ("alerts=[", "--set alerts: must be a value of TOML"),
        ("alerts=1", "--set alerts: must be an array of tables"),
        ("lease_duration=5s", f"--set lease_duration: unknown key; did you mean {ELECTION}.lease_duration?"),
        ("metrics.prot=5", "--set metrics.prot: unknown key; did you mean metrics.port?"),
        ("zzz=5", "--set zzz: unknown key: see pgleaderlock config show"),
        ("nothing", "--set: write it as KEY=VALUE"),
        ("cluster=5", "--set cluster: unknown key"),
    ],
)
def test_flags_that_are_wrong(written, line):
    (found,) = refusal(None, {}, written)
    assert found.startswith(line)


def test_all_errors_are_reported_at_once_in_the_order_of_the_file(write):
    text = election('wake = "x"\nlease_duration = "6s"\nrefresh_interval = "5s"\nfoo = 1') + ALERT.format("a", "bad")
    text += BOTH.format(80, "", 80, "") + "prt = 5\n"
    found = refusal(write(text), {"PGLEADERLOCK_NODE": ""}, "metrics.host=")
    assert [line.partition(": ")[0] for line in found] == [
        "$PGLEADERLOCK_NODE", "--set metrics.host", "node.toml", "node.toml", "node.toml", "node.toml",
        "node.toml", "node.toml",
    ]  # fmt: skip


def test_the_error_is_a_value_error_of_ours_and_programs_can_read_it(write):
    with pytest.raises(PgLeaderLockError) as caught:
        load_config(write("x = 1\ny = 2"), environ={})
    error = caught.value
    assert isinstance(error, ValueError)
    assert isinstance(error, ConfigError)
    assert [(problem.place, problem.key) for problem in error.problems] == [("node.toml", "x"), ("node.toml", "y")]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == (str(error), error.problems)


# --- Files that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[a]\nx = \n", "node.toml:2: is not TOML: Invalid value (column 5)"),
        ("x = 1\nx = 2\n", "node.toml:2: is not TOML: "),
        ("[a]\n[a]\n", "node.toml:2: is not TOML: "),
        ('x = "a', 'node.toml:1: is not TOML: '),
        ("x = [1,\n2", "node.toml:2: is not TOML: "),
        ("x = " + "1" * 5000, "node.toml: is TOML that cannot be parsed"),
        ("x = " + "[" * 5000, "node.toml: is nested too deeply"),
    ],
)  # fmt: skip
def test_invalid_toml_is_reported_with_its_line(write, text, line):
    (found,) = refusal(write(text))
    assert found.startswith(line)


def test_a_file_that_cannot_be_read_says_why(folder):
    assert refusal("none.toml") == ["none.toml: cannot be read: No such file or directory"]
    assert refusal(".") == [".: cannot be read: Is a directory"]
    (folder / "node.toml").write_bytes(b"\xff\xfe")
    assert refusal("node.toml") == ["node.toml: is not text in UTF-8: is it another file?"]
    assert refusal("a\0b") == ["this cannot be the name of a file"]


# --- Secrets ---------------------------------------------------------------------------------------------------------

WITH_SECRET = [
    f"postgresql://app:{SECRET}@db.example/app",
    f"postgresql+lease://app:{SECRET}@db.example/app",
    f"host=db.example dbname=app password={SECRET}",
    f"memory://x?token={SECRET}",
    f"file://u:{SECRET}@h/x",
]


@pytest.mark.parametrize("url", WITH_SECRET)
def test_a_secret_is_in_no_text_that_a_configuration_gives(write, url):
    loaded = load(write(election(f'backend = "{url}"')), environ={})
    config = loaded.config
    assert SECRET in str(config.election.url)
    texts = [repr(config), str(config), config.model_dump_json(), str(config.model_dump()), repr(loaded)]
    assert not [text for text in texts if SECRET in text]
    assert SECRET not in str([(each, each.text) for each in in_force(loaded)])


def test_the_token_of_the_dashboard_is_shown_nowhere_and_must_be_one_that_a_header_can_carry(write):
    token = f"{SECRET}-and-then-some"
    loaded = load(write(f'[dashboard]\ntoken = "{token}"'), environ={})
    assert loaded.config.dashboard.token is not None
    assert loaded.config.dashboard.token.get_secret_value() == token
    texts = [repr(loaded), loaded.config.model_dump_json(), str([(each, each.text) for each in in_force(loaded)])]
    assert not [text for text in texts if SECRET in text]
    for bad in ("short", "with a blank in the middle", "umläute-are-not-ascii"):
        assert "dashboard.token: must have at least 16 characters" in said_of({"sets": [f"dashboard.token={bad}"]})


@pytest.mark.parametrize(
    "url", [*WITH_SECRET, SECRET, f"redis://:{SECRET}@h", f"postgresql://u:{SECRET}@@h", f"{SECRET}://x"]
)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_secret_in_the_wrong_place_is_not_repeated(write, setting, url):
    table = f"[{'.'.join(setting.path[:-1])}]\n" if setting.path[:-1] else ""
    files = [f"{setting.path[-1]} = '{url}'", f"{setting.path[-1]} = ['{url}']", f"{setting.path[-1]} = {url}"]
    flags = [f"{setting.key}={url}"]
    if url != SECRET:  # which could be the name of a key, and those are shown
        files += [f"'{url}' = 1", f"[{setting.path[0]}]\n'{url}' = 1\n'{url}' = 2", f"['{url}']\n['{url}']"]
        flags += [f"{url}=1", url]
    for text in files:
        assert SECRET not in said_of({"path": write(table + text)})
    for written in flags:
        assert SECRET not in said_of({"sets": [written]})
    assert SECRET not in said_of({"environ": {setting.variable: url}})


def said_of(source: dict[str, Any]) -> str:
    """Whatever an error has to say, to people and to debuggers."""
    try:
        load(**{"environ": {}, **source})
    except ConfigError as error:
        return f"{error}{error!r}{error.problems}{error.__cause__!r}{error.__context__!r}"
    return ""


@pytest.mark.parametrize("key", ["severity", "for", "notify", "condition", "summary"])
def test_a_secret_in_an_alert_is_not_repeated(write, key):
    alert = {
        "name": "a",
        "condition": "up == 0",
        "severity": "info",
        key: [SECRET] if key == "notify" else f"({SECRET}",
    }
    text = "[[alerts]]\n" + "".join(f"{name} = {toml_of(value)}\n" for name, value in alert.items())
    assert SECRET not in said_of({"path": write(text)})


FUZZED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@FUZZED
@given(st.sampled_from(SETTINGS), values)
def test_any_value_of_toml_anywhere_is_accepted_or_refused_with_a_message(write, setting, value):
    table = f"[{'.'.join(setting.path[:-1])}]\n" if setting.path[:-1] else ""
    path = write(f"{table}{setting.path[-1]} = {toml_of(value)}\n")
    try:
        loaded = load(path, environ={})
    except ConfigError as error:
        assert error.problems  # noqa: PT017
        assert all(problem.place.partition(":")[0] == "node.toml" for problem in error.problems)  # noqa: PT017
        assert SECRET not in str(error).replace(f'alert "{SECRET}"', "")  # noqa: PT017
    else:
        assert loaded.origins[setting.key] == "node.toml"
        in_force(loaded)


@FUZZED
@given(st.dictionaries(st.sampled_from(["cluster", "registry", "metrics", "alerts", "receivers", "x"]), values))
def test_any_file_at_all_is_accepted_or_refused_with_a_message(write, content):
    path = write("".join(f"{key} = {toml_of(value)}\n" for key, value in content.items()))
    try:
        load(path, environ={})
    except ConfigError as error:
        assert all(problem.place.partition(":")[0] == "node.toml" for problem in error.problems)  # noqa: PT017


@FUZZED
@given(st.sampled_from(SETTINGS), words, words)
def test_any_text_of_a_variable_or_a_flag_is_accepted_or_refused_with_a_message(setting, in_environ, in_flag):
    sources: list[dict[str, Any]] = [
        {"environ": {setting.variable: in_environ}},
        {"sets": [f"{setting.key}={in_flag}"]},
    ]
    for source in sources:
        try:
            load(**{"environ": {}, **source})
        except ConfigError as error:
            assert all(problem.place.startswith(("$", "--set")) for problem in error.problems)  # noqa: PT017


@given(
    lease=st.none() | st.floats(0.01, 1e6),
    refresh=st.none() | st.floats(0.01, 1e6),
    lock_timeout=st.none() | st.floats(0.1, 100),
    strict=st.booleans(),
    table=st.booleans(),
)
def test_what_the_configuration_takes_the_library_takes(lease, refresh, lock_timeout, strict, table):
    written = {"lease_duration": lease, "refresh_interval": refresh, "lock_timeout": lock_timeout, "term_table": table}
    written = {key: value for key, value in written.items() if value is not None}
    written["takeover"] = "strict" if strict else "fast"
    try:
        config = Config.model_validate({"cluster": {"leader_election": written}})
    except ValidationError:
        too_long = refresh and refresh > 160 * 3600
        assert too_long or (strict and not table) or (lease and refresh and refresh >= lease * 2 / 3)
    else:
        LeaderLock("postgresql://h/db", role="a", **config.election.settings.keywords())


# --- What the times do -----------------------------------------------------------------------------------------------


def a_lock(postgres: Postgres, key: LockKey, **written: Any) -> LeaderLock:
    chosen = LeaderElectionConfig.model_validate({"lease_duration": "6s", "settle": 0, **written})
    return LeaderLock(postgres.dsn, key=key, **chosen.settings.keywords())


def elections_of(lock: LeaderLock) -> list[str]:
    """What came of each election: one entry into ACQUIRING each."""
    found: list[str] = []

    def hear(event: Event) -> None:
        if event.kind is EventKind.STATE_CHANGE and event.from_state is LockState.ACQUIRING:
            found.append(event.to_state.value)

    lock.subscribe(hear)
    return found


async def test_queued_follower_notices_a_release_at_once_however_long_the_check_interval(
    postgres: Postgres, key: LockKey
):
    first, second = (a_lock(postgres, key, check_interval="1h", lock_timeout="10s") for _ in range(2))
    elections = elections_of(second)
    async with first:
        assert await first.wait_for_leadership(20)
        async with second:
            await until(lambda: elections == ["follower"])
            await first.shutdown()
            assert await second.wait_for_leadership(20)  # and not after an hour
    assert elections == ["follower", "leader"]


async def test_one_round_in_the_queue_is_one_election_and_a_wait_slice_is_none(postgres: Postgres, key: LockKey):
    first = a_lock(postgres, key)
    second = a_lock(postgres, key, check_interval="700ms", lock_timeout="100ms")
    elections = elections_of(second)
    async with first:
        assert await first.wait_for_leadership(20)
        async with second:
            began = time.monotonic()
            await until(lambda: len(elections) >= 3)
            await asyncio.sleep(0.5)
            assert (
                len(elections) <= (time.monotonic() - began) / 0.7 + 1
            )  # rounds; there were seven times as many slices
            assert set(elections) == {"follower"}


async def test_who_polls_asks_once_in_a_check_interval(postgres: Postgres, key: LockKey):
    first = a_lock(postgres, key)
    second = a_lock(postgres, key, wake="poll", check_interval="300ms")
    third = a_lock(postgres, key, wake="poll", check_interval="1h")
    often, rarely = elections_of(second), elections_of(third)
    async with first:
        assert await first.wait_for_leadership(20)
        async with second, third:
            await until(lambda: len(often) >= 3 and bool(rarely))
            await first.shutdown()
            assert await second.wait_for_leadership(20)
            assert rarely == ["follower"]  # it sleeps, and receives no notification


# --- The command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for variable in ("PG_DSN", "PGLEADERLOCK_URL", "PGLEADERLOCK_CONFIG", "PGLEADERLOCK_TEST_DSN"):
        monkeypatch.delenv(variable, raising=False)
    return lambda *words, **environ: CliRunner().invoke(config_group, list(words), env=environ)


def test_show_prints_what_is_in_force_and_where_it_came_from(write, run):
    write(election(f'lease_duration = "60s"\nbackend = "postgresql://app:{SECRET}@db/app"\nroles = ["a"]'))
    found = run("show", "--config", "node.toml", "--set", "metrics.enabled=true", PGLEADERLOCK_NODE="web-1")
    assert found.exit_code == 0
    lines = {line.split()[0]: line for line in found.output.splitlines()}
    assert set(lines) == {setting.key for setting in SETTINGS}
    assert lines[f"{ELECTION}.lease_duration"].split()[1:] == ["1m", "node.toml"]
    assert lines[f"{ELECTION}.refresh_interval"].split()[1:] == ["20s", "default"]
    assert lines["cluster.node"].split()[1:] == ["web-1", "$PGLEADERLOCK_NODE"]
    assert lines["metrics.enabled"].split()[1:] == ["true", "--set"]
    assert "host=db port=5432 dbname=app user=app" in lines[f"{ELECTION}.backend"]
    assert "host=db port=5432 dbname=app user=app" in lines["registry.dsn"]
    assert "off" in lines[f"{ELECTION}.reconnect_grace"]
    assert SECRET not in found.output


def test_show_as_json_is_for_programs(write, run):
    text = '[cluster]\nabout = { zone = "eu-1" }\n' + election('backend = "memory://x"\nroles = ["a"]')
    write(text + ALERT.format("x", "info"))
    shown = json.loads(run("show", "--config", "node.toml", "--json").output)
    assert shown["file"] == "node.toml"
    values = {each["key"]: (each["value"], each["source"]) for each in shown["settings"]}
    assert values["cluster.about"] == ({"zone": "eu-1"}, "node.toml")
    assert values[f"{ELECTION}.backend"] == ("memory://x", "node.toml")
    assert values[f"{ELECTION}.roles"] == (["a"], "node.toml")
    assert values[f"{ELECTION}.check_interval"] == ("5s", "default")
    assert values[f"{ELECTION}.settle"] == (None, "default")
    assert values["registry.enabled"] == (False, "default")
    assert values["registry.dsn"] == (None, "default")
    assert values["alerts"] == (["x"], "node.toml")


def test_show_names_roles_with_keys_receivers_and_facts_as_flags_take_them(write, run):
    write(election('roles = [{ name = "a", key = "pair:1/2" }]') + "[receivers.webhook.x]\nurl = 'https://h/'\n")
    found = run("show", "--config", "node.toml", "--set", "cluster.about=zone=eu-1,rack=4").output
    assert "a=pair:1/2" in found
    assert "webhook:x" in found
    assert "zone=eu-1, rack=4" in found


def test_check_exits_with_0_or_2(write, run):
    write(election('roles = ["a", "b"]'))
    good = run("check", PGLEADERLOCK_CONFIG="node.toml")
    assert (good.exit_code, good.output) == (0, "node.toml: no problems. Roles: a, b\n")
    told = run("check", "--config", "node.toml", "--json").output
    assert json.loads(told) == {"ok": True, "problems": [], "warnings": []}
    write("x = 1\n\ny = 2\n")
    bad = run("check", "--config", "node.toml")
    assert bad.exit_code == exit_codes.USAGE
    assert [line[:12] for line in bad.stderr.splitlines()] == ["node.toml: x", "node.toml: y"]
    as_json = run("check", "--config", "node.toml", "--json")
    assert as_json.exit_code == exit_codes.USAGE
    told = json.loads(as_json.stdout)
    assert not told["ok"]
    assert [each["place"] for each in told["problems"]] == ["node.toml", "node.toml"]


@pytest.mark.parametrize("url", WITH_SECRET[:3])
def test_password_is_refused_where_all_users_can_read_it(run, url):
    found = run("show", "--set", f"{ELECTION}.backend={url}")
    assert found.exit_code == exit_codes.USAGE
    assert "$PGLEADERLOCK_BACKEND" in found.output
    assert SECRET not in found.output
    assert run("show", "--set", f"{ELECTION}.backend=postgresql://app@db/app").exit_code == 0
    assert run("show", "--set", f"{ELECTION}.backend=memory://x").exit_code == 0


def test_a_missing_extra_names_what_to_install(capsys):
    with without_packages("pydantic", imported_anew=("pgleaderlock.ops.config",)):
        assert invoke(["config", "show"]) == exit_codes.USAGE
        assert 'pip install "pgleaderlock[config]"' in capsys.readouterr().err
        with pytest.raises(MissingExtra, match="pydantic"):
            import pgleaderlock.ops.config  # noqa: F401


def test_other_commands_can_take_a_configuration_too():
    @click.command()
    @config_options
    def run(config_file: Path | None, sets: tuple[str, ...]) -> None:
        click.echo(f"{config_file} {sets}")

    assert CliRunner().invoke(run, ["--config", "x", "--set", "a=b"]).output == "x ('a=b',)\n"


# --- The documentation -----------------------------------------------------------------------------------------------


def test_the_messages_of_the_reference_are_real(write):
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    (relation,) = refusal(write("\n\n" + election('lease_duration = "1m"\nrefresh_interval = "50s"')))
    assert relation.replace("node.toml", "pgleaderlock.toml") in text
    for line in (
        *refusal(None, {"PGLEADERLOCK_LEASE_DURATION": "x"}),
        *refusal(None, {}, "metrics.port=x"),
        *refusal(write(election("lease_durration = 1"))),
    ):
        assert line.removeprefix("node.toml: ") in text


# --- Everything at once -----------------------------------------------------------------------------------------------

ALL_WRONG = """
[cluster.leader_election]
lease_duration = "1x"
rolls = 1
max_roles = 3
term_table = true
[[alerts]]
name = "a"
severity = "loud"
condition = "up == 0"
for = "3 fortnights"
notify = ["nobody", "slack:", "pagerduty"]
[[alerts]]
name = "b"
condition = "up == 0"
bogus = 1
also = 2
[receivers.slack]
channel = 3
api_url = "https://hooks.slack.com/services/hunter2"
api_url_file = "relative"
[receivers.webhook.a]
url = 3
"""


def test_all_errors_are_reported_at_once_alerts_and_receivers_included(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(ALL_WRONG.lstrip())
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    found = [problem.key for problem in caught.value.problems]
    assert sorted(found) == [
        "alerts[0].for",
        "alerts[0].notify",
        "alerts[0].notify",
        "alerts[0].severity",
        "alerts[1].also",
        "alerts[1].bogus",
        "alerts[1].severity",
        "cluster.leader_election.lease_duration",
        "cluster.leader_election.max_roles",
        "cluster.leader_election.rolls",
        "receivers.slack.api_url",
        "receivers.slack.api_url_file",
        "receivers.slack.channel",
        "receivers.webhook.a.url",
    ]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("content", ["alerts = [3]", "[[alerts]]", "[receivers]\nslack = 3", "[receivers.x]"])
def test_alerts_that_cannot_be_read_at_all_are_reported_once(tmp_path, content: str):
    path = tmp_path / "x.toml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    keys = [problem.key for problem in caught.value.problems]
    assert len(keys) == len(set(keys)) <= 3
