"""The wrapper's side: times, the terminal, and what becomes of a command when something is wrong. Without a store."""

import asyncio
import errno
import math
import os
import pty
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import LockError
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.models import Grant
from pgleaderlock.retry import ExponentialBackoff
from pgleaderlock.stores.base import leased_grant
from pgleaderlock.stores.file.backend import open_file
from pgleaderlock.work.exec import family
from pgleaderlock.work.exec.guardian_client import LAUNCH, GuardedCommand, GuardianClient, Outcome
from pgleaderlock.work.exec.supervisor import Ending, How, Policy, Supervisor
from pgleaderlock.work.exec.terminal import Terminal
from pgleaderlock.work.exec.timing import KillTimes
from tests.support.doubles import ScriptedBackend, make_election, until

LEASE_S = 15.0
TIMES = KillTimes(LEASE_S)


# --- Times ---


@pytest.mark.parametrize("lease_s", [1.0, 1.5, 15.0, 600.0])
def test_a_command_is_asked_then_killed_then_killed_by_the_wrapper_all_before_trust_ends(lease_s: float):
    times, grant = KillTimes(lease_s), leased_grant(1, 100.0, lease_s)
    term_at, kill_at = times.term_at(grant.trusted_until), times.kill_at(grant.trusted_until)
    assert grant.lost_at < term_at < kill_at < kill_at + times.backstop_s() < grant.trusted_until


def test_a_loss_leaves_as_much_time_as_is_safe_or_as_was_asked_for():
    assert TIMES.kill_at_loss(100.0, 103.5, None) == TIMES.kill_at(103.5)
    assert TIMES.kill_at_loss(100.0, 103.5, 0.5) == 100.5
    assert TIMES.kill_at_loss(100.0, 103.5, 60.0) == TIMES.kill_at(103.5)
    assert TIMES.kill_at_loss(100.0, 99.0, None) == 100.0  # past it: at once


def test_without_a_lease_there_is_still_an_end():
    assert TIMES.kill_at_loss(100.0, math.inf, None) == 110.0
    assert TIMES.kill_at_loss(100.0, math.inf, 2.0) == 102.0
    assert TIMES.term_at(math.inf) == math.inf


def test_a_lease_too_short_to_kill_in_is_refused():
    with pytest.raises(ValueError, match="at least 1 s, got"):
        KillTimes(0.5)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7 << 8, 7), (9, 137), (None, 0)])
def test_exit_codes_are_those_of_a_shell(status: int | None, code: int):
    assert Outcome(status).code == code


# --- The terminal ---


def test_a_terminal_that_does_not_control_us_is_left_alone():
    ours, theirs = pty.openpty()
    try:
        terminal = Terminal(theirs)
        assert not terminal.is_ours
        terminal.lend(os.getpgrp())
        assert not terminal.is_lent
        terminal.take_back()
    finally:
        os.close(ours)
        os.close(theirs)


# --- A command's life ---


class Stage:
    """A supervisor over a scripted store, and what it said."""

    def __init__(self, command: str, backend: ScriptedBackend | None = None, **words: Any) -> None:
        self.said: list[str] = []
        launch = {"launch": words.pop("launch")} if "launch" in words else {}
        job = GuardedCommand(
            (sys.executable, "-I", "-S", "-c", command), TIMES, kill_after_s=words.pop("kill_after_s", None), **launch
        )
        self.election, self.backend, self.witness = make_election(backend, **words.pop("settings", {}))
        self.supervisor = Supervisor(self.election, job, Policy(**words), "role", self._tell, look=self._look)

    def _tell(self, level: str, event: str, text: str, /, **fields: Any) -> None:
        self.said.append(event)

    async def _look(self) -> str:
        return ""

    @property
    def client(self) -> GuardianClient:
        assert self.supervisor._client is not None
        return self.supervisor._client


SLEEP = "import time; time.sleep(60)"


async def test_the_lock_is_released_only_when_the_command_has_ended():
    stage = Stage("raise SystemExit(7)")
    assert await stage.supervisor.run() == Ending(How.COMMAND, 7)
    assert stage.backend.verbs[-2:] == ["release", "close"]
    assert not stage.backend.holds
    assert stage.said == ["leads", "command_ended"]


async def test_a_loss_is_not_over_before_the_family_is_dead_and_another_term_runs_it_again():
    class Backend(ScriptedBackend):
        async def close(self) -> None:
            was_dead_at_close.append(first.ended.done())
            await super().close()

    was_dead_at_close: list[bool] = []
    stage = Stage(SLEEP, Backend())
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    first, loss = stage.client, stage.backend.loss
    assert loss is not None
    loss.set_result(LockError("gone"))
    await until(lambda: stage.said.count("leads") == 2 and stage.client.group is not None)
    assert was_dead_at_close == [True]
    assert first.ended.result().status == signal.SIGTERM
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == Ending(How.COMMAND, 128 + signal.SIGTERM)


async def test_with_once_a_loss_is_the_end():
    stage = Stage(SLEEP, once=True)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    assert stage.backend.loss is not None
    stage.backend.loss.set_result(LockError("gone"))
    assert await running == Ending(How.LOST)


async def test_a_command_asked_to_end_that_loses_meanwhile_is_not_run_again(tmp_path: Path):
    """It does not receive the signal, and is killed by the loss: what was asked for has happened."""
    is_deaf = tmp_path / "is deaf"
    program = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(is_deaf)!r}, 'w'); {SLEEP}"
    stage = Stage(program, kill_after_s=0.1)
    running = asyncio.create_task(stage.supervisor.run())
    await until(is_deaf.exists)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: stage.supervisor._asked_by is not None)
    assert stage.backend.loss is not None
    stage.backend.loss.set_result(LockError("gone"))
    ending = await running
    assert ending.how is How.COMMAND
    assert ending.code > 128


async def test_a_step_down_from_elsewhere_ends_the_command_first():
    stage = Stage(SLEEP, once=True)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    client = stage.client
    await stage.election.step_down()
    assert client.ended.done()
    assert (await running).how is How.COMMAND


async def test_the_lock_is_kept_for_a_command_that_takes_longer_to_end_than_a_hand_over_waits(tmp_path: Path):
    class Backend(ScriptedBackend):
        async def release(self, grant: Grant) -> None:
            was_dead_at_release.append(first.ended.done())
            await super().release(grant)

    async def grant() -> Grant:
        return leased_grant(1, suspend_aware_clock(), LEASE_S)

    was_dead_at_release: list[bool] = []
    backend, is_deaf = Backend(), tmp_path / "is deaf"
    backend.defaults |= {"try_acquire": grant, "renew": grant}
    program = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(is_deaf)!r}, 'w'); {SLEEP}"
    stage = Stage(program, backend, kill_after_s=1.0, settings={"drain_s": 0.1, "clock": suspend_aware_clock})
    running = asyncio.create_task(stage.supervisor.run())
    await until(is_deaf.exists)
    first = stage.client
    await stage.election.step_down()
    assert was_dead_at_release == [True]
    assert (await running).how is How.COMMAND


async def test_a_guardian_that_had_no_news_in_time_makes_its_wrapper_step_down():
    """The store says that all is well, and the command was asked to end all the same: another term begins."""
    stage = Stage(SLEEP, once=True)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    stage.client._order({"do": "until", "number": 0, "term_at": 0.0, "kill_at": 0.0})
    assert await running == Ending(How.LOST)
    assert "release" in stage.backend.verbs


async def test_guardian_that_cannot_be_started_is_reported_as_a_failure():
    stage = Stage(SLEEP, launch=("/nonexistent/python",))
    ending = await stage.supervisor.run()
    assert ending.how is How.FAILED
    assert isinstance(ending.error, FileNotFoundError)
    assert not stage.backend.holds


async def test_a_command_that_cannot_be_executed_ends_it():
    stage = Stage("")
    stage.supervisor._job = GuardedCommand(("/nonexistent/command",), TIMES)
    assert await stage.supervisor.run() == Ending(How.REFUSED, errno.ENOENT)


async def test_restarting_goes_on_while_leading_and_ends_when_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.engine._leader_task._PAUSES", ExponentialBackoff(0.01))
    stage = Stage("raise SystemExit(1)", restart=True)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.said.count("restarting") == 3)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await running).code == 128 + signal.SIGTERM
    assert stage.backend.verbs.count("try_acquire") == 1


async def test_a_loss_while_it_waits_to_restart_is_a_loss(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.engine._leader_task._PAUSES", ExponentialBackoff(30.0))
    stage = Stage("raise SystemExit(1)", restart=True, once=True)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: "restarting" in stage.said)
    assert stage.backend.loss is not None
    stage.backend.loss.set_result(LockError("gone"))
    assert await running == Ending(How.LOST)


async def test_a_signal_while_waiting_ends_it_and_others_do_not():
    stage = Stage(SLEEP, ScriptedBackend(try_acquire=[None] * 100))
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: "try_acquire" in stage.backend.verbs)
    for number in (signal.SIGUSR1, signal.SIGWINCH, signal.SIGCONT):
        os.kill(os.getpid(), number)
    await asyncio.sleep(0.01)
    assert not running.done()
    os.kill(os.getpid(), signal.SIGHUP)
    assert await running == Ending(How.SIGNALLED, 128 + signal.SIGHUP)
    assert stage.said == ["signalled"]


@pytest.mark.parametrize(
    ("answer", "wait_s", "how"),
    [
        (None, 0.0, How.NOT_ACQUIRED),
        (None, 0.05, How.NOT_ACQUIRED),
        (LockError("no"), 0.0, How.UNREACHABLE),
        (LockError("no"), 0.05, How.UNREACHABLE),
    ],
)
async def test_waiting_has_an_end_where_one_was_asked_for(answer: Any, wait_s: float, how: How):
    stage = Stage(SLEEP, ScriptedBackend(try_acquire=[answer] * 100), wait_s=wait_s)
    assert (await stage.supervisor.run()).how is how


async def test_an_election_that_ends_by_itself_ends_it_too():
    class GivesUp:
        def next_delay_s(self, ctx: object) -> float | None:
            return None

    stage = Stage(SLEEP, ScriptedBackend(try_acquire=[None]), settings={"retry_strategy": GivesUp()})
    assert (await stage.supervisor.run()).how in (How.NOT_ACQUIRED, How.UNREACHABLE)


async def test_processes_that_may_not_be_killed_are_reported():
    stage = Stage("")
    stage.supervisor._note(Outcome(0, untouchable=2))
    assert stage.said == ["processes_left"]


async def test_renewals_reach_the_guardian_and_are_answered():
    grant = Grant(3, math.inf, math.inf)
    backend = ScriptedBackend(try_acquire=[grant])
    backend.defaults["renew"] = grant
    stage = Stage(SLEEP, backend, settings={"health_interval_s": 0.3})
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client._confirmed >= 3)
    os.kill(os.getpid(), signal.SIGINT)
    assert (await running).code == 128 + signal.SIGINT


# --- A guardian that is slow, frozen or killed ---

SOON = {"health_interval_s": 0.5}  # twice that is what a guardian on a busy machine has to answer in


def renewing_backend() -> ScriptedBackend:
    grant = Grant(3, math.inf, math.inf)
    backend = ScriptedBackend(try_acquire=[grant])
    backend.defaults["try_acquire"] = backend.defaults["renew"] = grant
    return backend


def late_guardian(may_start: Path) -> tuple[str, ...]:
    """The real guardian, started only when this file is there: as on a host that is very busy."""
    wait = f"import os, sys, time\nwhile not os.path.exists({str(may_start)!r}): time.sleep(0.005)\n"
    return (sys.executable, "-I", "-S", "-c", wait + "os.execv(sys.argv[1], sys.argv[1:])", *LAUNCH)


@pytest.mark.parametrize("length", [1, 1_000_000], ids=["short", "longer than a socket's buffer"])
async def test_a_guardian_that_starts_late_runs_the_command_all_the_same(tmp_path: Path, length: int):
    may_start = tmp_path / "may start"
    stage = Stage("raise SystemExit(7)", renewing_backend(), settings=SOON, launch=late_guardian(may_start))
    program = (*stage.supervisor._job.command, *["x" * 50_000] * (length // 50_000))
    stage.supervisor._job = replace(stage.supervisor._job, command=program)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client._sent >= 3)
    may_start.touch()
    assert await running == Ending(How.COMMAND, 7)


async def test_a_guardian_that_misses_one_renewal_goes_on():
    job = GuardedCommand((sys.executable, "-I", "-S", "-c", SLEEP), TIMES, spare=frozenset(family.children()))
    client = GuardianClient(job, lambda _: None, lambda _: None)
    client.start(suspend_aware_clock() + LEASE_S, (), terminal=None)
    await until(lambda: client.group is not None)
    os.kill(client.guardian, signal.SIGSTOP)
    for _ in range(2):
        client.extend(suspend_aware_clock() + LEASE_S, ())
    await asyncio.sleep(0.05)
    os.kill(client.guardian, signal.SIGCONT)
    await until(lambda: client._confirmed == 2)
    assert not client.ended.done()
    await client.end(suspend_aware_clock() + LEASE_S)
    assert client.ended.result().complaint is None
    await client.reap()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.slow
async def test_a_guardian_that_fails_ends_the_command_and_the_wrapper_waits_to_lead_again(number: signal.Signals):
    stage = Stage(SLEEP, renewing_backend(), settings=SOON)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    first = stage.client
    os.kill(first.guardian, number)
    await until(lambda: stage.said.count("leads") >= 2 and stage.client.group is not None)
    assert first.ended.result().complaint is not None
    assert "release" in stage.backend.verbs
    assert stage.said[:3] == ["leads", "guardian_failed", "leads"]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == Ending(How.COMMAND, 128 + signal.SIGTERM)


async def test_with_once_a_guardian_that_fails_is_a_loss():
    stage = Stage(SLEEP, renewing_backend(), once=True, settings=SOON)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    os.kill(stage.client.guardian, signal.SIGKILL)
    assert await running == Ending(How.LOST)


async def test_a_guardian_that_never_starts_is_given_up_and_the_lock_is_free_for_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("pgleaderlock.work.exec.guardian_client._START_S", 0.2)
    stage = Stage(SLEEP, renewing_backend(), once=True, settings=SOON, launch=MUTE)
    assert await stage.supervisor.run() == Ending(How.LOST)
    assert stage.said == ["leads", "guardian_failed"]
    assert "release" in stage.backend.verbs


async def test_a_signal_that_comes_while_the_guardian_starts_is_not_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.work.exec.guardian_client._START_S", 0.5)
    stage = Stage(SLEEP, renewing_backend(), settings=SOON, launch=MUTE)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == Ending(How.SIGNALLED, 128 + signal.SIGTERM)


# --- A command that does not end when asked ---


@pytest.mark.parametrize("guardian_is_frozen", [False, True])
async def test_a_command_that_ignores_sigterm_is_killed_in_time(tmp_path: Path, *, guardian_is_frozen: bool):
    is_deaf = tmp_path / "is deaf"
    program = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(is_deaf)!r}, 'w'); {SLEEP}"
    stage = Stage(program, kill_after_s=1.0)
    running = asyncio.create_task(stage.supervisor.run())
    await until(is_deaf.exists)
    if guardian_is_frozen:
        os.kill(stage.client.guardian, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == Ending(How.COMMAND, 128 + signal.SIGKILL)
    assert stage.said[-1] == ("guardian_failed" if guardian_is_frozen else "command_ended")


@pytest.mark.slow
async def test_what_the_command_leaves_behind_has_no_longer_than_the_command_had(tmp_path: Path):
    """The first process ends when it is asked to, late; the second ignores it, and the time of both is over."""
    ready = tmp_path / "ready"
    program = (
        "import os, signal, time\n"
        "signal.signal(15, lambda *_: (time.sleep(1), os._exit(3)))\n"
        "if os.fork() == 0:\n"
        f"    signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(60)\n"
        "while True: time.sleep(60)\n"
    )
    stage = Stage(program, kill_after_s=5.0)
    running = asyncio.create_task(stage.supervisor.run())
    await until(ready.exists)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == Ending(How.COMMAND, 3)
    assert "guardian_failed" not in stage.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
async def test_a_stopped_command_is_woken_by_what_asks_it_to_end(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    # As under a shell, which stops us with the command and continues us: without one it would be woken for that reason.
    monkeypatch.setattr("pgleaderlock.work.exec.supervisor.stop_as_job", lambda *_, **__: True)
    stage = Stage(SLEEP)
    running = asyncio.create_task(stage.supervisor.run())
    await until(lambda: stage.supervisor._client is not None and stage.client.group is not None)
    os.killpg(stage.client.group or 0, signal.SIGSTOP)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(running, 20) == Ending(How.COMMAND, 128 + number)


# --- Lifelines ---


async def test_a_lock_in_a_file_has_a_lifeline_while_it_is_held(tmp_path: Any):
    backend = open_file(tmp_path / "lock")
    await backend.open()
    assert backend.lifeline() == ()
    grant = await backend.try_acquire()
    assert grant is not None
    (descriptor,) = backend.lifeline()
    (live,) = tmp_path.glob("lock.live.*")
    assert os.path.samestat(os.fstat(descriptor), live.stat())
    await backend.close()
    assert backend.lifeline() == ()


def test_our_own_children_can_be_spared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(family, "children", lambda: {7, 8, 9})
    killed: list[int] = []

    def kill(pid: int, number: int) -> None:
        killed.append(pid)
        if pid == 8:
            raise PermissionError
        raise ProcessLookupError

    monkeypatch.setattr("os.kill", kill)
    assert family.kill_children(spare=[7]) == 1
    assert sorted(killed) == [8, 9]


# --- A guardian that does not do its part ---

MUTE = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
"""Takes its place, and neither receives nor sends anything."""


def mute_guardian(lease_s: float = LEASE_S, launch: tuple[str, ...] = MUTE) -> GuardianClient:
    job = GuardedCommand(("true",), KillTimes(lease_s), spare=frozenset(family.children()), launch=launch)
    client = GuardianClient(job, lambda _: None, lambda _: None)
    client.start(suspend_aware_clock() + lease_s, (), terminal=None)
    return client


GREETS = 'import os, sys, time; os.write(int(sys.argv[1]), b\'{"is": "ready"}\\n\'); time.sleep(60)'
"""Says that it is there, and then neither receives nor sends anything."""


async def greeted_guardian() -> GuardianClient:
    client = mute_guardian(launch=(sys.executable, "-I", "-S", "-c", GREETS))
    await until(lambda: client.is_up)
    return client


async def test_a_guardian_that_leaves_two_renewals_unanswered_is_given_up():
    client = await greeted_guardian()
    assert not client.is_reaped
    for _ in range(2):
        client.extend(suspend_aware_clock() + LEASE_S, ())
    assert client._clearing is None
    client.extend(suspend_aware_clock() + LEASE_S, ())
    client.extend(suspend_aware_clock() + LEASE_S, ())  # the client is gone
    outcome = await asyncio.wait_for(client.ended, 20)
    assert outcome.complaint == "the guardian does not answer: is it stopped?"
    await client.reap()
    assert client.is_reaped


async def test_a_guardian_that_does_not_read_is_given_up():
    client = await greeted_guardian()
    for _ in range(100_000):
        if client._clearing is not None:
            break
        client.signal(signal.SIGUSR1)
    outcome = await asyncio.wait_for(client.ended, 20)
    assert outcome.complaint == "the guardian does not read: is it stopped?"
    await client.reap()


async def test_a_guardian_that_does_not_kill_in_time_is_killed_and_the_wrapper_kills_in_its_place():
    client = mute_guardian(1.0)
    trusted_until = suspend_aware_clock() + 0.3
    await asyncio.wait_for(client.end(trusted_until), 20)
    assert client.ended.result().complaint == "the guardian did not end the command in time: is it stopped?"
    await client.end(trusted_until)  # there is nothing left to end
    await client.reap()


async def test_guardian_that_has_sent_its_last_message_and_stays_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pgleaderlock.work.exec.guardian_client._EXIT_S", 0.05)
    words = '{"is": "ended", "status": 0, "untouchable": 0}'
    stays = f"import os, sys, time; os.write(int(sys.argv[1]), b'{words}\\n'); time.sleep(60)"
    job = GuardedCommand(
        ("true",), TIMES, spare=frozenset(family.children()), launch=(sys.executable, "-I", "-S", "-c", stays)
    )
    client = GuardianClient(job, lambda _: None, lambda _: None)
    client.start(suspend_aware_clock() + LEASE_S, (), terminal=None)
    assert (await asyncio.wait_for(client.ended, 20)).code == 0
    await client.reap()
    assert client.is_reaped


async def test_a_system_without_room_for_a_process_is_an_error():
    job = GuardedCommand(("true",), TIMES, launch=("/nonexistent/python",))
    with pytest.raises(OSError, match="nonexistent"):
        GuardianClient(job, lambda _: None, lambda _: None).start(suspend_aware_clock() + LEASE_S, (), terminal=None)
