"""An idle follower of any store wakes up at most twice a second, with the default times of a lease."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import FixedInterval
from pgleaderlock._base.files.watch import Watch
from pgleaderlock.errors import ConnectionError
from pgleaderlock.postgres._listener import Listener
from pgleaderlock.postgres.lease_table import LeaseRowStore
from pgleaderlock.postgres.session import Row
from pgleaderlock.stores.file.backend import FileStore, open_file
from pgleaderlock.stores.nfs import _watcher
from pgleaderlock.stores.nfs._watcher import FolderWatcher
from pgleaderlock.stores.nfs.backend import NfsStore
from pgleaderlock.stores.record import Claim, Record, RecordBackend
from pgleaderlock.testing.simulation._loop import NodeLoop
from pgleaderlock.testing.simulation.simulation import Simulation, quiet

MOST_PER_S = 2.0
LEASE_S = 15.0
BACK_OFF_S = 30.0  # to which the default one grows
MINUTE_S = 60.0


@pytest.fixture
def wake_ups(monkeypatch: pytest.MonkeyPatch) -> Counter[NodeLoop]:
    """How often each simulated process had nothing to do and then had: a timer, an answer, a notification."""
    counted: Counter[NodeLoop] = Counter()
    at_work: set[NodeLoop] = set()
    take_turn, arrange_turn = NodeLoop._take_turn, NodeLoop._arrange_turn

    def take(loop: NodeLoop) -> None:
        at_work.add(loop)
        try:
            take_turn(loop)
        finally:
            at_work.discard(loop)

    def arrange(loop: NodeLoop) -> None:
        had_turn = loop._turn_is_due
        arrange_turn(loop)
        counted[loop] += loop not in at_work and not had_turn and loop._turn_is_due

    monkeypatch.setattr(NodeLoop, "_take_turn", take)
    monkeypatch.setattr(NodeLoop, "_arrange_turn", arrange)
    return counted


@pytest.mark.parametrize(
    ("store", "lease_s"), [("postgres", LEASE_S), ("kubernetes", LEASE_S), ("file", LEASE_S), ("file", 3.0)]
)
def test_idle_candidates_wake_up_at_most_twice_a_second(store: str, lease_s: float, wake_ups: Counter[NodeLoop]):
    """With a lease of 3 s the leader renews every second, and each follower sees that."""
    settings: dict[str, object] = {"retry_strategy": FixedInterval(BACK_OFF_S), "health_interval_s": lease_s / 3}
    with quiet(3):
        simulation = Simulation(3, nodes=3, profile="calm", store=store, lease_s=lease_s, settings=settings)
        try:
            simulation.start()
            simulation.run(MINUTE_S)
            wake_ups.clear()
            simulation.run(2 * MINUTE_S)
            rates = [wake_ups[node.loop] / (2 * MINUTE_S) for node in simulation.nodes]
        finally:
            simulation.end()
    assert len(rates) == 3
    assert min(rates) > 0
    assert max(rates) <= MOST_PER_S


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_follower_of_a_file_polls_less_than_twice_a_second_without_inotify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Watch, "start", lambda *_: False)
    leader, follower = (FileStore(tmp_path / "lock", identity=name) for name in ("leader", "follower"))
    monkeypatch.setattr(asyncio, "to_thread", _at_once)
    await leader.open()
    seen = await leader.write(Claim("leader", 1, LEASE_S, is_new_term=True), None)
    looks = _counted(follower._view, "look")
    assert await follower.changed(seen, MINUTE_S) is None
    assert 0 < len(looks) <= MOST_PER_S * MINUTE_S
    await leader.close()
    await follower.close()


async def _at_once(step: Any, *arguments: Any) -> Any:
    return step(*arguments)


async def test_follower_of_a_file_sees_a_renewal_with_one_look_again(tmp_path: Path):
    """A holder's end is looked for again in a moment, but only when the kernel has reported that it may have ended."""
    path = tmp_path / "lock"
    leader, store = open_file(path, lease_s=60), FileStore(path, identity="follower", lease_s=60)
    await leader.open()
    grant = await leader.try_acquire()
    assert grant is not None
    seen = await store.read()
    assert await store.changed(seen, 0.1) is None  # and has looked whether the holder of a new term has ended
    assert not store._watch.may_have_ended
    looks = _counted(store._view, "is_abandoned")
    await leader.renew(grant)
    changed = await store.changed(seen, 30)
    assert changed is not None
    assert await store.changed(changed, 0.1) is None
    assert len(looks) <= 2  # when the wait begins, and when the notification of the renewal comes after all
    await leader.close()
    await store.close()


async def test_release_is_complete_when_a_follower_has_begun_the_next_term_at_once(tmp_path: Path):
    first, second = (open_file(tmp_path / "lock", lease_s=60) for _ in range(2))
    await first.open()
    await second.open()
    grant = await first.try_acquire()
    assert grant is not None
    store: Any = first._store
    publish = store._folder.publish

    def publish_and_be_overtaken(*arguments: Any) -> bool:
        is_published: bool = publish(*arguments)
        _in_another_thread(second.try_acquire())
        return is_published

    store._folder.publish = publish_and_be_overtaken
    await first.release(grant)
    holder = await first.holder()
    assert holder is not None
    assert holder.name == second.identity
    await second.close()
    await first.close()


def _in_another_thread(coroutine: Any) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(coroutine))
    thread.start()
    thread.join()


# --- NFS -------------------------------------------------------------------------------------------------------------


class Pauses:
    """The pauses of a watcher's thread, which take no time here."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self, timeout_s: float) -> _watcher._Reason:
        self.now_s += timeout_s
        return _watcher._Reason.OVER


async def test_follower_of_a_folder_looks_less_than_twice_a_second(tmp_path: Path):
    store, pause = NfsStore(tmp_path / "leader.lock", identity="follower"), Pauses()
    looks = _counted(store._folder, "look")
    waiter = _watcher._Waiter(None, asyncio.get_running_loop().create_future())
    desk = _watcher._Desk(waiter=waiter)
    while pause.now_s < MINUTE_S:
        assert store._watcher._step(desk, pause)
    # One wake-up for each look, and as much again for a heartbeat that is seen every 5 s and one attempt in 30 s.
    assert 0 < len(looks) <= 0.75 * MOST_PER_S * MINUTE_S


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[NfsStore, NfsStore]]:
    leader, follower = (NfsStore(tmp_path / "leader.lock", identity=name, poll_s=600) for name in ("first", "second"))
    yield leader, follower
    follower._watcher.stop()
    leader._watcher.stop()


async def test_follower_on_the_same_host_is_notified_of_a_release(
    folder: tuple[NfsStore, NfsStore], monkeypatch: pytest.MonkeyPatch
):
    leader, follower = folder
    held = await leader.write(Claim("first", 1, LEASE_S, is_new_term=True), None)
    seen = await follower.read()
    assert held is not None
    assert seen is not None
    has_looked = threading.Event()
    look = follower._folder.look

    def look_and_tell() -> Any:
        try:
            return look()
        finally:
            has_looked.set()

    monkeypatch.setattr(follower._folder, "look", look_and_tell)
    waiting = asyncio.create_task(follower.changed(seen, 60))
    await asyncio.to_thread(has_looked.wait, 60)
    await leader.write(Claim("", 1, LEASE_S, is_new_term=False), held)
    freed = await waiting  # long before a poll
    assert freed is not None
    assert freed.holder == ""
    await follower.close()
    await leader.close()


async def test_change_between_two_waits_is_not_missed(folder: tuple[NfsStore, NfsStore]):
    leader, follower = folder
    held = await leader.write(Claim("first", 1, LEASE_S, is_new_term=True), None)
    seen = await follower.read()
    assert await follower.changed(seen, 0.05) is None
    thread_s_desk = follower._watcher._desk
    await leader.write(Claim("", 1, LEASE_S, is_new_term=False), held)
    freed = await follower.changed(seen, 60)
    assert freed is not None
    assert freed.holder == ""
    assert follower._watcher._desk is thread_s_desk
    await follower.close()
    await leader.close()


async def test_error_of_a_look_reaches_the_follower_and_stopping_ends_the_thread(tmp_path: Path):
    store = NfsStore(tmp_path / "leader.lock", identity="second")

    def refuse() -> Record | None:
        raise PermissionError(13, "Permission denied")

    store._watcher = FolderWatcher(tmp_path, refuse, 600)
    with pytest.raises(ConnectionError, match="Permission denied"):
        await store.changed(None, 60)
    desk = store._watcher._desk
    assert desk is not None
    await store.close()
    assert desk.is_closed


async def test_where_no_thread_can_be_started_any_more_a_candidate_is_woken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("pgleaderlock._base.threads.start", refuse)
    assert await FolderWatcher(tmp_path, lambda: None, 600).changed(None) is None


async def test_without_a_descriptor_for_the_thread_the_error_is_raised_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_watcher, "_Bell", refuse)
    watcher = FolderWatcher(tmp_path, lambda: None, 600)
    for _ in range(2):  # and the next one starts another thread
        with pytest.raises(OSError, match="Too many open files"):
            await watcher.changed(None)


def test_thread_ends_when_no_candidate_has_waited_for_a_whole_pause(tmp_path: Path):
    watcher, desk, pause = FolderWatcher(tmp_path, lambda: None, 1.0), _watcher._Desk(), Pauses()
    assert not watcher._step(desk, pause)
    assert desk.is_closed


# --- Rows ------------------------------------------------------------------------------------------------------------


class Rows(LeaseRowStore):
    """A row that its leader renews."""

    def __init__(self, lease_s: float) -> None:
        super().__init__("host=nowhere", "role", lease_s=lease_s)
        self.lease_s = lease_s
        self.reads = 0

    async def _execute(self, statement: str, parameters: Any, *, can_lose: bool = False) -> Row | None:
        self.reads += 1
        return ("leader", 1, self.lease_s, int(asyncio.get_running_loop().time() / (self.lease_s / 3)), None, None)


@pytest.mark.virtual_time
@pytest.mark.parametrize("lease_s", [LEASE_S, 4.0])
@pytest.mark.parametrize("is_notified", [True, False])
async def test_follower_of_a_row_reads_it_less_than_once_a_second(
    is_notified: bool, lease_s: float, monkeypatch: pytest.MonkeyPatch
):
    """Each read wakes it up twice: for the timer and for the answer."""
    store = Rows(lease_s)
    if is_notified:
        monkeypatch.setattr(Listener, "is_listening", True)
        monkeypatch.setattr(store._listener, "wait", asyncio.sleep)
    else:
        monkeypatch.setattr(store._listener, "_is_possible", False)
    backend = RecordBackend(store, lease_s=lease_s, clock=asyncio.get_running_loop().time)
    for _ in range(10):
        assert await backend.try_acquire() is None
        await backend.wait(BACK_OFF_S)
    assert 0 < store.reads * 2 <= 0.9 * MOST_PER_S * 10 * BACK_OFF_S


def _counted(owner: Any, name: str) -> list[object]:
    """Return a list that grows with each call of this method."""
    calls: list[object] = []
    original = getattr(owner, name)

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return original(*arguments)

    setattr(owner, name, count)
    return calls
