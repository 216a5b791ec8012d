"""The benchmark's own machinery: that it runs, and builds nothing. No time is judged."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_kubernetes_is_left_out_with_one_line_where_its_server_is_not_built(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "tools" / "k8s_server.py", "run", "--if-built", "--", "false"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.count("\n") == 1
    assert "`make test-k8s` builds it" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by_kill", [True, False])
def test_candidates_succeed_one_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_kill: bool) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    candidates = importlib.import_module("candidates")
    with candidates.Candidates(candidates.our_command((tmp_path / "lock").as_uri()), 2) as side:
        first = side._leader
        assert side.replace_leader(by_kill=by_kill) > 0
        assert first.poll() is not None
        second = side._leader
        assert second is not first
    assert second.poll() is not None
    assert all(child.poll() is not None for child in side._children)
