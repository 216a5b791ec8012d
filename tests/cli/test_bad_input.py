"""Wrong arguments are refused by the constructor or the call that got them, in words, before anything runs."""

import pytest

from pgleaderlock import FixedInterval, LeaderLock, LockKey, LockState
from tests.support.doubles import DoubleConnection, connect_to, make_lock

DSN = "postgresql://app:s3cret@db/app"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("keys", "error", "word"),
    [
        ((2**31, 1), ValueError, "key1"),
        ((1, -(2**31) - 1), ValueError, "key2"),
        (("1", 1), TypeError, "key1"),
        ((1, 1.0), TypeError, "key2"),
        ((True, 1), TypeError, "bool"),
        ((1, False), TypeError, "bool"),
        ((1, None), ValueError, "key1 and key2"),
        ((None, 1), ValueError, "key1 and key2"),
        ((None, None), ValueError, "exactly one way"),
    ],
)
def test_keys_that_are_not_two_int4_are_refused(keys, error, word):
    with pytest.raises(error, match=word):
        LeaderLock(DSN, *keys)


@pytest.mark.parametrize(
    "naming",
    [{"key1": 1, "key2": 2, "role": "a"}, {"role": "a", "key": LockKey.pair(1, 2)}, {"key1": 1, "role": "a"}],
)
def test_a_lock_named_twice_is_refused(naming):
    with pytest.raises(ValueError, match="exactly one way"):
        LeaderLock(DSN, **naming)


def test_a_key_that_is_no_lock_key_is_refused():
    with pytest.raises(TypeError, match="LockKey"):
        LeaderLock(DSN, key=(1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["", "größe", "a b", "a\n", "-a", "x" * 201, 7, None])
def test_role_names_with_unknown_characters_are_refused(role):
    with pytest.raises((ValueError, TypeError)):
        LeaderLock(DSN, role=role)


def test_a_connection_string_in_place_of_a_role_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="connection string") as caught:
        LeaderLock(DSN, role="postgresql://app:s3cret@db/app")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, NAN, INF, -INF, True, "5", None, 10**400, [1]], ids=repr)
@pytest.mark.parametrize("name", ["health_interval_s", "reconnect_grace_s"])
def test_times_that_are_no_positive_finite_numbers_are_refused(name, value):
    if name == "reconnect_grace_s" and value is None:
        return  # which turns it off
    with pytest.raises((ValueError, TypeError), match=name):
        LeaderLock(DSN, 1, 2, **{name: value})


@pytest.mark.parametrize(
    ("dsn", "error"),
    [
        ("", ValueError),
        ("   ", ValueError),
        (None, TypeError),
        (b"postgresql://", TypeError),
        ("mysql://u:s3cret@h/d", ValueError),
        ("postgresql://u:s3cret@h:port/d", ValueError),
        ("host=h s3cret", ValueError),
        ("nonsense", ValueError),
        ("host=h pasword=s3cret", ValueError),
    ],
)
def test_connection_strings_that_cannot_work_are_refused_without_being_quoted(dsn, error):
    with pytest.raises(error, match="dsn") as caught:
        LeaderLock(dsn, 1, 2)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry_strategy", 5),
        ("retry_strategy", lambda ctx: 1.0),
        ("auto_reacquire", "no"),
        ("auto_reacquire", 0),
        ("shutdown_event", object()),
        ("connect_fn", "psycopg"),
    ],
)
def test_settings_of_the_wrong_type_are_refused(name, value):
    with pytest.raises(TypeError, match=name):
        LeaderLock(DSN, 1, 2, **{name: value})


@pytest.mark.parametrize("value", [None, 5, "print", [print]])
@pytest.mark.parametrize(
    "name",
    [
        "on_acquired",
        "on_released",
        "on_lost",
        "on_acquire_failed",
        "on_state_change",
        "on_error",
        "on_stopped",
        "subscribe",
    ],
)
def test_a_callback_that_cannot_be_called_is_refused(name, value):
    lock = LeaderLock(DSN, 1, 2)
    with pytest.raises(TypeError, match="callable"):
        getattr(lock, name)(value)


@pytest.mark.virtual_time
@pytest.mark.parametrize("timeout_s", [-1, NAN, INF, True, "1"])
async def test_a_bad_timeout_is_refused_and_changes_nothing(timeout_s):
    lock, heard = make_lock(DoubleConnection())
    async with lock:
        await lock.wait_for_leadership()
        for call in (lock.shutdown, lock.step_down, lock.wait_for_leadership):
            with pytest.raises((ValueError, TypeError), match="timeout_s"):
                await call(timeout_s)
        assert lock.state is LockState.LEADER


@pytest.mark.virtual_time
async def test_a_connection_factory_makes_the_connection_string_irrelevant():
    lock = LeaderLock("", 1, 2, connect_fn=connect_to(DoubleConnection()), retry_strategy=FixedInterval(1))
    async with lock:
        assert await lock.wait_for_leadership()


def test_no_secret_shows_in_what_a_lock_says_of_itself():
    assert "s3cret" not in repr(LeaderLock(DSN, 1, 2))
    assert "s3cret" not in str(LeaderLock(DSN, 1, 2)._logger.context)
