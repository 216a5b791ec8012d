"""The contract that every store keeps, over a real etcd."""

from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock.stores.base import Backend
from pgleaderlock.testing import BackendContract
from tests_etcd.server import Etcd


class TestEtcd(BackendContract):
    hosts = ""  # sent to the processes of the suite

    @pytest.fixture(autouse=True)
    def _server(self, etcd: Etcd) -> None:
        self.hosts = etcd.hosts

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(f"etcd://{self.hosts}/contract/{name}", **settings)
