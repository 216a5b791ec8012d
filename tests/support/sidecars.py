"""Sidecars as real processes, asked over HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.support.cli import CLI
from tests.support.processes import Process

__all__ = ["SidecarProcess", "ask", "sidecar", "until_answer"]

WAIT_S = 60.0  # for what takes milliseconds on an idle machine


class SidecarProcess(Process):
    """``pgleaderlock sidecar`` on a free port. ``pod`` is the name of its pod, and of its host to the Lease."""

    def __init__(self, *options: str, pod: str = "", **env: str) -> None:
        pods = {"POD_NAME": pod} if pod else {}
        super().__init__(*CLI, "sidecar", *options, "--port", "0", "--quiet", env={**pods, **env})
        self.pod, self.url = pod, ""

    def find_url(self) -> str:
        """Wait until it listens."""
        self.url = self.wait_for("sidecar: ", WAIT_S).partition("sidecar: ")[2]
        return self.url


@contextlib.asynccontextmanager
async def sidecar(*options: str, pod: str = "", **env: str) -> AsyncIterator[SidecarProcess]:
    """A sidecar that listens, while this event loop goes on: it may serve its store."""
    with SidecarProcess(*options, pod=pod, **env) as process:
        await asyncio.to_thread(process.find_url)
        yield process


async def ask(url: str, path: str = "leader", method: str = "GET") -> tuple[int, dict[str, Any]]:
    """Return the status and the decoded body of one answer."""
    async with httpx.AsyncClient(trust_env=False, timeout=WAIT_S) as client:
        answer = await client.request(method, f"{url}{path}")
    return answer.status_code, answer.json()


async def until_answer(url: str, path: str, status: int, **fields: Any) -> dict[str, Any]:
    """Ask again and again until the answer has this status and these fields, and return it."""
    answer: tuple[int, dict[str, Any]] = (0, {})
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                answer = await ask(url, path)
                if answer[0] == status and fields.items() <= answer[1].items():
                    return answer[1]
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{path} was never {status} with {fields}; the last answer was {answer}") from None
