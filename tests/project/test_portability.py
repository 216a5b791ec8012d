"""What works without POSIX, in a process from which its modules and functions were taken.

It shows that the library asks for none of them where it says that it works. It does not show Windows: paths, sockets,
signals and psycopg there are other programs. Nothing of this project has been run on Windows or macOS here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Postgres

# uvloop asks for POSIX itself, and does not exist on Windows. Each test starts a process.
pytestmark = [pytest.mark.asyncio_loop, pytest.mark.slow]

_WITHOUT_POSIX = """
# First what asks for POSIX by itself here, and is another program on Windows: parts of Python, and the driver.
import asyncio, functools, multiprocessing.util, os, select, signal, socket, subprocess, sys, tempfile, time, psycopg
socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for module, names in (
    (os, "fork forkpty register_at_fork geteuid getuid getgid setsid killpg getpgrp chown fchown fchmod pread mkfifo "
         "O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_DIRECTORY waitid wait4 sched_getaffinity"),
    (select, "poll epoll POLLIN POLLHUP POLLERR POLLNVAL POLLRDHUP POLLOUT"),
    (signal, "SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGTSTP SIGCONT SIGCHLD SIGTTOU SIGTTIN pthread_sigmask"),
    (socket, "AF_UNIX SO_PEERCRED MSG_DONTWAIT"),
    (time, "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
asyncio.SelectorEventLoop.add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
import selectors
selectors.DefaultSelector = selectors.SelectSelector
"""


def run(program: str, *arguments: str) -> str:
    words = [sys.executable, "-c", _WITHOUT_POSIX + program, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_name_of_the_package_can_be_imported():
    program = (
        "import pgleaderlock, pgleaderlock.sync, pgleaderlock.testing\n"
        "import pgleaderlock.ops.metrics, pgleaderlock.ops.otel\n"
        "import pgleaderlock.ops.registry.registry, pgleaderlock.ops.config, pgleaderlock.ops.dashboard\n"
        "import pgleaderlock.stores.kubernetes, pgleaderlock.stores.memory, pgleaderlock.integrations.starlette\n"
        "import pgleaderlock.integrations.pytest_plugin, pgleaderlock.postgres.doctor\n"
        "print(all(getattr(pgleaderlock, name) for name in pgleaderlock.__all__))\n"
    )
    assert run(program).strip() == "True"


@pytest.mark.parametrize(
    "module", ["pgleaderlock.stores.file.backend", "pgleaderlock.stores.nfs", "pgleaderlock.testing.embedded"]
)
def test_what_needs_posix_says_so(module: str):
    program = (
        "import importlib\n"
        "from pgleaderlock.errors import MissingExtra\n"
        "try: importlib.import_module(sys.argv[1])\n"
        "except MissingExtra as error: print(error)\n"
    )
    said = run(program, module)
    assert "this system" in said or "POSIX" in said, said


_ELECTION = Path(__file__).parents[2] / "tools" / "portable_election.py"


def test_an_election_on_postgresql_over_tcp_needs_no_posix(postgres: Postgres):
    program = f"os.environ['PG_DSN'] = sys.argv[1]\n{_ELECTION.read_text(encoding='utf-8')}"
    assert run(program, postgres.tcp_dsn).split() == ["asyncio", "session_terminated", "blocking", "session_terminated"]


_LOOK = """
from pgleaderlock.postgres._hangup import HangupProbe
ours, theirs = socket.socketpair()
probe = HangupProbe(ours.fileno())
seen = [probe.has_ended]
theirs.send(b"Z\\0\\0\\0\\5I")
seen.append(probe.has_ended)  # an answer that is not read yet
ours.recv(100)
fields = b"SFATAL\\0VFATAL\\0C57P01\\0\\0"
theirs.send(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
seen.append(probe.has_ended)  # announced
ours.recv(100)
seen.append(probe.has_ended)
theirs.close()
seen.append(probe.has_ended)
probe.close()
print(*seen)
"""


def test_the_end_of_a_session_is_seen_without_poll():
    assert run(_LOOK).split() == ["False", "False", "True", "False", "True"]


def test_an_election_in_memory_needs_no_posix():
    program = (
        "from pgleaderlock import Election, open_backend\n"
        "async def main():\n"
        "    async with Election(open_backend('memory://portable')) as lock:\n"
        "        await lock.wait_for_leadership()\n"
        "        print(lock.is_leader)\n"
        "asyncio.run(main())\n"
    )
    assert run(program).strip() == "True"
