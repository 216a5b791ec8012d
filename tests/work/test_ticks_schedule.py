"""When jobs are due, what clocks that are changed do to that, and what becomes of slots that were missed. All pure."""

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgleaderlock.errors import MissingExtra
from pgleaderlock.work.schedule.cron import Cron
from pgleaderlock.work.schedule.policy import JobPolicy, make_plan
from pgleaderlock.work.schedule.timetable import Every, Schedule, due_slots

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, zone: str = BERLIN, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def next_slots(schedule: Schedule, after: datetime, number: int) -> list[datetime]:
    found = [schedule.after(after)]
    while len(found) < number:
        found.append(schedule.after(found[-1]))
    return found


# --- Intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "after", "slot"),
    [
        ("5m", "2026-03-01T10:02:30", "2026-03-01T10:05:00"),
        ("5m", "2026-03-01T10:05:00", "2026-03-01T10:10:00"),
        ("5m", "2026-03-01T10:04:59.999999", "2026-03-01T10:05:00"),
        ("100ms", "2026-03-01T10:00:00.1", "2026-03-01T10:00:00.2"),
        (0.1, "2026-03-01T10:00:00.25", "2026-03-01T10:00:00.3"),
        ("1h 30m", "1970-01-01T01:00:00", "1970-01-01T01:30:00"),
        ("24h", "2026-03-01T00:00:00", "2026-03-02T00:00:00"),
        (60, "1969-12-31T23:58:30", "1969-12-31T23:59:00"),
    ],
)
def test_slots_of_an_interval_are_its_multiples_since_1970(interval, after, slot):
    assert Every(interval).after(at(after)) == at(slot)


@settings(deadline=None)  # a busy machine is slow, which is not the point
@given(st.integers(1, 10**7), st.integers(0, 4 * 10**15))
def test_every_process_finds_the_same_slots_wherever_it_begins(ms, begun_us):
    every = Every(ms / 1000)
    begun = at("1971-01-01") + timedelta(microseconds=begun_us)
    first, second = next_slots(every, begun, 2)
    assert begun < first <= begun + timedelta(milliseconds=ms)
    assert second - first == timedelta(milliseconds=ms)
    assert every.after(first - timedelta(microseconds=1)) == first


@pytest.mark.parametrize("interval", ["", "5 parsecs", 0, "0s", -1, None, True])
def test_an_interval_that_is_none_is_refused(interval):
    with pytest.raises(ValueError, match="the interval must be") as refused:
        Every(interval)
    assert repr(interval) in str(refused.value)


def test_an_interval_is_written_as_people_do():
    assert Every("1h 30m").written == "every 1h30m"


# --- Cron -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "after", "slot"),
    [
        ("*/5 * * * *", "2026-03-01T10:02:30", "2026-03-01T10:05:00"),
        ("*/5 * * * *", "2026-03-01T10:05:00", "2026-03-01T10:10:00"),
        ("0 3 * * MON", "2026-03-01T10:00:00", "2026-03-02T03:00:00"),
        ("*/10 * * * * *", "2026-03-01T10:00:01.5", "2026-03-01T10:00:10"),
        ("@hourly", "2026-03-01T10:00:00", "2026-03-01T11:00:00"),
        ("@daily", "2026-03-01T10:00:00", "2026-03-02T00:00:00"),
        ("@Midnight", "2026-03-01T10:00:00", "2026-03-02T00:00:00"),
        ("@weekly", "2026-03-01T10:00:00", "2026-03-08T00:00:00"),
        ("@monthly", "2026-03-01T10:00:00", "2026-04-01T00:00:00"),
        ("@yearly", "2026-03-01T10:00:00", "2027-01-01T00:00:00"),
        ("@annually", "2026-03-01T10:00:00", "2027-01-01T00:00:00"),
        ("0 0 29 2 *", "2026-03-01T10:00:00", "2028-02-29T00:00:00"),
    ],
)
def test_slots_of_an_expression(expression, after, slot):
    assert Cron(expression).after(at(after)) == at(slot)


def test_an_expression_is_meant_in_its_time_zone():
    cron = Cron("0 9 * * *", BERLIN)
    assert cron.after(at("2026-01-10T00:00:00")) == at("2026-01-10T08:00:00")
    assert cron.after(at("2026-07-10T00:00:00")) == at("2026-07-10T07:00:00")
    assert (cron.written, Cron("@daily").written) == ("cron 0 9 * * * Europe/Berlin", "cron @daily")


@pytest.mark.parametrize("expression", ["", "* * * *", "61 * * * *", "@reboot", "a b c d e", "* * * * * * *"])
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(ValueError, match="is not a cron expression"):
        Cron(expression)


def test_a_time_that_never_comes_is_refused():
    with pytest.raises(ValueError, match="never comes"):
        Cron("0 0 */30 2 TUE#5")
    with pytest.raises(ValueError, match="not a cron expression"):
        Cron("0 0 31 2 *")


def test_what_is_no_text_or_no_zone_is_refused():
    with pytest.raises(TypeError, match="must be a str"):
        Cron(5)  # type: ignore[arg-type]
    for zone in ("Mars/Olympus", "", "../../etc/passwd", None):
        with pytest.raises(ValueError, match="not a time zone"):
            Cron("@daily", zone)  # type: ignore[arg-type]


def test_without_cronsim_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(MissingExtra, match=r"pgleaderlock\[cron\]"):
        Cron("@daily")


# --- Clocks that are changed: in Berlin, 2:00 became 3:00 on 29 March 2026, and 3:00 became 2:00 on 25 October --------


def test_a_time_that_does_not_exist_is_when_the_clocks_are_put_forward():
    cron = Cron("30 2 * * *", BERLIN)
    assert next_slots(cron, local("2026-03-28T00:00"), 3) == [
        local("2026-03-28T02:30"),
        local("2026-03-29T03:00"),
        local("2026-03-30T02:30"),
    ]


@pytest.mark.parametrize("expression", ["10,40 2 * * *", "*/10 2 * * *", "0 2,3 * * *", "15 30 2 * * *", "0 */2 * * *"])
def test_several_that_do_not_exist_are_one_slot_and_none_is_doubled(expression):
    cron = Cron(expression, BERLIN)
    slots = next_slots(cron, local("2026-03-29T01:59"), 2)
    assert slots[0] == local("2026-03-29T03:00")
    assert slots[1] > slots[0] + timedelta(minutes=30)


def test_of_a_time_that_comes_twice_the_first_counts():
    cron = Cron("30 2 * * *", BERLIN)
    slots = next_slots(cron, local("2026-10-24T12:00"), 2)
    assert slots == [local("2026-10-25T02:30", fold=0), local("2026-10-26T02:30")]
    assert cron.after(local("2026-10-25T02:10", fold=1)) == slots[1]
    assert cron.after(local("2026-10-25T02:45", fold=0)) == slots[1]


def test_what_runs_every_hour_goes_by_time_that_passes():
    cron = Cron("*/20 * * * *", BERLIN)
    for day in ("2026-03-29", "2026-10-25"):
        slots = next_slots(cron, local(f"{day}T00:59"), 12)
        assert {later - slot for slot, later in pairwise(slots)} == {timedelta(minutes=20)}


def test_a_gap_at_midnight_and_one_of_half_an_hour():
    assert Cron("@daily", "America/Sao_Paulo").after(local("2018-11-03T12:00", "America/Sao_Paulo")) == at(
        "2018-11-04T03:00:00"
    )
    howe = "Australia/Lord_Howe"  # where 2:00 became 2:30
    assert Cron("15 2 * * *", howe).after(local("2026-10-04T01:00", howe)) == local("2026-10-04T02:30", howe)


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/7 1-3 * * *", "*/20 * * * *", "0 0 * * *", "5 */3 * * *"])
@settings(deadline=None)  # a busy machine is slow, which is not the point
@given(offset_s=st.integers(0, 4 * 86400), day=st.sampled_from(["2026-03-27", "2026-10-23"]))
def test_slots_are_the_same_from_wherever_they_are_looked_for(expression, offset_s, day):
    cron = Cron(expression, BERLIN)
    start = at(f"{day}T00:00:00")
    after = start + timedelta(seconds=offset_s)
    walked = start
    while (walked := cron.after(walked)) <= after:
        pass
    assert cron.after(after) == walked


# --- Slots that have come ---------------------------------------------------------------------------------------------


def test_of_a_year_of_slots_only_the_newest_are_walked_through():
    after, now = at("2025-03-01T00:00:00"), at("2026-03-01T00:00:00.5")
    for schedule in (Every("1s"), Cron("* * * * * *"), Cron("* 3 * * *")):
        slots, is_cut = due_slots(schedule, after, now, 100)
        assert is_cut
        assert len(slots) == 100
        assert schedule.after(slots[-1]) > now
        assert all(schedule.after(slot) == later for slot, later in pairwise(slots))


def test_exactly_as_many_as_there_may_be_are_not_cut():
    every = Every("1m")
    slots, is_cut = due_slots(every, at("2026-03-01T00:00:00"), at("2026-03-01T00:10:00"), 10)
    assert (len(slots), is_cut) == (10, False)
    slots, is_cut = due_slots(every, at("2026-03-01T00:00:00"), at("2026-03-01T00:11:00"), 10)
    assert (slots[0], slots[-1], is_cut) == (at("2026-03-01T00:02:00"), at("2026-03-01T00:11:00"), True)
    assert due_slots(every, at("2026-03-01T00:00:00"), at("2026-03-01T00:00:59"), 10) == ([], False)


AFTER = at("2026-03-01T10:00:00")


def minutes(*numbers: int) -> tuple[datetime, ...]:
    return tuple(AFTER + timedelta(minutes=number) for number in numbers)


@pytest.mark.parametrize(
    ("policy", "late_s", "run", "skipped", "through"),
    [
        ({}, 59, None, None, None),
        ({}, 60, 1, (), 1),
        ({}, 200, 3, (1, 2), 3),
        ({"if_missed": "all"}, 200, 1, (), 1),
        ({"if_missed": "all", "max_missed": 2}, 200, 2, (1,), 2),
        ({"if_missed": "skip"}, 61, 1, (), 1),
        ({"if_missed": "skip"}, 181, 3, (1, 2), 3),
        ({"if_missed": "skip"}, 215, None, (1, 2, 3), 3),
        ({"if_missed": "skip", "grace_s": 40}, 215, 3, (1, 2), 3),
        ({"if_missed": "skip", "grace_s": 0}, 60.001, None, (1,), 1),
    ],
)
def test_what_becomes_of_slots_that_have_come(policy, late_s, run, skipped, through):
    plan = make_plan(Every("1m"), JobPolicy(**policy), AFTER, AFTER + timedelta(seconds=late_s))
    if skipped is None:
        assert plan is None
        return
    assert plan is not None
    assert plan.run == (None if run is None else minutes(run)[0])
    assert (plan.skipped, plan.skipped_from, plan.through) == (minutes(*skipped), None, minutes(through)[0])


@pytest.mark.parametrize("if_missed", ["once", "all", "skip"])
def test_more_than_can_be_named_share_a_row(if_missed):
    plan = make_plan(Every("1s"), JobPolicy(if_missed=if_missed), AFTER, AFTER + timedelta(days=400))
    assert plan is not None
    assert plan.skipped_from == AFTER
    assert 900 <= len(plan.skipped) <= 1001
    assert plan.run == (AFTER + timedelta(days=400) - timedelta(seconds=99 if if_missed == "all" else 0))
    assert all(later - slot == timedelta(seconds=1) for slot, later in pairwise(plan.skipped))


def test_a_daily_slot_may_be_a_minute_late_and_no_more_where_late_ones_are_skipped():
    cron, policy = Cron("0 3 * * *"), JobPolicy(if_missed="skip")
    slot = at("2026-03-02T03:00:00")
    for late_s, run in ((59, slot), (61, None)):
        plan = make_plan(cron, policy, at("2026-03-01T10:00:00"), slot + timedelta(seconds=late_s))
        assert plan is not None
        assert (plan.run, plan.through) == (run, slot)


@pytest.mark.parametrize(
    "wrong",
    [
        {"if_killed": "retry"},
        {"if_missed": "twice"},
        {"max_attempts": 0},
        {"max_missed": 1001},
        {"keep_days": 0},
        {"grace_s": -1},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        JobPolicy(**wrong)
