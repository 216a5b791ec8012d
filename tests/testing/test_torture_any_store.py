"""The torture of any store by its URL: it passes where the promise is kept, and finds where it is not."""

from pathlib import Path

import pytest

from pgleaderlock.testing.torture import torture_store


@pytest.mark.slow
def test_candidates_that_are_killed_and_frozen_never_lead_at_once(tmp_path: Path):
    done = torture_store(f"file://{tmp_path}/leader.json", seconds=6, seed=1, candidates=3)
    assert done.problems() == []
    assert done.harm["kill"]
    assert done.harm["freeze"]


@pytest.mark.slow
def test_two_leaders_are_found_and_faults_of_the_store_are_injected():
    """A variable of each process is no lock between processes."""
    calls: list[int] = []
    harm = {"restart": lambda: calls.append(1)}
    found = ""
    for seconds in (4, 8, 16, 32):  # on a busy machine a candidate takes long to start, and is killed before it leads
        done = torture_store("memory://each-alone", seconds=seconds, seed=2, candidates=3, harm=harm)
        found += "".join(done.problems())
        if "TWO LEADERS" in found and "TOKEN REPEATED" in found and calls:
            return
    raise AssertionError(found)


@pytest.mark.slow
def test_a_store_on_which_no_candidate_leads_is_reported():
    done = torture_store("file:///nonexistent/folder/leader.json", seconds=0.5, candidates=1, first_leader_s=0.5)
    assert "NO LEADER EVER" in done.problems()[0]
