"""Long sweeps of one test over many values: a few of them in ``make test``, the others in ``make proofs``."""

from collections.abc import Iterable
from typing import Any

import pytest


def sweep(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the values as parameters. Those that are not named as quick have the mark ``proof``."""
    values = list(values)
    assert set(quick) <= set(values), "a quick one that is none of them"
    return [value if value in quick else pytest.param(value, marks=pytest.mark.proof) for value in values]
