"""The attack on a session pair finds what it is there for, and its judge is right."""

import pytest

from tests.pair_members import Interval
from tests.pair_torture import Blow, attack_rounds, find_overlaps, parse, tell


def test_intervals_of_one_role_that_overlap_are_found():
    one, other = Interval(3, 7, 10.0, 12.0), Interval(3, 8, 11.5, 14.0)
    (found,) = find_overlaps([("b", other), ("a", one), ("b", Interval(4, 9, 10.0, 20.0))])
    assert (found.role, found.names, found.began_at, found.lasted_s) == (3, ("a", "b"), 11.5, 0.5)


def test_one_process_cannot_overlap_with_itself_and_an_end_is_not_an_overlap():
    assert not find_overlaps([("a", Interval(0, 1, 1.0, 3.0)), ("a", Interval(0, 2, 2.0, 4.0))])
    assert not find_overlaps([("a", Interval(0, 1, 1.0, 3.0)), ("b", Interval(0, 2, 3.0, 4.0))])


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["lock", "group"])
def test_the_lock_session_ends_while_the_witness_is_replaced(mode: str, capsys: pytest.CaptureFixture[str]):
    options = parse(["--mode", mode, "--seed", "1"])
    blow = Blow(lock_first=False, apart_s=0.1, connect_s=1.5, slow_for_all=False)
    outcome = attack_rounds(options, [blow] * 2)
    assert outcome.rounds == 2
    assert tell(outcome, options) == 0, capsys.readouterr().out


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["lock", "group"])
def test_a_pair_that_ends_in_the_other_order_is_one_loss_with_its_true_cause(mode: str):
    options = parse(["--mode", mode, "--roles", "2" if mode == "group" else "0", "--seed", "1"])
    outcome = attack_rounds(options, [Blow(lock_first=True, apart_s=0.2, connect_s=0.0, slow_for_all=False)])
    assert outcome.terms >= 2
    assert outcome.causes["session_terminated"] >= 1
    assert not outcome.overlaps
