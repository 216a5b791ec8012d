"""A folder that simulated processes of one host share: the real store, on real files, in virtual time.

The folder is a temporary one, in memory where the system has that, and is removed in the end. The simulation does what
a kernel does: it closes the locked files of a process that dies, keeps those of a frozen one open, and notifies waiting
processes of a change a moment later, as inotify would (:class:`FolderNews`). Of the files' contents, only the numbers
affect the run; names of temporary files, nonces and times of day are for operators, and may differ between two runs.

Each step on the files is taken as a whole here, as it is by an event loop. ``proofs/file_torture.py`` covers what can
come between two system calls of one step.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pgleaderlock._base.files.watch import Watch
from pgleaderlock.stores.file.backend import FileStore
from pgleaderlock.stores.record import Claim, Record
from pgleaderlock.testing.simulation.node import SimulatedNode
from pgleaderlock.testing.simulation.world import World

__all__ = ["FolderNews", "SharedFolder", "SimulatedFileStore"]

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made in it
_NEWS_S = 0.001


class SharedFolder:
    """The folder, and the listeners that are notified of its changes."""

    def __init__(self, world: World, leave_out: Callable[[str], object]) -> None:
        self._world = world
        where = _MEMORY if _MEMORY.is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="pgleaderlock-simulation-", dir=where))
        leave_out(str(self.path))
        self.is_up = True
        self.listeners: list[Callable[[], object]] = []

    def tell(self) -> None:
        """Notify all listeners of a change."""
        for notify in self.listeners:
            self._world.later(_NEWS_S * self._world.random.random(), notify)

    def end(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


class FolderNews(Watch):
    """The notifications that inotify would give one process."""

    def __init__(self, folder: SharedFolder) -> None:
        super().__init__(folder.path, lambda _: True)
        self._shared = folder

    def start(self, files: Iterable[Path]) -> bool:  # noqa: ARG002 - all of them are watched
        """Return True: the folder can always be watched."""
        return True

    @contextlib.contextmanager
    def changes(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set at every change."""
        news = asyncio.Event()
        self._shared.listeners.append(news.set)
        try:
            yield news
        finally:
            self._shared.listeners.remove(news.set)


class SimulatedFileStore(FileStore):
    """The store of one process, which may die."""

    def __init__(self, folder: SharedFolder, node: SimulatedNode, *, identity: str, lease_s: float) -> None:
        super().__init__(folder.path / "leader.json", lease_s=lease_s, identity=identity)
        self._shared = folder
        self._watch = FolderNews(folder)
        node.connect(self)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Write, and notify the other processes."""
        try:
            return await super().write(claim, replacing)
        finally:
            self._shared.tell()

    async def close(self) -> None:
        """Close, and notify the other processes."""
        await super().close()
        self._shared.tell()

    @property
    def closed(self) -> bool:
        """False: it stays open until its process ends."""
        return False

    def hang_up(self) -> None:
        """Close the files of a dead process."""
        with contextlib.suppress(StopIteration):
            self.close().send(None)

    def vanish(self) -> None:
        """Do nothing: all processes are on one host, so none is left to notice."""
