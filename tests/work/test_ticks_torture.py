"""The accountant of the torture sees what it is there to see."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from proofs.ticks_torture import Begun, Row, find_faults, read_runs

START = datetime(2026, 3, 1, tzinfo=UTC)


def slot(number: int) -> datetime:
    return START + number * timedelta(milliseconds=110)


def run(number: int, *, attempt: int = 1, token: int = 1, ended: bool = True, member: str = "a", **more) -> Begun:
    began_at = more.pop("began_at", float(number) + attempt / 10)
    return Begun("effect", slot(number), attempt, token, began_at, began_at + 0.05 if ended else None, member, **more)


def row(number: int, state: str = "done", *, attempt: int = 1, token: int = 1, since: int | None = None) -> Row:
    return Row("effect", slot(number), attempt, state, token, None if since is None else slot(since))


GOOD_RUNS = [run(1), run(2, ended=False), run(2, attempt=2, token=2), run(5, token=2)]
GOOD_ROWS = [
    row(1),
    row(2, "repeated"),
    row(2, attempt=2, token=2),
    row(3, "skipped", token=2),
    row(4, "skipped", token=2),
    row(5, token=2),
]
GOOD_EFFECTS = [slot(1), slot(2), slot(5)]


def test_what_is_in_order_has_no_faults():
    assert find_faults(GOOD_RUNS, GOOD_ROWS, GOOD_EFFECTS) == []
    shared = [row(1), row(9, "skipped", since=1), row(10)]
    assert find_faults([run(1), run(10)], shared, [slot(1), slot(10)]) == []


@pytest.mark.parametrize(
    ("runs", "rows", "effects", "fault"),
    [
        ([*GOOD_RUNS, run(1, member="b")], GOOD_ROWS, GOOD_EFFECTS, "begun 2 times"),
        (GOOD_RUNS, [each for each in GOOD_ROWS if each.slot != slot(3)], GOOD_EFFECTS, "unclaimed"),
        ([*GOOD_RUNS, run(6)], GOOD_ROWS, GOOD_EFFECTS, "not in the ledger"),
        ([run(1, token=9), *GOOD_RUNS[1:]], GOOD_ROWS, GOOD_EFFECTS, "claimed by 1"),
        (GOOD_RUNS, [row(1, "running"), *GOOD_ROWS[1:]], GOOD_EFFECTS[1:], "left running"),
        (GOOD_RUNS[1:], GOOD_ROWS, GOOD_EFFECTS, "never run"),
        ([*GOOD_RUNS, run(3, token=2)], GOOD_ROWS, GOOD_EFFECTS, "skipped in the ledger, and run"),
        ([*GOOD_RUNS[:2], GOOD_RUNS[3]], [*GOOD_ROWS[:2], *GOOD_ROWS[3:]], [slot(1), slot(5)], "never was"),
        (GOOD_RUNS, GOOD_ROWS, [*GOOD_EFFECTS, slot(1)], "2 effects"),
        (GOOD_RUNS, GOOD_ROWS, [*GOOD_EFFECTS, slot(3)], "not done"),
        (GOOD_RUNS, GOOD_ROWS, GOOD_EFFECTS[1:], "without an effect"),
        ([run(1, began_at=1.0), run(2, began_at=1.01)], [row(1), row(2)], [slot(1), slot(2)], "two runs at once"),
        (
            [run(1, token=2, began_at=1.0), run(2, began_at=2.0)],
            [row(1, token=2), row(2)],
            [slot(1), slot(2)],
            "after a newer term",
        ),
    ],
)
def test_each_fault_is_seen(runs, rows, effects, fault):
    assert any(fault in each for each in find_faults(runs, rows, effects))


def test_a_job_that_is_not_to_be_repeated_and_one_that_never_ended():
    twice = [Begun("once", START, attempt, 1, float(attempt), None, "a") for attempt in (1, 2)]
    rows = [Row("once", START, 1, "killed", 1, None), Row("once", START, 2, "done", 1, None)]
    faults = find_faults(twice, rows, [])
    assert any("not to be repeated" in each for each in faults)
    assert any("never ended" in each for each in faults)


def test_lines_that_were_torn_off_are_left_out(tmp_path: Path):
    path = tmp_path / "m0-0"
    at = START.isoformat()
    path.write_text(
        f"1.0 begin once {at} 1 7\n1.5 end once {at} 1 7\n2.0 begin all {at} 1 7\n3.0 begin once {at} 1 7\n4.0 beg"
    )
    runs = list(read_runs(path))
    assert [(each.job, each.began_at, each.ended_at) for each in runs] == [
        ("once", 1.0, 1.5),
        ("once", 3.0, None),
        ("all", 2.0, None),
    ]
