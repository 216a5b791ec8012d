"""The public contract suite over every built-in backend, and over one that somebody else wrote."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pgleaderlock import open_backend
from pgleaderlock.backends import BackendSettings
from pgleaderlock.backends.base import Backend
from pgleaderlock.backends.record import Claim, Record, RecordBackend, RecordStore
from pgleaderlock.embedded import Server
from pgleaderlock.testing import BackendContract
from tests.conftest import Postgres, free_port
from tests.pooler import pgbouncer


class TestMemory(BackendContract):
    lease_s = 1.0

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(f"memory://{name}", **settings)


class TestPostgres(BackendContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.dsn = postgres.dsn

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(_url(self.dsn), role=name, settle_s=0, **settings)


class TestPostgresWithTermTable(TestPostgres):
    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(_url(self.dsn), role=name, settle_s=0, term_table=True, **settings)


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
    server = Server(server_folder_root / "pooled", tcp_port=free_port())
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


# --- Somebody else's ------------------------------------------------------------------------------------------------


class ToyStore(RecordStore):
    """A dictionary that somebody put behind the record port, in the fewest lines."""

    shelf: ClassVar[dict[str, Record]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def labels(self) -> Mapping[str, object]:
        return {"toy": self.name}

    async def read(self) -> Record | None:
        await asyncio.sleep(0)
        return self.shelf.get(self.name)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        if self.shelf.get(self.name) != replacing:
            return None
        record = Record(claim.holder, claim.token, claim.lease_s, object())
        self.shelf[self.name] = record
        return record


def open_toy(url: str, settings: BackendSettings) -> Backend:
    """What a third party's entry point names."""
    return RecordBackend(ToyStore(url), lease_s=settings.lease_s, clock=settings.clock)


class TestSomebodyElses(BackendContract):
    lease_s = 1.0

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_toy(f"toy://{name}", BackendSettings(**settings))


def _url(dsn: str) -> str:
    """A connection string in keyword form as a URL, since it is by its scheme that a backend is found."""
    from urllib.parse import quote

    from psycopg.conninfo import conninfo_to_dict

    if "://" in dsn:
        return dsn
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    database = parts.pop("dbname", "")
    return f"postgresql:///{database}?" + "&".join(f"{name}={quote(value)}" for name, value in parts.items())
