"""The examples run as they are, as a reader would run them."""

import signal
import sys
from pathlib import Path

from tests.conftest import Postgres
from tests.processes import Process

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str, postgres: Postgres) -> Process:
    return Process(sys.executable, "-u", str(EXAMPLES / name), env={"PG_DSN": postgres.dsn})


def test_the_first_election_hands_over_from_one_terminal_to_the_next(postgres: Postgres):
    with example("first_election.py", postgres) as first:
        first.wait_for("I am the leader")
        with example("first_election.py", postgres) as second:
            second.wait_for("waiting for my turn")
            first.say()
            first.wait_for("I handed over")
            assert first.wait() == 0
            second.wait_for("I am the leader")
            second.say()
            assert second.wait() == 0


def test_the_worker_ticks_in_one_process_and_goes_on_in_another_when_that_one_is_killed(postgres: Postgres):
    with example("leader_only_worker.py", postgres) as first:
        first.wait_for(f"tick 2 from process {first.pid}")
        with example("leader_only_worker.py", postgres) as second:
            second.wait_for("taking part")
            first.signal(signal.SIGKILL)
            second.wait_for(f"tick 1 from process {second.pid}")
            second.signal(signal.SIGTERM)
            second.wait_for("stopped")
            assert second.wait() == 0


def test_every_example_is_run_here():
    this = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in this for path in EXAMPLES.glob("*.py"))
