"""Each mechanism of ``proofs/edge_mutations.py`` that is taken out is missed by the tests that are named for it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from proofs.edge_mutations import EDGE_MUTATIONS, EdgeMutation

_ROOT = Path(__file__).parents[2]
_SOME_FAILED = 1
_WRONG_REASONS = re.compile(
    r"^E +(SyntaxError|IndentationError|NameError|ImportError|ModuleNotFoundError)\b", re.MULTILINE
)


@pytest.mark.parametrize("mutation", EDGE_MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mechanism_stands_in_the_source_as_its_mutation_names_it(mutation: EdgeMutation):
    """The proofs run late in the gate: a change of the source that a mutation must follow shows here first."""
    assert mutation.changed_text()
    assert all((_ROOT / test.partition("::")[0]).exists() for test in mutation.tests)


@pytest.mark.proof
@pytest.mark.parametrize("mutation", EDGE_MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.timeout(300)
def test_a_mechanism_at_an_edge_that_is_taken_out_is_missed(mutation: EdgeMutation, tmp_path: Path):
    source = mutation.write_source(tmp_path)
    words = ["-q", "-x", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--basetemp={tmp_path / 'inner'}", *mutation.tests],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == _SOME_FAILED, f"no test misses it, or they could not be run:\n{said[-4000:]}"
    assert any(f"FAILED {test}" in said for test in mutation.tests), f"it is not a test that fails:\n{said[-4000:]}"
    wrong = _WRONG_REASONS.search(said)
    assert wrong is None, f"it is the change itself that fails:\n{said[-4000:]}"
