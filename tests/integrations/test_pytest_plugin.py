"""The pytest plugin, in a project of its own: pytest finds it by its entry point, in a process of its own."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guardian import is_alive

PROJECT = Path(__file__).parents[2] / "examples" / "tested_worker"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-code.md"
pytestmark = pytest.mark.slow  # a pytest process each
_OTHERS = ("-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example, in a folder with nothing of ours above it."""
    shutil.copytree(PROJECT, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "project"


def run_pytest(folder: Path, *arguments: str) -> str:
    words = [sys.executable, "-m", "pytest", *_OTHERS, *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    return f"{done.stdout}\n{done.stderr}\nexit code {done.returncode}"


def outcome(said: str) -> dict[str, int]:
    last = re.findall(r"^=* ?(\d+ .*) in [\d.]+s", said, re.MULTILINE)
    assert last, said
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last[-1])}


def test_an_example_project_passes_with_pytest_asyncio_and_anyio_side_by_side(project: Path):
    said = run_pytest(project)
    assert outcome(said) == {"passed": 9}, said


def programs_of_the_page() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_prints_a_conftest_with_which_the_project_passes(project: Path):
    (printed,) = [each for each in programs_of_the_page() if "def anyio_backend" in each]
    (project / "conftest.py").write_text(printed)
    said = run_pytest(project, "--strict-markers")
    assert outcome(said) == {"passed": 9}, said


def test_the_page_prints_a_test_of_a_leading_block_that_passes(tmp_path: Path):
    (printed,) = [each for each in programs_of_the_page() if "lock.leading()" in each]
    (tmp_path / "test_page.py").write_text(printed)
    said = run_pytest(tmp_path)
    assert outcome(said) == {"passed": 1}, said


def test_it_needs_no_plugin_for_asyncio(project: Path):
    said = run_pytest(project, "-p", "no:asyncio", "-p", "no:anyio", "test_plain.py")
    assert outcome(said) == {"passed": 3}, said


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_it_works_in_both_modes_of_pytest_asyncio(project: Path, mode: str):
    said = run_pytest(project, "--asyncio-mode", mode, "-p", "no:anyio", "test_on_pytest_asyncio.py", "test_plain.py")
    assert outcome(said) == {"passed": 6}, said


def test_anyio_alone_runs_it(project: Path):
    said = run_pytest(project, "-p", "no:asyncio", "test_on_anyio.py")
    assert outcome(said) == {"passed": 3}, said


def test_workers_of_xdist_have_a_server_each(project: Path):
    (project / "test_servers.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_server(embedded_postgres, n, worker_id):\n"
        "    print('SERVER', worker_id, embedded_postgres.pid)\n"
    )
    said = run_pytest(project, "-n", "2", "--dist=each", "-rP", "test_servers.py")
    assert outcome(said) == {"passed": 4}, said
    pids = {worker: set(re.findall(rf"SERVER {worker} (\d+)", said)) for worker in ("gw0", "gw1")}
    assert all(len(each) == 1 for each in pids.values()), said
    assert pids["gw0"] != pids["gw1"]
    assert not [pid for (pid,) in pids.values() if is_alive(int(pid))], "a server outlived its tests"


_UNUSED = """
import sys

def test_nothing_is_loaded():
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("pgleaderlock", "psycopg")}
    assert loaded == {
        "pgleaderlock", "pgleaderlock._base", "pgleaderlock._base.version",
        "pgleaderlock.integrations", "pgleaderlock.integrations.pytest_plugin",
    }

def test_memory_needs_no_server(leader_lock, blocking_leader_lock, lose_leadership):
    with blocking_leader_lock:
        assert blocking_leader_lock.wait_for_leadership(timeout_s=60)
"""


def test_unused_it_imports_nothing_but_itself(tmp_path: Path):
    (tmp_path / "test_unused.py").write_text(_UNUSED)
    said = run_pytest(tmp_path)
    assert outcome(said) == {"passed": 2}, said


def test_it_adds_no_hook_and_no_option(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    manager = session.config.pluginmanager\n"
        "    plugin = manager.get_plugin('pgleaderlock')\n"
        "    print('HOOKS', [caller.name for caller in manager.get_hookcallers(plugin) or ()])\n"
    )
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    assert "HOOKS []" in run_pytest(tmp_path, "-s")


def test_fixtures_are_listed_with_what_they_return(tmp_path: Path):
    said = run_pytest(tmp_path, "--fixtures")
    for name in ("leader_lock", "blocking_leader_lock", "lose_leadership", "embedded_postgres", "virtual_time"):
        assert re.search(rf"^{name}\b.*\n +\S", said, re.MULTILINE), name


def test_the_function_without_a_lock_is_for_tests_that_use_leader_lock(tmp_path: Path):
    (tmp_path / "test_one.py").write_text("def test_one(lose_leadership):\n    lose_leadership()\n")
    assert "name the lock" in run_pytest(tmp_path)
