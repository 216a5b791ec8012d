"""The checker of the torture can tell two leaders from one."""

import pytest

from tests.torture import find_overlaps


@pytest.mark.parametrize(
    ("intervals", "number"),
    [
        ([], 0),
        ([(1.0, 2.0, "a"), (2.0, 3.0, "b")], 0),
        ([(1.0, 2.5, "a"), (2.0, 3.0, "b")], 1),
        ([(1.0, 9.0, "a"), (2.0, 3.0, "b"), (4.0, 5.0, "c")], 2),
        ([(1.0, 2.5, "a"), (2.0, 3.0, "a")], 0),
        ([(2.0, 3.0, "b"), (1.0, 9.0, "a")], 1),
    ],
)
def test_overlaps_are_counted_between_members_only(intervals, number):
    assert len(find_overlaps(intervals)) == number
