"""How long after a server start no candidate leads, whatever the server's wall clock says."""

import math

import pytest

from pgleaderlock.postgres._server_start import ServerStart

SETTLE_S = 6.0


def quiet_s(*met: tuple[str, float, float]) -> float:
    """Meet runs of the server, each with its age and when that was read; return what is left after the last."""
    start = ServerStart(SETTLE_S)
    for run, age_s, read_at in met:
        start.learn(run, age_s, read_at)
    return start.quiet_until - met[-1][2]


@pytest.mark.parametrize(
    ("met", "left_s"),
    [
        pytest.param([("a", 2.0, 50.0)], 4.0, id="the first run: the server's word counts"),
        pytest.param([("a", -120.0, 50.0)], SETTLE_S, id="a clock that was stepped back costs no more than one lease"),
        pytest.param([("a", math.nan, 50.0)], SETTLE_S, id="nonsense counts as a start just now"),
        pytest.param(
            [("a", math.inf, 50.0)], -math.inf, id="a server that knows of no former leader is not waited for"
        ),
        pytest.param([("a", 9.0, 50.0), ("b", math.inf, 60.0)], SETTLE_S, id="unless we knew an earlier run"),
        pytest.param([("a", 900.0, 50.0), ("b", 101.0, 60.0)], SETTLE_S, id="a clock that was stepped forward"),
        pytest.param([("a", 900.0, 50.0), ("b", -120.0, 60.0)], SETTLE_S, id="stepped back, after a restart"),
        pytest.param([("a", 900.0, 50.0), ("a", -5.0, 60.0)], -904.0, id="the same run is not a new start"),
        pytest.param([("a", 9.0, 50.0), ("b", 9.0, 60.0), ("b", 99.0, 61.0)], SETTLE_S - 1, id="and is counted once"),
    ],
)
def test_no_candidate_leads_before_a_lease_has_passed_since_the_server_may_have_started(met, left_s):
    assert quiet_s(*met) == pytest.approx(left_s)
