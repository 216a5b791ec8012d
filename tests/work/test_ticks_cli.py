"""The ledger as people and programs see it from outside."""

import asyncio
import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgleaderlock import LockKey, Tick
from pgleaderlock.cli.commands import cli
from pgleaderlock.testing.embedded import Server
from pgleaderlock.work.schedule.reading import open_ledger
from tests.conftest import Postgres
from tests.support.json_shapes import assert_shape, documented
from tests.support.lease import query
from tests.support.operators import HOSTILE, SHOWN_HOSTILE
from tests.support.terms import make_termed


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PG_DSN", "PGLEADERLOCK_URL"):
        monkeypatch.delenv(name, raising=False)


async def show(*words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["ticks", *words])


async def records(*words: str) -> list[dict[str, Any]]:
    result = await show("--json", *words)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def run_some(dsn: str, key: LockKey) -> None:
    """One slot of each kind."""
    lock, _ = make_termed(dsn, key)
    enough = asyncio.Event()
    calls = 0

    @lock.every("50ms", name="works")
    async def works(tick: Tick) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            enough.set()
            raise ValueError(HOSTILE)

    async with lock:
        await asyncio.wait_for(enough.wait(), 15)
    await query(
        dsn,
        "INSERT INTO pgleaderlock.ticks VALUES (%s, 'other', now() - interval '2 days', 1, 'skipped', 7, %s, now(), "
        "now(), now() - interval '3 days')",
        str(key),
        HOSTILE,
    )


async def test_the_ledger_is_shown_in_the_documented_shape(postgres: Postgres, key: LockKey):
    await run_some(postgres.dsn, key)
    here = ("--dsn", postgres.dsn, "--lock", str(key))
    found = await records(*here)
    for record in found:
        assert_shape(record, documented("ticks"))
    assert [record["slot"] for record in found] == sorted(record["slot"] for record in found)
    skipped, done = found[0], next(record for record in found if record["state"] == "done")
    assert (skipped["job"], skipped["state"], skipped["schedule"], skipped["took_s"]) == (
        "other",
        "skipped",
        None,
        None,
    )
    assert skipped["skipped_from"] < skipped["slot"]
    assert (done["job"], done["schedule"], done["lock"], done["attempt"]) == ("works", "every 50ms", str(key), 1)
    assert done["late_s"] >= 0
    assert done["took_s"] >= 0
    failed = next(record for record in found if record["state"] == "failed")
    assert failed["detail"] == f"ValueError: {HOSTILE}"
    assert {record["job"] for record in await records(*here, "--job", "works")} == {"works"}
    assert "other" not in {record["job"] for record in await records(*here, "--since", "1d")}
    assert await records(*here, "--limit", "1") == found[-1:]


async def test_table_of_ticks_contains_no_control_sequences_from_its_data(postgres: Postgres, key: LockKey):
    await run_some(postgres.dsn, key)
    here = ("--dsn", postgres.dsn, "--lock", str(key))
    result = await show(*here)
    assert result.exit_code == 0
    assert SHOWN_HOSTILE in result.stdout
    assert "\x1b" not in result.stdout
    assert "and all earlier slots, back to" in result.stdout
    assert "works" in result.stdout
    cut = await show(*here, "--limit", "1")
    assert "newest 1 (--limit)" in cut.stderr
    nothing = await show(*here, "--job", "nobody's", "--since", "1h")
    assert nothing.exit_code == 0
    assert f"The ledger in schema pgleaderlock has nothing of job nobody's of lock {key} since 2" in nothing.stderr


async def test_a_lock_can_be_named_by_its_role(postgres: Postgres):
    name = f"ticks/{id(object())}"
    await run_some(postgres.dsn, LockKey.named(name))
    found = await records("--dsn", postgres.dsn, "--role", name, "--job", "works")
    assert {record["role"] for record in found} == {name}
    shown = await show("--dsn", postgres.dsn, "--role", name, "--job", "works")
    heading, _, *rows = shown.stdout.splitlines()
    assert heading.split()[:5] == ["Slot", "(UTC)", "Role", "Job", "State"]
    assert {row.split()[2] for row in rows if row.strip()} == {name}


async def test_a_lock_without_a_role_is_shown_by_its_numbers(postgres: Postgres, key: LockKey):
    await run_some(postgres.dsn, key)
    shown = await show("--dsn", postgres.dsn, "--lock", str(key), "--job", "works")
    assert {row.split()[2] for row in shown.stdout.splitlines()[2:] if row.strip()} == {str(key)}


@pytest.mark.slow
async def test_wrong_usage_and_a_database_without_a_ledger(postgres: Postgres, own_server: Server):
    both = await show("--dsn", postgres.dsn, "--role", "a", "--lock", "pair:1/2")
    assert (both.exit_code, "twice" in both.stderr) == (2, True)
    wrong = await show("--dsn", postgres.dsn, "--lock", "nonsense:1")
    assert wrong.exit_code == 2
    empty = await show("--dsn", own_server.tcp_dsn)
    assert (empty.exit_code, "there is no tick ledger in schema pgleaderlock" in empty.stderr) == (3, True)


async def test_a_reader_needs_no_more_than_to_read(own_server: Server, key: LockKey):
    await run_some(own_server.dsn, key)
    for statement in (
        "CREATE ROLE ops LOGIN",
        "GRANT USAGE ON SCHEMA pgleaderlock TO ops",
        "GRANT SELECT ON pgleaderlock.tick_jobs, pgleaderlock.ticks TO ops",
    ):
        await query(own_server.dsn, statement)
    async with open_ledger(psycopg.conninfo.make_conninfo(own_server.tcp_dsn, user="ops")) as ledger:
        assert await ledger.ticks(limit=1)
