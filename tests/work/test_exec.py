"""``pgleaderlock exec`` as a user meets it: processes, a real PostgreSQL, a real terminal."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from pgleaderlock import LockKey
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import STORE_VARIABLES
from pgleaderlock.cli.commands import invoke
from pgleaderlock.ops.config.settings import SETTINGS
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.work.exec import family
from proofs import exec_torture
from proofs.exec_torture import one_round
from tests.conftest import Postgres
from tests.support.guardian import is_alive
from tests.support.postgres import look_at_lock
from tests.support.processes import Process
from tests.support.sweeps import sweep
from tests.support.terminals import until

CLI = (sys.executable, "-m", "pgleaderlock.cli", "exec")
QUICK = ("--settle", "0", "--lease", "3", "--health-interval", "1")
TIMEOUT_S = 30.0
_SHOW_DESCRIPTORS = """
import os, sys
os.write(int(sys.argv[1]), b"passed on")
for name in os.listdir("/proc/self/fd"):
    if os.path.exists("/proc/self/fd/" + name) or os.path.islink("/proc/self/fd/" + name):
        print(os.readlink("/proc/self/fd/" + name))
"""


@pytest.fixture(autouse=True)
def _no_database_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PG_DSN", raising=False)


@pytest.fixture
def role(key: LockKey) -> str:
    return f"exec-{key.numbers[0]}-{key.numbers[1]}"


def words(postgres: Postgres, role: str, *command: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    return (*CLI, "--dsn", postgres.dsn, "--role", role, *QUICK, *options, "--", *command)


def run(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        arguments,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        **settings,  # type: ignore[call-overload]
    )
    return done


def is_free(postgres: Postgres, role: str) -> bool:
    return asyncio.run(look_at_lock(postgres.dsn, LockKey.named(role))) == []


# --- What it is for ---


_QUICK_FAULTS = [fault for fault in exec_torture.FAULTS if fault.name in ("kill", "cut_off", "freeze_guardian")]


@pytest.mark.parametrize("fault", sweep(exec_torture.FAULTS, *_QUICK_FAULTS), ids=lambda fault: fault.name)
@pytest.mark.slow
def test_no_process_of_a_family_that_will_not_end_is_alive_when_the_successors_command_starts(
    postgres: Postgres, role: str, tmp_path: Path, fault: exec_torture.Fault
):
    second, _ = one_round(fault, postgres.tcp_dsn, tmp_path, role)
    assert second.found == "alone"


def test_the_lock_and_its_witness_outlast_a_killed_wrapper_until_its_guardian_has_done_its_work(
    postgres: Postgres, role: str
):
    """The guardian is held up, so that one can look in between: to the server, nothing has happened yet."""
    locks = [LockKey.named(role), witness_key(LockKey.named(role))]

    def holders() -> list[int | None]:
        looks = [asyncio.run(look_at_lock(postgres.dsn, lock)) for lock in locks]
        return [one.holder.pid for look in looks for one in look if one.granted]

    # Left to the init process, it would be woken: the kernel does not leave a stopped group without relatives so.
    family.become_subreaper()
    long_lease = ("--lease", "60", "--health-interval", "10")
    with Process(*words(postgres, role, "sh", "-c", "echo ready; exec sleep 60", options=long_lease)) as wrapper:
        wrapper.wait_for("ready")
        before = holders()
        assert len(before) == 2
        guardian = next(one for one in family.descendants(wrapper.pid) if one.parent == wrapper.pid)
        family.send(guardian, signal.SIGSTOP)
        try:
            wrapper.signal(signal.SIGKILL)
            wrapper.wait()
            time.sleep(0.3)  # a server sees the end of a socket within a millisecond
            assert holders() == before
        finally:
            family.send(guardian, signal.SIGCONT)
        until(lambda: holders() == [])
        os.waitpid(guardian.pid, 0)


# --- The command's world ---


@pytest.mark.slow
def test_the_command_has_our_input_and_output_and_its_term_and_its_exit_code_is_ours(postgres: Postgres, role: str):
    program = 'cat; echo "$PGLEADERLOCK_ROLE $PGLEADERLOCK_TOKEN $PGLEADERLOCK_TRUSTED_UNTIL" >&2; exit 7'
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    done = run(*words(postgres, role, "sh", "-c", program, options=("-q",)), input="from outside")
    assert (done.returncode, done.stdout) == (7, "from outside")
    name, token, trusted_until = done.stderr.split()
    assert name == role
    assert int(token) > 0
    assert before < float(trusted_until) < time.clock_gettime(time.CLOCK_BOOTTIME) + 3
    assert is_free(postgres, role)


def test_a_command_that_a_signal_ends_gives_the_code_of_a_shell_and_leaves_nothing_behind(
    postgres: Postgres, role: str
):
    """Not even what left its group and its session."""
    program = "setsid sleep 60 & echo $!; sleep 0.2; kill -9 $$"
    done = run(*words(postgres, role, "sh", "-c", program, options=("-q",)))
    assert done.returncode == 128 + signal.SIGKILL
    assert not is_alive(int(done.stdout))
    assert done.stderr == ""


def test_a_password_that_was_an_option_is_not_in_the_commands_environment(postgres: Postgres, role: str):
    with_password = f"{postgres.tcp_dsn}?password=hunter2"
    command = ("sh", "-c", "env")
    done = run(*CLI, "--dsn", with_password, "--role", role, *QUICK, "-q", "--", *command)
    assert done.returncode == 0
    assert "hunter2" not in done.stdout + done.stderr
    assert "PGLEADERLOCK_MOVED" not in done.stdout


@pytest.mark.slow
def test_the_variables_that_name_the_store_are_the_commands_only_where_that_was_asked_for(
    postgres: Postgres, role: str
):
    ours = {name: postgres.dsn for name in STORE_VARIABLES if name != "PGLEADERLOCK_URL"}
    environment = {**os.environ, **ours, "PGPASSWORD": "of-the-users-own"}
    for option, expected in (((), set()), (("--pass-dsn",), set(ours))):
        done = run(*CLI, "--role", role, *QUICK, "-q", *option, "--", "env", env=environment)
        assert done.returncode == 0, done.stderr
        inherited = {line.partition("=")[0] for line in done.stdout.splitlines()}
        assert inherited & set(STORE_VARIABLES) == expected
        assert "PGPASSWORD" in inherited  # which we neither set nor need


def test_every_setting_that_may_hold_a_password_is_kept_from_the_command():
    secret = {setting.variable for setting in SETTINGS if setting.kind == "secret"}
    assert secret < set(STORE_VARIABLES)


def test_descriptors_that_were_passed_to_us_are_passed_on_and_the_locks_are_not(postgres: Postgres, role: str):
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as passed_on:
        command = (sys.executable, "-I", "-S", "-c", _SHOW_DESCRIPTORS, str(theirs))
        done = run(*words(postgres, role, *command, options=("-q",)), pass_fds=[theirs])
        os.close(theirs)
        assert passed_on.read() == b"passed on"
        assert "pipe:" in done.stdout
        assert "socket:" not in done.stdout


def test_events_are_json_on_stderr_because_stdout_belongs_to_the_command(postgres: Postgres, role: str):
    done = run(*words(postgres, role, "echo", "mine", options=("--json",)))
    assert done.stdout == "mine\n"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["waits", "leads", "command_ended"]
    assert lines[2]["code"] == 0


# --- Signals ---


def test_signals_are_passed_on_and_the_command_decides(postgres: Postgres, role: str):
    program = "trap 'echo heard' USR1; trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.02; done"
    with Process(*words(postgres, role, "sh", "-c", program)) as wrapper:
        wrapper.wait_for("ready")
        wrapper.signal(signal.SIGUSR1)
        wrapper.wait_for("heard")
        wrapper.signal(signal.SIGTERM)
        wrapper.wait_for("bye")
        assert wrapper.wait() == 5
    assert is_free(postgres, role)


@pytest.mark.slow
def test_while_another_leads_a_signal_ends_the_waiting_and_waiting_can_be_bounded(postgres: Postgres, role: str):
    with Process(*words(postgres, role, "sh", "-c", "echo ready; exec sleep 60")) as leader:
        leader.wait_for("ready")
        with Process(*words(postgres, role, "echo", "wrong")) as waiting:
            waiting.wait_for("waits to lead")
            waiting.wait_for("to=follower")
            waiting.signal(signal.SIGTERM)
            assert waiting.wait() == exit_codes.TERMINATED
        bounded = run(*words(postgres, role, "echo", "wrong", options=("--wait", "0", "-q")))
        assert (bounded.returncode, bounded.stdout, bounded.stderr) == (exit_codes.EXEC_NOT_ACQUIRED, "", "")
        leader.signal(signal.SIGINT)
        assert leader.wait() == 128 + signal.SIGINT


@pytest.mark.slow
def test_nohup_is_respected(postgres: Postgres, role: str):
    program = "kill -HUP $$; echo alive"
    ignoring = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    done = run(*ignoring, *words(postgres, role, "sh", "-c", program, options=("-q",)))
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_a_command_that_ignores_sigterm_is_killed_after_the_time_it_was_given(
    postgres: Postgres, role: str, number: signal.Signals
):
    """With SIGHUP, which may mean something else, it decides; with SIGTERM it has --kill-after."""
    program = "trap '' TERM HUP; echo ready; while :; do sleep 0.02; done"
    options = ("--lease", "30", "--kill-after", "0.5")  # with a long lease, a guardian that is late is waited for
    with Process(*words(postgres, role, "sh", "-c", program, options=options)) as wrapper:
        wrapper.wait_for("ready")
        wrapper.signal(number)
        if number is signal.SIGHUP:
            time.sleep(1)
            assert wrapper.is_alive
            wrapper.signal(signal.SIGTERM)
        wrapper.wait_for("did not end when asked to, and was killed")
        assert wrapper.wait() == 128 + signal.SIGKILL
    assert is_free(postgres, role)


# --- Loss ---


def terminate_sessions(postgres: Postgres, role: str) -> None:
    (holder,) = [one.holder for one in asyncio.run(look_at_lock(postgres.dsn, LockKey.named(role))) if one.granted]
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (holder.pid,))


@pytest.mark.slow
def test_after_a_loss_the_wrapper_queues_again_and_with_once_it_does_not(postgres: Postgres, role: str):
    program = "trap 'echo asked; exit 0' TERM; echo token $PGLEADERLOCK_TOKEN; while :; do sleep 0.02; done"
    with Process(*words(postgres, role, "sh", "-c", program)) as wrapper:
        first = wrapper.wait_for("token ")
        terminate_sessions(postgres, role)
        wrapper.wait_for("asked")
        second = wrapper.wait_for("token ")
        assert int(second.split()[1]) > int(first.split()[1])
        wrapper.signal(signal.SIGTERM)
        assert wrapper.wait() == 0
    with Process(*words(postgres, role, "sh", "-c", program, options=("--once",))) as wrapper:
        wrapper.wait_for("token ")
        terminate_sessions(postgres, role)
        assert wrapper.wait() == exit_codes.EXEC_LOST


@pytest.mark.slow
def test_a_lock_in_a_file_outlasts_its_wrapper_until_the_family_is_dead(tmp_path: Path):
    """Its followers see a death at once: there is no lease to wait for, only the lifeline."""
    words = (*CLI, "--url", f"file://{tmp_path}/lock", "--lease", "3", "--health-interval", "1", "--")
    command = (sys.executable, "-I", "-S", str(Path(exec_torture.__file__).with_name("exec_family.py")), str(tmp_path))
    with Process(*words, *command) as leader:
        until(lambda: len(exec_torture.starts(tmp_path)) == 1)
        with Process(*words, *command) as standby:
            standby.wait_for("to=follower")
            leader.signal(signal.SIGKILL)
            until(lambda: len(exec_torture.starts(tmp_path)) == 2)
            assert exec_torture.starts(tmp_path)[1].found == "alone"


# --- What is refused ---


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("--role", "a", "--", "nonesuch-command"),
            exit_codes.NOT_FOUND,
            "nonesuch-command was not found in $PATH, which",
        ),
        (("--json", "--role", "a", "--", "nonesuch"), exit_codes.NOT_FOUND, '"event": "failed", "level": "error"'),
        (("--role", "a", "--", "/nonesuch/command"), exit_codes.NOT_FOUND, "was not found"),
        (("--role", "a", "--", "/etc/passwd"), exit_codes.CANNOT_EXECUTE, "cannot be executed: Permission denied"),
        (("--role", "a", "--", "/tmp"), exit_codes.CANNOT_EXECUTE, "cannot be executed"),
        (("--role", "a", "true"), exit_codes.USAGE, "put -- before the command"),
        (("--role", "a", "--"), exit_codes.USAGE, "COMMAND"),
        (("--", "true"), exit_codes.USAGE, "name the lock in exactly one way"),
        (("--role", "a", "--lease", "0.5", "--health-interval", "0.1", "--", "true"), exit_codes.USAGE, "at least 1 s"),
    ],
)
def test_command_that_cannot_be_run_is_refused_before_the_wrapper_waits(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
):
    assert invoke(["exec", "--dsn", "postgresql://127.0.0.1:1/none", *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_file_on_the_path_that_is_not_executable_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "tool").write_text("not a program")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["exec", "--role", "a", "--", "tool"]) == exit_codes.CANNOT_EXECUTE


def test_program_that_only_the_kernel_refuses_is_reported_when_it_is_started(
    postgres: Postgres, role: str, tmp_path: Path
):
    script = tmp_path / "script"
    script.write_text("#!/nonesuch/interpreter\n")
    script.chmod(0o755)
    done = run(*words(postgres, role, str(script), options=("-q",)))
    assert done.returncode == exit_codes.NOT_FOUND
    assert "exists, but the system did not find it" in done.stderr


def test_a_store_that_cannot_be_reached_has_a_code_of_its_own(capfd: pytest.CaptureFixture[str]):
    nobody = ("--dsn", "postgresql://127.0.0.1:1/none", "--role", "a", "--wait", "0", "-q", "--", "true")
    done = run(*CLI, *nobody)
    assert done.returncode == exit_codes.EXEC_UNREACHABLE
    assert "cannot connect" in done.stderr


@pytest.mark.slow
def test_a_program_that_reads_json_finds_nothing_else_when_it_fails():
    nobody = ("--dsn", "postgresql://127.0.0.1:1/none", "--role", "a", "--wait", "0", "--json", "--", "true")
    last = [json.loads(line) for line in run(*CLI, *nobody).stderr.splitlines()][-1]
    assert (last["event"], last["level"], last["code"]) == ("failed", "error", exit_codes.EXEC_UNREACHABLE)
    assert "cannot connect" in last["text"]


def test_no_store_is_wrong_usage_since_every_host_would_lead(monkeypatch: pytest.MonkeyPatch, capsys):
    for name in ("PG_DSN", "PGLEADERLOCK_URL"):
        monkeypatch.delenv(name, raising=False)
    assert invoke(["exec", "--role", "a", "--", "true"]) == exit_codes.USAGE
    assert "the one that all hosts share" in capsys.readouterr().err


def test_the_help_says_what_the_codes_mean(capsys: pytest.CaptureFixture[str]):
    assert invoke(["exec", "--help"]) == 0
    shown = capsys.readouterr().out
    for code in (exit_codes.EXEC_LOST, exit_codes.EXEC_UNREACHABLE, exit_codes.EXEC_NOT_ACQUIRED):
        assert f"  {code} " in shown
