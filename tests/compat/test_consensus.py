"""The seed's API, thin over the engine: its semantics with a backend of three plain verbs, and with built-in ones."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pgleaderlock import ConnectionError, LeadershipLost, LockError, LockState, open_backend, sync
from pgleaderlock.compat.consensus import Backend, Config, Manager
from pgleaderlock.stores.kubernetes import new_from_env
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import Cluster
from pgleaderlock.stores.memory import MemoryStore
from pgleaderlock.stores.record import RecordBackend
from tests.support.doubles import until

pytestmark = pytest.mark.virtual_time


class Plain:
    """Three verbs over a dictionary, as a user would write them in ten minutes."""

    def __init__(self, shelf: dict[str, Any]) -> None:
        self.shelf = shelf
        self.calls: list[str] = []
        self.failures: dict[str, list[Exception]] = {}

    def _called(self, verb: str) -> None:
        self.calls.append(verb)
        if self.failures.get(verb):
            raise self.failures[verb].pop(0)

    async def try_acquire(self, identity: str, lease_s: float) -> bool:
        self._called("try_acquire")
        now = asyncio.get_running_loop().time()
        if self.shelf.get("holder") not in (None, identity) and now < self.shelf["until"]:
            return False
        self.shelf.update(holder=identity, until=now + lease_s)
        return True

    async def renew(self, identity: str, lease_s: float) -> None:
        self._called("renew")
        if self.shelf.get("holder") != identity:
            raise LeadershipLost(f"{self.shelf.get('holder')} holds it")
        self.shelf["until"] = asyncio.get_running_loop().time() + lease_s

    async def release(self, identity: str) -> None:
        self._called("release")
        if self.shelf.get("holder") == identity:
            self.shelf["holder"] = None


def make(shelf: dict[str, Any], identity: str) -> tuple[Manager, Plain]:
    backend = Plain(shelf)
    return Manager(backend, Config(identity), clock=asyncio.get_running_loop().time), backend


def test_the_defaults_are_the_seed_s():
    config = Config("me")
    assert (config.lease_duration_s, config.renew_interval_s, config.retry_interval_s) == (15.0, 5.0, 2.0)


@pytest.mark.parametrize(
    "settings",
    [{"identity": ""}, {"identity": "x", "lease_duration_s": 0}, {"identity": "x", "renew_interval_s": 10.0}],
)
def test_a_config_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match=r"identity|lease_duration_s"):
        Config(**settings)


def test_a_backend_without_the_three_verbs_is_refused():
    with pytest.raises(TypeError, match="try_acquire, renew and release"):
        Manager(object(), Config("me"))  # type: ignore[arg-type]


async def test_start_returns_at_once_with_a_lease_that_answers_and_can_be_waited_for():
    manager, backend = make({}, "a")
    assert isinstance(backend, Backend)
    lease = manager.start()
    assert not lease.is_leader()
    assert await lease.wait_for_leadership(10)
    assert lease.is_leader()
    await manager.stop()
    assert not lease.is_leader()
    assert backend.calls[-1] == "release"


async def test_the_lease_can_be_asked_from_any_thread():
    manager, _ = make({}, "a")
    async with manager as lease:
        await lease.wait_for_leadership(10)
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(lease.is_leader()))
        thread.start()
        thread.join()
        assert answers == [True]


async def test_a_second_instance_waits_and_takes_over_after_a_stop():
    shelf: dict[str, Any] = {}
    first, _ = make(shelf, "a")
    second, _ = make(shelf, "b")
    async with first as lease, second as other:
        await lease.wait_for_leadership(10)
        assert not await other.wait_for_leadership(100)
        await first.stop()
        assert await other.wait_for_leadership(2.1)


async def test_a_single_failed_renewal_keeps_leadership():
    manager, backend = make({}, "a")
    async with manager as lease:
        await lease.wait_for_leadership(10)
        backend.failures["renew"] = [OSError("a hiccup")]
        for _ in range(200):
            await asyncio.sleep(0.1)
            assert lease.is_leader()
        assert backend.failures["renew"] == []


async def test_several_failed_renewals_end_it_and_it_is_tried_for_again():
    manager, backend = make({}, "a")
    errors: list[Exception] = []
    manager.on_error(errors.append)
    async with manager as lease:
        await lease.wait_for_leadership(10)
        lost = asyncio.Event()
        manager.election.on_lost(lost.set)
        backend.failures["renew"] = [OSError("down")] * 100
        async with asyncio.timeout(15):
            await lost.wait()
        assert any("down" in str(error) for error in errors)
        backend.failures.clear()
        assert await lease.wait_for_leadership(20)


async def test_another_in_our_place_ends_it_at_the_next_renewal():
    shelf: dict[str, Any] = {}
    manager, _ = make(shelf, "a")
    async with manager as lease:
        await lease.wait_for_leadership(10)
        shelf.update(holder="b", until=float("inf"))
        await until(lambda: not lease.is_leader(), timeout_s=5.5)


async def test_errors_of_the_backend_are_reported_and_retried_and_never_a_crash():
    manager, backend = make({}, "a")
    errors: list[Exception] = []
    manager.on_error(errors.append)
    backend.failures["try_acquire"] = [OSError("one"), ValueError("two"), RuntimeError("three")]
    async with manager as lease:
        assert await lease.wait_for_leadership(60)
    assert [str(error.__cause__) for error in errors] == ["one", "two", "three"]


async def test_cancelling_releases():
    shelf: dict[str, Any] = {}
    manager, _ = make(shelf, "a")
    lease = manager.start()
    await lease.wait_for_leadership(10)
    run = manager.election._running
    assert run is not None
    run.task.cancel()
    await asyncio.wait({run.task})
    assert shelf["holder"] is None
    assert not lease.is_leader()


async def test_a_release_that_fails_is_raised_by_stop():
    manager, backend = make({}, "a")
    lease = manager.start()
    await lease.wait_for_leadership(10)
    backend.failures["release"] = [OSError("gone")]
    with pytest.raises(LockError, match="gone"):
        await manager.stop()
    assert not lease.is_leader()


async def test_a_backend_that_hangs_does_not_hang_the_manager():
    class Hanging(Plain):
        async def renew(self, identity: str, lease_s: float) -> None:
            await asyncio.get_running_loop().create_future()

    manager = Manager(Hanging({}), Config("a"), clock=asyncio.get_running_loop().time)
    async with manager as lease:
        lost = asyncio.Event()
        manager.election.on_lost(lost.set)
        await lease.wait_for_leadership(10)
        async with asyncio.timeout(14):
            await lost.wait()


async def test_a_built_in_backend_is_used_by_its_url_or_as_it_is():
    clock = asyncio.get_running_loop().time
    first = Manager("memory://consensus", Config("a"), clock=clock)
    second = Manager(open_backend("memory://consensus", identity="b", clock=clock), Config("b"), clock=clock)
    async with first as lease, second as other:
        assert await lease.wait_for_leadership(10)
        assert lease.token == 0
        assert not await other.wait_for_leadership(60)
        await first.stop()
        assert await other.wait_for_leadership(1)
        assert other.token == 1


def record_backend(manager: Manager) -> RecordBackend:
    backend = manager.election._backend
    assert isinstance(backend, RecordBackend)
    return backend


@pytest.mark.parametrize(
    "make_backend",
    [
        pytest.param(lambda: "memory://obeyed", id="a URL"),
        pytest.param(lambda: open_backend("memory://obeyed", lease_s=99.0, identity="else"), id="open_backend"),
        pytest.param(lambda: open_backend("file:///tmp/obeyed", lease_s=99.0), id="a file"),
        pytest.param(
            lambda: new_from_env("obeyed", client=HttpLeaseClient(Cluster("http://127.0.0.1:1")), lease_s=99),
            id="new_from_env",
        ),
    ],
)
def test_a_built_in_backend_has_the_identity_and_the_lease_of_the_config(make_backend: Callable[[], Any]):
    config = Config("me", lease_duration_s=6.0)
    for manager in (Manager(make_backend(), config), sync.Manager(make_backend(), config)._manager):
        backend = record_backend(manager)
        assert backend.lease_s == 6.0
        assert backend.identity.startswith("me_")
        assert manager.election.health_interval_s == 2.0


def test_a_backend_made_by_hand_must_have_the_lease_of_the_config():
    with pytest.raises(ValueError, match="a lease of 99 s and the Config one of 15 s"):
        Manager(RecordBackend(MemoryStore("by-hand"), lease_s=99.0), Config("me"))
    assert record_backend(Manager(RecordBackend(MemoryStore("by-hand"), lease_s=15.0), Config("me"))).lease_s == 15.0


def test_a_manager_for_code_that_blocks():
    first = sync.Manager("memory://blocking", Config("a", retry_interval_s=0.05))
    errors: list[Exception] = []
    first.on_error(errors.append)
    with first as lease, sync.Manager("memory://blocking", Config("b", retry_interval_s=0.05)) as other:
        assert lease.wait_for_leadership(30)
        assert lease.is_leader()
        assert lease.token is not None
        assert not other.is_leader()
        first.stop()
        assert not lease.is_leader()
        assert other.wait_for_leadership(30)
    assert errors == []
    assert not other.is_leader()
    assert first.election.state is LockState.STOPPED


async def test_an_answer_that_is_no_yes_or_no_is_an_error_and_not_a_yes():
    class Wordy(Plain):
        async def try_acquire(self, identity: str, lease_s: float) -> bool:
            return "held by another"  # type: ignore[return-value]

    manager = Manager(Wordy({}), Config("a"), clock=asyncio.get_running_loop().time)
    errors: list[Exception] = []
    manager.on_error(errors.append)
    async with manager as lease:
        assert not await lease.wait_for_leadership(10)
    assert "True or False" in str(errors[0])


async def test_two_processes_of_one_pod_name_are_two_candidates():
    clock = asyncio.get_running_loop().time
    managers = [Manager("memory://pods", Config("pod-0"), clock=clock) for _ in range(2)]
    async with managers[0] as first, managers[1] as second:
        assert await first.wait_for_leadership(10)
        assert not await second.wait_for_leadership(60)


# --- Requests that are given up, and arrive ---------------------------------------------------------------------------


class Late(Plain):
    """Each message that was sent arrives, ``delay_s`` later, whether its sender still waits for it or not."""

    delay_s = 0.0

    def __init__(self, shelf: dict[str, Any]) -> None:
        super().__init__(shelf)
        self.sent: list[str] = []

    async def _sent(self, verb: Any, *arguments: Any) -> Any:
        self.sent.append(verb.__name__)
        task = asyncio.ensure_future(self._arrive(verb, *arguments))
        task.add_done_callback(lambda done: done.exception())
        return await asyncio.shield(task)

    async def _arrive(self, verb: Any, *arguments: Any) -> Any:
        await asyncio.sleep(self.delay_s)
        return await verb(*arguments)

    async def try_acquire(self, identity: str, lease_s: float) -> bool:
        return bool(await self._sent(super().try_acquire, identity, lease_s))

    async def renew(self, identity: str, lease_s: float) -> None:
        await self._sent(super().renew, identity, lease_s)

    async def release(self, identity: str) -> None:
        await self._sent(super().release, identity)


async def test_a_release_that_arrives_late_does_not_end_our_next_term():
    shelf: dict[str, Any] = {}
    clock = asyncio.get_running_loop().time
    ours, theirs = Late(shelf), Late(shelf)
    a, b = Manager(ours, Config("a"), clock=clock), Manager(theirs, Config("b"), clock=clock)
    async with a as first:
        await first.wait_for_leadership(10)
        async with b as second:
            ours.failures["renew"] = [ConnectionRefusedError()] * 100
            await asyncio.sleep(6.0)
            ours.delay_s = 4.0
            await until(lambda: "release" in ours.sent)
            ours.failures.clear()
            await asyncio.sleep(0.5)
            ours.delay_s = 0.0
            for _ in range(300):
                await asyncio.sleep(0.1)
                assert not (first.is_leader() and second.is_leader())


async def test_a_renewal_that_is_refused_by_its_answer_ends_the_term():
    shelf: dict[str, Any] = {}
    manager, backend = make(shelf, "a")

    async def renew(identity: str, lease_s: float) -> bool:
        return bool(shelf["holder"] == identity)

    backend.renew = renew  # type: ignore[method-assign,assignment]
    async with manager as lease:
        await lease.wait_for_leadership(10)
        shelf.update(holder="b", until=asyncio.get_running_loop().time() + 1000)
        await asyncio.sleep(6)
        assert not lease.is_leader()


async def test_stop_raises_what_the_release_of_a_built_in_store_failed_with(monkeypatch: pytest.MonkeyPatch):
    manager = Manager("memory://stop-raises", Config("a"))
    lease = manager.start()
    await lease.wait_for_leadership(10)

    async def fail(*_: Any) -> None:
        raise ConnectionError("not written")

    monkeypatch.setattr(MemoryStore, "write", fail)
    with pytest.raises(ConnectionError, match="not written"):
        await manager.stop()


async def test_a_verb_that_does_not_end_when_cancelled_is_left_behind():
    manager, backend = make({}, "a")
    goes_on = asyncio.Event()

    async def renew(identity: str, lease_s: float) -> None:
        while not goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await goes_on.wait()

    backend.renew = renew  # type: ignore[method-assign]
    lease = manager.start()
    await lease.wait_for_leadership(10)
    await asyncio.sleep(20)
    assert not lease.is_leader() or "try_acquire" in backend.calls[1:]
    async with asyncio.timeout(20):
        await manager.stop()
    goes_on.set()


async def test_a_stop_that_was_cancelled_can_be_repeated():
    manager, _ = make({}, "a")
    manager.start()
    stopping = asyncio.create_task(manager.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    await manager.stop()
