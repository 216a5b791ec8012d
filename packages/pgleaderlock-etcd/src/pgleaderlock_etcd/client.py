"""etcd's v3 API over its HTTP/JSON gateway, on any of several members.

A request goes to the member that answered last. When that one cannot be reached, is silent or says that it has no
majority, the next is asked within the same call; the last one may take as long as the caller waits. That is safe for
writes too: each is a comparison with the revision that was read, so of two copies of one write at most one succeeds,
and the second is rejected as too late.

Reads are linearizable (etcd's default): a member that lost its majority does not answer with what it remembers.
"""

import asyncio
import base64
import binascii
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from pgleaderlock.errors import ConnectionError
from pgleaderlock.models import LossCause
from pgleaderlock_etcd.api import Change, Compacted, EtcdError, Seen
from pgleaderlock_etcd.refusals import UNAUTHENTICATED, UNAVAILABLE, explain, printable
from pgleaderlock_etcd.url import Where

__all__ = ["GatewayClient", "default_next_after_s"]

_LARGEST_ANSWER = 4 * 2**20  # etcd keeps no value of half that size
_IDLE_S = 60.0  # longer than the interval between most renewals, so that each does not begin with a handshake
_MOST_IN_ONE_TRY = 3
# Errors that httpx does not translate; the group is anyio's, around one of the others.
_SLIPS = (httpx.InvalidURL, ValueError, ExceptionGroup, OSError)
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")


def default_next_after_s(lease_s: float, endpoints: int) -> float:
    """Return how long one member may take before the next is asked: of three, each is in a quarter of the lease.

    A renewal is sent after a third of the lease, and leadership is declared lost after two thirds.
    """
    return lease_s / 4 / min(endpoints, _MOST_IN_ONE_TRY)


class GatewayClient:
    """An :class:`~pgleaderlock_etcd.api.EtcdClient` over httpx. Connects with the first request."""

    def __init__(self, where: Where, *, next_after_s: float) -> None:
        self._where = where
        self._next_after_s = next_after_s
        self._first = 0  # the member to ask first: the one that answered last
        self._token: str | None = None
        self._http: httpx.AsyncClient | None = None
        self._pid = os.getpid()
        self._parent_http: httpx.AsyncClient | None = None

    # --- The calls ---------------------------------------------------------------------------------------------

    async def read(self, key: bytes) -> Seen:
        """Read the key, linearizably."""
        answer = await self._call("read", "kv/range", key, {"key": _text(key)})
        try:
            revision = int(answer["header"]["revision"])
            kvs = answer.get("kvs") or []
            return _seen(revision, kvs[0]) if kvs else Seen(revision, None, 0)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise self._nonsense("read", key) from error

    async def replace(self, key: bytes, value: bytes, mod_revision: int) -> int | None:
        """Compare and swap, in one transaction of etcd."""
        is_as_seen = {"key": _text(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}
        put = {"request_put": {"key": _text(key), "value": _text(value)}}
        answer = await self._call("write", "kv/txn", key, {"compare": [is_as_seen], "success": [put]})
        try:
            return int(answer["header"]["revision"]) if answer.get("succeeded") else None
        except (KeyError, TypeError, ValueError) as error:
            raise self._nonsense("write", key) from error

    async def watch(self, key: bytes, start_revision: int) -> AsyncGenerator[Change, None]:
        """Yield the changes from that revision on, until the stream ends."""
        body = {"create_request": {"key": _text(key), "start_revision": str(start_revision)}}
        response = await self._on_any("watch", key, "watch", body, is_stream=True)
        try:
            async for line in _lines(response):
                for change in self._changes(key, line):
                    yield change
        except (httpx.HTTPError, *_SLIPS) as error:
            raise self._unreachable("watch", key, {str(response.url): self._scrubbed(_words(error))}) from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None and self._pid == os.getpid():
            with contextlib.suppress(httpx.HTTPError, OSError, RuntimeError):  # its event loop may be closed
                await http.aclose()

    # --- Streams -----------------------------------------------------------------------------------------------

    def _changes(self, key: bytes, line: bytes) -> list[Change]:
        try:
            message = json.loads(line)
            result = message.get("result") or {}
            if "error" in message or result.get("canceled"):
                raise self._ended(key, message, result)
            return [_change(event) for event in result.get("events") or []]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._nonsense("watch", key) from error

    def _ended(self, key: bytes, message: Mapping[str, Any], result: Mapping[str, Any]) -> ConnectionError:
        if int(result.get("compact_revision") or 0):
            return Compacted(f"cannot watch {printable(key)} in etcd: the changes since it was read were compacted")
        why = str(result.get("cancel_reason") or message.get("error") or "no reason given")
        if any(each in why for each in _OLD_TOKEN):
            self._token = None  # the next request gets another
        return ConnectionError(f"etcd ended the watch on {printable(key)}: {self._scrubbed(why)}", answered=True)

    # --- One request -------------------------------------------------------------------------------------------

    async def _call(self, verb: str, path: str, key: bytes, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._on_any(verb, key, path, body, is_stream=False)
        content = None
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(answer.content)
        if not isinstance(content, dict):
            raise self._nonsense(verb, key)
        return content

    async def _on_any(
        self, verb: str, key: bytes, path: str, body: Mapping[str, Any], *, is_stream: bool
    ) -> httpx.Response:
        """Ask one member after the other until one answers; ConnectionError names each, and why it did not."""
        failures: dict[str, str] = {}
        endpoints = self._where.endpoints
        for number in range(1, len(endpoints) + 1):
            here = self._first
            try:
                async with asyncio.timeout(self._next_after_s if number < len(endpoints) else None):
                    return await self._ask(endpoints[here], verb, key, path, body, is_stream=is_stream)
            except asyncio.CancelledError:
                self._first = (here + 1) % len(endpoints)  # the caller may have waited for this one in vain
                raise
            except EtcdError as error:
                if error.code not in UNAVAILABLE:
                    raise
                failures[endpoints[here]] = error.said or "not available"
            except TimeoutError:
                failures[endpoints[here]] = f"no answer within {self._next_after_s:.3g} s"
            except (httpx.HTTPError, *_SLIPS) as error:
                failures[endpoints[here]] = self._scrubbed(_words(error))
            self._first = (here + 1) % len(endpoints)
        raise self._unreachable(verb, key, failures)

    async def _ask(
        self, endpoint: str, verb: str, key: bytes, path: str, body: Mapping[str, Any], *, is_stream: bool
    ) -> httpx.Response:
        """Ask one member; with a new token, once more, when it no longer knows ours."""
        doing = f"{verb} {printable(key)}"
        if self._where.user is not None and self._token is None:
            await self._log_in(endpoint, key)
        try:
            return await self._post(endpoint, doing, key, path, body, is_stream=is_stream)
        except EtcdError as error:
            if self._token is None or not _is_old_token(error):
                raise
        await self._log_in(endpoint, key)
        return await self._post(endpoint, doing, key, path, body, is_stream=is_stream)

    async def _log_in(self, endpoint: str, key: bytes) -> None:
        self._token = None
        user, password = self._where.user, self._where.password
        doing = f"log in as {printable(str(user).encode())}"
        answer = await self._post(
            endpoint, doing, key, "auth/authenticate", {"name": user, "password": password}, is_stream=False
        )
        try:
            self._token = str(answer.json()["token"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._nonsense("log in for", key) from error

    async def _post(
        self, endpoint: str, doing: str, key: bytes, path: str, body: Mapping[str, Any], *, is_stream: bool
    ) -> httpx.Response:
        # Not compressed: a few bytes could expand to gigabytes. A watch on a member without a majority is ended by it.
        headers = {"Accept-Encoding": "identity", "Grpc-Metadata-hasleader": "true"}
        if self._token is not None:
            headers["Authorization"] = self._token
        http = self._connected()
        request = http.build_request("POST", f"{endpoint}/v3/{path}", json=body, headers=headers)
        response = await http.send(request, stream=True)
        try:
            if response.is_success and is_stream:
                return response
            content = await _read(response)
        except BaseException:
            await response.aclose()
            raise
        await response.aclose()
        if not response.is_success:
            raise explain(doing, endpoint, key, response.status_code, self._scrubbed_bytes(content))
        return httpx.Response(response.status_code, content=content, request=request)

    def _connected(self) -> httpx.AsyncClient:
        if self._pid != os.getpid():  # after a fork: the connections are our parent's, and must not even be closed
            self._pid, self._parent_http, self._http = os.getpid(), self._http, None
        if self._http is None:
            tls = self._where.tls
            self._http = httpx.AsyncClient(
                verify=False if tls is None else tls.context(),
                timeout=None,  # noqa: S113 - the callers of this client set the time limits
                limits=httpx.Limits(keepalive_expiry=_IDLE_S),
                trust_env=False,
            )
        return self._http

    # --- Errors ------------------------------------------------------------------------------------------------

    def _unreachable(self, verb: str, key: bytes, failures: Mapping[str, str]) -> ConnectionError:
        each = "; ".join(f"{endpoint}: {why}" for endpoint, why in failures.items())
        tls = self._where.tls
        usual = _MAJORITY if len(self._where.endpoints) > 1 else ""
        if tls is not None and tls.cert is None:  # a server that misses either may just end the connection
            usual = f"{_IF_PLAIN}; if it wants a client's certificate, name it: cert=/path and key=/path"
        if tls is None and "disconnected" in each:  # which is what a server does that expects TLS
            usual = "If this etcd speaks TLS, write etcds:// in place of etcd://"
        advice = next((hint for part, hint in _HINTS if part in each), usual)
        is_late = all("no answer within" in why for why in failures.values())
        return ConnectionError(
            f"cannot {verb} {printable(key)} in etcd ({each}){'. ' * bool(advice)}{advice}",
            cause=LossCause.RENEW_TIMEOUT if is_late else LossCause.CONNECTION_LOST,
        )

    def _nonsense(self, verb: str, key: bytes) -> ConnectionError:
        return ConnectionError(
            f"cannot {verb} {printable(key)} in etcd: the answer is not one of etcd's v3 API, so something other than "
            f"etcd gave it: check {', '.join(self._where.endpoints)}",
            cause=LossCause.REFUSED,
            answered=True,
        )

    def _scrubbed(self, text: str) -> str:
        """Replace password and token in words of a server or proxy: some quote the request."""
        for secret in (self._where.password, self._token):
            text = text.replace(secret, "***") if secret else text
        return text

    def _scrubbed_bytes(self, text: bytes) -> bytes:
        return self._scrubbed(text.decode("utf-8", "replace")).encode()


_MAJORITY = "The majority of the members must run and reach each other"
_OWN_CERTIFICATE = (
    "With --client-cert-auth, etcd's gateway shows the certificate of its own server: --trusted-ca-file must contain "
    "the authority of that one too"
)
_IF_PLAIN = "If this etcd does not speak TLS, write etcd:// in place of etcds://"
_HINTS = (
    ("WRONG_VERSION_NUMBER", "This etcd does not speak TLS: write etcd:// in place of etcds://"),
    ("UNEXPECTED_EOF_WHILE_READING", _IF_PLAIN),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "Name the authority of its certificate with ca=/path, and the host as it is in there",
    ),
    ("CERTIFICATE_REQUIRED", "This etcd wants a client's certificate: cert=/path and key=/path"),
    ("bad certificate", "This etcd wants a client's certificate that it trusts: cert=/path and key=/path"),
    ("connection closed", _OWN_CERTIFICATE),
    ("no leader", _MAJORITY),
    ("timed out", _MAJORITY),
)


def _is_old_token(error: EtcdError) -> bool:
    return error.code == UNAUTHENTICATED or any(each in error.said for each in _OLD_TOKEN)


def _words(error: BaseException) -> str:
    """Return the text of an error; where it has none, as httpx's of TLS, that of the error behind it."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return printable((str(cause) if cause is not None else type(error).__name__).encode("utf-8", "replace"))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _value(kv: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(kv.get("value", ""), validate=True)  # an empty value is left out of the JSON
    except binascii.Error as error:
        raise ValueError("not base64") from error


def _seen(revision: int, kv: Mapping[str, Any]) -> Seen:
    return Seen(revision, _value(kv), int(kv["mod_revision"]))


def _change(event: Mapping[str, Any]) -> Change:
    kv = event["kv"]
    return Change(int(kv["mod_revision"]), None if event.get("type") == "DELETE" else _value(kv))


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > _LARGEST_ANSWER:
            raise ValueError("the answer is longer than any of etcd's")
    return bytes(body)


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for part in response.aiter_raw():
        *lines, rest = (rest + part).split(b"\n")
        for line in filter(bytes.strip, lines):
            yield line
        if len(rest) > _LARGEST_ANSWER:
            raise ValueError("the answer is longer than any of etcd's")
