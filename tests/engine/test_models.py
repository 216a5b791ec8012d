"""The nouns: their names, which are an API, their defaults, and that none of them can be changed."""

import asyncio
import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest

from pgleaderlock import errors
from pgleaderlock.engine.callbacks import Callbacks
from pgleaderlock.errors import LockError
from pgleaderlock.models import Event, EventKind, Grant, Holder, LockState, RetryContext

EVENT = Event(EventKind.ACQUIRED, LockState.ACQUIRING, LockState.LEADER, "acquire_succeeded", at=1.5)
RECORDS = [Grant(), Holder("web-1"), EVENT, RetryContext(1, 0.0)]


def kind_of(record: object) -> str:
    return type(record).__name__


def test_the_states_are_those_of_the_specification_by_name_and_value() -> None:
    assert {state.name: state.value for state in LockState} == {
        "STOPPED": "stopped",
        "FOLLOWER": "follower",
        "ACQUIRING": "acquiring",
        "LEADER": "leader",
        "RECONNECTING": "reconnecting",
        "RELEASING": "releasing",
    }


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_of_event_but_the_silent_ones_has_a_decorator_of_its_value(kind: EventKind) -> None:
    mapped = (EventKind.ATTEMPT_FAILED, EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED)  # to on_lost, and on_error
    assert hasattr(Callbacks, kind.value) is (kind not in (EventKind.RECOVERED, EventKind.RENEWED, *mapped))


@pytest.mark.parametrize("record", RECORDS, ids=kind_of)
def test_a_record_cannot_be_changed(record: Any) -> None:
    for field in dataclasses.fields(record):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field.name, None)


@pytest.mark.parametrize("record", RECORDS, ids=kind_of)
def test_a_record_takes_no_attributes_that_it_was_not_made_for(record: Any) -> None:
    assert not hasattr(record, "__dict__")


@pytest.mark.parametrize("record", RECORDS, ids=kind_of)
def test_a_record_equals_its_copies_and_differs_when_a_value_does(record: Any) -> None:
    for again in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert again == record
        assert hash(again) == hash(record)
    first = dataclasses.fields(record)[0].name
    assert dataclasses.replace(record, **{first: "another"}) != record


def test_a_grant_is_trusted_for_ever_unless_its_store_ends_it() -> None:
    assert Grant() == Grant(token=None, trusted_until=math.inf)
    assert Grant(7, 12.5).trusted_until == 12.5


def test_an_event_of_which_nothing_more_is_known_says_so() -> None:
    assert (EVENT.error, EVENT.attempt, EVENT.token) == (None, None, None)


def test_a_holder_may_be_known_by_name_alone() -> None:
    assert Holder("web-1") == Holder("web-1", pid=None, address=None, since=None, detail=None)


def test_a_retry_context_needs_only_the_attempt_and_the_time() -> None:
    context = RetryContext(3, 1.5)
    assert (context.attempt, context.elapsed_s) == (3, 1.5)
    assert (context.last_error, context.previous_delay_s) == (None, None)


def test_a_retry_context_has_the_specified_order_of_arguments() -> None:
    error = LockError("no")
    assert RetryContext(1, 2.0, error).last_error is error
    assert [field.name for field in dataclasses.fields(RetryContext)][:3] == ["attempt", "elapsed_s", "last_error"]


# --- The tree of exceptions ------------------------------------------------------------------------------------


def test_every_exception_of_the_library_has_the_one_base() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.PgLeaderLockError | Warning)


def test_a_lost_leadership_is_a_lock_error_and_a_connection_error_is_not() -> None:
    """Lost is certain, unreachable is unknown: who catches one must not catch the other by accident."""
    assert issubclass(errors.LeadershipLost, errors.LockError)
    assert not issubclass(errors.ConnectionError, errors.LockError)


def test_our_connection_error_is_not_the_builtin() -> None:
    builtin: type[BaseException] = OSError
    assert not issubclass(errors.ConnectionError, builtin)


def test_none_of_our_exceptions_can_be_mistaken_for_a_cancellation() -> None:
    for name in errors.__all__:
        assert not issubclass(getattr(errors, name), asyncio.CancelledError)
