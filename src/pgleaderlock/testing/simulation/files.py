"""A folder that simulated processes of one host share: the real store, on real files, in virtual time.

The folder is a temporary one, in memory where the system has that, and is removed in the end. What a kernel does is
done here in its place: the locked files of a process that dies are closed, those of a frozen one stay; and whoever
waits is told of a change a moment later, as inotify would tell it (:class:`FolderNews`). The files say nothing that
depends on the seed but their numbers; names of temporary files, nonces and times of day are for people.

Each step on the files is taken as a whole here, as it is by an event loop. What can come between two system calls of
one step is the subject of ``tests/file_torture.py``.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pgleaderlock._files.watch import Watch
from pgleaderlock.backends.file import FileStore
from pgleaderlock.backends.record import Claim, Record
from pgleaderlock.testing.simulation.node import Node
from pgleaderlock.testing.simulation.world import World

__all__ = ["FolderNews", "SharedFolder", "SimulatedFileStore"]

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made in it
_NEWS_S = 0.001


class SharedFolder:
    """The folder, and who wants to hear of it."""

    def __init__(self, world: World, leave_out: Callable[[str], object]) -> None:
        self._world = world
        where = _MEMORY if _MEMORY.is_dir() else None
        self.path = Path(tempfile.mkdtemp(prefix="pgleaderlock-simulation-", dir=where))
        leave_out(str(self.path))
        self.is_up = True
        self.listeners: list[Callable[[], object]] = []

    def tell(self) -> None:
        """Something in it has changed."""
        for hear in self.listeners:
            self._world.later(_NEWS_S * self._world.random.random(), hear)

    def end(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)


class FolderNews(Watch):
    """What inotify would tell one process."""

    def __init__(self, folder: SharedFolder) -> None:
        super().__init__(folder.path, lambda _: True)
        self._shared = folder

    def start(self, files: Iterable[Path]) -> bool:  # noqa: ARG002 - all of them are heard of
        """It can always be listened to."""
        return True

    @contextlib.contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        """Set the event whenever something was told."""
        news = asyncio.Event()
        self._shared.listeners.append(news.set)
        try:
            yield news
        finally:
            self._shared.listeners.remove(news.set)


class SimulatedFileStore(FileStore):
    """The store of one process, which may die."""

    def __init__(self, folder: SharedFolder, node: Node, *, identity: str, lease_s: float) -> None:
        super().__init__(folder.path / "leader.json", lease_s=lease_s, identity=identity)
        self._shared = folder
        self._watch = FolderNews(folder)
        node.connect(self)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        """Write, and let others know."""
        try:
            return await super().write(claim, replacing)
        finally:
            self._shared.tell()

    async def close(self) -> None:
        """Close, and let others know."""
        await super().close()
        self._shared.tell()

    @property
    def closed(self) -> bool:
        """Never, before its process has ended."""
        return False

    def hang_up(self) -> None:
        """Close what a process had open that is dead."""
        with contextlib.suppress(StopIteration):
            self.close().send(None)

    def vanish(self) -> None:
        """All processes are on one host: nobody is left to see that."""
