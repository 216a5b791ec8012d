"""The stream of events and its decorators, without an election: order, and what listeners cannot break."""

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from pgleaderlock._logging import get_logger
from pgleaderlock.engine.callbacks import Callbacks
from pgleaderlock.engine.delivery import EventStream
from pgleaderlock.errors import LockError
from pgleaderlock.models import Event, EventKind, LockState

pytestmark = pytest.mark.virtual_time


def event(kind: EventKind = EventKind.ACQUIRED, *, cause: str = "acquire_succeeded", **more: Any) -> Event:
    return Event(kind, LockState.ACQUIRING, LockState.LEADER, cause, at=0.0, **more)


class Stage:
    """Callbacks, the stream that notifies them, and what was delivered to the end."""

    def __init__(self, callbacks: Callbacks) -> None:
        self.delivered: list[Event] = []
        self.stream = EventStream(callbacks._listeners, self.delivered.append, get_logger("pgleaderlock.stream_test"))

    async def say(self, *events: Event) -> None:
        """Put it, and wait until it was delivered."""
        for happened in events:
            self.stream.put(happened)
        await self.stream.drained()


@asynccontextmanager
async def stage_for(callbacks: Callbacks) -> AsyncIterator[Stage]:
    """End the stream whatever the test did: one that is left behind would hang the loop's own end."""
    stage = Stage(callbacks)
    try:
        yield stage
    finally:
        await stage.stream.finish(1.0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


def failures(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if vars(record).get("event") == "callback_failed"]


# --- Delivery --------------------------------------------------------------------------------------------------


async def test_listeners_are_notified_of_events_in_the_order_in_which_they_were_put() -> None:
    callbacks, heard = Callbacks(), list[int | None]()
    callbacks.subscribe(lambda happened: heard.append(happened.attempt))
    async with stage_for(callbacks) as stage:
        await stage.say(*(event(attempt=n) for n in range(20)))
    assert heard == list(range(20))
    assert [happened.attempt for happened in stage.delivered] == list(range(20))


async def test_several_callbacks_of_one_event_run_in_the_order_of_their_registration_plain_and_async() -> None:
    callbacks, ran = Callbacks(), list[str]()

    @callbacks.on_acquired
    def first() -> None:
        ran.append("first")

    @callbacks.on_acquired
    async def second() -> None:
        await asyncio.sleep(5)
        ran.append("second")

    @callbacks.on_acquired
    def third() -> None:
        ran.append("third")

    async with stage_for(callbacks) as stage:
        await stage.say(event())
        assert ran == ["first", "second", "third"]
        assert now() == pytest.approx(5)


async def test_the_next_event_waits_until_the_slowest_callback_of_this_one_is_done() -> None:
    callbacks, ran = Callbacks(), list[tuple[str, float]]()

    @callbacks.on_acquired
    async def slowly() -> None:
        await asyncio.sleep(10)
        ran.append(("acquired", now()))

    @callbacks.on_lost
    def at_once() -> None:
        ran.append(("lost", now()))

    async with stage_for(callbacks) as stage:
        await stage.say(event(), event(EventKind.LOST))
    assert ran == [("acquired", 10.0), ("lost", 10.0)]


async def test_putting_an_event_returns_before_listeners_are_notified() -> None:
    callbacks, heard = Callbacks(), list[Event]()
    callbacks.subscribe(heard.append)
    async with stage_for(callbacks) as stage:
        stage.stream.put(event())
        assert heard == []
        await stage.stream.drained()
        assert heard == [event()]


async def test_an_event_counts_as_delivered_only_after_its_last_callback() -> None:
    callbacks = Callbacks()
    async with stage_for(callbacks) as stage:
        seen = list[int]()

        @callbacks.on_acquired
        async def look() -> None:
            await asyncio.sleep(1)
            seen.append(len(stage.delivered))

        await stage.say(event())
        assert seen == [0]
        assert len(stage.delivered) == 1


async def test_callback_registered_during_delivery_is_first_notified_of_the_next_event() -> None:
    callbacks, heard = Callbacks(), list[int | None]()

    def late(happened: Event) -> None:
        heard.append(happened.attempt)

    @callbacks.on_acquired
    def register() -> None:
        if late not in callbacks._listeners:
            callbacks.subscribe(late)

    async with stage_for(callbacks) as stage:
        await stage.say(event(attempt=1), event(attempt=2))
    assert heard == [2]


async def test_finishing_delivers_what_is_left() -> None:
    callbacks, heard = Callbacks(), list[int | None]()

    @callbacks.subscribe
    async def slowly(happened: Event) -> None:
        await asyncio.sleep(60)
        heard.append(happened.attempt)

    stage = Stage(callbacks)
    for n in range(3):
        stage.stream.put(event(attempt=n))
    await stage.stream.finish(None)
    assert heard == [0, 1, 2]


# --- Who is notified of what -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decorator", "kinds", "arguments"),
    [
        ("on_acquired", [EventKind.ACQUIRED], ()),
        ("on_released", [EventKind.RELEASED], ()),
        ("on_lost", [EventKind.LOST, EventKind.ATTEMPT_FAILED], ()),
        ("on_acquire_failed", [EventKind.ACQUIRE_FAILED], ()),
        ("on_stopped", [EventKind.STOPPED], ()),
        ("on_state_change", [EventKind.STATE_CHANGE], (LockState.ACQUIRING, LockState.LEADER)),
        ("on_error", [EventKind.ERROR, EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED], (LockError,)),
        ("on_overrun", [EventKind.OVERRUN], (LockError,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_decorated_function_is_called_for_its_own_events_with_their_arguments_and_no_other(
    decorator: str, kinds: list[EventKind], arguments: tuple[object, ...]
) -> None:
    callbacks, calls = Callbacks(), list[tuple[object, ...]]()
    error = LockError("no")

    def note(*args: object) -> None:
        calls.append(args)

    getattr(callbacks, decorator)(note)
    async with stage_for(callbacks) as stage:
        await stage.say(*(event(each, error=error) for each in EventKind))
    assert calls == [(error,) if arguments == (LockError,) else arguments] * len(kinds)


@pytest.mark.parametrize(
    ("decorator", "kind", "passed"),
    [
        ("on_acquired", EventKind.ACQUIRED, 0),
        ("on_released", EventKind.RELEASED, 0),
        ("on_lost", EventKind.LOST, 0),
        ("on_acquire_failed", EventKind.ACQUIRE_FAILED, 0),
        ("on_stopped", EventKind.STOPPED, 0),
        ("on_error", EventKind.WORK_FAILED, 1),
        ("on_overrun", EventKind.OVERRUN, 1),
        ("on_state_change", EventKind.STATE_CHANGE, 2),
    ],
)
async def test_a_function_that_requires_one_more_parameter_gets_the_event_there(
    decorator: str, kind: EventKind, passed: int
) -> None:
    callbacks, calls = Callbacks(), list[tuple[object, ...]]()
    takers: list[Callable[..., object]] = [
        lambda happened: calls.append((happened,)),
        lambda first, happened: calls.append((first, happened)),
        lambda first, second, happened: calls.append((first, second, happened)),
    ]
    getattr(callbacks, decorator)(takers[passed])
    told = event(kind, error=LockError("no"))
    async with stage_for(callbacks) as stage:
        await stage.say(told)
    [arguments] = calls
    assert arguments[-1] is told


async def test_a_parameter_that_is_optional_gets_no_event() -> None:
    """``lambda name=name: ...`` keeps the value of a loop, and a test double would take anything."""
    callbacks, calls = Callbacks(), list[object]()
    double = Mock(return_value=None)
    for register in (callbacks.on_acquired, callbacks.on_lost):
        register(lambda name="kept": calls.append(name))
        register(lambda *args, **named: calls.append((args, named)))
        register(double)
    async with stage_for(callbacks) as stage:
        await stage.say(event())
    assert calls == ["kept", ((), {})]
    double.assert_called_once_with()


async def test_methods_and_coroutine_functions_and_partials_may_take_the_event_too() -> None:
    callbacks, heard = Callbacks(), list[Event]()

    class Mine:
        def method(self, happened: Event) -> None:
            heard.append(happened)

    async def later(happened: Event) -> None:
        heard.append(happened)

    def second(_: str, happened: Event) -> None:
        heard.append(happened)

    callbacks.on_acquired(Mine().method)
    callbacks.on_acquired(later)
    callbacks.on_acquired(functools.partial(second, "mine"))
    callbacks.on_acquired(heard.append)
    async with stage_for(callbacks) as stage:
        await stage.say(event())
    assert heard == [event()] * 4


async def test_a_function_whose_parameters_cannot_be_known_is_called_as_specified() -> None:
    callbacks, errors = Callbacks(), list[Exception]()
    callbacks.on_acquired(dict)  # which has no signature
    callbacks.on_error(errors.append)
    async with stage_for(callbacks) as stage:
        await stage.say(event())
    assert errors == []


@pytest.mark.parametrize("by_decorator", [True, False])
async def test_on_lost_leaves_out_attempts_that_failed_where_that_is_asked_for(by_decorator: bool) -> None:
    callbacks, heard = Callbacks(), list[EventKind]()

    def note(happened: Event) -> None:
        heard.append(happened.kind)

    returned = callbacks.on_lost(attempts=False)(note) if by_decorator else callbacks.on_lost(note, attempts=False)
    assert returned is note
    async with stage_for(callbacks) as stage:
        await stage.say(event(EventKind.ATTEMPT_FAILED), event(EventKind.LOST))
    assert heard == [EventKind.LOST]


async def test_on_lost_with_empty_parentheses_is_on_lost() -> None:
    callbacks, heard = Callbacks(), list[EventKind]()

    @callbacks.on_lost()
    def note(happened: Event) -> None:
        heard.append(happened.kind)

    async with stage_for(callbacks) as stage:
        await stage.say(event(EventKind.ATTEMPT_FAILED), event(EventKind.LOST))
    assert heard == [EventKind.ATTEMPT_FAILED, EventKind.LOST]


async def test_attempts_option_of_on_lost_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="attempts must be"):
        Callbacks().on_lost(lambda: None, attempts="no")  # type: ignore[call-overload]


async def test_listeners_are_notified_of_a_recovery_and_callbacks_are_not() -> None:
    callbacks, called, heard = Callbacks(), Mock(), list[EventKind]()
    for decorator in DECORATORS[1:]:
        getattr(callbacks, decorator)(called)
    callbacks.subscribe(lambda happened: heard.append(happened.kind))
    async with stage_for(callbacks) as stage:
        await stage.say(event(EventKind.RECOVERED))
    assert not called.called
    assert heard == [EventKind.RECOVERED]


DECORATORS = [
    "subscribe",
    "on_acquired",
    "on_released",
    "on_lost",
    "on_acquire_failed",
    "on_stopped",
    "on_state_change",
    "on_error",
    "on_overrun",
]


@pytest.mark.parametrize("decorator", DECORATORS)
async def test_a_decorator_returns_the_function_unchanged(decorator: str) -> None:
    def function(*args: object) -> None:
        """Mine."""

    before = dict(vars(function)), function.__qualname__
    assert getattr(Callbacks(), decorator)(function) is function
    assert (dict(vars(function)), function.__qualname__) == before


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("value", [None, "function", 5, ()], ids=repr)
async def test_what_cannot_be_called_is_refused_at_registration(decorator: str, value: Any) -> None:
    callbacks = Callbacks()
    with pytest.raises(TypeError, match=rf"must be callable, not {type(value).__name__}$"):
        getattr(callbacks, decorator)(value)
    assert callbacks._listeners == []


async def test_one_function_may_listen_to_several_events_and_twice_to_one() -> None:
    callbacks, called = Callbacks(), Mock(return_value=None)
    callbacks.on_acquired(callbacks.on_acquired(callbacks.on_lost(called)))
    async with stage_for(callbacks) as stage:
        await stage.say(event(), event(EventKind.LOST))
    assert called.call_count == 3


async def test_whatever_can_be_called_will_do() -> None:
    class Handler:
        calls = 0

        def method(self) -> None:
            self.calls += 1

        async def async_method(self) -> None:
            self.calls += 1

        def __call__(self) -> None:
            self.calls += 1

    callbacks, handler, mock = Callbacks(), Handler(), AsyncMock()
    for function in (handler.method, handler.async_method, handler, functools.partial(Handler.method, handler), mock):
        callbacks.on_acquired(function)
    async with stage_for(callbacks) as stage:
        await stage.say(event())
    assert handler.calls == 4
    assert mock.await_count == 1


async def test_a_plain_function_that_returns_something_to_await_has_it_awaited() -> None:
    callbacks, ran = Callbacks(), list[str]()

    async def later() -> None:
        await asyncio.sleep(1)
        ran.append("later")

    callbacks.on_acquired(lambda: later())  # noqa: PLW0108 - a plain function is the point
    async with stage_for(callbacks) as stage:
        await stage.say(event())
        assert ran == ["later"]


async def test_what_a_callback_returns_otherwise_does_not_matter() -> None:
    callbacks = Callbacks()
    callbacks.subscribe(lambda happened: 42)
    async with stage_for(callbacks) as stage:
        await stage.say(event())
        assert stage.delivered == [event()]


# --- What callbacks raise --------------------------------------------------------------------------------------


def raising(error: BaseException, *, in_coroutine: bool) -> Callable[..., Any]:
    def plain(*args: object) -> None:
        raise error

    async def coroutine(*args: object) -> None:
        await asyncio.sleep(1)
        raise error

    return coroutine if in_coroutine else plain


@pytest.mark.parametrize("in_coroutine", [False, True], ids=["plain", "async"])
async def test_exception_of_a_callback_is_logged_and_reported_and_the_others_still_run(
    caplog: pytest.LogCaptureFixture, in_coroutine: bool
) -> None:
    callbacks, order, error = Callbacks(), list[str](), ZeroDivisionError("mine")
    callbacks.on_acquired(raising(error, in_coroutine=in_coroutine))
    callbacks.on_acquired(lambda: order.append("the next callback"))
    told = list[Exception]()
    callbacks.on_error(told.append)
    async with stage_for(callbacks) as stage:
        await stage.say(event(), event(EventKind.LOST))
        assert len(stage.delivered) == 2
    assert told == [error]
    assert order == ["the next callback"]
    (failure,) = failures(caplog)
    assert failure["error"] is error
    assert failure["event_kind"] == "on_acquired"
    assert "raising" in failure["callback"]
    record = caplog.records[0]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_the_error_event_of_a_callback_says_what_it_came_of() -> None:
    callbacks, heard = Callbacks(), list[Event]()
    error = ValueError("mine")
    callbacks.subscribe(heard.append)
    callbacks.on_acquired(raising(error, in_coroutine=False))
    async with stage_for(callbacks) as stage:
        await stage.say(event(attempt=3, token=7))
    assert heard == [
        event(attempt=3, token=7),
        event(EventKind.CALLBACK_FAILED, cause="callback_failed", error=error, attempt=3, token=7),
    ]


async def test_what_an_error_callback_raises_about_a_callback_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    callbacks, first, second = Callbacks(), ValueError("first"), ValueError("second")
    calls = list[Exception]()

    @callbacks.on_error
    def broken(error: Exception) -> None:
        calls.append(error)
        raise second

    callbacks.on_acquired(raising(first, in_coroutine=False))
    async with stage_for(callbacks) as stage:
        await stage.say(event())
    assert calls == [first]
    assert [failure["error"] for failure in failures(caplog)] == [first, second]


async def test_what_an_error_callback_raises_about_an_error_of_the_election_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has just shown that it cannot handle errors: its own is not told to it again."""
    callbacks, first, second = Callbacks(), LockError("of the election"), ValueError("of the callback")
    calls = list[Exception]()

    @callbacks.on_error
    def broken(error: Exception) -> None:
        calls.append(error)
        raise second

    async with stage_for(callbacks) as stage:
        await stage.say(event(EventKind.ERROR, cause="health_failed", error=first))
    assert calls == [first]
    assert [failure["error"] for failure in failures(caplog)] == [second]


async def test_a_listener_that_always_raises_does_not_loop_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    callbacks = Callbacks()
    callbacks.subscribe(raising(ValueError("always"), in_coroutine=False))
    async with stage_for(callbacks) as stage:
        await stage.say(event(), event())
        assert len(stage.delivered) == 2
    assert len(failures(caplog)) == 4  # each event, and the event that reported its failure


async def test_an_exception_that_cannot_be_printed_does_not_end_the_stream() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    callbacks, heard = Callbacks(), list[EventKind]()
    callbacks.on_acquired(raising(UnprintableError(), in_coroutine=False))
    callbacks.on_lost(lambda: heard.append(EventKind.LOST))
    stage = Stage(callbacks)
    stage.stream.put(event())
    stage.stream.put(event(EventKind.LOST))
    await stage.stream.finish(1.0)
    stage.stream._task.exception()  # looked at, so that a failure is reported once, below
    assert heard == [EventKind.LOST]


async def test_a_callback_without_a_name_is_logged_by_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    callbacks = Callbacks()
    callbacks.on_acquired(functools.partial(raising(ValueError("mine"), in_coroutine=False), 1))
    async with stage_for(callbacks) as stage:
        await stage.say(event())
    assert "functools.partial" in failures(caplog)[0]["callback"]


# --- Cancellation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_coroutine", [False, True], ids=["plain", "async"])
async def test_a_callback_that_raises_a_cancellation_by_itself_does_not_end_the_stream(in_coroutine: bool) -> None:
    callbacks, told = Callbacks(), list[Exception]()
    callbacks.on_acquired(raising(asyncio.CancelledError(), in_coroutine=in_coroutine))
    callbacks.on_error(told.append)
    async with stage_for(callbacks) as stage:
        await stage.say(event(), event(EventKind.LOST))
        assert len(stage.delivered) == 2
    assert [type(error) for error in told] == [LockError]
    assert "cancelled" in str(told[0])


async def test_a_callback_that_cancels_its_task_does_not_end_the_stream() -> None:
    callbacks = Callbacks()

    @callbacks.on_acquired
    async def cancel_myself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with stage_for(callbacks) as stage:
        await stage.say(event(), event(EventKind.LOST))
        assert len(stage.delivered) == 2
        assert stage.stream._task.cancelling() == 0


async def test_cancelling_an_idle_stream_does_not_end_it() -> None:
    callbacks = Callbacks()
    async with stage_for(callbacks) as stage:
        await stage.say(event())
        stage.stream._task.cancel()
        await asyncio.sleep(1)
        await stage.say(event(EventKind.LOST))
        assert len(stage.delivered) == 2
        assert stage.stream._task.cancelling() == 0


async def test_hurrying_cancels_stuck_callbacks_one_after_another() -> None:
    callbacks, told, ran = Callbacks(), list[Exception](), list[tuple[str, float]]()
    callbacks.on_acquired(hang)
    callbacks.on_acquired(hang)
    callbacks.on_lost(hang)
    callbacks.on_stopped(lambda: ran.append(("stopped", now())))
    callbacks.on_error(told.append)
    async with stage_for(callbacks) as stage:
        for kind in (EventKind.ACQUIRED, EventKind.LOST, EventKind.STOPPED):
            stage.stream.put(event(kind))
        await asyncio.sleep(1000)
        assert ran == []
        stage.stream.hurry()
        await stage.stream.drained()
        assert now() < 1002
    assert len(told) == 3
    assert [name for name, _ in ran] == ["stopped"]


async def test_hurrying_leaves_a_quick_callback_the_time_that_it_needs() -> None:
    callbacks, ran = Callbacks(), list[str]()
    callbacks.on_acquired(hang)

    @callbacks.on_lost
    async def quickly() -> None:
        await asyncio.sleep(0.05)
        ran.append("quickly")

    async with stage_for(callbacks) as stage:
        stage.stream.put(event())
        stage.stream.put(event(EventKind.LOST))
        await asyncio.sleep(1)
        stage.stream.hurry()
        await stage.stream.drained()
    assert ran == ["quickly"]


async def test_hurrying_stops_with_the_stream() -> None:
    """Its timer sets itself again; one that outlived the stream would keep the loop awake for ever."""
    callbacks = Callbacks()
    callbacks.on_acquired(hang)
    stage = Stage(callbacks)
    stage.stream.put(event())
    await asyncio.sleep(0)
    stage.stream.hurry()
    await stage.stream.finish(None)
    await asyncio.sleep(10)
    assert [timer for timer in vars(asyncio.get_running_loop())["_scheduled"] if not timer.cancelled()] == []


async def test_hurrying_a_stream_that_has_ended_does_nothing() -> None:
    stage = Stage(Callbacks())
    await stage.stream.finish(None)
    stage.stream.hurry()
    assert stage.stream._task.done()
    assert not stage.stream._task.cancelled()


async def test_a_callback_that_refuses_to_be_cancelled_is_abandoned_after_the_time_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callbacks, gate = Callbacks(), asyncio.Event()

    @callbacks.on_acquired
    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    stage = Stage(callbacks)
    stage.stream.put(event())
    stage.stream.put(event(EventKind.LOST))
    await asyncio.sleep(0)
    stage.stream.hurry()
    await stage.stream.finish(30)
    assert now() == pytest.approx(30)
    assert stage.delivered == []
    (record,) = [record for record in caplog.records if vars(record)["event"] == "callbacks_abandoned"]
    assert record.levelno == logging.ERROR
    assert vars(record)["fields"]["undelivered"] == 2
    gate.set()
    await asyncio.wait({stage.stream._task})


async def test_a_finish_in_time_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(Callbacks())
    stage.stream.put(event())
    await stage.stream.finish(30)
    assert caplog.records == []
    assert stage.delivered == [event()]


# --- Inside a callback -----------------------------------------------------------------------------------------


async def test_code_inside_a_callback_knows_that_it_is_and_code_outside_knows_that_it_is_not() -> None:
    callbacks, answers = Callbacks(), dict[str, bool]()
    async with stage_for(callbacks) as stage:

        @callbacks.on_acquired
        def plain() -> None:
            answers["plain"] = stage.stream.is_current_task()

        @callbacks.on_acquired
        async def coroutine() -> None:
            await asyncio.sleep(1)
            answers["async"] = stage.stream.is_current_task()

        @callbacks.on_acquired
        async def task_of_its_own() -> None:
            async def ask() -> None:
                answers["own task"] = stage.stream.is_current_task()

            await asyncio.create_task(ask())

        await stage.say(event())
        answers["outside"] = stage.stream.is_current_task()
    assert answers == {"plain": True, "async": True, "own task": False, "outside": False}
