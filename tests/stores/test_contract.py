"""The public contract suite over memory, over sessions, and over a third-party backend.

Over the other stores it runs in the files of their tests.
"""

from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock.stores import BackendSettings
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing import BackendContract, InProcessContract
from tests.conftest import Postgres
from tests.support.contract import ToyStore


class TestMemory(InProcessContract):
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


# --- A third-party backend ------------------------------------------------------------------------------------------


def open_toy(url: str, settings: BackendSettings) -> Backend:
    """What a third party's entry point names."""
    return RecordBackend(ToyStore(url), lease_s=settings.lease_s, clock=settings.clock)


class TestSomebodyElses(InProcessContract):
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
