"""Each setting is declared once, in ``pgleaderlock/options.py``: what is offered elsewhere follows from that record."""

import asyncio
import inspect
import json
import os
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import pgleaderlock
from pgleaderlock import Election, FixedInterval, LeaderGroup, LeaderLock, open_backend, sync
from pgleaderlock.options import BY_NAME, SETTINGS, LockOptions, LockSettings, check_options
from tests.support.fsm_docs import ROOT, load_tool

DSN = "postgresql://app@db/app"
COMMON = {each.name for each in SETTINGS if not each.is_rare}
OTHERS: dict[str, Any] = {  # for each setting a value that is not its default
    "retry_strategy": FixedInterval(3.0),
    "lease_s": 9.0,
    "health_interval_s": 2.0,
    "reconnect_grace_s": 4.0,
    "auto_reacquire": False,
    "settle_s": 0,
    "witness": False,
    "address": "http://10.0.0.7:8080",
    "allow_pooler": True,
    "takeover": "strict",
    "term_table": True,
    "schema": "other",
    "wake": "poll",
    "slice_s": 0.2,
    "schema_owner": "migrations",
    "fence_wait_s": 5.0,
    "statement_timeout_s": 6.0,
    "drain_s": 7.0,
    "hard_fence": True,
    "clock": lambda: 0.0,
}


def keywords(of: Any) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(of).parameters
    return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


# --- The constructors ------------------------------------------------------------------------------------------------


def test_the_constructor_shows_the_common_settings_and_takes_the_rare_ones_as_options():
    no_settings = {"shutdown_event", "connect_fn", "password", "role", "key", "options"}
    assert set(keywords(LeaderLock)) - no_settings == COMMON
    assert {each.name for each in fields(LockOptions)} == {each.name for each in SETTINGS} - COMMON
    assert inspect.signature(sync.LeaderLock) == inspect.signature(LeaderLock)


def test_an_election_in_any_store_takes_the_settings_of_every_store():
    assert set(keywords(Election)) == {*LockSettings().of_election(), "shutdown_event"}


@pytest.mark.parametrize("offered", [LeaderLock, Election, LeaderGroup])
def test_a_parameter_has_the_type_and_the_default_of_its_setting(offered: Any):
    declared, hints = get_type_hints(LockSettings), get_type_hints(offered.__init__)
    settings = {name: each for name, each in keywords(offered).items() if name in BY_NAME}
    assert settings
    for name, parameter in settings.items():
        assert (hints[name], parameter.default) == (declared[name], BY_NAME[name].default), name


async def test_every_setting_reaches_the_lock():
    assert set(OTHERS) == set(BY_NAME)
    together = {**OTHERS, "address": None}  # which needs the witness session
    assert LeaderLock(DSN, 1, 2, address=OTHERS["address"])._lease.address == OTHERS["address"]
    rare = {name: value for name, value in OTHERS.items() if name not in COMMON}
    lock = LeaderLock(
        DSN, 1, 2, options=LockOptions(**rare), **{name: value for name, value in together.items() if name in COMMON}
    )
    assert lock._lease.values() == together
    assert LockSettings(**together).keywords()["options"] == LockOptions(**rare)
    assert (lock._strategy, lock._drain_s, lock._grace_s, lock._clock) == (
        OTHERS["retry_strategy"],
        7.0,
        4.0,
        OTHERS["clock"],
    )


def test_options_are_frozen_and_nothing_else_is_taken_for_them():
    with pytest.raises(FrozenInstanceError):
        LockOptions().drain_s = 1.0  # type: ignore[misc]
    assert check_options(None) == LockOptions()
    for wrong in ({"drain_s": 1.0}, LockSettings(lease_s=3.0)):
        with pytest.raises(TypeError, match="options must be a LockOptions"):
            LeaderLock(DSN, 1, 2, options=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["wake", "fence_wait_s", "hard_fence"])
def test_a_group_refuses_what_has_no_effect_there(name: str):
    with pytest.raises(ValueError, match=f"{name} has no effect in a LeaderGroup"):
        LeaderGroup(DSN, ["a"], options=LockOptions(**{name: OTHERS[name]}))
    LeaderGroup(DSN, ["a"], options=LockOptions(drain_s=1.0, statement_timeout_s=2.0))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"lease_s": 10.0**8}, "lease_s must be at most 480h, got 100000000.0"),
        ({"slice_s": 0.01}, "slice_s must be at least 100ms: a shorter wait slice would be polling without a pause"),
        ({"wake": "bell"}, "wake must be 'line' or 'poll', got 'bell'"),
        ({"schema": "pg_mine"}, "schema must be a plain name of letters, digits and _, not pg_, got 'pg_mine'"),
        ({"schema_owner": "a'b"}, "schema_owner must be the name of a role, without quotes and backslashes"),
        ({"takeover": "strict"}, "takeover='strict' decides by the term table"),
        ({"health_interval_s": 5.0, "lease_s": 6.0}, "health_interval_s=5 must be less than two thirds of lease_s=6"),
    ],
    ids=lambda each: each if isinstance(each, str) else next(iter(each)),
)
def test_a_wrong_value_is_refused_by_name(wrong: dict[str, Any], text: str):
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        LockSettings(**wrong)


@pytest.mark.parametrize("wrong", [{"witness": "no"}, {"drain_s": "10"}, {"drain_s": None}])
def test_a_value_of_another_type_is_refused(wrong: dict[str, Any]):
    with pytest.raises(TypeError, match=next(iter(wrong))):
        LockSettings(**wrong)


def test_a_backend_takes_only_the_settings_that_it_acts_on():
    backend = open_backend(DSN, role="a", statement_timeout_s=3.0)
    asyncio.run(backend.close())
    with pytest.raises(TypeError, match="has no option drain_s"):
        open_backend(DSN, role="a", drain_s=3.0)


# --- The documentation -----------------------------------------------------------------------------------------------

settings_docs = load_tool("settings_docs")


def test_the_documented_settings_are_those_of_the_code():
    assert settings_docs.main(["--check"]) == 0, "run `make docs`"


@pytest.mark.parametrize("page", settings_docs.PAGES)
def test_the_check_fails_on_a_page_that_says_something_else(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in settings_docs.PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    right = (tmp_path / page).read_text(encoding="utf-8")
    meaning = BY_NAME["fence_wait_s"].meaning
    assert meaning in right
    (tmp_path / page).write_text(right.replace(meaning, "Nothing."), encoding="utf-8")
    arguments = ["--root", str(tmp_path)]
    assert settings_docs.main([*arguments, "--check"]) == 1
    assert Path(page).name in capsys.readouterr().err
    assert settings_docs.main(arguments) == 0
    assert (tmp_path / page).read_text(encoding="utf-8") == right


# --- One more setting ------------------------------------------------------------------------------------------------

LINE = '    patience_s: float = _setting(7.0, "How long the example waits.", scope="sessions")\n'

PROGRAM = """
import importlib.util, json, sys
from click.testing import CliRunner
from pgleaderlock import LeaderLock, sync
from pgleaderlock.cli.commands import cli
from pgleaderlock.cli.election_options import given_settings
from pgleaderlock.ops.config import load_config
from pgleaderlock.options import LockOptions

file, tool, page = sys.argv[1:]
options = LockOptions(patience_s=1.0)
with cli.commands["exec"].make_context("exec", ["--patience", "2", "--", "true"]):
    given = given_settings()
spec = importlib.util.spec_from_file_location("settings_docs", tool)
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)
print(json.dumps({
    "constructor": LeaderLock("postgresql://db/app", role="r", options=options)._lease.patience_s,
    "blocking": sync.LeaderLock("postgresql://db/app", role="r", options=options)._engine._lease.patience_s,
    "command line": given["patience_s"],
    "help": CliRunner().invoke(cli, ["run", "--help"]).output,
    "file": load_config(file, environ={}).election.settings.patience_s,
    "environment": load_config(None, environ={"PGLEADERLOCK_PATIENCE": "4s"}).election.settings.patience_s,
    "page": docs.regenerate(open(page, encoding="utf-8").read()),
}))
"""


def test_a_new_setting_is_one_line_in_the_record(tmp_path: Path):
    """The line is added to a copy of the package, and nothing else is changed."""
    package = Path(shutil.copytree(Path(pgleaderlock.__file__).parent, tmp_path / "pgleaderlock"))
    record = package / "options.py"
    text = record.read_text(encoding="utf-8")
    before = "    hard_fence: bool = "
    assert text.count(before) == 1
    record.write_text(text.replace(before, LINE + before), encoding="utf-8")
    file = tmp_path / "node.toml"
    file.write_text('[cluster.leader_election]\npatience = "3s"\n', encoding="utf-8")
    arguments = [str(file), str(ROOT / "tools" / "settings_docs.py"), str(ROOT / "docs" / "reference" / "settings.md")]
    # The copy is not what is measured where coverage is.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment["PYTHONPATH"] = str(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert (seen["constructor"], seen["blocking"], seen["command line"]) == (1.0, 1.0, 2.0)
    assert (seen["file"], seen["environment"]) == (3.0, 4.0)
    assert "--patience SECONDS How long the example waits. [default: 7.0]" in " ".join(seen["help"].split())
    row = "| `patience_s` | `7.0` | `--patience` | `patience` | `PGLEADERLOCK_PATIENCE` | How long the example waits. |"
    assert row in seen["page"]
