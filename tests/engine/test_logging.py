"""Log lines: the specified ones to the letter, and values that cannot pretend to be something else."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from pgleaderlock._logging import NDLogger, get_logger
from pgleaderlock.engine.event_log import log_events
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.models import Event, EventKind, LockState


class Recorder(logging.Handler):
    """Keeps the records, and formats them as the specification shows them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self.setFormatter(logging.Formatter("%(name)s | %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [self.format(record) for record in self.records]

    @property
    def last(self) -> Any:
        return self.records[-1]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """What the library's own logger says at any level, put back as it was afterwards."""
    logger, recorder = logging.getLogger("pgleaderlock"), Recorder()
    before = logger.level, logger.propagate
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield recorder
    logger.removeHandler(recorder)
    logger.setLevel(before[0])
    logger.propagate = before[1]


def event(
    kind: EventKind,
    from_state: LockState = LockState.FOLLOWER,
    to_state: LockState = LockState.ACQUIRING,
    cause: str = "acquire_attempt",
    **more: Any,
) -> Event:
    return Event(kind, from_state, to_state, cause, at=0.0, **more)


def test_an_attempt_that_ended_in_an_error_is_not_logged_as_a_loss(recorder: "Recorder") -> None:
    """Its callback is on_lost, as specified, but nothing was held; the error has a line of its own."""
    tell(event(EventKind.ATTEMPT_FAILED, LockState.ACQUIRING, LockState.FOLLOWER, cause="db_error"))
    assert recorder.lines == []


def fail(text: str) -> NoReturn:
    raise LockError(text)


def tell(*events: Event) -> None:
    listener = log_events(get_logger("pgleaderlock").bind(key1=1234, key2=5678))
    for happened in events:
        listener(happened)


# --- Section 7 of the specification ----------------------------------------------------------------------------


def test_the_first_example_a_change_of_state(recorder: Recorder) -> None:
    tell(event(EventKind.STATE_CHANGE))
    assert recorder.lines == ["pgleaderlock | state_change from=follower to=acquiring key1=1234 key2=5678"]


def test_the_second_example_a_lock_acquired(recorder: Recorder) -> None:
    tell(event(EventKind.ACQUIRED, LockState.ACQUIRING, LockState.LEADER, "acquire_succeeded", attempt=3))
    assert recorder.lines == ["pgleaderlock | lock_acquired key1=1234 key2=5678 attempt=3"]


def test_the_third_example_a_health_check_failed(recorder: Recorder) -> None:
    error = ConnectionError("connection closed")
    tell(event(EventKind.ERROR, LockState.LEADER, LockState.RECONNECTING, "health_failed", error=error))
    assert recorder.lines == ['pgleaderlock | health_check_failed error="connection closed" key1=1234 key2=5678']


def test_the_logger_is_called_pgleaderlock() -> None:
    assert get_logger()._logger is logging.getLogger("pgleaderlock")
    assert get_logger("another")._logger is logging.getLogger("another")


# --- Events ----------------------------------------------------------------------------------------------------

FOLLOWER, ACQUIRING, LEADER, RECONNECTING, RELEASING, STOPPED = (
    LockState.FOLLOWER,
    LockState.ACQUIRING,
    LockState.LEADER,
    LockState.RECONNECTING,
    LockState.RELEASING,
    LockState.STOPPED,
)

LINES = [
    (event(EventKind.STATE_CHANGE, FOLLOWER, ACQUIRING), logging.DEBUG, "state_change from=follower to=acquiring"),
    (event(EventKind.STATE_CHANGE, ACQUIRING, FOLLOWER), logging.DEBUG, "state_change from=acquiring to=follower"),
    (event(EventKind.STATE_CHANGE, STOPPED, FOLLOWER), logging.INFO, "state_change from=stopped to=follower"),
    (event(EventKind.STATE_CHANGE, ACQUIRING, LEADER), logging.INFO, "state_change from=acquiring to=leader"),
    (event(EventKind.STATE_CHANGE, LEADER, RECONNECTING), logging.INFO, "state_change from=leader to=reconnecting"),
    (event(EventKind.STATE_CHANGE, RELEASING, FOLLOWER), logging.INFO, "state_change from=releasing to=follower"),
    (event(EventKind.STATE_CHANGE, FOLLOWER, STOPPED), logging.INFO, "state_change from=follower to=stopped"),
    (event(EventKind.ACQUIRED, attempt=1), logging.INFO, "lock_acquired key1=1234 key2=5678 attempt=1"),
    (event(EventKind.ACQUIRE_FAILED, attempt=9), logging.DEBUG, "lock_held_by_another attempt=9"),
    (event(EventKind.RELEASED), logging.INFO, "lock_released"),
    (event(EventKind.LOST, cause="grace_expired"), logging.WARNING, "leadership_lost cause=grace_expired"),
    (event(EventKind.RECOVERED, attempt=2), logging.INFO, "leadership_recovered attempt=2"),
    (event(EventKind.STOPPED, cause="stop_requested"), logging.INFO, "stopped cause=stop_requested"),
    (event(EventKind.OVERRUN, cause="work_overrun", error=LockError("w")), logging.ERROR, "work_overrun error=w"),
    (event(EventKind.ERROR, cause="db_error", error=LockError("no")), logging.WARNING, "db_error error=no"),
    (
        event(EventKind.ERROR, cause="retries_exhausted", error=LockError("another holds it")),
        logging.INFO,
        'retries_exhausted error="another holds it"',
    ),
    (
        event(EventKind.ERROR, cause="retries_exhausted", error=ConnectionError("no route")),
        logging.WARNING,
        'retries_exhausted error="no route"',
    ),
    (
        event(EventKind.ERROR, cause="release_failed", error=LockError("not held")),
        logging.WARNING,
        'release_failed error="not held"',
    ),
]


@pytest.mark.parametrize(("happened", "level", "line"), LINES, ids=[line[2] for line in LINES])
def test_an_event_is_one_line_at_its_level(recorder: Recorder, happened: Event, level: int, line: str) -> None:
    tell(happened)
    assert [record.levelno for record in recorder.records] == [level]
    bound = "" if "key1" in line else " key1=1234 key2=5678"
    assert recorder.last.getMessage() == line + bound


def test_no_kind_of_event_is_without_a_line() -> None:
    no_news = {EventKind.RENEWED}
    elsewhere = {EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED, EventKind.ATTEMPT_FAILED}  # the last by its ERROR
    assert {happened.kind for happened, _, _ in LINES} == set(EventKind) - no_news - elsewhere


@pytest.mark.parametrize("kind", [EventKind.CALLBACK_FAILED, EventKind.WORK_FAILED])
def test_user_code_that_failed_is_not_logged_a_second_time(recorder: Recorder, kind: EventKind) -> None:
    """It was logged where it was caught, with the traceback that this listener does not have."""
    tell(event(kind, cause=kind.value, error=ValueError("mine")))
    assert recorder.lines == []


def test_a_follower_that_waits_for_years_says_nothing_at_info(recorder: Recorder) -> None:
    logging.getLogger("pgleaderlock").setLevel(logging.INFO)
    for _ in range(3):
        tell(
            event(EventKind.STATE_CHANGE, FOLLOWER, ACQUIRING),
            event(EventKind.STATE_CHANGE, ACQUIRING, FOLLOWER),
            event(EventKind.ACQUIRE_FAILED, attempt=1),
        )
    assert recorder.lines == []


# --- Values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (-5, "-5"),
        (True, "True"),
        (None, "None"),
        (0.1 + 0.2, "0.3"),
        (5.0, "5"),
        (float("inf"), "inf"),
        ("plain", "plain"),
        ("a/b:c@d+e-f.g,h;i", "a/b:c@d+e-f.g,h;i"),
        ("größer", "größer"),
        ("", '""'),
        (" ", '" "'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("tab\there", r'"tab\there"'),
        ("line\nbreak", r'"line\nbreak"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ((1, 2), '"(1, 2)"'),
        (LockError("no answer"), '"no answer"'),
        (LockError(), '""'),
    ],
    ids=repr,
)
def test_a_value_is_quoted_only_where_it_could_be_misread(recorder: Recorder, value: object, text: str) -> None:
    get_logger().info("said", value=value)
    assert recorder.last.getMessage() == f"said value={text}"


NASTY = [
    "x\npgleaderlock | lock_acquired key1=1",
    "x\r\npgleaderlock | lock_acquired",
    "x\rpgleaderlock | lock_acquired",
    "x\x0block_acquired",
    "x\x0clock_acquired",
    "x\x1clock_acquired",
    "x\x1dlock_acquired",
    "x\x1elock_acquired",
    "x\x85lock_acquired",
    "x\u2028lock_acquired",
    "x\u2029lock_acquired",
]


@pytest.mark.parametrize("value", NASTY, ids=ascii)
def test_a_value_cannot_forge_a_second_line(recorder: Recorder, value: str) -> None:
    """Of everything that Python, a terminal or a log shipper takes for the end of a line."""
    get_logger().warning("failed", error=LockError(value))
    assert len(recorder.lines) == 1
    assert len(recorder.lines[0].splitlines()) == 1


@pytest.mark.parametrize("value", ["\x1b[2J", "\x07", "\x00", "\x7f", "\x9b2J", "\x9d0;title\x9c"], ids=ascii)
def test_a_value_cannot_command_a_terminal(recorder: Recorder, value: str) -> None:
    get_logger().warning("failed", error=value)
    assert recorder.lines[0].isprintable()


@pytest.mark.parametrize("value", ["x key1=9", 'x" key1=9', "x\\", '\\" key1=9', *NASTY], ids=ascii)
def test_a_quoted_value_reads_back_and_cannot_forge_a_field(recorder: Recorder, value: str) -> None:
    get_logger().bind(key1=1).info("said", value=value)
    match = re.fullmatch(r'said value=("(?:[^"\\]|\\.)*"|[^\s"=]+) key1=1', recorder.last.getMessage())
    assert match is not None
    shown = match[1]
    assert (json.loads(shown) if shown.startswith('"') else shown) == value


@pytest.mark.parametrize("value", ["100%", "%s", "%d %(name)s", "%%"])
def test_a_percent_sign_stays_one(recorder: Recorder, value: str) -> None:
    """Whatever a handler does with ``record.args``: the line itself is never taken for a format."""
    get_logger().info("said", value=value)
    assert recorder.last.getMessage() == f"said value={value if ' ' not in value else json.dumps(value)}"
    assert "%" not in recorder.last.msg.replace("%s", "", 1)


def test_lines_about_one_event_have_one_format_by_which_error_trackers_group_them(recorder: Recorder) -> None:
    for value in ("one", "two 100%"):
        get_logger().bind(key1=1).warning("work_overran", task=value)
    assert {record.msg for record in recorder.records} == {"work_overran task=%s key1=%s"}
    get_logger().info("100% alone")
    get_logger().info("100% with", value=1)
    assert recorder.lines[-2:] == ["pgleaderlock | 100% alone", "pgleaderlock | 100% with value=1"]


def test_an_exception_that_cannot_be_printed_does_not_break_the_logger(recorder: Recorder) -> None:
    """User code raises it, and the stream of events logs it: what fails here would end the stream."""

    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    get_logger().error("callback_failed", error=UnprintableError())
    assert len(recorder.records) == 1
    assert "UnprintableError" in recorder.last.getMessage()


# --- The record ------------------------------------------------------------------------------------------------


def test_handlers_get_the_event_and_the_values_as_they_were(recorder: Recorder) -> None:
    error = LockError("no")
    get_logger().bind(key1=1).warning("failed", error=error, after_s=0.5)
    assert recorder.last.event == "failed"
    assert recorder.last.fields == {"error": error, "after_s": 0.5, "key1": 1}
    assert recorder.last.fields["error"] is error


def test_an_event_s_own_fields_come_before_the_bound_ones_and_win(recorder: Recorder) -> None:
    get_logger().bind(key1=1, attempt=1).info("said", attempt=2, more=3)
    assert recorder.last.getMessage() == "said attempt=2 more=3 key1=1"
    assert recorder.last.fields == {"attempt": 2, "more": 3, "key1": 1}


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_each_method_logs_at_the_level_of_its_name(recorder: Recorder, level: str) -> None:
    getattr(get_logger(), level)("said")
    assert recorder.last.levelname == level.upper()


def test_a_level_that_is_off_costs_no_formatting(recorder: Recorder) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted without a reader")

    logging.getLogger("pgleaderlock").setLevel(logging.INFO)
    get_logger().debug("said", value=Costly())
    assert recorder.records == []


@pytest.mark.parametrize("method", ["debug", "info", "warning", "error"])
def test_the_record_points_at_the_line_that_logged(recorder: Recorder, method: str) -> None:
    getattr(get_logger(), method)("said")
    assert recorder.last.funcName == "test_the_record_points_at_the_line_that_logged"
    assert recorder.last.pathname == __file__


def test_the_record_points_at_the_line_that_logged_at_a_given_level_too(recorder: Recorder) -> None:
    get_logger().log(logging.INFO, "said")
    assert recorder.last.funcName == "test_the_record_points_at_the_line_that_logged_at_a_given_level_too"


def test_an_exception_s_traceback_is_logged_on_request(recorder: Recorder) -> None:
    try:
        fail("deep down")
    except LockError as error:
        get_logger().error("failed", error=error, exc_info=error)
    assert recorder.last.exc_info[1].args == ("deep down",)
    assert "exc_info" not in recorder.last.fields
    first, *rest = recorder.lines[0].splitlines()
    assert first == 'pgleaderlock | failed error="deep down"'
    assert rest[0] == "Traceback (most recent call last):"


def test_the_exception_being_handled_can_be_asked_for_as_in_logging(recorder: Recorder) -> None:
    try:
        fail("now")
    except LockError:
        get_logger().error("failed", exc_info=True)
        assert recorder.last.exc_info == sys.exc_info()


# --- Binding ---------------------------------------------------------------------------------------------------


def test_binding_makes_a_new_logger_and_leaves_the_old_one_alone(recorder: Recorder) -> None:
    bare = get_logger()
    one = bare.bind(key1=1)
    two = one.bind(key1=2, key2=3)
    assert (bare.context, one.context, two.context) == ({}, {"key1": 1}, {"key1": 2, "key2": 3})
    bare.info("said")
    one.info("said")
    two.info("said")
    assert [record.getMessage() for record in recorder.records] == ["said", "said key1=1", "said key1=2 key2=3"]


def test_the_context_cannot_be_changed_from_outside() -> None:
    given = {"key1": 1}
    logger = NDLogger(logging.getLogger("pgleaderlock"), given)
    given["key1"] = 2
    logger.context["key1"] = 3
    assert logger.context == {"key1": 1}
