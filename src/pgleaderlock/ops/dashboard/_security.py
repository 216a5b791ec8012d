"""The security headers of every response, the check of the Host header, and the check of the token.

- **Hosts.** A foreign page can make a browser send requests to a name that points to this machine (DNS rebinding). Such
  a request has that name as its host, and is refused: only the bound address, this machine's own names and those of
  ``--allow-host`` are accepted.
- **Tokens.** Every request that changes something needs a header with the token. A browser does not add this header by
  itself, and no other origin can make it do so, so such a request cannot be forged. Compared in constant time.
- **Operators.** A client that sends the token is not counted among the anonymous clients, whose connections and streams
  are limited: they cannot keep an operator out.
- **Content.** Scripts and styles are loaded only from files of this server; the page cannot be framed.
"""

import hmac
import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgleaderlock.ops.http import Classify, Visit

TOKEN_HEADER = "X-Pgleaderlock-Token"  # noqa: S105 - the name of it
_TOKEN_LINE = re.compile(rb"^x-pgleaderlock-token:[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_STREAM_LINE = re.compile(rb"GET /events[? ]")
_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """ASGI middleware that checks the host and adds the security headers."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = _OWN_NAMES | {_as_named(host.lower()) for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests to other hosts; add the headers to every response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if _host(Headers(scope=scope).get("host", "")) in self._hosts:
            await self._app(scope, receive, send_guarded)
            return
        answer = PlainTextResponse(
            "This dashboard is not served under that name. If it should be: --allow-host NAME\n", status_code=421
        )
        await answer(scope, receive, send_guarded)


def _as_named(host: str) -> str:
    """Return a host as browsers name it: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _host(header: str) -> str:
    """Return the name without the port."""
    name, _, port = header.rpartition(":")
    return (name if name and port.isdigit() else header).lower()


def is_operator(headers: Headers, token: str | None) -> bool:
    """Return whether a request carries the token. False if the dashboard has no token."""
    return token is not None and _is_same(headers.get(TOKEN_HEADER, "").encode(), token)


def classify(token: str | None) -> Classify:
    """Return a function that classifies requests before they are parsed."""

    def whose(head: bytes) -> Visit:
        sent = _TOKEN_LINE.search(head)
        if token is not None and sent is not None and _is_same(sent[1], token):
            return Visit.OPERATOR
        return Visit.ANONYMOUS_STREAM if _STREAM_LINE.match(head) else Visit.ANONYMOUS

    return whose


def _is_same(sent: bytes, token: str) -> bool:
    return hmac.compare_digest(sent, token.encode())


def refusal(request: Request, token: str | None) -> Response | None:
    """Return why this request may change nothing, or None if it may."""
    if token is None:
        return JSONResponse({"error": "this dashboard is read-only; start it with a token to allow actions"}, 403)
    if not is_operator(request.headers, token):
        return JSONResponse({"error": f"{TOKEN_HEADER} is missing or wrong"}, 401)
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        return JSONResponse({"error": "the body must be application/json"}, 415)
    return None
