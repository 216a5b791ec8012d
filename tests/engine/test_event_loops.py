"""``--event-loop`` reaches tests, what they run in this process, and the programs that they start."""

import asyncio
import os
import subprocess
import sys

import pytest

from pgleaderlock.testing import VirtualTimeLoop
from tests.support.event_loops import child_environment

MODULES = {"asyncio": "asyncio.unix_events", "uvloop": "uvloop"}
PROGRAM = """
import sys
assert "asyncio" not in sys.modules, "asyncio is imported where nothing asked for it"
import asyncio

async def main():
    return type(asyncio.get_running_loop()).__module__

print(asyncio.run(main()))
"""


@pytest.fixture
def module(request: pytest.FixtureRequest) -> str:
    return MODULES[request.config.getoption("--event-loop")]


async def _module_of_the_running_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def _module_in_a_child(environment: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_a_test_runs_on_the_chosen_loop(module: str):
    assert await _module_of_the_running_loop() == module


def test_what_makes_its_own_loop_gets_the_chosen_one(module: str):
    assert asyncio.run(_module_of_the_running_loop()) == module


def test_a_program_that_a_test_starts_runs_on_the_chosen_loop(module: str):
    assert _module_in_a_child(dict(os.environ)) == module


@pytest.mark.virtual_time
async def test_virtual_time_keeps_its_own_loop():
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.mark.parametrize("name", MODULES)
def test_either_loop_can_be_chosen_whatever_the_other_tests_run_on(name: str):
    environment = child_environment(name, {**os.environ, "PYTHONPATH": "/elsewhere"})
    assert "/elsewhere" in environment["PYTHONPATH"].split(os.pathsep)
    assert _module_in_a_child(environment) == MODULES[name]
