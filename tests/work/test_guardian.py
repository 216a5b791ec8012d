"""The guardian, spoken to as its wrapper does: over a socket, as a process of its own. Times are the test's own."""

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.work.exec import family, guardian
from pgleaderlock.work.exec import guardian_client as client
from tests.support.guardian import is_alive

# Not with -I -S, as it is started otherwise: so that its lines can be counted.
LAUNCH = (sys.executable, client.LAUNCH[-1])
PATIENCE_S = 20.0
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n"))
os.write(1, b"ready\\n")
while True:
    time.sleep(60)
"""


class Link:
    """One guardian, as its wrapper sees it."""

    def __init__(self, launch: tuple[str, ...] = LAUNCH) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(PATIENCE_S)
        with theirs:
            self.process = subprocess.Popen(
                [*launch, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, process_group=0
            )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self._lines = self.ours.makefile("rb")
        self.answers: list[dict[str, Any]] = []

    def order(self, do: str, *descriptors: int, **words: Any) -> None:
        text = json.dumps({"do": do, **words}).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.ours, [text], descriptors)
        else:
            self.ours.sendall(text)

    def start(self, *command: str, lifeline: tuple[int, ...] = (), **words: Any) -> None:
        order: dict[str, Any] = {
            "command": command,
            "environment": {},
            "unset": [],
            "ignored": [],
            "terminal": None,
            "kill_after_s": 0.0,
            "term_at": math.inf,
            "kill_at": math.inf,
        }
        self.order("start", *lifeline, **{**order, **words})

    def hear(self, what: str) -> dict[str, Any]:
        while True:
            line = self._lines.readline()
            assert line, f"the guardian ended without {what!r}; it said {self.answers}"
            self.answers.append(json.loads(line))
            if self.answers[-1]["is"] == what:
                return self.answers[-1]

    def read(self) -> str:
        return self.output.readline().decode().strip()

    def hang_up(self) -> None:
        self._lines.close()
        self.ours.close()


@pytest.fixture
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    made = Link(getattr(request, "param", LAUNCH))
    try:
        yield made
    finally:
        made.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            made.process.wait(PATIENCE_S)
        made.process.kill()
        made.process.wait()
        made.output.close()


def python(program: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", program


def until_dead(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_it_reads_the_clock_that_the_election_reads():
    assert suspend_aware_clock() <= guardian.now() <= suspend_aware_clock()


def test_command_gets_our_environment_with_the_additions_and_its_status_is_reported(
    link: Link, monkeypatch: pytest.MonkeyPatch
):
    link.start("sh", "-c", 'echo "$ADDED/$HOME/$PATH"; exit 7', environment={"ADDED": "yes"}, unset=["HOME"])
    assert link.read() == f"yes//{os.environ['PATH']}"
    assert os.waitstatus_to_exitcode(link.hear("ended")["status"]) == 7
    assert link.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    "link",
    [client.LAUNCH, (sys.executable, "-c", "from pgleaderlock.work.exec._launch import launch; launch()")],
    indirect=True,
)
def test_however_it_is_launched_it_does_its_work(link: Link):
    link.start("sh", "-c", "exit 3")
    assert os.waitstatus_to_exitcode(link.hear("ended")["status"]) == 3


def test_command_that_cannot_be_executed_is_reported_with_its_reason(link: Link, tmp_path: Path):
    link.start(str(tmp_path / "nobody"))
    link.hear("ended")
    assert {"is": "refused", "errno": 2} in link.answers


def test_signals_are_passed_on_to_the_group_even_before_it_runs(link: Link):
    link.start(*python("import time; time.sleep(60)"))
    link.order("signal", number=signal.SIGUSR1)
    assert link.hear("ended")["status"] == signal.SIGUSR1


def test_signals_that_were_ignored_stay_so_and_no_others(link: Link):
    program = "import signal; print([signal.getsignal(n) == signal.SIG_IGN for n in (1, 12, 15)])"
    link.start(*python(program), ignored=[signal.SIGHUP])
    assert link.read() == "[True, False, False]"


CLOSED = (sys.executable, "-I", "-S", "-c", "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])")
CROWDED = (
    *(sys.executable, "-I", "-S", "-c"),
    """if True:
    import fcntl, os, resource, sys
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    control = fcntl.fcntl(int(sys.argv.pop()), fcntl.F_DUPFD, 1500)
    os.execv(sys.argv[1], [*sys.argv[1:], str(control)])
    """,
)
IN_ITS_PLACE = (
    *(sys.executable, "-I", "-S", "-c"),
    "import os, sys; os.dup2(int(sys.argv.pop()), 0); os.execv(sys.argv[1], [*sys.argv[1:], '0'])",
)


@pytest.mark.parametrize(
    "link",
    [(*how, *LAUNCH) for how in (CLOSED, CROWDED, IN_ITS_PLACE)],
    ids=["closed", "crowded", "in its place"],
    indirect=True,
)
def test_whatever_numbers_its_descriptors_have_it_listens_and_rests(link: Link):
    """Without a standard input, what it listens to must not get that number; and numbers may be high."""
    show = "import os, time; print(os.path.exists('/proc/self/fd/0'), os.getppid(), flush=True); time.sleep(1e6)"
    link.start(*python(show))
    has_input, guardian = link.read().split()
    assert has_input == str(link.process.args[4] == CROWDED[4])  # type: ignore[index]
    link.order("until", number=1, term_at=math.inf, kill_at=math.inf)
    link.hear("confirmed")
    used = _cpu_ticks(int(guardian))
    time.sleep(0.5)
    assert _cpu_ticks(int(guardian)) - used < 25
    link.order("end", kill_at=0.0)
    assert link.hear("ended")["status"] in {signal.SIGTERM, signal.SIGKILL}


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_every_renewal_is_answered_and_moves_the_end(link: Link):
    link.start(*python(STUBBORN))
    assert link.read() == "ready"
    soon = guardian.now() + 0.4
    link.order("until", number=1, term_at=soon, kill_at=soon)
    assert link.hear("confirmed") == {"is": "confirmed", "number": 1}
    link.order("until", number=2, term_at=soon + 300, kill_at=soon + 300)
    time.sleep(max(0.0, soon + 0.1 - guardian.now()))
    link.order("until", number=3, term_at=math.inf, kill_at=math.inf)
    while link.hear("confirmed")["number"] < 3:
        pass
    assert {"is": "expired"} not in link.answers


def test_without_news_it_asks_in_time_and_kills_in_time(link: Link):
    link.start(*python(STUBBORN))
    assert link.read() == "ready"
    term_at = guardian.now() + 0.1
    link.order("until", number=1, term_at=term_at, kill_at=term_at + 0.3)
    link.hear("expired")
    assert guardian.now() >= term_at
    assert link.read() == "asked"
    link.order("until", number=2, term_at=guardian.now() + 300, kill_at=guardian.now() + 300)  # too late
    assert link.hear("ended")["status"] == signal.SIGKILL
    assert guardian.now() >= term_at + 0.3


def test_loss_sends_the_stop_signal_at_once_and_kills_at_the_given_time(link: Link):
    link.start(*python(STUBBORN))
    assert link.read() == "ready"
    kill_at = guardian.now() + 0.2
    link.order("end", kill_at=kill_at)
    assert link.read() == "asked"
    assert link.hear("ended")["status"] == signal.SIGKILL
    assert guardian.now() >= kill_at


def test_stopped_command_is_continued_to_be_asked_and_its_stop_was_reported(link: Link):
    link.start(*python("import time; print('ready', flush=True); time.sleep(60)"))
    assert link.read() == "ready"
    link.order("signal", number=signal.SIGTSTP)
    assert link.hear("stopped")["number"] == signal.SIGTSTP
    link.order("end", kill_at=guardian.now() + 300)
    assert link.hear("ended")["status"] == signal.SIGTERM


def test_when_the_wrapper_dies_all_processes_are_killed_at_once(link: Link):
    link.start(*python(STUBBORN))
    assert link.read() == "ready"
    pid = link.hear("started")["pid"]
    link.hang_up()
    until_dead(pid)
    assert link.process.wait(PATIENCE_S) == 0


def test_a_wrapper_that_dies_before_its_order_leaves_nothing(link: Link):
    link.hang_up()
    assert link.process.wait(PATIENCE_S) == 0


def test_nothing_is_started_when_it_is_too_late_already(link: Link):
    link.start("sh", "-c", "echo started", term_at=guardian.now() - 1, kill_at=guardian.now() - 1)
    assert link.hear("ended")["status"] is None
    assert link.output.read() == b""


def test_what_the_command_leaves_behind_ends_with_it(link: Link):
    program = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else (os.setsid(), time.sleep(60))"
    link.start(*python(program), kill_after_s=300)
    left_behind = int(link.read())
    assert link.hear("ended")["status"] == 0
    assert not is_alive(left_behind)


def test_relatives_that_left_the_group_and_lost_their_parents_are_killed_too(link: Link):
    """Twice removed, in a session of its own, deaf, and a child of no process but the guardian."""
    program = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    link.start(*python(program))
    escaped = int(link.read())
    link.order("end", kill_at=guardian.now())
    link.hear("ended")
    assert not is_alive(escaped)


def test_a_process_whose_first_thread_has_ended_is_not_taken_for_dead(link: Link):
    """It looks like a zombie, and goes on."""
    program = """
import ctypes, os, signal, threading, time
read, write = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    def go_on():
        while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        os.write(1, b"%d\\n" % os.getpid())
        os.write(write, b".")
        time.sleep(60)
    threading.Thread(target=go_on).start()
    ctypes.CDLL(None).pthread_exit(None)
os.read(read, 1)
"""
    link.start(*python(program), kill_after_s=0.1)
    odd = int(link.read())
    link.hear("ended")
    assert not Path(f"/proc/{odd}").exists()


def test_lifeline_is_held_until_all_processes_are_dead_and_replaced_when_another_comes(link: Link):
    (first, first_end), (second, second_end) = socket.socketpair(), socket.socketpair()
    with first, second:
        with first_end, second_end:
            link.start(*python(STUBBORN), lifeline=(first_end.fileno(),))
            assert link.read() == "ready"
            holders = [str(f.readlink()) for f in Path(f"/proc/{link.hear('started')['pid']}/fd").iterdir()]
            assert f"socket:[{os.fstat(first_end.fileno()).st_ino}]" not in holders  # a command could keep the lock
            link.order("until", second_end.fileno(), number=1, term_at=math.inf, kill_at=math.inf)
            link.hear("confirmed")
        first.settimeout(PATIENCE_S)
        assert first.recv(1) == b""  # released, for the newer one
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.recv(1)
        link.order("end", kill_at=guardian.now())
        link.hear("ended")
        second.settimeout(PATIENCE_S)
        assert second.recv(1) == b""


def test_it_is_deaf_to_what_would_end_or_stop_it(link: Link):
    link.start(*python(STUBBORN))
    assert link.read() == "ready"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGQUIT):
        link.process.send_signal(number)
    link.order("until", number=5, term_at=math.inf, kill_at=math.inf)
    assert link.hear("confirmed")["number"] == 5


def test_the_command_dies_with_a_guardian_that_is_killed(link: Link):
    link.start(*python(STUBBORN))
    assert link.read() == "ready"
    pid = link.hear("started")["pid"]
    link.process.kill()
    until_dead(pid)


def test_descendants_are_found_and_never_mistaken_for_another():
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            member = next(one for one in family.descendants(os.getpid()) if one.pid == child.pid)
            assert member.parent == os.getpid()
            assert not member.is_dead
            assert child.pid in family.children()
            family.send(member._replace(started=member.started + 1), signal.SIGKILL)  # who had that number before
            assert child.poll() is None
            family.send(member, signal.SIGTERM)
            assert child.wait(PATIENCE_S) == -signal.SIGTERM
            family.send(member, signal.SIGTERM)  # gone: nothing happens
        finally:
            child.kill()


def test_without_proc_and_subreapers_no_process_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(family, "_PROC", "/nonexistent")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    assert family.descendants(1) == []
    assert family.children() == set()
    assert family.become_subreaper() is False
