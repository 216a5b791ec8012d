"""The blocking API in processes that gevent has patched, each a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Postgres
from tests.support.processes import Process

pytestmark = pytest.mark.slow  # each starts a patched process

pytest.importorskip("gevent")

EXAMPLE = Path(__file__).parents[2] / "examples" / "gevent_worker.py"
_END_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_locks JOIN pg_stat_activity USING (pid)
 WHERE pg_locks.locktype = 'advisory' AND application_name LIKE '%%' || %s || '%%'
"""


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    """The server by name: looking it up takes a thread of the event loop, which is a greenlet there."""
    return postgres.tcp_dsn.replace("127.0.0.1", "localhost")


@pytest.fixture
def worker(dsn: str) -> Iterator[Process]:
    with start(dsn) as process:
        yield process


def start(dsn: str) -> Process:
    return Process(sys.executable, "-u", str(EXAMPLE), env={"PG_DSN": dsn})


def run(program: str, dsn: str, **env: str) -> str:
    """Run a program that is patched first, and return what it printed."""
    words = [sys.executable, "-c", f"from gevent import monkey\n{program}"]
    environment: dict[str, Any] = {**os.environ, "PG_DSN": dsn, **env}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_term_is_lost_and_another_begins_while_other_greenlets_run(worker: Process, postgres: Postgres):
    worker.wait_for("piece 3 of", 60)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        ended = connection.execute(_END_SESSIONS, (f":{worker.pid}",)).fetchone()
    assert ended is not None
    assert ended[0] >= 1
    worker.wait_for(f"lost by {worker.pid}", 60)
    worker.wait_for(f"process {worker.pid} leads", 60)
    worker.wait_for("served", 60)


def test_a_signal_hands_over_and_a_kill_fails_over_between_two_processes(worker: Process, dsn: str):
    worker.wait_for(f"process {worker.pid} leads", 60)
    with start(dsn) as second:
        second.wait_for("taking part", 60)
        second.wait_for("served 5 requests", 60)  # a follower that waits stops no greenlet
        worker.signal(signal.SIGTERM)
        worker.wait_for("stopped", 60)
        assert worker.wait() == 0
        second.wait_for(f"process {second.pid} leads", 60)
        with start(dsn) as third:
            third.wait_for("taking part", 60)
            second.signal(signal.SIGKILL)
            third.wait_for(f"process {third.pid} leads", 60)
            third.signal(signal.SIGTERM)
            assert third.wait() == 0


_LEAD = """
import os, sys, time
from pgleaderlock.sync import LeaderLock
lock = LeaderLock(os.environ["PG_DSN"], role=f"gevent-{os.getpid()}", lease_s=3, health_interval_s=0.5)
lock.on_acquired(lambda: print("acquired"))
lock.on_lost(lambda: print("lost"))
lock.on_released(lambda: print("released"))
with lock:
    assert lock.wait_for_leadership(timeout_s=60)
    BODY
"""


def lead(body: str) -> str:
    return "monkey.patch_all()\n" + _LEAD.replace("BODY", body.replace("\n", "\n    "))


def test_is_leader_ends_by_the_clock_while_a_greenlet_lets_no_other_run(postgres: Postgres):
    body = 'native = monkey.get_original("time", "sleep")\nnative(4)\nprint("leads", lock.is_leader)'
    said = run(lead(body), postgres.dsn).split("\n")
    assert said[:2] == ["acquired", "leads False"]


def test_is_leader_sees_the_end_of_its_session_before_any_other_greenlet_runs(postgres: Postgres, tmp_path: Path):
    end = tmp_path / "end.py"
    end.write_text(
        "import os, sys, psycopg\n"
        "with psycopg.connect(os.environ['PG_DSN'], autocommit=True) as connection:\n"
        f"    connection.execute('''{_END_SESSIONS}''', (':' + sys.argv[1],))\n"
    )
    # os.system() is not patched: nothing runs in this process meanwhile.
    body = 'os.system(f"{sys.executable} {os.environ[\'END\']} {os.getpid()}")\nprint("leads", lock.is_leader)'
    said = run(lead(body), postgres.dsn, END=str(end)).split("\n")
    assert said[:2] == ["acquired", "leads False"]


def test_a_connection_that_ends_without_a_message_is_seen_by_the_look_at_the_socket():
    program = (
        "monkey.patch_all()\n"
        "import gevent, socket\n"
        "from pgleaderlock.postgres._hangup import HangupProbe\n"
        "gevent.spawn(print, 'another greenlet ran')\n"
        "ours, theirs = socket.socketpair()\n"
        "probe = HangupProbe(ours.fileno())\n"
        "print(probe.has_ended)\n"
        "theirs.close()\n"
        "print(probe.has_ended)\n"
        "probe.close()\n"
    )
    assert run(program, "").splitlines()[:2] == ["False", "True"]  # the other greenlet runs at the end, if at all


def test_it_works_where_uvloop_is_the_policy(postgres: Postgres):
    pytest.importorskip("uvloop")
    program = "import asyncio, uvloop; asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n" + lead("pass")
    assert run(program, postgres.dsn).split() == ["acquired", "released"]


def test_the_api_can_be_used_again_at_once_after_its_last_use(postgres: Postgres):
    """asyncio knows one running event loop in a thread, and all greenlets are one thread to it."""
    program = (
        "monkey.patch_all()\n"
        "import os, gevent\n"
        "from pgleaderlock.sync import LeaderLock, find_leader\n"
        "dsn, role = os.environ['PG_DSN'], f'gevent-again-{os.getpid()}'\n"
        "def use():\n"
        "    find_leader(dsn, role)\n"
        "    own = f'{role}-{id(gevent.getcurrent())}'\n"
        "    with LeaderLock(dsn, role=own, settle_s=0).leading(): print('led')\n"
        "for _ in range(3): use()\n"
        "gevent.joinall([gevent.spawn(use) for _ in range(3)], raise_error=True)\n"
    )
    assert run(program, postgres.dsn).split() == ["led"] * 6


def test_a_library_that_was_imported_before_the_patch_works_too(postgres: Postgres):
    program = "import pgleaderlock.sync\n" + lead("print(lock.is_leader)")
    assert run(program, postgres.dsn).split() == ["acquired", "True", "released"]


@pytest.mark.parametrize("modules", ["select=False", "thread=False"])
def test_threads_without_select_and_select_without_threads_are_refused(postgres: Postgres, modules: str):
    program = (
        f"monkey.patch_all({modules})\n"
        "import os\n"
        "from pgleaderlock import LockError\n"
        "from pgleaderlock.sync import LeaderLock\n"
        "try: LeaderLock(os.environ['PG_DSN'], 1, 2).start()\n"
        "except LockError as error: print(error)\n"
    )
    assert "Call gevent.monkey.patch_all()" in run(program, postgres.dsn)
