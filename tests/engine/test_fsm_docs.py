"""The documented table is the table that runs; and the check that says so is able to fail."""

import re
import shutil
from pathlib import Path

import pytest

from pgleaderlock.engine.fsm import ROWS
from pgleaderlock.models import LockState
from tests.support.fsm_docs import ROOT, load_tool

PAGE = ROOT / "docs" / "reference" / "state-machine.md"


fsm_docs = load_tool("fsm_docs")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(PAGE, tmp_path / "page.md"))


def test_the_documented_state_machine_is_the_one_that_runs() -> None:
    assert fsm_docs.main(["--check"]) == 0, "docs/reference/state-machine.md is out of date: run `make docs`"


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("| STOPPED | `Start` | FOLLOWER |", "| STOPPED | `Start` | LEADER |"),
        ("    [*] --> STOPPED\n", ""),
        ("| FOLLOWER | `ReleaseRequested` |", "| FOLLOWER | `HealthOk` |"),
    ],
    ids=["a destination", "an arrow", "an input"],
)
def test_the_check_fails_on_a_page_that_says_something_else_and_changes_nothing(
    copy: Path, capsys: pytest.CaptureFixture[str], was: str, becomes: str
) -> None:
    right = copy.read_text(encoding="utf-8")
    assert was in right
    wrong = right.replace(was, becomes)
    copy.write_text(wrong, encoding="utf-8")
    assert fsm_docs.main(["--check", "--page", str(copy)]) == 1
    assert "make docs" in capsys.readouterr().err
    assert copy.read_text(encoding="utf-8") == wrong


def test_the_check_fails_when_a_row_changes(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsm_docs, "ROWS", ROWS[:-1])
    assert fsm_docs.main(["--check", "--page", str(copy)]) == 1


def test_writing_mends_the_generated_parts_and_leaves_the_prose(copy: Path) -> None:
    right = copy.read_text(encoding="utf-8")
    copy.write_text(right.replace("| STOPPED | `Start` |", "| STOPPED | `Stop` |"), encoding="utf-8")
    assert fsm_docs.main(["--page", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == right
    copy.write_text(right.replace("# The state machine", "# Another title"), encoding="utf-8")
    assert fsm_docs.main(["--page", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8").startswith("# Another title")


def test_a_page_without_its_markers_is_refused(copy: Path) -> None:
    """Otherwise a page that lost them would pass every check from then on."""
    copy.write_text(copy.read_text(encoding="utf-8").replace("<!-- generated: diagram -->", ""), encoding="utf-8")
    with pytest.raises(ValueError, match="markers"):
        fsm_docs.main(["--check", "--page", str(copy)])


def test_the_table_has_a_line_for_every_row_in_the_same_order() -> None:
    lines = fsm_docs.table().splitlines()[2:]
    assert len(lines) == len(ROWS)
    for line, row in zip(lines, ROWS, strict=True):
        source, fact = re.match(r"\| (\w+) \| `(\w+)` \|", line).groups()  # type: ignore[union-attr]
        assert source == row.source.name
        assert fact.lower() == row.input.value.replace("_", "")
        for kind in row.emits:
            assert kind.value in line


def test_the_table_shows_these_lines() -> None:
    lines = fsm_docs.table().splitlines()
    assert "| STOPPED | `Start` | FOLLOWER | – | – | – | – | – |" in lines
    assert "| LEADER | `HealthFailed` | RECONNECTING³ | `on_error` | yes | – | – | yes |" in lines
    assert "| RELEASING | `ReleaseSucceeded` | STOPPED² | `on_released` | – | yes | – | – |" in lines
    assert (
        "| ACQUIRING | `DbError` | FOLLOWER¹ | *attempt_failed* (calls `on_lost`⁴), `on_error` | yes | – | – | – |"
        in lines
    )
    assert "| RECONNECTING | `ReacquireSucceeded` | LEADER | *recovered* (log only) | – | – | – | yes |" in lines
    assert "| LEADER | `HealthOk` | *(stays LEADER)* | – | – | – | – | yes |" in lines


def test_the_diagram_has_every_state_and_both_ends_of_a_footnote() -> None:
    text = fsm_docs.diagram()
    for state in LockState:
        assert re.search(rf"^    {state.name} --> ", text, re.MULTILINE)
    for to in ("RECONNECTING", "FOLLOWER", "STOPPED"):
        assert re.search(rf"^    LEADER --> {to}: .*HealthFailed³", text, re.MULTILINE)
    arrows = re.findall(r"^    (\S+ --> \w+)", text, re.MULTILINE)
    assert len(set(arrows)) == len(arrows)


def test_every_state_and_input_is_explained_in_the_prose() -> None:
    prose = re.sub(r"<!-- generated: .*?<!-- end -->", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    for state in LockState:
        assert f"| {state.name} |" in prose
    for row in ROWS:
        assert f"`{''.join(word.capitalize() for word in row.input.value.split('_'))}`" in prose
