"""Passwords that change: each new session asks for the current one, and no session needs the one before."""

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import ConnectionError, Election, LeaderGroup, LeaderLock, LockKey, LockState, open_backend, sync
from pgleaderlock.ops.registry import Registry
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.login import Login
from tests.support.doubles import until
from tests.support.passwords import GuardedServer, guarded_server
from tests.support.postgres import QUICK
from tests.support.shown_errors import everything_shown

NOWHERE = "postgresql://app@127.0.0.1:1/app"


@pytest.fixture
def guarded(server_folder_root: Path) -> Iterator[GuardedServer]:
    with guarded_server(server_folder_root) as server:
        yield server


def make(guarded: GuardedServer, key: LockKey, password: Any = None) -> LeaderLock:
    password = guarded.one_time_password if password is None else password
    return LeaderLock(guarded.bare_url, key=key, password=password, settle_s=0, retry_strategy=QUICK, lease_s=6.0)


# --- A real server ---------------------------------------------------------------------------------------------------


async def test_a_leader_and_its_heir_go_on_while_every_session_has_a_password_of_its_own(
    guarded: GuardedServer, key: LockKey
) -> None:
    """Each password is refused as soon as another is asked for: one that is used again would not be accepted."""
    async with make(guarded, key) as leader:
        assert await leader.wait_for_leadership(60)
        async with make(guarded, key) as heir:
            await until(lambda: heir.place == "heir")
            await until(lambda: sessions(guarded) == 4)  # two of each
            token = leader.token
            assert leader.is_leader  # its sessions outlive the passwords that they began with
            asked = guarded.asked
            guarded.change()
            assert guarded.end_sessions() == 4
            await until(lambda: max(leader.token or 0, heir.token or 0) > (token or 0))  # of a new term
            await until(lambda: {leader.state, heir.state} == {LockState.LEADER, LockState.FOLLOWER})
            assert guarded.asked > asked


async def test_the_heir_s_second_session_comes_back_with_a_new_password(guarded: GuardedServer, key: LockKey) -> None:
    async with make(guarded, key) as leader:
        assert await leader.wait_for_leadership(60)
        async with make(guarded, key) as heir:
            await until(lambda: heir.place == "heir")
            await until(lambda: sessions(guarded) == 4)
            before = pids(guarded)
            guarded.run("SELECT pg_terminate_backend(%s)", max(before))  # the last one that was opened
            await until(lambda: sessions(guarded) == 4 and pids(guarded) != before)
            assert leader.is_leader


def pids(guarded: GuardedServer) -> set[Any]:
    return {pid for (pid,) in guarded.run("SELECT pid FROM pg_stat_activity WHERE usename = 'app'")}


def sessions(guarded: GuardedServer) -> int:
    return len(pids(guarded))


async def test_registry_schedule_group_and_rows_ask_too(guarded: GuardedServer) -> None:
    login = Login(guarded.bare_url, guarded.one_time_password)
    lock = LeaderLock(login, role="jobs", term_table=True, settle_s=0, retry_strategy=QUICK)
    loop, ran = asyncio.get_running_loop(), asyncio.Event()
    lock.every("1s", lambda: loop.call_soon_threadsafe(ran.set), name="job")
    registry = Registry(login, node="n")
    registry.attach(lock)
    async with registry, lock:
        await asyncio.wait_for(ran.wait(), 60)
        assert guarded.end_sessions() >= 3
        token = lock.token or 0
        await until(lambda: (lock.token or 0) > token)
        shown = "SELECT count(*) FROM pgleaderlock.history WHERE token = %s"
        await until(lambda: guarded.run(shown, lock.token) != [(0,)])  # by a new session of the registry
    async with LeaderGroup(guarded.bare_url, ["a"], password=guarded.one_time_password, settle_s=0) as group:
        assert await group["a"].wait_for_leadership(60)
    for scheme in ("postgresql", "postgresql+lease"):
        url = guarded.bare_url.replace("postgresql", scheme, 1)
        backend = open_backend(url, role="rows", lease_s=6.0, password=guarded.one_time_password)
        async with Election(backend, retry_strategy=QUICK) as election:
            assert await election.wait_for_leadership(60)


def test_the_blocking_lock_asks_a_plain_function_in_a_thread(guarded: GuardedServer, key: LockKey) -> None:
    asked_in = set()

    def ask() -> str:
        asked_in.add(threading.current_thread().name)
        return guarded.one_time_password()

    with sync.LeaderLock(guarded.bare_url, key=key, password=ask, settle_s=0, retry_strategy=QUICK) as lock:
        assert lock.wait_for_leadership(60)
    assert asked_in == {"pgleaderlock-password"}


async def test_a_coroutine_function_is_awaited_and_so_is_what_a_plain_one_returns(
    guarded: GuardedServer, key: LockKey
) -> None:
    async def ask() -> str:
        return await asyncio.to_thread(guarded.one_time_password)

    for password in (ask, functools.partial(lambda fn: fn(), ask)):
        async with make(guarded, key, password) as lock:
            assert await lock.wait_for_leadership(60)


async def test_a_function_that_blocks_does_not_block_the_event_loop(guarded: GuardedServer, key: LockKey) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def ask() -> str:
        entered.set()
        assert go_on.wait(60)  # set by the event loop, which could not if it waited here
        return guarded.password

    lock = make(guarded, key, ask)
    start = asyncio.ensure_future(lock.start())
    await until(entered.is_set)
    go_on.set()
    await start
    assert await lock.wait_for_leadership(60)
    await lock.shutdown()


async def test_an_error_of_the_function_is_reported_and_the_connection_is_tried_again(
    guarded: GuardedServer, key: LockKey
) -> None:
    errors: list[Exception] = []
    answers: list[Callable[[], str]] = [fail_to_ask, lambda: "not-the-password-s3cret"]

    def ask() -> str:
        return answers.pop(0)() if answers else guarded.password

    lock = make(guarded, key, ask)
    lock.on_error(errors.append)
    async with lock:
        assert await lock.wait_for_leadership(60)
    first, second = errors[:2]
    assert isinstance(first, ConnectionError)
    assert f"cannot connect for lock {key.described}" in str(first)
    assert "user=app" in str(first)
    assert "the function of password= raised RuntimeError: no credentials in this place" in str(first)
    assert "password authentication failed" in str(second)
    assert "s3cret" not in "".join(map(everything_shown, errors))


def fail_to_ask() -> str:
    secret = "s3cret"
    raise RuntimeError("no credentials in this place") from ValueError(secret)


async def test_a_password_file_of_libpq_is_read_for_each_session(
    guarded: GuardedServer, key: LockKey, tmp_path: Path
) -> None:
    """The way of the command line and of the configuration file, which have no function."""
    passfile = tmp_path / "pgpass"

    def rotate() -> None:
        guarded.change("simple" + str(sessions(guarded)))
        passfile.write_text(f"*:*:*:app:{guarded.password}\n")
        passfile.chmod(0o600)

    rotate()
    url = f"{guarded.bare_url.replace('postgresql', 'postgresql+asyncpg')}?passfile={passfile}"
    async with LeaderLock(url, key=key, settle_s=0, retry_strategy=QUICK) as lock:
        assert await lock.wait_for_leadership(60)
        rotate()
        token = lock.token
        assert guarded.end_sessions() == 2
        await until(lambda: lock.is_leader and lock.token != token)


# --- Bounds and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_function_that_does_not_return_is_given_less_time_than_connecting_has() -> None:
    calls = []

    async def never() -> str:
        calls.append(1)
        await asyncio.Event().wait()
        raise AssertionError("never")

    connector = Connector("lock x", dsn=Login(NOWHERE, never), lease_s=15.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConnectionError, match=r"password= has not returned within 8 s"):
        await connector.connect()
    assert loop.time() - began == pytest.approx(8.0)


async def test_a_thread_that_hangs_is_waited_for_and_none_is_started_beside_it() -> None:
    calls, go_on = [], threading.Event()

    def hang() -> str:
        calls.append(1)
        go_on.wait(60)
        return "x"

    connector = Connector("lock x", dsn=Login(NOWHERE, hang), lease_s=0.05)
    for _ in range(3):
        with pytest.raises(ConnectionError, match="has not returned within"):
            await connector.connect()
    assert len(calls) == 1
    go_on.set()


@pytest.mark.parametrize(
    ("connect_timeout", "lease_s", "bound_s"),
    [("", None, 8.0), ("", 15.0, 8.0), ("", 3.0, 1.6), ("5", 60.0, 4.0), ("0", None, 8.0)],
)
def test_the_bound_follows_from_the_time_to_connect_and_the_lease(
    connect_timeout: str, lease_s: float | None, bound_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    assert _dsn.password_s({"connect_timeout": connect_timeout}, lease_s) == pytest.approx(bound_s)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "returned None"),
        (b"s3cret", "returned bytes, not str"),
        ("", "returned an empty text"),
        ("s3cret\n", r"line break around it, or with a NUL: strip\(\) what was read"),
        ("s3cret\0", "with a NUL"),
        ("s3cret\udcff", "a text that is not UTF-8"),
    ],
)
async def test_what_is_no_password_is_refused_without_showing_it(answer: Any, why: str) -> None:
    with pytest.raises(ConnectionError, match=why) as refused:
        await Connector("lock x", dsn=Login(NOWHERE, lambda: answer)).connect()
    shown = everything_shown(refused.value).replace(__file__, "")
    assert "s3cret" not in shown


async def test_a_fixed_password_that_is_not_utf_8_is_not_shown() -> None:
    with pytest.raises(ConnectionError) as refused:
        await Connector("lock x", dsn=Login(NOWHERE, "s3cret\udcff")).connect()
    assert "s3cret" not in everything_shown(refused.value).replace(__file__, "").partition("Traceback")[0]
    assert refused.value.__cause__ is None


async def test_a_password_that_a_driver_repeats_is_taken_out() -> None:
    connector = Connector("lock x", dsn=Login(NOWHERE, lambda: "s3cret"))
    with suppress(ConnectionError):
        await connector.connect()
    assert "***" in str(connector.explain("x", ValueError("bad s3cret")))


def test_a_fixed_password_is_taken_too() -> None:
    assert _dsn.check_dsn(Login(NOWHERE, "s3cret"))["password"] == "s3cret"
    assert "s3cret" not in repr(Login(NOWHERE, "s3cret"))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: LeaderLock("postgresql://u:p@h/db", 1, 2, password=str), "dsn has a password already"),
        (lambda: LeaderLock("", 1, 2, password=str, connect_fn=lambda: None), "no effect beside connect_fn"),  # type: ignore[arg-type,return-value]
        (lambda: LeaderLock(NOWHERE, 1, 2, password=5), "password must be a str or a function, not int"),  # type: ignore[arg-type]
        (lambda: LeaderLock(Login(NOWHERE, str), 1, 2, password=str), "given twice"),
        (lambda: Login(Login(NOWHERE, str), str), "must not be another Login"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Callable[[], object], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        wrong()
