"""What NFS does to a lock on a bad day, shown with a real server and real clients: see ``make test-nfs``.

    python tools/nfs_hosts.py run -- python -m pytest tests/stores/test_nfs_faults.py

Replies that are lost, requests that arrive when no process expects them any more, hosts that are cut off, and listings
that a client remembers for too long. Without the hosts of ``tools/nfs_hosts.py`` nothing here is collected.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock.stores.nfs import NotLockedError, TimeOutError
from tests.support.nfs_guest import EATER, EXPORT, FAULTY_HOST, HOSTS, V3, V4, Host, cut_off
from tests.support.nfs_reply_eater import Eater

LONG_S = 600.0  # a lifetime that no test waits for
USED_AND_COLLECTED = 20

# The hosts' part. Their processes answer one question at a time: whatever takes longer is done by a thread.
_SETUP = """
import threading
from pgleaderlock import open_backend
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.stores.nfs import Lock

class Keeper:
    "Has a lock, and shows signs of life until it is told to stop, or has lost it."

    def __init__(self, lock, every_s):
        self.lock, self.every_s, self.error, self.longest_s = lock, every_s, None, 0.0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True)
        self.thread.start()

    def keep(self):
        try:
            while not self.stopping.is_set():
                began = time.monotonic()
                self.lock.refresh()
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.stopping.wait(self.every_s)
        except Exception as error:
            self.error = error

    def stop(self):
        self.stopping.set()
        self.thread.join()
        return repr(self.error) if self.error else self.longest_s

class Waiter:
    "Wants a lock, and notes when it gets it."

    def __init__(self, lock, timeout_s):
        self.lock, self.timeout_s, self.got_at, self.error = lock, timeout_s, None, None
        self.thread = threading.Thread(target=self.wait, daemon=True)
        self.thread.start()

    def wait(self):
        try:
            self.lock.lock(timeout=self.timeout_s)
            self.got_at = suspend_aware_clock()
        except Exception as error:
            self.error = error

    def outcome(self):
        self.thread.join()
        return type(self.error).__name__ if self.error else self.got_at

def take_and_release(lock, times):
    for _ in range(times):
        lock.lock(timeout=20)
        lock.unlock()

def lock_in_a_child(path, lifetime_s):
    child = os.fork()
    if child == 0:
        try:
            Lock(path, lifetime=lifetime_s).lock(timeout=0)
        finally:
            os._exit(0)
    return child

def trusted_until(lock):
    return lock._made[0]._possession.trusted_until
"""


class Candidate:
    """A lock in a process on a host. What is asked of it is an expression, in which it is called ``lock``."""

    def __init__(self, host: Host, path: Path, name: str = "lock", lifetime_s: float = LONG_S) -> None:
        self._host, self._name = host, name
        host(f"{name} = Lock({str(path)!r}, lifetime={lifetime_s})\n")

    def __call__(self, source: str) -> Any:
        return self._host(source.replace("lock", self._name, 1))

    def send(self, source: str) -> None:
        self._host.send(source.replace("lock", self._name, 1))

    def receive(self) -> Any:
        return self._host.receive()

    @property
    def token(self) -> int | None:
        token: int | None = self("lock.token")
        return token


@dataclass(frozen=True)
class Stage:
    """The hosts, of which ``f`` has the way on which messages get lost, and a lock."""

    a: Host
    b: Host
    f: Host
    path: Path

    @property
    def is_v3(self) -> bool:
        return str(self.path).startswith(V3)

    def names(self, prefix: str = "") -> list[str]:
        """What is in the folder of the lock, as the server sees it."""
        return sorted(each.name for each in Path(EXPORT, self.path.name).iterdir() if each.name.startswith(prefix))


_numbers = count(1)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with Host(HOSTS[0]) as a, Host(HOSTS[1]) as b, Host(FAULTY_HOST) as f:
        for host in (a, b, f):
            host.send(_SETUP)
        for host in (a, b, f):
            host.receive()
        yield [a, b, f]


@pytest.fixture(params=[V3, V4], ids=["v3", "v4"])
def stage(hosts: list[Host], request: pytest.FixtureRequest) -> Stage:
    a, b, f = hosts
    return Stage(a, b, f, Path(request.param, f"fault-{next(_numbers)}"))


# --- Replies that are lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["eat", "repeat"])
@pytest.mark.parametrize("operation", ["LINK", "OPEN"])
def test_a_lock_is_acquired_once_though_the_reply_was_lost(stage: Stage, verb: str, operation: str):
    """The repeated request is answered that the name exists, on NFSv3: by ourselves, as it turns out."""
    faulty, other = Candidate(stage.f, stage.path), Candidate(stage.a, stage.path)
    with Eater(EATER, f"{verb} {operation}") as eater:
        faulty.send("lock.lock(timeout=20)")
        eater.wait_for("eaten")
        faulty.receive()
    assert faulty("lock.is_locked")
    assert faulty.token == 0
    assert stage.names("epoch") == ["epoch.0"]
    with pytest.raises(TimeOutError):
        other("lock.lock(timeout=0.5)")
    faulty("lock.unlock()")
    other("lock.lock(timeout=5)")
    assert other.token == 1


@pytest.mark.parametrize("verb", ["eat", "repeat"])
def test_a_lock_is_released_though_the_reply_was_lost(stage: Stage, verb: str):
    """The repeated request finds nothing to rename."""
    faulty, other = Candidate(stage.f, stage.path), Candidate(stage.a, stage.path)
    faulty("lock.lock(timeout=5)")
    with Eater(EATER, f"{verb} RENAME") as eater:
        faulty.send("lock.unlock()")
        eater.wait_for("eaten")
        faulty.receive()
    assert faulty.token is None
    other("lock.lock(timeout=5)")
    assert other.token == 1
    assert stage.names("released") == ["released.0"]
    with pytest.raises(NotLockedError):
        faulty("lock.unlock()")
    assert other("lock.is_locked")


def test_a_claim_is_withdrawn_though_the_reply_was_lost(stage: Stage):
    """And nothing is left of it, as there would be of a file that is open: a client's kernel would rename it first."""
    faulty, other = Candidate(stage.f, stage.path), Candidate(stage.a, stage.path)
    other("lock.lock(timeout=5)")
    with Eater(EATER, "eat REMOVE") as eater:
        faulty.send("lock.lock(timeout=0.2)")
        eater.wait_for("eaten")
        with pytest.raises(TimeOutError):
            faulty.receive()
    assert other("lock.is_locked")
    left = [name for name in stage.names() if not name.startswith("claim|seen|")]  # a note for the next process
    assert len(left) == 2  # the holder's claim and its epoch


def test_old_epochs_are_collected_though_the_reply_was_lost(stage: Stage):
    faulty = Candidate(stage.f, stage.path)
    with Eater(EATER, "eat REMOVE") as eater:
        faulty.send(f"take_and_release(lock, {USED_AND_COLLECTED})")
        eater.wait_for("eaten")
        faulty.receive()
    faulty("lock.lock(timeout=5)")
    assert faulty.token == USED_AND_COLLECTED
    assert len(stage.names()) < 20


# --- Requests that arrive late ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("others_before", [0, USED_AND_COLLECTED])
def test_a_late_link_of_one_who_is_still_there_is_given_up(stage: Stage, others_before: int):
    """Whether its number is in use, or was used, collected, and is made anew by it."""
    late, other = Candidate(stage.f, stage.path), Candidate(stage.a, stage.path)
    with Eater(EATER, "hold LINK") as eater:
        late.send("lock.lock(timeout=0)")
        eater.wait_for("held")
        other(f"take_and_release(lock, {others_before})")
        other("lock.lock(timeout=5)")
        assert ("epoch.0" in stage.names()) == (others_before == 0)
        eater.release()
        with pytest.raises(TimeOutError):
            late.receive()
    assert ("epoch.0" in stage.names()) == (others_before == 0)
    assert late.token is None
    assert other("lock.is_locked")
    other("lock.unlock()")
    late("lock.lock(timeout=5)")
    assert late.token == others_before + 1


@pytest.mark.parametrize("others_before", [0, USED_AND_COLLECTED])
def test_late_link_of_a_dead_holder_misleads_no_candidate(stage: Stage, others_before: int):
    """No process gives it up, but it is an old number, or there is none."""
    holder, follower = Candidate(stage.a, stage.path), Candidate(stage.b, stage.path)
    with Eater(EATER, "hold LINK") as eater:
        doomed = stage.f(f"lock_in_a_child({str(stage.path)!r}, {LONG_S})")
        eater.wait_for("held")
        os.kill(doomed, signal.SIGKILL)
        stage.f(f"os.waitpid({doomed}, 0)")
        holder(f"take_and_release(lock, {others_before})")
        holder("lock.lock(timeout=5)")
        eater.release()
        time.sleep(0.3)
        if stage.is_v3:  # a session of NFSv4 may refuse what comes out of turn
            assert "epoch.0" in stage.names()
    assert holder("lock.is_locked")
    with pytest.raises(TimeOutError):
        follower("lock.lock(timeout=0.5)")
    holder("lock.unlock()")
    follower("lock.lock(timeout=5)")
    assert follower.token == others_before + 1
    follower("lock.unlock()")
    follower(f"take_and_release(lock, {USED_AND_COLLECTED})")
    assert "epoch.0" not in stage.names()


# --- Hosts that are cut off -------------------------------------------------------------------------------------------


def test_a_follower_that_was_cut_off_for_longer_than_a_lifetime_takes_nothing(hosts: list[Host]):
    """It has not seen a heartbeat for all that time, and knows that it has not looked.

    Nor does it keep the holder from its heartbeats: to a reader of a file that is not open for writing, an NFSv4
    server lends the file, and a process that wants to change it waits for the reader to give it back.
    """
    lifetime_s, quiet_s, cut_off_s = 6.0, 4.5, 7.0
    a, b, _ = hosts
    locks = [(Path(root, f"fault-{next(_numbers)}"), Path(root).name) for root in (V3, V4)]
    for path, name in locks:
        Candidate(a, path, f"held_{name}", lifetime_s)("lock.lock(timeout=5)")
    time.sleep(quiet_s)  # the server keeps a file open for a while after a write, and lends nothing meanwhile
    for path, name in locks:
        Candidate(b, path, f"wanted_{name}", lifetime_s)
        b(f"waiter_{name} = Waiter(wanted_{name}, {cut_off_s + 2.0})\n")
    time.sleep(0.3)
    with cut_off(b.name):
        for _, name in locks:
            a(f"keeper_{name} = Keeper(held_{name}, 0.5)\n")
        time.sleep(cut_off_s)
    outcomes = {name: b(f"waiter_{name}.outcome()") for _, name in locks}
    longest_s = {name: a(f"keeper_{name}.stop()") for _, name in locks}
    assert outcomes == {name: "TimeOutError" for _, name in locks}
    assert all(isinstance(each, float) and each < 2.0 for each in longest_s.values()), longest_s
    assert all(a(f"held_{name}.token") == 0 for _, name in locks)


def test_a_holder_that_is_cut_off_loses_the_lock_in_time_and_knows_it(hosts: list[Host]):
    """On either version the next one has it soon after a lifetime, and not before the trust of the first has ended."""
    lifetime_s = 2.0
    a, b, _ = hosts
    locks = [(Path(root, f"fault-{next(_numbers)}"), Path(root).name) for root in (V3, V4)]
    for path, name in locks:
        Candidate(a, path, f"held_{name}", lifetime_s)("lock.lock(timeout=5)")
        a(f"keeper_{name} = Keeper(held_{name}, 0.2)\n")
        Candidate(b, path, f"wanted_{name}", lifetime_s)
        b(f"waiter_{name} = Waiter(wanted_{name}, 20)\n")
    time.sleep(0.5)
    with cut_off(a.name):
        cut_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        got_at = {name: b(f"waiter_{name}.outcome()") for _, name in locks}
        trust = {name: a(f"trusted_until(held_{name})") for _, name in locks}
    for _, name in locks:
        assert isinstance(got_at[name], float), got_at
        assert trust[name] < got_at[name] < cut_at + lifetime_s + 1.5
        assert "NotLockedError" in str(a(f"keeper_{name}.stop()"))
        assert a(f"held_{name}.token") is None
        assert b(f"wanted_{name}.token") == 1


# --- Listings that are remembered -------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", ["lock", "election"])
def test_a_release_is_seen_though_the_server_s_clock_has_not_moved(stage: Stage, looks: str):
    """A client of NFSv3 decides by the folder's time whether what it remembers of it is still true."""
    for _ in range(10):
        follower = _released_in_the_tick_of_the_last_look(stage, looks)
        deadline = time.monotonic() + 2.0
        while not follower("is_seen()"):
            assert time.monotonic() < deadline, "a release was not seen"
            time.sleep(0.02)


def _released_in_the_tick_of_the_last_look(stage: Stage, looks: str) -> Host:
    """Have A release what B has just seen, within one tick of the server's clock, and return B."""
    for _ in range(300):
        path = stage.path.with_name(f"fault-{next(_numbers)}")
        at_server = Path(EXPORT, path.name)
        stage.b(_FOLLOWERS[looks].format(path=str(path), lifetime_s=LONG_S))
        Candidate(stage.a, path)("lock.lock(timeout=5)")
        assert not stage.b("is_seen()")
        stamp = at_server.stat().st_mtime_ns
        stage.a("lock.unlock()")
        if at_server.stat().st_mtime_ns == stamp:
            return stage.b
    raise AssertionError("the server's clock is finer than a message takes")


_FOLLOWERS = {
    "lock": """
lock = Lock({path!r}, lifetime={lifetime_s})
candidate = lock._ready()[0]
candidate.lay_claim()
is_seen = candidate.may_take
""",
    "election": """
store = open_backend("nfs://" + {path!r}, lease_s={lifetime_s})._store
is_seen = lambda: (record := store._look()) is not None and not record.holder
""",
}
