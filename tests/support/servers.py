"""Embedded servers for tests, which start in a fraction of the time: initdb takes most of it, and runs once."""

import os
import subprocess

from pgleaderlock.testing.embedded import Server


class QuickServer(Server):
    """A server whose data are a copy of a template beside its folder, which the first one there makes."""

    def _make_data(self) -> None:
        template = Server(self.folder.parent / f"template-{os.getpid()}", binaries=self._binaries)
        template.init()
        with self._all_or_nothing(self.data) as new:
            subprocess.run(["cp", "-a", f"{template.data}/.", new], check=True)
