"""The judge of coverage, on reports made by hand."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_tool() -> Any:
    """Import it from its file: tools are no package. Its dataclass looks itself up in sys.modules."""
    spec = importlib.util.spec_from_file_location("coverage_floors", ROOT / "tools" / "coverage_floors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


coverage_floors = load_tool()

WHOLE = ["engine/election.py", "engine/fsm.py", "models.py", "retry.py"]


class Project:
    """A package on disk and a report about it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "src" / "pgleaderlock"
        self.report: dict[str, Any] = {"meta": {"branch_coverage": True}, "files": {}}
        for name in [*WHOLE, "lock.py", "stores/base.py"]:
            self.add(name)

    def add(self, name: str, *, lines: int = 80, branches: int = 20, no_lines: int = 0, no_branches: int = 0) -> None:
        path = self.package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.report["files"][f"src/pgleaderlock/{name}"] = {
            "summary": {
                "num_statements": lines,
                "missing_lines": no_lines,
                "num_branches": branches,
                "missing_branches": no_branches,
            }
        }

    def judge(self, *options: str) -> int:
        report = self.root / "coverage.json"
        report.write_text(json.dumps(self.report), encoding="utf-8")
        places = ["--package", str(self.package), "--root", str(self.root)]
        code: int = coverage_floors.main([str(report), *places, *options])
        return code


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_what_is_well_covered_is_counted_and_not_shown(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.add("lock.py", no_lines=7)
    assert project.judge() == 0
    out = capsys.readouterr().out
    assert "lock.py" in out
    assert "fsm.py" not in out
    assert "more, each covered by 95 % and more" in out


def test_a_project_above_its_floors_passes_and_every_module_is_shown(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.add("lock.py", no_lines=5)
    assert project.judge("--all") == 0
    out, err = capsys.readouterr()
    for name in [*WHOLE, "lock.py", "stores/base.py"]:
        assert name in out
    assert "95.00%" in out
    assert "BELOW" not in out
    assert err == ""


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("missing", [{"no_lines": 1}, {"no_branches": 1}], ids=["a line", "a branch"])
def test_a_module_that_decides_may_not_miss_one_of_ten_thousand(
    project: Project, capsys: pytest.CaptureFixture[str], name: str, missing: dict[str, int]
) -> None:
    project.add(name, lines=10_000, branches=10_000, **missing)
    assert project.judge() == 1
    out, err = capsys.readouterr()
    assert "BELOW" in out
    assert name in err
    assert "lock.py" not in err


@pytest.mark.parametrize(("missing", "code"), [(9, 0), (10, 1), (11, 1)])
def test_any_other_module_needs_more_than_90_percent_and_exactly_90_is_not_more(
    project: Project, capsys: pytest.CaptureFixture[str], missing: int, code: int
) -> None:
    project.add("stores/base.py", lines=80, branches=20, no_lines=missing)
    assert project.judge() == code
    assert ("stores/base.py" in capsys.readouterr().err) is bool(code)


@pytest.mark.parametrize(("missing", "code"), [(24, 0), (25, 1)])
def test_a_module_whose_faults_are_drawn_at_random_needs_what_every_run_reaches(
    project: Project, missing: int, code: int
) -> None:
    project.add("testing/torture/_conductor.py", lines=80, branches=20, no_lines=missing)
    assert project.judge() == code


def test_branches_count_as_much_as_lines(project: Project) -> None:
    project.add("lock.py", lines=80, branches=20, no_branches=15)
    assert project.judge() == 1


def test_a_module_that_the_report_does_not_know_fails(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (project.package / "forgotten.py").touch()
    assert project.judge() == 1
    out, err = capsys.readouterr()
    assert "NOT IN THE REPORT" in out
    assert "forgotten.py" in err


@pytest.mark.parametrize("name", WHOLE)
def test_a_module_that_decides_cannot_escape_by_being_renamed(
    project: Project, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (project.package / name).unlink()
    del project.report["files"][f"src/pgleaderlock/{name}"]
    assert project.judge() == 1
    assert name in capsys.readouterr().err


def test_a_module_of_the_same_name_deeper_down_is_held_to_the_usual_floor(project: Project) -> None:
    project.add("stores/models.py", no_lines=5)
    assert project.judge() == 0


def test_an_empty_module_is_covered(project: Project) -> None:
    project.add("stores/__init__.py", lines=0, branches=0)
    assert project.judge() == 0


def test_absolute_paths_in_the_report_are_understood(project: Project) -> None:
    project.report["files"] = {str(project.root / name): entry for name, entry in project.report["files"].items()}
    assert project.judge() == 0


def test_what_is_not_of_the_package_does_not_count(project: Project) -> None:
    project.report["files"]["tests/test_x.py"] = {"summary": {}}
    assert project.judge() == 0


def test_a_report_without_branches_is_not_good_enough(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.report["meta"]["branch_coverage"] = False
    assert project.judge() == 2
    assert "branch" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "{}", "not json"], ids=repr)
def test_a_report_that_cannot_be_read_is_an_error_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    report = tmp_path / "coverage.json"
    if content is not None:
        report.write_text(content, encoding="utf-8")
    assert coverage_floors.main([str(report)]) == 2
    assert "cannot judge" in capsys.readouterr().err
