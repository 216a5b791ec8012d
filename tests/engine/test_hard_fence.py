"""The hard fence: a process that cannot be notified is ended when its leadership runs out, and no other."""

import asyncio
import faulthandler
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pgleaderlock import LockError, LockKey, LockState
from pgleaderlock.engine import hard_fence
from pgleaderlock.engine.hard_fence import HardFence
from pgleaderlock.models import Grant
from tests.conftest import Postgres
from tests.support.doubles import ScriptedBackend, make_election, until
from tests.support.lease import LEASE_S, make_leased, open_descriptors
from tests.support.processes import Process

# A call through PyDLL keeps the interpreter's lock, so no Python code runs in this process until it returns.
_PROGRAM = """
import asyncio, ctypes, sys
from pgleaderlock import LeaderLock, LockKey
from pgleaderlock.options import LockOptions

async def main(dsn, key, lease_s, hard_fence):
    lock = LeaderLock(dsn, key=LockKey.parse(key), lease_s=float(lease_s), health_interval_s=float(lease_s) / 3,
                      settle_s=0, options=LockOptions(hard_fence=hard_fence == "on"))
    async with lock:
        await lock.wait_for_leadership()
        print("leads", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("is busy", flush=True)
        ctypes.PyDLL(None).sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


def start(postgres: Postgres, key: LockKey, hard_fence: str) -> Process:
    return Process(sys.executable, "-c", _PROGRAM, postgres.dsn, str(key), str(LEASE_S), hard_fence)


async def test_a_process_whose_interpreter_is_stuck_is_ended_when_its_leadership_runs_out(
    postgres: Postgres, key: LockKey
):
    with start(postgres, key, "on") as process:
        process.wait_for("leads")
        process.say()
        process.wait_for("is busy")
        began = time.monotonic()
        assert await asyncio.to_thread(process.wait) == 1
        assert time.monotonic() - began < LEASE_S + 2
        process.wait_for("Timeout")  # with the stack of what it was busy with
        process.wait_for("in main")


async def test_without_the_hard_fence_such_a_process_goes_on_beside_a_new_leader(postgres: Postgres, key: LockKey):
    """What it is for, and why it can be switched on: nothing else ends this one."""
    successor, _ = make_leased(postgres.dsn, key)
    with start(postgres, key, "off") as process:
        process.wait_for("leads")
        process.say()
        process.wait_for("is busy")
        async with successor:
            assert await successor.wait_for_leadership(10)
        assert process.is_alive


async def test_a_leader_that_renews_and_releases_is_left_alone(postgres: Postgres, key: LockKey):
    with Process(
        sys.executable, "-c", _PROGRAM.replace("sleep(600)", "getpid()"), postgres.dsn, str(key), str(LEASE_S), "on"
    ) as process:
        process.wait_for("leads")
        await asyncio.sleep(LEASE_S)  # past the first deadline: only a renewal can have moved it
        process.say()
        process.wait_for("is busy")
        assert await asyncio.to_thread(process.wait) == 0


# --- When it is armed, without a process that dies ------------------------------------------------------------------


@pytest.fixture
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float | None]]:
    """What the interpreter's watchdog was last set to: seconds, or None."""
    settings: list[float | None] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **_: settings.append(seconds))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: settings.append(None))
    yield settings
    assert hard_fence._deadlines == {}


def test_the_earliest_deadline_of_all_elections_counts(watchdog):
    early, late = HardFence(lambda: 100.0), HardFence(lambda: 5.0)
    late.arm(35.0)
    assert watchdog[-1] == pytest.approx(30, abs=1)
    early.arm(110.0)
    assert watchdog[-1] == pytest.approx(10, abs=1)
    early.disarm()
    assert watchdog[-1] == pytest.approx(30, abs=1)
    late.disarm()
    assert watchdog[-1] is None


def test_a_deadline_that_has_passed_already_ends_the_process_at_once(watchdog):
    fence = HardFence(lambda: 100.0)
    fence.arm(50.0)
    assert watchdog == [0.001]
    fence.disarm()
    fence.disarm()
    assert watchdog == [0.001, None]


def test_a_process_without_stderr_has_nothing_written_into_another_file(watchdog, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "__stderr__", None)
    fence = HardFence(time.monotonic)
    fence.arm(time.monotonic() + 5)
    assert watchdog[-1] == pytest.approx(5, abs=1)
    fence.disarm()


@pytest.mark.virtual_time
async def test_a_slow_callback_of_a_loss_is_still_under_the_fence(watchdog):
    clock = asyncio.get_running_loop().time
    grant = Grant(1, trusted_until=clock() + 90, lost_at=clock() + 60)
    scripts: dict[str, list[Any]] = {"try_acquire": [grant], "renew": [LockError("no")]}
    election, _, _ = make_election(ScriptedBackend(**scripts), hard_fence=True, health_interval_s=5)
    finished = asyncio.Event()

    @election.on_lost
    async def stop_slowly() -> None:
        assert watchdog[-1] is not None
        await finished.wait()

    await election.start()
    await until(lambda: bool(watchdog))
    assert watchdog[-1] == pytest.approx(90, abs=1)
    await until(lambda: election.state is not LockState.LEADER)
    await asyncio.sleep(1)
    assert watchdog[-1] is not None
    finished.set()
    await until(lambda: watchdog[-1] is None)
    await election.shutdown()


@pytest.mark.virtual_time
async def test_a_grant_without_an_end_has_no_fence(watchdog):
    election, _, _ = make_election(hard_fence=True)
    async with election:
        await election.wait_for_leadership(10)
    assert watchdog == []


@pytest.mark.virtual_time
async def test_hard_fence_stays_armed_while_reconnecting_of_which_no_callback_is_notified(watchdog):
    clock = asyncio.get_running_loop().time
    grant = Grant(1, trusted_until=clock() + 90, lost_at=clock() + 60)
    later = Grant(2, trusted_until=clock() + 900, lost_at=clock() + 600)
    scripts: dict[str, list[Any]] = {"try_acquire": [grant, LockError("no"), later], "renew": [LockError("no")]}
    election, _, heard = make_election(
        ScriptedBackend(**scripts), hard_fence=True, health_interval_s=5, reconnect_grace_s=50
    )
    async with election:
        await until(lambda: election.state is LockState.RECONNECTING)
        assert watchdog[-1] == pytest.approx(90, abs=6)
        await until(lambda: "recovered" in heard.words)
        assert watchdog[-1] == pytest.approx(900, abs=20)
    assert watchdog[-1] is None


def test_a_process_whose_stderr_was_closed_since_loses_no_descriptor_by_renewing(
    watchdog, monkeypatch: pytest.MonkeyPatch
):
    class Closed:
        def fileno(self) -> int:
            raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(sys, "__stderr__", Closed())
    fence = HardFence(time.monotonic)
    fence.arm(time.monotonic() + 5)
    before = open_descriptors()
    for _ in range(20):
        fence.arm(time.monotonic() + 5)
    assert open_descriptors() == before
    fence.disarm()
