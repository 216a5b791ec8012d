"""A registry with a long past: read by index, summed up exactly, pruned, and sent to pages in a few bytes."""

import asyncio
import json
import random
import time
import uuid
from typing import Any

import httpx
import psycopg
import pytest

from pgleaderlock import LockKey
from pgleaderlock.ops.dashboard import Dashboard, RegistrySource
from pgleaderlock.ops.registry._reading_sql import OPEN_BEFORE, statement
from pgleaderlock.ops.registry._summing import keys_of_ends
from pgleaderlock.ops.registry.audit import BEGINS, ENDS, audit
from pgleaderlock.ops.registry.reading import open_reader
from tests.conftest import Postgres
from tests.support.doubles import until
from tests.support.lease import query
from tests.support.operators import Hand, hand, instance_of, records, run_beside
from tests.support.registry import Node, eventually, schema
from tests.support.registry_rows import fill_registry
from tests.support.registry_truth import alert, page_of

__all__ = ["hand", "schema"]  # the fixtures

MILLION, ROLES = 1_000_000, 200


# --- What an audit reads ----------------------------------------------------------------------------------------------


def write_a_past(hand: Hand, seed: int) -> None:
    """Terms one after the other, and on the last lock some at once; some without an end; and followers that stop."""
    dice = random.Random(seed)
    for number in range(4):
        ago_s = 3000.0
        while ago_s > 100:
            ago_s = write_a_term(hand, dice, f"pair:1/{number}", ago_s)
            ago_s += dice.uniform(0, 9) if number == 3 and dice.random() < 0.3 else -dice.uniform(0, 20)


def write_a_term(hand: Hand, dice: random.Random, lock: str, ago_s: float) -> float:
    node, role = f"web-{dice.randrange(3)}", lock
    how = dice.choice(["released"] * 12 + ["lost"] * 6 + ["vanished", "reconnecting", "unwatched"])
    token = None if how == "lost" and dice.random() < 0.3 else int(3e6 - ago_s * 1000)
    ended_ago_s = ago_s - dice.uniform(0.1, 30)
    hand.line("acquired", ago_s, node, token, lock=lock, role=role)
    cause = dice.choice([None, "silenced"]) if how == "lost" else None
    hand.line(how, ended_ago_s, node, token, lock=lock, role=role, cause=cause, missing=dice.choice([0, 0, 2]))
    if dice.random() < 0.1:
        hand.line("stopped", ended_ago_s - 0.01, f"web-{dice.randrange(3)}", None, lock=lock, role=role)
    return ended_ago_s


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
async def test_what_is_summed_up_is_what_every_line_says(hand: Hand, seed: int):
    write_a_past(hand, seed)
    hand.line("acquired", 399, "web-9", 1, lock="pair:1/5", role="pair:1/5")
    for ago_s in range(390, 300, -10):
        hand.line("acquired", ago_s, "web-1", 1000 - ago_s, lock="pair:1/5", role="pair:1/5")
        hand.line("released", ago_s - 5, "web-1", 1000 - ago_s, lock="pair:1/5", role="pair:1/5")
    hand.line("released", 250, "web-9", 1, lock="pair:1/5", role="pair:1/5")
    async with open_reader(hand.options[1], hand.options[3]) as reader:
        now = await reader.now()
        for since in (0.0, now - 2500, now - 1234, now - 400):
            past = await reader.past(since=since)
            exactly = audit(await reader.lines_for_audit(since=since), since=since, until=now)
            summed_up = audit(past.lines, since=since, until=now, orderly=past.orderly)
            for one, other in zip(exactly, summed_up, strict=True):
                assert (one.lock, len(one.terms)) == (other.lock, len(other.terms) + other.summed_up)
                assert one.leaderless_s == pytest.approx(other.leaderless_s, abs=1e-3)
                assert (one.failovers, one.missing) == (other.failovers, other.missing)
                assert one.unknown_s == pytest.approx(other.unknown_s, abs=1e-3)
                assert one.overlaps == other.overlaps
            assert "pair:1/5" not in past.orderly, "where a term reaches into others, every line is needed"
        assert len((await reader.past()).orderly) >= 2


async def test_the_page_and_an_audit_count_the_same_from_the_same_start(hand: Hand):
    write_a_past(hand, 7)
    hand.node("web-1")
    hand.leader("web-1", ago_s=50, token=10_000, lock="pair:1/0", role="pair:1/0")
    hand.candidate("web-1", lock="pair:1/4", role="pair:1/4")
    board = await page_of(hand)
    audits = records(await run_beside("audit", *hand.options, "--since", "1h", "--json"))
    assert len(audits) == 5
    for shown, judged in zip(sorted(board.roles, key=lambda role: role["role"]), audits, strict=True):
        assert shown["role"] == judged["role"]
        assert shown["leaderless_s"] == pytest.approx(judged["leaderless_s"], abs=5)
        assert shown["availability"] == pytest.approx(judged["availability"], abs=0.01)
        assert (shown["failovers"], shown["overlaps"]) == (judged["failovers"], len(judged["overlaps"]))


async def test_what_was_open_before_a_window_is_found_without_reading_the_whole_history(hand: Hand):
    """By counting pages: how long it takes depends on the machine. With a million lines it took a fresh page 10 s."""
    dsn, schema = hand.options[1], hand.options[3]
    await asyncio.to_thread(fill_registry, dsn, schema, lines=40_000, roles=20)
    hand.line("acquired", 100, "web-1", 1, lock="new", role="new")
    hand.line("released", 29 * 86400, "web-1", 1, lock="retired", role="retired")
    async with open_reader(dsn, schema) as reader:
        since = await reader.now() - 86400
        lines = await reader.history(since=since, limit=10_000)
        keys = keys_of_ends(lines)
        found = await reader.open_before(since=since, lines=lines)
        assert len(keys) == len(found) == 20
    which = {
        "locks": [key[0] for key in keys],
        "instances": [key[1] for key in keys],
        "tokens": [key[2] for key in keys],
    }
    asked = {"only": None, "roles": None, "since": since, "begins": list(BEGINS), "ends": list(ENDS), **which}
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement(OPEN_BEFORE, schema)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        (plans,) = connection.execute(explain.encode(), asked).fetchone() or ([],)
    read = plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"]
    assert read < 50 * len(keys), "a few pages for each lock"


ORDERLY = """
INSERT INTO S.history (lock, role, node, instance, event, token, at, within_s)
SELECT %s, 'scheduler', 'web-3', %s, e, t, now() - make_interval(hours => 10) + make_interval(
           secs => t + CASE e WHEN 'acquired' THEN 0.1 ELSE 0.9 END), 0
  FROM generate_series(3, 6100) AS t, unnest(ARRAY['acquired', 'released']) AS e
"""


async def test_the_audit_of_a_node_reads_all_lines_of_the_last_day(
    hand: Hand, postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch
):
    """An overlap, more than 10,000 lines ago."""
    monkeypatch.setattr("pgleaderlock.ops.registry.registry._AUDIT_EVERY_S", 0.5)
    lock = str(key)
    hand.line("acquired", 72_000, "web-1", 1, lock=lock)
    hand.line("acquired", 71_000, "web-2", 2, lock=lock)
    hand.line("released", 70_000, "web-1", 1, lock=lock)
    hand.line("released", 69_000, "web-2", 2, lock=lock)
    hand.execute(ORDERLY, lock, instance_of("web-3"))
    async with Node(postgres.dsn, schema, key, "one", lease_s=15.0) as one:
        await until(lambda: bool(one.registry.overlaps), 40)
        assert one.registry.overlaps == {"scheduler": 1}


async def test_audit_that_is_not_finished_in_time_is_logged_and_costs_nothing_else(
    postgres: Postgres, schema: str, key: LockKey, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("pgleaderlock.ops.registry.registry._AUDIT_EVERY_S", 0.5)
    monkeypatch.setattr("pgleaderlock.ops.registry.registry._LONGEST_AUDIT_S", 1e-9)
    async with Node(postgres.dsn, schema, key, "one", lease_s=15.0) as one:
        await until(lambda: "audit_incomplete" in caplog.text, 40)
        await until(lambda: one.registry.is_up and not one.registry.waiting_events, 40)
        assert one.lock.is_leader
    assert caplog.text.count("audit_incomplete") == 1
    assert "registry_down" not in caplog.text


# --- Nodes, not processes ---------------------------------------------------------------------------------------------


async def test_a_node_that_was_started_again_is_one_node(hand: Hand):
    for number in range(20):
        died = str(uuid.uuid4())
        hand.node("web-1", seen_ago_s=100 + number, heartbeat_s=5, instance=died)
        hand.execute("INSERT INTO S.candidates VALUES (%s, 'pair:1/100', 'scheduler', 'follower', now())", died)
    (status,) = records(await run_beside("status", *hand.options, "--json"))
    assert [each["node"] for each in status["candidates"]] == ["web-1"]
    silent = alert(await page_of(hand), "silent_node")
    assert (silent["state"], silent["since"]) == ("firing", pytest.approx(time.time() - 100 + 16, abs=10))
    hand.node("web-1")
    hand.candidate("web-1")
    assert "1 alive" in (await run_beside("status", *hand.options)).stdout
    assert "dead" not in (await run_beside("status", *hand.options)).stdout
    board = await page_of(hand)
    assert alert(board, "silent_node")["state"] == "ok", "a node of that name is back"
    assert [node["node"] for node in json.loads("".join(board.snapshot_parts()))["nodes"]] == ["web-1"]


async def test_a_role_that_was_closed_is_not_leaderless_because_a_candidate_once_died(hand: Hand):
    hand.node("web-2", seen_ago_s=2000, heartbeat_s=5)
    hand.candidate("web-2")
    hand.line("acquired", 1000)
    hand.line("released", 500)
    hand.line("stopped", 499, token=None)
    board = await page_of(hand)
    assert board.roles[0]["is_closed"]
    assert alert(board, "no_leader")["state"] == "ok"
    (record,) = records(await run_beside("audit", *hand.options, "--since", "1h", "--json"))
    assert record["leaderless_s"] == pytest.approx(1, abs=0.5)


# --- What is forgotten ------------------------------------------------------------------------------------------------


async def test_the_history_of_a_retired_role_is_pruned_by_any_node(postgres: Postgres, schema: str, key: LockKey):
    async with Node(postgres.dsn, schema, key, "one", keep_days=2) as one:
        await until(lambda: one.registry.is_up)
        await one.lock.shutdown()
        insert = f'INSERT INTO "{schema}".history (lock, role, node, instance, event, at, within_s) VALUES '
        led = f'INSERT INTO "{schema}".leaders VALUES (%s, %s, %s, %s, 1, now(), now(), now(), NULL, %s, 1, %s, %s)'
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            for lock in ("retired", "led"):
                connection.execute(
                    (insert + "(%s, 'x', 'old', %s, 'released', now() - interval '3 days', 0)").encode(),
                    (lock, instance_of("old")),
                )
            connection.execute(led.encode(), ("led", "x", instance_of("old"), "old", "h", "0", "{}"))
        one.registry._pruned_at = float("-inf")

        async def is_pruned() -> Any:
            rows = await query(postgres.dsn, f"SELECT lock FROM \"{schema}\".history WHERE node = 'old'")
            return rows == [("led",)]

        await eventually(is_pruned)


# --- A million lines --------------------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_a_million_lines_are_audited_shown_and_sent_within_their_bounds(postgres: Postgres, schema: str):
    """The bounds are those of an idle machine, times ten: a quadratic query took minutes; 0.1.0 gave up after 10 s."""
    hand = await asyncio.to_thread(Hand, postgres.dsn, schema)
    hand.connection.close()
    await asyncio.to_thread(fill_registry, postgres.dsn, schema, lines=MILLION, roles=ROLES)
    began = time.monotonic()
    audits = records(await run_beside("audit", *hand.options, "--since", "30d", "--json"))
    assert time.monotonic() - began < 50
    assert sum(each["terms"] for each in audits) == MILLION // 2
    began = time.monotonic()
    source = RegistrySource(postgres.dsn, schema, where="", window_s=3600)
    async with Dashboard(source, port=0) as dashboard, httpx.AsyncClient(base_url=dashboard.url, timeout=60) as client:
        await until(lambda: dashboard.board.has_seen, 20)
        assert (await client.get("/readyz")).status_code == 200
        assert len((await client.get("/api/state")).json()["roles"]) == ROLES
        assert time.monotonic() - began < 20
        assert await bytes_of_an_idle_page(client, postgres.dsn, schema) < 2000 * 15


async def bytes_of_an_idle_page(client: httpx.AsyncClient, dsn: str, schema: str) -> int:
    """Have all leaders renew three times, as within a lease of 15 s, and count what a page is sent for it."""
    received = bytearray()
    async with client.stream("GET", "/events") as response:
        chunks = response.aiter_bytes()
        while b"event: snapshot" not in received or not received.endswith(b"\n\n"):
            received += await anext(chunks)
        received.clear()
        for number in range(1, 4):
            await query(dsn, renewal(schema))
            while received.count(b"event: change") < number or not received.endswith(b"\n\n"):
                received += await anext(chunks)
    return len(received)


def renewal(schema: str) -> str:
    """Every leader in a transaction of its own would be worse by a factor; here each node's are written at once."""
    return (
        f'WITH n AS (UPDATE "{schema}".nodes SET seen_at = clock_timestamp()) UPDATE "{schema}".leaders '
        "SET renewed_at = clock_timestamp(), lease_until = clock_timestamp() + interval '10000 s' RETURNING 1"
    )
