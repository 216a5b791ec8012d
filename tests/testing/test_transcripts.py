"""What the cluster says to each script in ``transcripts/``, word for word: a new protocol is a diff of prose.

``pytest tests/testing/test_transcripts.py --rewrite-transcripts`` writes them anew, for ``git diff`` to show.
"""

from pathlib import Path

import pytest

from tests.support.scenario import read_scenario

SCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_cluster_says_what_it_always_said(path: Path, request: pytest.FixtureRequest):
    told = read_scenario(path.read_text(encoding="utf-8")).play()
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(told, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == told, "if this is meant, --rewrite-transcripts writes it anew"


def test_a_line_that_makes_no_sense_is_named():
    with pytest.raises(ValueError, match="'at noon everything'"):
        read_scenario("store postgres\nat noon everything\n")


def test_a_fault_that_does_not_exist_is_an_error():
    with pytest.raises(AttributeError, match="earthquake"):
        read_scenario("at 1s earthquake\n").play()
