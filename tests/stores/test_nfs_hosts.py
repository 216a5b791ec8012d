"""The contract of every backend, and what only a mounted NFS shows: both versions, on a client host.

See ``make test-nfs``.

    python tools/nfs_hosts.py run -- nfs-on nfs-host-a python -m pytest tests/stores/test_nfs_hosts.py

Without a host of ``tools/nfs_hosts.py`` to run on nothing here is collected.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.nfs.backend import NfsStore
from pgleaderlock.stores.record import Claim
from pgleaderlock.testing import BackendContract


class HostContract(BackendContract):
    root = ""
    margin_s = 2.0  # a process takes its time to begin there

    def make_backend(self, name: str, **settings: Any) -> Backend:
        return open_backend(f"nfs://{self.root}/{name}", **settings)


class TestContractOverV3(HostContract):
    root = os.environ["PGLEADERLOCK_NFS_V3"]


class TestContractOverV4(HostContract):
    root = os.environ["PGLEADERLOCK_NFS_V4"]


@pytest.mark.parametrize("version", ["V3", "V4"])
async def test_follower_on_the_leaders_host_is_notified_of_a_release(version: str):
    path = (
        Path(os.environ[f"PGLEADERLOCK_NFS_{version}"]) / f"notified-{version}.lock"
    )  # both are one folder of the server
    leader, follower = (NfsStore(path, identity=name, poll_s=600) for name in ("first", "second"))
    held = await leader.write(Claim("first", 1, 60.0, is_new_term=True), None)
    seen = await follower.read()
    assert held is not None
    assert await follower.changed(seen, 2.0) is None  # has looked, and would look again after minutes
    await leader.write(Claim("", 1, 60.0, is_new_term=False), held)
    freed = await follower.changed(seen, 60.0)
    assert freed is not None
    assert freed.holder == ""
    await follower.close()
    await leader.close()
