"""The contract over the example, as anybody runs it over a backend of their own."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from pgleaderlock_sqlite import open_sqlite

from pgleaderlock.stores import BackendSettings
from pgleaderlock.stores.base import Backend
from pgleaderlock.testing import BackendContract


class TestSqlite(BackendContract):
    """Whatever is kept here goes to other processes: a path does."""

    folder = tempfile.gettempdir()

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path) -> None:
        self.folder = str(tmp_path)

    def make_backend(self, name: str, **settings: Any) -> Backend:
        """Return a candidate for the lease of this name."""
        return open_sqlite(f"sqlite://{self.folder}/leases.db?{name}", BackendSettings(**settings))
