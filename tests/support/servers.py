"""Embedded servers for tests, which start in a fraction of the time: initdb takes most of it, and runs once."""

import os
import subprocess
from pathlib import Path

from pgleaderlock.testing.embedded import Server

_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 2**30  # of some dozen servers at a time each has 40 MB, and grows


def folder_in_memory() -> Path | None:
    """Return the folder whose files are in memory, if that has room for servers: a disk delays them by a third."""
    try:
        room = os.statvfs(_MEMORY)
    except OSError:
        return None
    return _MEMORY if room.f_bavail * room.f_frsize >= _ENOUGH_BYTES and os.access(_MEMORY, os.W_OK) else None


class QuickServer(Server):
    """A server whose data are a copy of a template beside its folder, which the first one there makes."""

    def _make_data(self) -> None:
        template = Server(self.folder.parent / f"template-{os.getpid()}", binaries=self._binaries)
        template.init()
        with self._all_or_nothing(self.data) as new:
            subprocess.run(["cp", "-a", f"{template.data}/.", new], check=True)
