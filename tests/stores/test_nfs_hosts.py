"""The contract of every backend, over real NFS: both versions, on a client host. See ``make test-nfs``.

    python tools/nfs_hosts.py run -- nfs-on nfs-host-a python -m pytest tests/stores/test_nfs_hosts.py

Without a host of ``tools/nfs_hosts.py`` to run on nothing here is collected.
"""

import os
from typing import Any

from pgleaderlock import open_backend
from pgleaderlock.stores.base import Backend
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
