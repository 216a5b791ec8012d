"""The page on locks across hosts: its code runs as it is written, in another folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgleaderlock.stores.nfs import LockState
from tests.support.nfs_lock import names

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "lock-across-hosts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(BLOCKS.index(block)))
def test_every_block_runs_as_it_is_written(tmp_path: Path, block: str):
    (tmp_path / "locks").mkdir()
    assert "/mnt/shared/locks/" in block
    code = block.replace("/mnt/shared", str(tmp_path))
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    complaints = [line for line in ran.stderr.splitlines() if not line.startswith("nfs_on_local_disk")]
    assert (ran.returncode, complaints) == (0, [])
    (lock,) = (tmp_path / "locks").iterdir()
    assert names(lock) == ["epoch.0", "released.0"]


def test_there_are_blocks_and_each_state_has_its_line():
    assert len(BLOCKS) == 5
    reference = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert all(f"\n| `{state.name}` | " in reference for state in LockState)
