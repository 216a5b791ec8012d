"""One rule for all that take a lease and an interval: what was not given follows from what was."""

from pathlib import Path

import pytest

import pgleaderlock
from pgleaderlock import consensus, sync
from pgleaderlock.backends.times import USUAL_INTERVAL_S, choose_times
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.config import Config

DSN = "postgresql://127.0.0.1:1/none"


@pytest.mark.parametrize(
    ("lease_s", "interval_s", "times"),
    [
        (None, USUAL_INTERVAL_S, (15.0, 5.0)),
        (2.0, USUAL_INTERVAL_S, (2.0, 2 / 3)),
        (60.0, USUAL_INTERVAL_S, (60.0, 20.0)),
        (None, 1.0, (3.0, 1.0)),
        (None, 0.1, (1.5, 0.1)),
        (None, 20, (60.0, 20.0)),
        (60.0, 5.0, (60.0, 5.0)),
        (60, 30, (60.0, 30.0)),
    ],
)
def test_what_was_not_given_follows_from_what_was(lease_s: float | None, interval_s: float, times: tuple[float, float]):
    assert choose_times(lease_s, interval_s) == times


def test_an_interval_of_five_seconds_that_was_given_is_not_replaced():
    with pytest.raises(ValueError, match="health_interval_s=5 must be less than two thirds of lease_s=2"):
        choose_times(2.0, 5.0)


@pytest.mark.parametrize(("lease_s", "interval_s"), [(0, 5.0), (-1, 5.0), (float("nan"), 5.0), (None, 0), (9, -1)])
def test_neither_may_be_nonsense(lease_s: float | None, interval_s: float):
    with pytest.raises(ValueError, match=r"lease_s|health_interval_s"):
        choose_times(lease_s, interval_s)


@pytest.mark.parametrize("make", [pgleaderlock.LeaderLock, sync.LeaderLock])
def test_a_lock_takes_a_short_lease_alone_and_renews_three_times_in_it(make: type):
    lock = make(DSN, role="a", lease_s=2.0)
    engine = lock if isinstance(lock, pgleaderlock.Election) else lock._engine
    assert engine._health_interval_s == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="two thirds"):
        make(DSN, role="a", lease_s=2.0, health_interval_s=5.0)


def test_a_group_takes_a_short_lease_alone():
    pgleaderlock.LeaderGroup(DSN, ["a"], lease_s=2.0)
    with pytest.raises(ValueError, match="two thirds"):
        pgleaderlock.LeaderGroup(DSN, ["a"], lease_s=2.0, health_interval_s=5.0)


def test_a_manager_takes_a_short_lease_alone():
    assert consensus.Config("me", lease_duration_s=2.0).renew_interval_s == pytest.approx(2 / 3)
    assert consensus.Config("me").renew_interval_s == 5.0
    with pytest.raises(ValueError, match="renew_interval_s=5 must be less than two thirds of lease_duration_s=2"):
        consensus.Config("me", lease_duration_s=2.0, renew_interval_s=5.0)


def test_the_configuration_takes_a_short_lease_alone():
    settings = {"leader_election": {"lease_duration": "2s", "roles": ["a"]}}
    election = Config.model_validate({"cluster": settings}).election
    assert (election.lease_s, election.health_interval_s) == (2.0, pytest.approx(2 / 3))


@pytest.mark.parametrize("command", ["run", "acquire", "exec"])
def test_the_command_line_takes_a_short_lease_alone(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The store cannot be used, which is only found out when the times are good."""
    words = [command, "--url", f"file://{tmp_path}/none/lock", "--role", "a", "--lease", "2"]
    more = ["--wait", "0", "--", "true"] if command == "exec" else []
    assert invoke([*words, "--health-interval", "5", *more]) == exit_codes.USAGE
    assert "two thirds" in capsys.readouterr().err
    invoke([*words, *more])
    assert "two thirds" not in capsys.readouterr().err
