"""Clusters of candidates on a modelled etcd, under faults, on virtual time."""

import pytest

from pgleaderlock.testing import SimulationFailed, simulate
from pgleaderlock.testing.simulation import FAULT_PROFILES
from pgleaderlock.testing.simulation.fault_profiles import INSIDE
from tests_etcd.model import ModelledEtcd, etcd_store

PROFILES = [name for name in INSIDE if FAULT_PROFILES[name].faults.keys() & etcd_store().faults]


@pytest.mark.parametrize("lease_s", [5.0, 15.0, 300.0])
@pytest.mark.parametrize("profile", ["storm", "squalls", "fog"])
def test_no_split_brain_under_faults(profile: str, lease_s: float):
    report = simulate(1, profile=profile, store=etcd_store(), lease_s=lease_s, hours=120 * lease_s / 3600)
    assert report.terms > 3
    assert report.faults


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("profile", PROFILES)
def test_no_split_brain_with_other_seeds(profile: str, seed: int):
    simulate(seed, profile=profile, store=etcd_store(), lease_s=15.0, hours=0.5)


def test_a_compaction_is_injected_and_survived():
    report = simulate(3, profile="storm", store=etcd_store(), hours=2)
    assert report.faults["compact"] > 0


class WritesAnything(ModelledEtcd):
    """An etcd that does not compare."""

    def compares(self, mod_revision: int) -> bool:
        return True


def test_the_simulation_finds_two_leaders_where_nothing_is_compared():
    with pytest.raises(SimulationFailed, match="lead"):
        simulate(1, profile="squalls", store=etcd_store(WritesAnything), hours=2)
