"""The public contract suite over lease rows, on a direct connection and through a real pooler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock.stores.base import Backend
from pgleaderlock.testing import BackendContract
from tests.conftest import Postgres, free_port
from tests.support.pooler import pgbouncer
from tests.support.servers import QuickServer


class TestLeaseRows(BackendContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.dsn = postgres.tcp_dsn

    def make_backend(self, name: str, **settings: Any) -> Backend:
        url = self.dsn.replace("postgresql://", "postgresql+lease://")
        return open_backend(url, role=name, **settings)


@pytest.fixture(scope="module")
def pooled_dsn(server_folder_root: Path) -> Iterator[str]:
    """A PgBouncer in transaction mode before a server of its own."""
    server = QuickServer(server_folder_root / "pooled", tcp_port=free_port())
    server.start()
    try:
        with pgbouncer(server, "transaction") as dsn:
            yield dsn
    finally:
        server.stop("immediate")


class TestLeaseRowsThroughAPooler(BackendContract):
    @pytest.fixture(autouse=True)
    def _pooler(self, pooled_dsn: str) -> None:
        self.dsn = pooled_dsn

    def make_backend(self, name: str, **settings: Any) -> Backend:
        url = self.dsn.replace("postgresql://", "postgresql+lease://")
        return open_backend(url, role=name, **settings)
