"""Which known word an unknown one stands for."""

import pytest

from pgleaderlock._base.spelling import near


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("lease", ["lease_duration", "schema"], ["lease_duration"]),
        ("lese", ["lease", "schema"], ["lease"]),
        ("refresh_intervall", ["refresh_interval", "check_interval"], ["refresh_interval"]),
        ("no", ["no-witness"], []),
        ("key", ["token"], []),
        ("a", ["b", "ab"], []),
    ],
)
def test_only_a_slip_or_a_part_of_a_name_is_near(word: str, known: list[str], expected: list[str]):
    assert near(word, known) == expected
