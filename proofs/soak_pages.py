"""Pages for the soak: ``pgleaderlock dashboard`` as a process, and clients that keep its streams open."""

import asyncio
import collections
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

__all__ = ["Page", "dashboard", "pages"]


@dataclass
class Page:
    """An open page, which is brought up to date as a browser's is."""

    url: str
    received_bytes: int = 0
    snapshots: int = 0
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Read until cancelled, and open it again whenever the stream ends."""
        async with httpx.AsyncClient(timeout=httpx.Timeout(60)) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    async with client.stream("GET", f"{self.url}events") as response:
                        await self._read(response)
                await asyncio.sleep(1)

    async def _read(self, response: httpx.Response) -> None:
        event = ""
        async for line in response.aiter_lines():
            self.received_bytes += len(line) + 1
            name, _, data = line.partition(": ")
            if name == "event":
                event = data
            elif name == "data" and event == "snapshot":
                self.roles = {role["lock"]: role for role in json.loads(data)["roles"]}
                self.snapshots += 1
            elif name == "data" and event == "change":
                self._update(json.loads(data))

    def _update(self, change: dict[str, Any]) -> None:
        for role in change["roles"]:
            old = self.roles.get(role["lock"], {})
            for name in ("terms", "gaps"):
                if splice := role.pop(f"{name}_change", None):
                    drop, keep, added = splice
                    role[name] = [*old.get(name, ())[drop : drop + keep], *added]
            self.roles[role["lock"]] = {**old, **role}
        for lock in change["gone"]:
            del self.roles[lock]


async def discard(url: str, counts: collections.Counter[str]) -> None:
    """Keep a stream open and count its bytes; open it again when it ends."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.closing(writer):
                writer.write(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                counts["opened"] += 1
                while data := await reader.read(65536):
                    counts["bytes"] += len(data)
        await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def dashboard(dsn: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Start ``pgleaderlock dashboard``; yield the process and its URL."""
    command = [sys.executable, "-m", "pgleaderlock", "dashboard", "--dsn", dsn, "--port", "0"]
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=null)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        yield process, line.removeprefix("dashboard: ").strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def pages(url: str, count: int) -> AsyncIterator[tuple[Page, collections.Counter[str]]]:
    """Open so many pages; yield the one that is followed, and what the others count."""
    page, counts = Page(url), collections.Counter[str]()
    tasks = [asyncio.ensure_future(page.follow())]
    tasks += [asyncio.ensure_future(discard(url, counts)) for _ in range(count - 1)]
    try:
        yield page, counts
    finally:
        for task in tasks:
            task.cancel()
