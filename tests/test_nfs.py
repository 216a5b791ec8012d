"""Elections in a folder that hosts share, here on a local disk. ``make test-nfs`` has real NFS, and two hosts."""

from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock.backends.base import Backend
from pgleaderlock.testing import BackendContract


class TestContract(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(f"nfs://{self.folder}/{name}", **settings)
