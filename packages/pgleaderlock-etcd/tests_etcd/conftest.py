"""Servers for the tests of the etcd store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import pki
from tests_etcd.server import Etcd

__all__ = ["etcd", "make_etcd", "pki"]


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member for all tests that leave it as they found it."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def make_etcd(tmp_path: Path) -> Iterator[Callable[..., Etcd]]:
    """Servers for one test alone, to be frozen, killed and restarted."""
    servers: list[Etcd] = []

    def make(members: int = 1, *words: str) -> Etcd:
        servers.append(Etcd(tmp_path / f"etcd-{len(servers)}", members, words))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.stop()
