"""Requests to the API server over httpx, for the clients of the objects that we read and write.

The typed clients are heavy, drop fields that they do not know, and have no default time limit. Every request here has a
time limit: an API server that accepts and never answers must not keep a leader waiting past its lease. Errors are
translated here into texts that an operator can act on.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import check_seconds
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.credentials import Credential
from pgleaderlock.stores.kubernetes.refusals import Resource, explain
from pgleaderlock.stores.kubernetes.tls import ssl_context

__all__ = ["ApiClient", "Ask"]

_JSON = "application/json"
_UNAUTHORIZED = 401
_LARGEST_ANSWER = 4 * 2**20  # etcd keeps no object of half that size
_IDLE_S = 30.0  # longer than the interval between two renewals, so that each does not begin with a handshake
# Errors that httpx does not translate for an invalid address: a port too large, a host name that cannot be encoded. The
# group is anyio's, around one of the others.
_SLIPS = (httpx.InvalidURL, ValueError, OverflowError, ExceptionGroup)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; ``verb`` is as in RBAC."""

    resource: Resource
    verb: str
    namespace: str
    name: str
    method: str = "GET"
    by_name: bool = True
    query: Mapping[str, str] | None = None
    body: Any = None
    accept: str = _JSON
    content_type: str = _JSON

    @property
    def path(self) -> str:
        """The path of the object, or of all objects of its kind in the namespace."""
        group = f"/apis/{self.resource.group}/v1" if self.resource.group else "/api/v1"
        collection = f"{group}/namespaces/{self.namespace}/{self.resource.plural}"
        return f"{collection}/{self.name}" if self.by_name else collection

    def __str__(self) -> str:
        return f"{self.verb} {self.resource.name} {self.namespace}/{self.name}"


class ApiClient:
    """One connection pool to one API server. Connects with the first request."""

    def __init__(self, cluster: Cluster, *, request_timeout_s: float = 5.0, credential_timeout_s: float = 30.0) -> None:
        self._cluster = cluster
        self._timeout_s = check_seconds("request_timeout_s", request_timeout_s)
        self._credential_timeout_s = check_seconds("credential_timeout_s", credential_timeout_s)
        self._http: httpx.AsyncClient | None = None
        self._shown: Credential | None = None
        self._pid = os.getpid()
        self._parent_http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            with contextlib.suppress(httpx.HTTPError, OSError, RuntimeError):  # its event loop may be closed
                await http.aclose()

    # --- One request -------------------------------------------------------------------------------------------

    async def _call(self, ask: Ask) -> dict[str, Any]:
        response = await self._open(ask, read_s=self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                return _decode(ask, await _read(ask, response))
        except TimeoutError:
            raise self._late(ask) from None
        except httpx.HTTPError as error:
            raise self._unreachable(ask, error) from error
        finally:
            await response.aclose()

    async def _stream(self, ask: Ask, stream_s: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the objects of a stream that the server ends after ``stream_s`` seconds."""
        response = await self._open(ask, read_s=stream_s + self._timeout_s)
        try:
            async for line in _lines(ask, response):
                yield _decode(ask, line)
        except httpx.HTTPError as error:
            raise self._unreachable(ask, error) from error
        finally:
            await response.aclose()

    async def _open(self, ask: Ask, read_s: float) -> httpx.Response:
        """Return a successful response, its body yet to be read; ApiError for an error."""
        response = await self._send(ask, await self._credential(ask), read_s)
        if response.status_code == _UNAUTHORIZED:  # the token may have been replaced since it was read
            await response.aclose()
            response = await self._send(ask, await self._credential(ask, refused=True), read_s)
        if response.is_success:
            return response
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await _read(ask, response)
        except (TimeoutError, httpx.HTTPError, ConnectionError):
            body = b""  # the status is enough for an error text
        finally:
            await response.aclose()
        raise explain(
            ask.verb, ask.namespace, ask.name, response.status_code, self._scrubbed(body), resource=ask.resource
        )

    async def _credential(self, ask: Ask, *, refused: bool = False) -> Credential:
        """Return the credential. A source that takes too long is named: "no answer" alone would blame the server."""
        try:
            async with asyncio.timeout(self._credential_timeout_s):
                return await self._cluster.credentials.get(refused=refused)
        except TimeoutError:
            raise ConnectionError(
                f"cannot {ask}: {self._cluster.credentials} did not end within {self._credential_timeout_s:g} s: "
                "run it by hand to see what it waits for"
            ) from None

    async def _send(self, ask: Ask, credential: Credential, read_s: float) -> httpx.Response:
        """Send the request; repeat it as Retry-After says, while there is time for that."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                while True:
                    response = await self._send_once(ask, credential, read_s)
                    pause_s = _retry_after_s(response)
                    if pause_s is None or asyncio.get_running_loop().time() + pause_s >= (limit.when() or 0.0):
                        return response
                    await response.aclose()
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            raise self._late(ask) from None
        except (httpx.HTTPError, OSError, *_SLIPS) as error:
            raise self._unreachable(ask, error) from error

    async def _send_once(self, ask: Ask, credential: Credential, read_s: float) -> httpx.Response:
        http = await self._connected(credential)
        # Not compressed: a few bytes could expand to gigabytes before their size is checked.
        headers = {"Accept": ask.accept, "Accept-Encoding": "identity"}
        if credential.token is not None:
            headers["Authorization"] = f"Bearer {credential.token}"
        extensions: dict[str, Any] = {"timeout": httpx.Timeout(self._timeout_s, read=read_s).as_dict()}
        if self._cluster.server_name is not None:
            extensions["sni_hostname"] = self._cluster.server_name
        if ask.body is not None:
            headers["Content-Type"] = ask.content_type
        request = http.build_request(
            ask.method, ask.path, params=ask.query, json=ask.body, headers=headers, extensions=extensions
        )
        return await http.send(request, stream=True)

    async def _connected(self, credential: Credential) -> httpx.AsyncClient:
        """Return the HTTP client; make a new one when the client certificate has changed."""
        now, shown = (credential.certificate, credential.key), self._shown
        if self._pid != os.getpid():  # after a fork: the connections are our parent's, and must not even be closed
            self._pid, self._parent_http, self._http = os.getpid(), self._http, None
        if self._http is None or shown is None or now != (shown.certificate, shown.key):
            await self.close()
            self._http = httpx.AsyncClient(
                base_url=self._cluster.server,
                verify=ssl_context(self._cluster, credential) if self._cluster.server.startswith("https:") else False,
                proxy=self._cluster.proxy,
                limits=httpx.Limits(keepalive_expiry=_IDLE_S),
                trust_env=False,
            )
        self._shown = credential
        return self._http

    def _scrubbed(self, text: bytes) -> bytes:
        """Replace our token in a server's or proxy's answer: some quote the request."""
        token = None if self._shown is None else self._shown.token
        return text.replace(token.encode(), b"***") if token else text

    def _late(self, ask: Ask) -> ConnectionError:
        return ConnectionError(
            f"cannot {ask}: no answer from the API server {self._cluster.server} within {self._timeout_s:g} s",
            cause=LossCause.RENEW_TIMEOUT,
        )

    def _unreachable(self, ask: Ask, error: Exception) -> ConnectionError:
        what = self._scrubbed(str(error).encode("utf-8", "replace")).decode() or type(error).__name__
        happened = "ended the connection before its answer was complete" if _is_cut_off(error) else "cannot be reached"
        return ConnectionError(
            f"cannot {ask}: the API server {self._cluster.server} {happened} ({what})", cause=LossCause.CONNECTION_LOST
        )


_SHORTEST_PAUSE_S = 0.5  # overloaded servers may answer "0"


def _retry_after_s(response: httpx.Response) -> float | None:
    """Return the pause that the server asks for with Retry-After; None when it does not."""
    text = response.headers.get("Retry-After", "")
    is_refusal = response.status_code == httpx.codes.TOO_MANY_REQUESTS or response.is_server_error
    return max(_SHORTEST_PAUSE_S, float(text)) if is_refusal and text.isascii() and text.isdigit() else None


async def _read(ask: Ask, response: httpx.Response) -> bytes:
    """Read the body of a response; ConnectionError when it is longer than any object."""
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > _LARGEST_ANSWER:
            raise _endless(ask)
    return bytes(body)


async def _lines(ask: Ask, response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Yield the non-empty lines of a stream; ConnectionError when one is longer than any object."""
    rest = b""
    async for part in response.aiter_raw():
        *lines, rest = (rest + part).split(b"\n")
        for line in filter(bytes.strip, lines):
            yield line
        if len(rest) > _LARGEST_ANSWER:
            raise _endless(ask)
    if rest.strip():
        yield rest


def _endless(ask: Ask) -> ConnectionError:
    return ConnectionError(
        f"cannot {ask}: the answer is longer than any {ask.resource.name}, so something other than the API server gave "
        "it"
    )


def _is_cut_off(error: Exception) -> bool:
    """Whether the server was reached, and the connection ended before the answer was complete."""
    return isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)


def _is_cut_short(body: bytes, error: ValueError) -> bool:
    """Whether this is the beginning of a JSON object that was cut off."""
    text = body.strip()
    at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip())
    return text.startswith(b"{") and (at_end or not text.endswith(b"}"))


def _decode(ask: Ask, body: bytes) -> dict[str, Any]:
    content = None
    try:
        content = json.loads(body)
    except ValueError as error:
        if _is_cut_short(body, error):
            raise ConnectionError(
                f"cannot {ask}: the answer breaks off after {len(body)} bytes, in the middle of a JSON object: the API "
                "server, or a proxy before it, did not send it to its end",
                cause=LossCause.CONNECTION_LOST,
            ) from None
    except RecursionError:
        pass
    if not isinstance(content, dict):
        raise ConnectionError(
            f"cannot {ask}: the answer is not a JSON object, so something other than the API server gave it"
        )
    return content
