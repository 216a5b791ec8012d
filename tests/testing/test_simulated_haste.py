"""Callers that ask twice, or give up waiting, while a node releases, stops or notifies: no second leader."""

import pytest

from pgleaderlock.testing import simulate
from pgleaderlock.testing.simulation import FAULT_PROFILES


@pytest.mark.parametrize("store", ["postgres", "group", "kubernetes", "file"])
@pytest.mark.slow
def test_there_is_one_leader_when_callers_are_in_a_hurry(store: str):
    faults = simulate(1, profile=FAULT_PROFILES["haste"], store=store, hours=0.15).faults
    assert faults["hasty_step_down"]
    assert faults["stop_and_start"]
