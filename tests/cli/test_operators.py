"""The commands on the registry: what people see, and what programs get, in the shape that the documentation shows."""

import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rich.console import Console
from rich.text import Text

from pgleaderlock import LockKey, LockState
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.tables import fitting_table
from pgleaderlock.cli.times import Since, duration, iso, parse_since
from pgleaderlock.ops.registry._sql import ASK_CHANNEL
from tests.conftest import Postgres
from tests.support.cli import CLI
from tests.support.doubles import until
from tests.support.json_shapes import assert_shape, documented
from tests.support.operators import HOSTILE, SHOWN_HOSTILE, Hand, file_of, hand, records, run, run_beside
from tests.support.processes import Process
from tests.support.registry import Node, eventually, reading, schema
from tests.support.sync import until as until_now
from tests.support.terminals import Terminal

NOT_SHOWN = (
    "the registry shows no candidate {} for it. Check the name with pgleaderlock status; a candidate without a "
    "registry cannot be named, so give it one."
)

__all__ = ["file_of", "hand", "schema"]  # fixtures


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PG_DSN", "PGLEADERLOCK_URL", "PGLEADERLOCK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


# --- A registry written by hand ---------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def one_leads_two_follows(
    dsn: str, schema: str, key: LockKey, **settings: Any
) -> AsyncIterator[tuple[Node, Node]]:
    async with Node(dsn, schema, key, "one", **settings) as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        async with Node(dsn, schema, key, "two") as two, reading(dsn, schema) as reader:

            async def are_both_shown() -> bool:
                roles = await reader.status()
                return bool(roles and roles[0].leader and len(roles[0].candidates) == 2)

            await eventually(are_both_shown)
            await until(lambda: two.lock.state is LockState.FOLLOWER and two.registry.is_up)
            yield one, two


# --- status of all roles ----------------------------------------------------------------------------------------------


async def test_status_without_a_lock_shows_all_roles(postgres: Postgres, schema: str, key: LockKey):
    async with one_leads_two_follows(postgres.dsn, schema, key) as (one, _):
        options = ("status", "--dsn", postgres.dsn, "--schema", schema)
        shown = await run_beside(*options)
        result = await run_beside(*options, "--json")
        by_url = await run_beside("status", "--url", postgres.tcp_dsn, "--schema", schema, "--json")
        token = one.lock.token
    assert shown.exit_code == result.exit_code == exit_codes.CLEAN
    (record,) = records(result)
    assert_shape(record, documented("status"))
    assert (record["role"], record["lock"]) == ("scheduler", str(key))
    assert (record["leader"]["node"], record["leader"]["token"]) == ("one", token)
    assert record["leader"]["is_alive"] is True
    assert [(each["node"], each["state"]) for each in record["candidates"]] == [("one", "leader"), ("two", "follower")]
    heading, _, row = shown.stdout.strip().splitlines()
    assert heading.split() == ["Role", "Leader", "Token", "For", "Lease", "left", "Candidates"]
    assert re.match(rf"scheduler +one +{token} .*2 alive", row)
    assert records(by_url)[0]["lock"] == str(key)


def test_status_shows_a_role_without_a_leader(hand: Hand):
    hand.node("web-1")
    hand.candidate("web-1")
    hand.node("web-2", seen_ago_s=5000)
    hand.candidate("web-2")
    result = run("status", *hand.options, "--json")
    assert records(result)[0]["leader"] is None
    assert re.search(r"scheduler +no leader +- +- +- +1 alive, 1 dead: web-2", run("status", *hand.options).stdout)


def test_status_of_all_roles_names_the_heir(hand: Hand):
    for node, state in (("web-1", "leader"), ("web-2", "next heir"), ("web-3", "heir")):
        hand.node(node)
        hand.candidate(node, state=state)
    assert "3 alive, heir: web-3" in " ".join(run("status", *hand.options).stdout.split())
    (record,) = records(run("status", *hand.options, "--json"))
    assert {each["node"]: (each["state"], each["place"]) for each in record["candidates"]} == {
        "web-1": ("leader", None),
        "web-2": ("follower", "next heir"),
        "web-3": ("follower", "heir"),
    }


def test_status_counts_a_silent_node_as_silent_and_not_as_alive(hand: Hand):
    for name, seen_ago_s in (("web-1", 2500), ("web-2", 0), ("web-3", 5000)):
        hand.node(name, seen_ago_s=seen_ago_s, heartbeat_s=1000)
        hand.candidate(name)
    hand.leader("web-1", ago_s=4000, renewed_ago_s=2500, left_s=500)
    shown = run("status", *hand.options).stdout
    assert "web-1 (silent for" in shown
    assert "1 alive, 1 silent: web-1, 1 dead: web-3" in shown


def test_history_is_in_the_order_of_terms_where_times_leave_it_open(hand: Hand):
    """In minutes what is milliseconds: no moment of the test matters."""
    hand.line("acquired", 9000, "web-1", token=4, within_s=100)
    hand.line("acquired", 3120, "web-2", token=5, within_s=100)  # which cannot have been before the release
    hand.line("acquired", 3060, "web-9", token=1, lock="pair:1/101", role="other")
    hand.line("released", 3000, "web-1", token=4, within_s=100)
    hand.line("acquired", 2000, "web-3", token=6, within_s=100)
    hand.line("released", 1000, "web-2", token=5, within_s=100)  # and this is an overlap, which stays to be seen
    shown = records(run("history", *hand.options, "--json"))
    assert [(line["event"], line["token"]) for line in shown] == [
        ("acquired", 4), ("released", 4), ("acquired", 1), ("acquired", 5), ("acquired", 6), ("released", 5),
    ]  # fmt: skip


def test_history_has_the_lines_of_one_node_in_the_order_in_which_it_wrote_them(hand: Hand):
    hand.line("acquired", 3000, within_s=100)
    hand.line("released", 3120, within_s=100)  # the node has learned meanwhile that its clock was ahead
    assert [line["event"] for line in records(run("history", *hand.options, "--json"))] == ["acquired", "released"]


def test_status_says_of_a_leader_that_it_is_silent(hand: Hand):
    hand.node("web-1", seen_ago_s=12, heartbeat_s=5)
    hand.leader("web-1", ago_s=4000, renewed_ago_s=12, left_s=500)
    hand.node("web-2", seen_ago_s=12, heartbeat_s=5)
    hand.leader("web-2", ago_s=100, renewed_ago_s=12, left_s=-2, lock="pair:1/101")
    shown = run("status", *hand.options).stdout
    assert re.search(r"web-1 \(silent for 12 s\) +1 ", shown)
    assert re.search(r"no leader \(web-2 silent for 12 s\) +- ", shown)
    assert "scheduler (pair:1/100)" in shown  # two have this role: their locks distinguish them


def test_status_of_an_empty_registry_says_so(hand: Hand):
    result = run("status", *hand.options)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no role. It has only nodes that use a registry" in result.stderr
    assert "no leader" not in result.stderr  # which an empty registry cannot know
    assert run("status", *hand.options, "--json").stdout == ""


def test_watch_of_an_empty_registry_says_who_would_be_in_it(hand: Hand):
    with Process(*CLI, "watch", *hand.options) as process:
        process.wait_for("It has only nodes that use a registry")


@pytest.mark.parametrize("command", ["status", "history", "watch", "audit", "step-down"])
@pytest.mark.slow
def test_error_about_a_missing_registry_says_how_to_create_one(postgres: Postgres, command: str):
    more = ("--role", "x") if command == "step-down" else ()
    result = subprocess.run(
        [*CLI, command, "--dsn", postgres.dsn, "--schema", "nowhere", *more],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == exit_codes.UNREACHABLE
    assert "no registry in schema nowhere" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["status", "history", "audit", "step-down"])
def test_no_password_is_in_any_complaint(command: str):
    more = ("--role", "x") if command == "step-down" else ()
    result = run(command, "--dsn", "postgresql://ops:hunter2@127.0.0.1:1/x", *more)
    assert result.exit_code == exit_codes.UNREACHABLE
    assert "hunter2" not in result.output
    assert "check --dsn" in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("history", "--url", "k8s://default/job"), "the registry is in a PostgreSQL"),
        (("history", "--url", "postgresql://h/d", "--dsn", "postgresql://h/d"), "twice"),
        (("history", "--url", "postgresql://h:nope/d"), "dsn"),
        (("audit", "--dsn", "postgresql://h/d", "--schema", "a b"), "schema"),
        (("status", "--dsn", "postgresql://h/d", "--schema", "a b"), "schema"),
        (("step-down", "--dsn", "postgresql://h/d"), "--role, or --lock"),
        (("history", "--dsn", "postgresql://h/d", "--limit", "0"), "--limit"),
        (("watch", "--dsn", "postgresql://h/d", "--interval", "0"), "--interval must be greater than zero"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], complaint: str):
    result = run(*words)
    assert result.exit_code == exit_codes.USAGE
    assert complaint in result.stderr


def test_an_empty_url_counts_as_not_set_beside_an_option_and_that_of_another_store_gives_way(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGLEADERLOCK_URL", "")
    assert run("history", *hand.options).exit_code == exit_codes.CLEAN
    assert "set but empty" in run("history").stderr
    monkeypatch.setenv("PGLEADERLOCK_URL", "k8s://default/job")
    assert run("history", *hand.options).exit_code == exit_codes.CLEAN
    monkeypatch.setenv("PG_DSN", hand.options[1])
    assert run("history", *hand.options[2:]).exit_code == exit_codes.CLEAN


# --- Where a configuration says -------------------------------------------------------------------------------------


def fill(hand: Hand) -> None:
    for number, role in enumerate(("a", "b", "c")):
        hand.leader("web-1", role=role, lock=f"pair:9/{number}")
        hand.line("acquired", 50, role=role, lock=f"pair:9/{number}")


@pytest.mark.parametrize("command", ["status", "history", "audit"])
def test_a_configuration_says_where_the_registry_is_and_which_roles_matter(
    hand: Hand, file_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch, command: str
):
    fill(hand)
    path = file_of('["a", "b"]')
    shown = lambda *words: [each["role"] for each in records(run(command, "--json", *words))]
    assert shown("--config", path) == ["a", "b"]
    assert shown("--config", path, "--schema", hand.options[3]) == ["a", "b"]
    assert run(command, "--config", path, "--schema", "nowhere").exit_code == exit_codes.UNREACHABLE  # flags win
    assert run(command, "--config", path, "--dsn", "postgresql://127.0.0.1:1/x").exit_code == exit_codes.UNREACHABLE
    monkeypatch.setenv("PG_DSN", "postgresql://127.0.0.1:1/x")  # the file wins over what is meant for all programs
    assert shown("--config", path) == ["a", "b"]
    monkeypatch.setenv("PGLEADERLOCK_CONFIG", path)
    assert shown() == ["a", "b"]
    assert shown(*hand.options) == ["a", "b", "c"]  # a database that is named here is another place
    if command != "status":
        assert shown("--config", path, "--role", "c") == ["c"]


def test_watch_shows_the_roles_of_a_configuration(hand: Hand, file_of: Callable[..., str]):
    fill(hand)
    with Process(*CLI, "watch", "--config", file_of('["b"]'), "--json") as process:
        assert json.loads(process.wait_for('"change": "role"'))["status"]["role"] == "b"


def test_step_down_asks_the_leader_of_the_only_role_of_a_configuration(hand: Hand, file_of: Callable[..., str]):
    fill(hand)
    words = ("step-down", "--json", "--wait", "0.1", "--config")
    (record,) = records(run(*words, file_of('["b"]')))
    assert (record["role"], record["outcome"]) == ("b", "not_heard")
    assert "name the role whose leader is meant" in run(*words, file_of('["a", "b"]')).stderr


def test_status_of_one_lock_finds_its_key_and_its_store_in_a_configuration(
    hand: Hand, file_of: Callable[..., str], tmp_path: Path
):
    path = file_of('[{ name = "a", key = "pair:9/77" }]')
    for more in ((), ("--dsn", hand.options[1])):
        (record,) = records(run("status", "--config", path, "--role", "a", "--json", *more))
        assert (record["key"], record["state"]) == ("pair:9/77", "free")
    path = file_of('["a"]', backend=f"file://{tmp_path}/{{role}}.lock")
    (record,) = records(run("status", "--config", path, "--role", "a", "--json"))
    assert record["url"] == f"file://{tmp_path}/a.lock"
    assert "--role is one of a." in run("status", "--config", path, "--role", "b").stderr
    result = run("history", "--config", path)
    assert result.exit_code == exit_codes.USAGE
    assert "this configuration has no registry" in result.stderr


def test_error_in_a_configuration_is_reported_with_its_place(file_of: Callable[..., str]):
    result = run("history", "--config", file_of('["a"]', registry='rolls = "x"'))
    assert result.exit_code == exit_codes.USAGE
    assert "node.toml: registry.rolls: unknown key" in result.stderr


# --- Whatever nodes call themselves -----------------------------------------------------------------------------------


def test_a_hostile_name_is_shown_and_not_obeyed(hand: Hand):
    hand.node(HOSTILE)
    hand.candidate(HOSTILE, role=HOSTILE)
    hand.leader(HOSTILE, role=HOSTILE)
    hand.line("acquired", 50, HOSTILE, role=HOSTILE, detail=HOSTILE, cause=HOSTILE, missing=2)
    hand.line("acquired", 40, "web-2", 2, role=HOSTILE)
    hand.line("lost", 30, HOSTILE, role=HOSTILE, cause=HOSTILE)
    hand.execute("UPDATE S.nodes SET seen_at = 'epoch'")
    outputs = [
        run("status", *hand.options),
        run("history", *hand.options),
        run("audit", *hand.options),
        run("step-down", *hand.options, "--role", HOSTILE, "--wait", "0.1"),
        run("history", *hand.options, "--role", "nobody-has-this"),
    ]
    for result in outputs:
        assert SHOWN_HOSTILE in result.output
    outputs += [run(command, *hand.options, "--json") for command in ("status", "history", "audit")]
    for result in outputs:
        assert not set(result.output) & {"\x1b", "\x9b", "\x7f"}
    with Process(*CLI, "watch", *hand.options) as process:
        process.wait_for(SHOWN_HOSTILE)
        assert "\x1b" not in "".join(process.lines)


# --- history ----------------------------------------------------------------------------------------------------------


def test_the_history_is_shown_oldest_first_and_with_its_gaps(hand: Hand):
    hand.line("acquired", 50)
    hand.line("lost", 40, cause="stalled", missing=7, detail="the loop stood still")
    hand.line("acquired", 30, "web-2", 2, missing=1)
    result = run("history", *hand.options, "--json")
    assert result.exit_code == 0
    for record in records(result):
        assert_shape(record, documented("history"))
    assert [(each["event"], each["missing"]) for each in records(result)] == [
        ("acquired", 0),
        ("lost", 7),
        ("acquired", 1),
    ]
    heading, _, first, gap, lost, another_gap, last = run("history", *hand.options).stdout.strip().splitlines()
    assert heading.split() == ["Time", "(UTC)", "Role", "Node", "Event", "Token", "Why"]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +scheduler +web-1 +acquired +1 *$", first)
    assert gap.strip().endswith("(7 events of web-1 are missing here)")
    assert re.search(r"web-1 +lost +1 +stalled: the loop stood still", lost)
    assert another_gap.strip().endswith("(1 event of web-2 is missing here)")
    assert re.search(r"web-2 +acquired +2", last)


@pytest.mark.slow
def test_the_history_is_limited_by_time_and_number_and_says_so(hand: Hand):
    for ago_s in (7200, 1800, 600):
        hand.line("error", ago_s, token=ago_s)
    shown = lambda *words: [each["token"] for each in records(run("history", *hand.options, "--json", *words))]
    assert shown() == [7200, 1800, 600]
    assert shown("--since", "1h") == [1800, 600]
    assert shown("--since", "0.25h") == [600]
    assert shown("--since", "2020-01-01") == [7200, 1800, 600]
    assert shown("--limit", "2") == [1800, 600]
    assert "newest 2" in run("history", *hand.options, "--limit", "2").stderr
    assert "newest" not in run("history", *hand.options, "--limit", "3").stderr
    nothing = run("history", *hand.options, "--since", "1s")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no lines since 2" in nothing.stderr
    future = run("history", *hand.options, "--since", "2999-01-01")
    assert future.exit_code == exit_codes.USAGE
    assert "in the future" in future.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", Since(ago_s=30)),
        ("15m", Since(ago_s=900)),
        ("1.5h", Since(ago_s=5400)),
        (" 7 d ", Since(ago_s=604800)),
        ("2026-11-15", Since(at=1794700800)),
        ("2026-11-15T10:00", Since(at=1794736800)),
        ("2026-11-15 10:00:00Z", Since(at=1794736800)),
        ("2026-11-15T10:00+01:00", Since(at=1794733200)),
    ],
)
def test_since_is_a_span_or_a_time(text: str, expected: Since):
    assert parse_since(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "1", "1w", "-1h", "1h30", "2026-13-01", "nan", "infd", "٣h"])
def test_any_other_since_is_refused_with_the_forms_that_there_are(text: str):
    result = run("audit", "--dsn", "postgresql://127.0.0.1:1/x", "--since", text)
    assert result.exit_code == exit_codes.USAGE
    assert "a span (30s, 15m, 1h, 7d) or a time" in result.stderr


def test_a_span_that_reaches_back_before_all_time_is_everything():
    assert Since(ago_s=1e30).resolve(1e9) == 0
    assert parse_since("0001-01-01").resolve(1e9) == 0


def test_times_and_spans_are_written_for_people():
    spans = [0.0124, 0.9999, 3.44, 12.4, 75, 3720, 100_000]
    assert [duration(each) for each in spans] == [
        "12 ms",
        "1.0 s",
        "3.4 s",
        "12 s",
        "1 min 15 s",
        "1 h 2 min",
        "1 d 3 h",
    ]
    assert iso(None) is None
    assert iso(0) == "1970-01-01T00:00:00.000Z"
    assert iso(float("inf")) == "inf s after 1970"  # a database has such times


# --- Which role -------------------------------------------------------------------------------------------------------


def test_a_role_is_found_by_its_name_and_by_its_lock(hand: Hand):
    named = LockKey.named("billing")
    hand.line("acquired", 50)
    hand.line("acquired", 50, role="invoices", lock=str(named))
    hand.line("acquired", 50, role="twin", lock="pair:7/1")
    hand.line("acquired", 50, role="twin", lock="pair:7/2")
    hand.line("acquired", 50, role="k8s://default/job", lock="k8s://default/job")

    def locks(*words: str) -> list[str]:
        return [each["lock"] for each in records(run("history", *hand.options, "--json", *words))]

    assert locks("--role", "scheduler") == ["pair:1/100"]
    assert locks("--role", "pair:1/100") == ["pair:1/100"]
    assert locks("--lock", "pair:1/100") == ["pair:1/100"]
    assert locks("--role", "invoices") == locks("--role", "billing") == locks("--lock", "named:billing") == [str(named)]
    assert locks("--role", "twin", "--lock", "pair:7/2") == ["pair:7/2"]
    assert locks("--role", "k8s://default/job") == ["k8s://default/job"]
    both = run("audit", *hand.options, "--role", "twin")
    assert both.exit_code == exit_codes.USAGE
    assert "--lock pair:7/1, --lock pair:7/2" in both.stderr
    unknown = run("audit", *hand.options, "--role", "scheduler", "--lock", "pair:7/2")
    assert unknown.exit_code == exit_codes.USAGE
    assert "no role scheduler and lock pair:7/2. It has invoices, k8s://default/job, scheduler, twin." in unknown.stderr


def test_an_empty_registry_knows_no_role(hand: Hand):
    result = run("step-down", *hand.options, "--role", "scheduler")
    assert result.exit_code == exit_codes.USAGE
    assert "It has no roles yet." in result.stderr


# --- step-down --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_step_down_reports_the_new_leader_and_how_fast_the_hand_over_was(
    postgres: Postgres, schema: str, key: LockKey
):
    options = ("step-down", "--dsn", postgres.dsn, "--schema", schema, "--role", "scheduler")
    async with one_leads_two_follows(postgres.dsn, schema, key) as (one, two):
        first = one.lock.token
        result = await run_beside(*options, "--json")
        assert two.lock.is_leader
        (record,) = records(result)
        assert_shape(record, documented("step-down"))
        assert result.exit_code == exit_codes.CLEAN
        tokens = {"from_token": first, "to_token": two.lock.token}
        named = {"role": "scheduler", "lock": str(key), "from": "one", "to": "two", **tokens, "outcome": "handed_over"}
        named |= {"why": None}
        assert record == {**named, "seconds": record["seconds"]}
        assert 0 <= record["seconds"] < 5
        await until(lambda: one.lock.state is LockState.FOLLOWER)
        late = await run_beside(*options, "--token", str(first), "--json")
        assert late.exit_code == exit_codes.NOT_HANDED_OVER
        assert records(late)[0]["why"] == (
            f"it was meant for the leader with token {first}, and the token is {two.lock.token} now"
        )
        said = (await run_beside(*options, "--token", str(first))).stderr
        assert said == f"two refused the ask to step down from scheduler ({key}): {records(late)[0]['why']}\n"
        back = await run_beside(*options, "--token", str(two.lock.token))
        assert back.exit_code == exit_codes.CLEAN
        assert re.fullmatch(
            rf"two handed over to one in [\d.]+ m?s \(token {record['to_token']} -> \d+\)\n", back.stdout
        )
        asked = await run_beside("history", *options[1:], "--json")
    by = f"@{socket.gethostname()}:{os.getpid()}"
    asks = [each["detail"] for each in records(asked) if each["event"] == "step_down_asked"]
    assert [each.endswith(by) for each in asks] == [True, True]


@pytest.mark.slow
def test_the_leader_hands_over_to_the_node_that_is_named(postgres: Postgres, schema: str, key: LockKey, tmp_path: Path):
    """Real processes, because a node is named by its process."""
    file = tmp_path / "node.toml"
    file.write_text(
        f"[cluster.leader_election]\nbackend = {json.dumps(postgres.dsn)}\nlease_duration = '20s'\n"
        f"settle = '0s'\nroles = [{{ name = 'scheduler', key = '{key}' }}]\n"
        f"[registry]\nschema = '{schema}'\nheartbeat = '200ms'\n"
    )
    here = ("--dsn", postgres.dsn, "--schema", schema)

    def states() -> dict[str, str]:
        shown = [record for record in records(run("status", *here, "--json")) if record["leader"]]
        return {each["node"]: each["place"] or each["state"] for record in shown for each in record["candidates"]}

    with contextlib.ExitStack() as stack:
        for name, state in (("web-1", "leader"), ("web-2", "heir"), ("web-3", "next heir"), ("web-4", "follower")):
            words = ("run", "--config", str(file), "--set", f"cluster.node={name}", "--slice", "0.1")
            stack.enter_context(Process(*CLI, *words))
            until_now(lambda name=name, state=state: states().get(name) == state, 60)  # type: ignore[misc]
        result = run("step-down", *here, "--role", "scheduler", "--to", "web-4", "--json")
        (record,) = records(result)
        assert (record["outcome"], record["from"], record["to"]) == ("handed_over", "web-1", "web-4")
        assert result.exit_code == exit_codes.CLEAN
        for name, why in (
            ("web-9", f"{NOT_SHOWN.format('web-9')} Followers that are alive: web-1, web-2, web-3"),
            ("web-4", "web-4 leads it already"),
        ):
            refused = run("step-down", *here, "--role", "scheduler", "--to", name)
            assert refused.exit_code == exit_codes.NOT_HANDED_OVER
            assert refused.stderr == f"web-4 was not asked to step down from scheduler ({key}): {why}\n"


@pytest.mark.slow
def test_another_node_than_the_one_that_was_named_is_no_success(postgres: Postgres, hand: Hand):
    for node in ("web-1", "web-3"):
        hand.node(node)
        hand.candidate(node)
    hand.leader("web-1", ago_s=100, token=7)
    with answering(postgres.dsn, hand, ("acquired", 0.1, "web-2", 9), ("released", 0.6, "web-1", 7)):
        result = run("step-down", *hand.options, "--role", "scheduler", "--to", "web-3", "--wait", "20")
    assert result.exit_code == exit_codes.NOT_HANDED_OVER
    assert result.stderr.startswith("web-1 handed over to web-2, not to the node that --to names, in ")


def test_nominee_that_is_silent_or_whose_name_is_not_unique_is_refused(hand: Hand):
    hand.node("web-1")
    hand.leader("web-1", token=7)
    hand.node("web-2", seen_ago_s=100, heartbeat_s=1)
    hand.candidate("web-2")
    for instance in (str(uuid.uuid4()), str(uuid.uuid4())):
        hand.node("web-3", instance=instance)
        hand.execute("INSERT INTO S.candidates VALUES (%s, 'pair:1/100', 'scheduler', 'follower', now())", instance)
    words = ("step-down", *hand.options, "--role", "scheduler", "--wait", "0.1")
    dead, twice = run(*words, "--to", "web-2"), run(*words, "--to", "web-3")
    assert dead.exit_code == twice.exit_code == exit_codes.NOT_HANDED_OVER
    assert "web-2 has not been heard of for too long. Followers that are alive: web-3, web-3\n" in dead.stderr
    assert "2 candidates are called web-3: name one by its process, --to host:pid" in twice.stderr
    mixed = run(*words, "--reason", "to host-2:18")
    assert mixed.exit_code == exit_codes.USAGE
    assert "use --to" in mixed.stderr


def test_a_nominee_that_the_registry_does_not_show_is_refused_and_the_leader_is_not_offered(hand: Hand):
    for node in ("web-1", "web-2"):
        hand.node(node)
        hand.candidate(node)
    hand.leader("web-1", token=7)
    result = run("step-down", *hand.options, "--role", "scheduler", "--wait", "0.1", "--to", "{web-9}")
    assert result.exit_code == exit_codes.NOT_HANDED_OVER
    assert result.stderr.endswith(f": {NOT_SHOWN.format('{web-9}')} Followers that are alive: web-2\n")


@pytest.mark.parametrize(("token", "is_said"), [(5, True), (7, False)], ids=["of another term", "of this term"])
def test_a_leader_that_may_wait_for_its_lease_after_the_last_step_down_is_not_waited_for_in_silence(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, token: int, is_said: bool
):
    monkeypatch.setattr("pgleaderlock.cli.step_down._SILENCE_S", 0.0)
    hand.node("web-1")
    hand.leader("web-1", ago_s=3, token=7)
    hand.line("step_down_asked", 4, "web-0", token)
    shown = run("step-down", *hand.options, "--role", "scheduler", "--wait", "0.2").stderr
    told = r"web-1 has not answered yet: a leader accepts one step-down per lease, and the last was [\d.]+ s ago\."
    assert bool(re.match(told + r" Waiting for [\d.]+ m?s more at most\.\n", shown)) is is_said


@pytest.mark.slow
async def test_leader_without_a_successor_leads_again_and_that_is_no_hand_over(
    postgres: Postgres, schema: str, key: LockKey
):
    async with Node(postgres.dsn, schema, key, "one") as one:
        await one.lock.wait_for_leadership()
        await until(lambda: one.registry.is_up and not one.registry.waiting_events)
        words = ("step-down", "--dsn", postgres.dsn, "--schema", schema, "--lock", str(key))
        shown = await run_beside(*words)
        result = await run_beside(*words, "--json")
    assert shown.exit_code == result.exit_code == exit_codes.NOT_HANDED_OVER
    assert re.search(
        r"one stepped down and acquired scheduler .* again in [\d.]+ m?s .*no other candidate did", shown.stderr
    )
    (record,) = records(result)
    assert (record["outcome"], record["from"], record["to"]) == ("same_node", "one", "one")


@pytest.mark.slow
async def test_step_down_of_a_leader_that_does_not_listen_reports_what_to_check(
    postgres: Postgres, schema: str, key: LockKey
):
    async with one_leads_two_follows(postgres.dsn, schema, key, accept_asks=False) as (one, _):
        words = ("step-down", "--dsn", postgres.dsn, "--schema", schema, "--role", "scheduler", "--wait", "0.5")
        shown = await run_beside(*words)
        result = await run_beside(*words, "--json")
        assert one.lock.is_leader
    assert shown.exit_code == result.exit_code == exit_codes.NOT_HANDED_OVER
    assert "one did not answer within 500 ms" in shown.stderr
    assert "accept_asks" in shown.stderr
    (record,) = records(result)
    assert (record["outcome"], record["to"], record["seconds"]) == ("not_heard", None, None)


def test_step_down_without_a_leader_reports_that_there_is_no_leader_to_ask(hand: Hand):
    hand.line("acquired", 50)
    shown = run("step-down", *hand.options, "--role", "scheduler")
    result = run("step-down", *hand.options, "--role", "scheduler", "--json")
    assert shown.exit_code == result.exit_code == exit_codes.NOT_HANDED_OVER
    assert (
        shown.stderr
        == "No node leads scheduler (pair:1/100), as far as the registry shows: there is no leader to ask.\n"
    )
    (record,) = records(result)
    assert_shape(record, documented("step-down"))
    assert (record["outcome"], record["from"]) == ("no_leader", None)


@contextlib.contextmanager
def answering(dsn: str, hand: Hand, *lines: tuple[Any, ...]) -> Iterator[None]:
    """The leader writes these lines when it is asked."""
    is_listening = threading.Event()

    def answer() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"LISTEN {ASK_CHANNEL}")
            is_listening.set()
            for notification in connection.notifies(timeout=30):
                if json.loads(notification.payload)["schema"] == hand.options[3]:
                    break
            for line in lines:
                hand.line(*line)
            connection.execute("SELECT pg_notify('pgleaderlock_change', '')")

    thread = threading.Thread(target=answer)
    thread.start()
    assert is_listening.wait(30)
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize(
    ("lines", "expected", "said"),
    [
        (
            [("step_down_asked", 0, "web-1", 7), ("released", 0, "web-1", 7)],
            ("no_leader", None),
            "web-1 released scheduler (pair:1/100), but no candidate took over within 2.0 s",
        ),
        ([("step_down_asked", 0, "web-1", 7)], ("no_leader", None), "web-1 received the ask, but had not released"),
        (
            [("vanished", 50, "web-1", 7), ("acquired", 0, "web-2", 9)],
            ("handed_over", None),
            "web-1 handed over to web-2 without writing when it ended (token 7 -> 9)",
        ),
        (
            [("acquired", 0.1, "web-2", 9), ("released", 0.6, "web-1", 7)],
            ("handed_over", pytest.approx(0.5, abs=0.45)),
            "web-1 handed over to web-2 in ",
        ),
        (
            [("acquired", 3, "web-2", 9), ("released", 0, "web-1", 7)],  # by clocks that do not agree
            ("handed_over", 0.0),
            "web-1 handed over to web-2 in 0 ms (token 7 -> 9)",
        ),
    ],
)
@pytest.mark.slow
def test_it_says_what_was_seen(
    postgres: Postgres, hand: Hand, lines: list[tuple[Any, ...]], expected: tuple[str, Any], said: str
):
    hand.node("web-1")
    hand.leader("web-1", ago_s=100, token=7)
    hand.line("acquired", 101, "web-0", 5)
    is_done = expected[0] == "handed_over"
    words = ("step-down", *hand.options, "--role", "scheduler", "--wait", "20" if is_done else "2")
    with answering(postgres.dsn, hand, *lines):
        shown = run(*words)
    hand.execute("DELETE FROM S.history WHERE node <> 'web-0'")
    with answering(postgres.dsn, hand, *lines):
        result = run(*words, "--json")
    assert said in shown.output
    (record,) = records(result)
    assert (record["outcome"], record["seconds"]) == expected
    assert shown.exit_code == result.exit_code == (exit_codes.CLEAN if is_done else exit_codes.NOT_HANDED_OVER)


def test_user_without_a_name_is_recorded_by_number_in_a_step_down_request(
    hand: Hand, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    hand.node("web-1")
    hand.leader("web-1")
    heard = []
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"LISTEN {ASK_CHANNEL}")
        run("step-down", *hand.options, "--role", "scheduler", "--wait", "0.01")
        for notification in connection.notifies(timeout=10):
            heard.append(json.loads(notification.payload))
            if heard[-1]["schema"] == hand.options[3]:
                break
    assert heard[-1]["by"] == f"{os.getuid()}@{socket.gethostname()}:{os.getpid()}"


# --- audit ------------------------------------------------------------------------------------------------------------


async def test_an_audit_of_a_real_hand_over(postgres: Postgres, schema: str, key: LockKey):
    words = ("--dsn", postgres.dsn, "--schema", schema)
    async with one_leads_two_follows(postgres.dsn, schema, key):
        assert (await run_beside("step-down", *words, "--role", "scheduler")).exit_code == 0
        result = await run_beside("audit", *words, "--json")
        shown = await run_beside("audit", *words, "--role", "scheduler", "--since", "1h")
    assert result.exit_code == shown.exit_code == exit_codes.CLEAN
    (record,) = records(result)
    assert_shape(record, documented("audit"))
    assert (record["terms"], record["failovers"], record["overlaps"]) == (2, {"released": 1}, [])
    assert 0 < record["availability"] <= 1
    assert "no two terms overlap" in shown.stdout
    assert "released 1" in shown.stdout


def test_an_overlap_is_named_and_is_exit_code_1(hand: Hand):
    hand.line("acquired", 60)
    hand.line("acquired", 50, "web-2", 2, within_s=0.25)
    hand.line("lost", 40, cause="stalled", within_s=0.25)
    result = run("audit", *hand.options, "--json")
    shown = run("audit", *hand.options)
    assert result.exit_code == shown.exit_code == exit_codes.OVERLAP == 1
    (record,) = records(result)
    assert_shape(record, documented("audit"))
    (overlap,) = record["overlaps"]
    assert overlap["seconds"] == pytest.approx(9.5, abs=0.5)
    assert (overlap["first"]["node"], overlap["second"]["node"]) == ("web-1", "web-2")
    assert (overlap["first"]["end"], overlap["first"]["cause"]) == ("lost", "stalled")
    (line,) = [each for each in shown.stdout.splitlines() if each.startswith("OVERLAP")]
    assert re.search(r"scheduler \(pair:1/100\), for at least 9\.\d s: web-1 \(token 1, .* lost\) and web-2", line)
    assert "1 overlap of two terms" in shown.stdout
    assert run("audit", *hand.options, "--since", "30s").exit_code == exit_codes.CLEAN


def test_an_overlap_that_began_before_the_time_in_question_is_found(hand: Hand):
    hand.line("acquired", 60)
    hand.line("acquired", 50, "web-2", 2)
    hand.line("lost", 10)
    assert run("audit", *hand.options, "--since", "30s").exit_code == exit_codes.OVERLAP


def test_a_leader_that_died_without_a_successor_does_not_count_as_leading(hand: Hand):
    hand.node("web-1", seen_ago_s=5000)
    hand.leader("web-1", ago_s=100, renewed_ago_s=40)
    hand.line("acquired", 100)
    (record,) = records(run("audit", *hand.options, "--json"))
    assert record["is_at_most"] is True
    assert record["leaderless_s"] == pytest.approx(40, abs=2)
    assert record["availability"] == pytest.approx(0.6, abs=0.02)
    assert "at most 4" in run("audit", *hand.options).stdout


def test_a_leader_whose_beginning_is_no_longer_in_the_history_leads(hand: Hand):
    hand.node("web-1")
    hand.leader("web-1", ago_s=5000)
    hand.line("error", 100, "web-2", None)
    (record,) = records(run("audit", *hand.options, "--json"))
    assert (record["terms"], record["leaderless_s"]) == (1, 0)


def test_a_follower_that_stopped_does_not_hide_who_led(hand: Hand):
    hand.node("web-1")
    hand.leader("web-1", ago_s=5000)
    hand.line("acquired", 5000)
    hand.line("stopped", 4000, "web-2", None)
    hand.line("released", 10)
    (record,) = records(run("audit", *hand.options, "--json", "--since", "1000s"))
    assert record["availability"] == pytest.approx(0.99, abs=0.005)


def test_time_before_the_first_term_counts_where_the_history_was_there_already(hand: Hand):
    hand.line("acquired", 5000)
    hand.line("released", 4000)
    hand.line("acquired", 250, "web-2", 2)
    hand.line("error", 5, "web-3", None, lock="pair:1/101", role="young")
    old, young = records(run("audit", *hand.options, "--json", "--since", "1000s"))
    assert old["leaderless_s"] == pytest.approx(750, abs=5)
    assert young["leaderless_s"] == pytest.approx(5, abs=2)
    assert young["availability"] == 0


def test_role_with_a_candidate_and_no_leader_is_leaderless(hand: Hand):
    hand.line("acquired", 5000)
    hand.line("released", 4000)
    hand.line("acquired", 5000, lock="pair:1/101", role="given-up")
    hand.line("released", 4000, lock="pair:1/101", role="given-up")
    hand.node("web-2")
    hand.candidate("web-2")
    (record,) = records(run("audit", *hand.options, "--json", "--since", "1000s"))
    assert (record["role"], record["availability"], record["terms"]) == ("scheduler", 0, 0)
    assert record["leaderless_s"] == pytest.approx(1000, abs=1)


def test_a_role_is_found_by_each_name_that_its_lock_ever_had(hand: Hand):
    for ago_s, role in ((90, "first"), (80, "second"), (70, "third")):
        hand.line("acquired", ago_s, role=role, token=ago_s)
        hand.line("released", ago_s - 5, role=role, token=ago_s)
    for role in ("first", "second", "third"):
        assert len(records(run("history", *hand.options, "--role", role, "--json"))) == 6


def test_audit_without_any_history_reports_that_there_is_nothing_to_audit(hand: Hand):
    result = run("audit", *hand.options)
    assert result.exit_code == exit_codes.CLEAN
    assert "nothing to audit" in result.stderr


# --- watch ------------------------------------------------------------------------------------------------------------


def end_sessions_of(dsn: str, name: str) -> None:
    """As an administrator would; the watch of this name has one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = %s AND pid <> pg_backend_pid()",
            (f"watch-{name}",),
        )


def watched(hand: Hand, name: str, *words: str) -> Process:
    dsn = psycopg.conninfo.make_conninfo(hand.options[1], application_name=f"watch-{name}")
    return Process(*CLI, "watch", "--dsn", dsn, *hand.options[2:], "--interval", "0.2", *words)


def tell_change(hand: Hand) -> None:
    hand.execute("SELECT pg_notify('pgleaderlock_change', '')")


@pytest.mark.slow
def test_watch_sees_a_change_and_survives_the_end_of_its_connection(hand: Hand, postgres: Postgres, key: LockKey):
    hand.node("web-1")
    hand.leader("web-1", token=7)
    with watched(hand, str(key), "--json") as process:
        seen = json.loads(process.wait_for('"change": "role"'))
        assert_shape(seen, {**documented("watch"), "status": documented("status")})
        assert seen["status"]["leader"]["token"] == 7
        hand.execute("UPDATE S.leaders SET token = 8")
        tell_change(hand)
        assert json.loads(process.wait_for('"change": "role"'))["status"]["leader"]["token"] == 8

        end_sessions_of(postgres.dsn, str(key))
        stale = json.loads(process.wait_for('"change": "stale"'))
        assert_shape(stale, documented("watch"))
        assert stale["error"]
        assert json.loads(process.wait_for('"change": "fresh"'))["status"] is None

        hand.execute("DELETE FROM S.leaders")
        gone = json.loads(process.wait_for('"change": "gone"'))
        assert_shape(gone["status"], documented("status"))
        assert (gone["status"]["role"], gone["status"]["leader"]) == ("scheduler", None)
        process.signal(signal.SIGINT)
        assert process.wait() == exit_codes.CLEAN
    assert "Traceback" not in "".join(process.lines)


@pytest.mark.slow
def test_watch_in_a_pipe_prints_a_table_per_change(hand: Hand, postgres: Postgres, key: LockKey):
    hand.node("web-1")
    hand.leader("web-1")
    with watched(hand, str(key)) as process:
        process.wait_for("scheduler")
        hand.execute("UPDATE S.leaders SET token = 8888")
        process.wait_for("8888")
        end_sessions_of(postgres.dsn, str(key))
        process.wait_for("stale since")
        process.wait_for("fresh again")
        process.signal(signal.SIGTERM)
        assert process.wait() == exit_codes.CLEAN
    assert sum("scheduler" in line for line in process.lines) == 2


def test_watch_on_a_terminal_keeps_the_cursor_and_ends_with_ctrl_c(hand: Hand, postgres: Postgres, key: LockKey):
    hand.node(HOSTILE)
    hand.leader(HOSTILE, token=7)
    dsn = psycopg.conninfo.make_conninfo(postgres.dsn, application_name=f"watch-{key}")
    terminal = Terminal(*CLI, "watch", "--dsn", dsn, *hand.options[2:], "--interval", "0.2")
    try:
        terminal.read_until("Ctrl-C ends it")
        assert SHOWN_HOSTILE in terminal.text
        hand.execute("UPDATE S.leaders SET token = 8888")
        terminal.read_until("8888")
        end_sessions_of(postgres.dsn, str(key))
        terminal.read_until("stale since")
        terminal.read_until("Ctrl-C ends it")
        terminal.child.send_signal(signal.SIGINT)
        text = terminal.rest()
        assert terminal.child.wait(20) == exit_codes.CLEAN
    finally:
        terminal.close()
    assert "\x1b[?25l" not in text  # it is never hidden, so nothing can leave it so
    assert "Traceback" not in text


# --- 80 columns -------------------------------------------------------------------------------------------------------


def lines_on_a_terminal(*words: str, until: str | None = None) -> list[str]:
    terminal = Terminal(*CLI, *words, columns=80)
    try:
        if until is not None:
            terminal.read_until(until)
            terminal.child.send_signal(signal.SIGINT)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.rest())
    finally:
        terminal.close()
    return re.split(r"[\r\n]+", text)


@pytest.mark.parametrize(("command", "names"), [("status", "řž"), ("watch", "řž"), ("history", "řž"), ("audit", "ř")])
@pytest.mark.slow
def test_tables_fit_into_eighty_columns_and_no_name_is_cut(hand: Hand, command: str, names: str):
    role, node = "ř" * 37, "ž" * 31
    hand.node(node)
    hand.candidate(node, role=role)
    hand.leader(node, ago_s=3000, token=2**40, role=role)
    hand.line("acquired", 3000, node, 2**40, role=role)
    hand.line("lost", 2000, node, 2**40, role=role, cause="session_terminated", missing=3, detail="a long story " * 9)
    lines = lines_on_a_terminal(command, *hand.options, until="Ctrl-C ends it" if command == "watch" else None)
    assert max(map(len, lines)) <= 80
    for letter, name in zip("řž", (role, node), strict=True):
        if letter in names:
            assert "".join(lines).count(letter) % len(name) == 0, lines
            assert letter in "".join(lines)
    assert any("no room for" in line or "on every line:" in line for line in lines)
    piped = run(command, *hand.options) if command != "watch" else None
    assert piped is None or (role in piped.stdout and "no room" not in piped.stdout)


def test_time_without_records_is_shown_as_unknown(hand: Hand):
    hand.line("acquired", 50)
    hand.line("unwatched", 40)
    hand.line("acquired", 20, "web-2", 2)
    hand.node("web-2")
    hand.leader("web-2", 20, token=2)
    assert re.search(r"100\.000 % +0 ms, 20 s unknown", run("audit", *hand.options).stdout)


@pytest.mark.slow
def test_the_history_of_a_role_fits_into_eighty_columns_with_token_and_cause_and_splits_no_word(hand: Hand):
    detail = "terminating connection due to administrator command"
    for token, node in ((743, "web-1"), (744, "web-2")):
        hand.line("acquired", 1900 - token, node, token, cause="acquire_succeeded")
        hand.line("lost", 1899.5 - token, node, token, cause="session_terminated", detail=detail)
        hand.line("released", 1899.4 - token, node, token, cause="release_succeeded")
    lines = lines_on_a_terminal("history", *hand.options)
    shown = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "no room" not in shown
    assert len(re.findall(r"(?<!\.)\b74[34]\b", shown)) == 6
    words = {word for line in lines for word in line.split()}
    assert {"session_terminated:", *detail.split()} <= words, shown
    assert not re.search("acquire_succeeded|release_succeeded", shown)  # which the event says already


def test_the_history_of_two_roles_over_two_days_fits_into_eighty_columns_with_all_its_columns(hand: Hand):
    hand.line("lost", 2 * 86400, token=743, cause="session_terminated", detail="noticed 1.234 s later", missing=3)
    hand.line("step_down_asked", 10, "web-2", 744, role="billing/mails", detail="by ops: kernel update")
    lines = lines_on_a_terminal("history", *hand.options)
    shown = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    assert "no room" not in shown
    words = ["743", "744", "session_terminated:", "scheduler", "billing/mails", "step_down_asked", "missing"]
    assert [word for word in words if word not in shown.split()] == []
    assert len(re.findall(r"(?m)^\d{4}-\d\d-\d\d *$", "\n".join(lines))) == 2, "each day is printed once"


def test_column_that_is_the_same_on_every_line_is_printed_once_before_another_is_left_out():
    rows = [[Text("scheduler"), Text(f"web-{number}" * 4), Text(), Text("743")] for number in range(2)]
    shown = io.StringIO()
    headings = ("Role", "Leader", "Empty column", "Token")
    table = fitting_table(headings, rows, 36, once=("Role", "Leader"), least_first=("Token",))
    Console(file=shown, width=36).print(table)
    assert "743" in shown.getvalue()
    assert "on every line: Role scheduler" in " ".join(shown.getvalue().split())
    assert "Empty" not in shown.getvalue()
    assert "no room" not in shown.getvalue()


def test_what_fits_is_shown_whole():
    rows = [[Text("scheduler"), Text("web-1"), Text("743")]]
    shown = io.StringIO()
    Console(file=shown, width=80).print(fitting_table(("Role", "Leader", "Token"), rows, 80, least_first=("Token",)))
    assert "743" in shown.getvalue()
    assert "no room" not in shown.getvalue()
