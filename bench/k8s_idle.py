"""Requests of the followers, by the API server's own count.

Its metrics know verbs and resources, not clients. So the sides take turns, ours leads for both (what a follower of
client-go asks does not depend on who leads), and everything but writes is the followers': our leader only writes. A
watch is counted when it ends, which is after minutes: it is not in here, and is one request in about 300 s.
"""

import asyncio
import re
import ssl
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from candidates import Command
from pgleaderlock import Election, RetryContext, open_backend
from pgleaderlock.stores.kubernetes.config import Cluster, read_kubeconfig

__all__ = ["CannotCountError", "requests_per_s"]

_WARM_UP_S = 2.5
_READS = r'^apiserver_request_total\{.*resource="leases".*verb="(?:GET|LIST|WATCH)".*\} (\S+)$'

_LONGEST_DELAY_S = 30.0  # of the default back-off, which has grown to it within a minute

Followers = Callable[[], AbstractAsyncContextManager[None]]


class CannotCountError(Exception):
    """The server does not show its metrics, or others use it."""


def requests_per_s(kubeconfig: Path, url: str, peer: Command, number: int, seconds: float) -> tuple[float, float]:
    """Return the requests per second of one follower of ours and one of client-go's."""
    return asyncio.run(_compare(read_kubeconfig(kubeconfig), url, peer, number, seconds))


async def _compare(cluster: Cluster, url: str, peer: Command, number: int, seconds: float) -> tuple[float, float]:
    async def rate(followers: Followers) -> float:
        async with followers():
            await asyncio.sleep(_WARM_UP_S)
            return await _count_for(http, seconds) / seconds / number

    async with _metrics(cluster) as http, Election(open_backend(url)) as leader:
        await leader.wait_for_leadership()
        if await _count_for(http, _WARM_UP_S):
            raise CannotCountError("others read Leases of this server too")
        return await rate(lambda: _ours(url, number)), await rate(lambda: _theirs(peer, number))


@dataclass(frozen=True)
class LateBackoff:
    """The default back-off of a follower that has waited for long, without waiting for that."""

    first_s: float

    def next_delay_s(self, ctx: RetryContext) -> float:
        return self.first_s if ctx.attempt == 1 else _LONGEST_DELAY_S


@asynccontextmanager
async def _ours(url: str, number: int) -> AsyncIterator[None]:
    """Followers whose attempts are spread as if they had come at any time."""
    async with AsyncExitStack() as stack:
        for n in range(1, number + 1):
            strategy = LateBackoff(_LONGEST_DELAY_S * n / number)
            await stack.enter_async_context(Election(open_backend(url), retry_strategy=strategy))
        yield


@asynccontextmanager
async def _theirs(peer: Command, number: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for n in range(number):
            child = await asyncio.create_subprocess_exec(*peer(n), stdout=DEVNULL, stderr=DEVNULL)
            stack.push_async_callback(child.wait)
            stack.callback(child.kill)  # before that wait
        yield


@asynccontextmanager
async def _metrics(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    token = (await cluster.credentials.get()).token
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    trusted = ssl.create_default_context(cadata=cluster.authority) if cluster.verify else False
    async with httpx.AsyncClient(base_url=cluster.server, verify=trusted, headers=headers, trust_env=False) as http:
        yield http


async def _count_for(http: httpx.AsyncClient, seconds: float) -> int:
    before = await _count(http)
    await asyncio.sleep(seconds)
    return await _count(http) - before


async def _count(http: httpx.AsyncClient) -> int:
    answer = await http.get("/metrics")
    if not answer.is_success:
        raise CannotCountError(f"/metrics is answered with {answer.status_code}")
    return sum(int(float(number)) for number in re.findall(_READS, answer.text, re.MULTILINE))
