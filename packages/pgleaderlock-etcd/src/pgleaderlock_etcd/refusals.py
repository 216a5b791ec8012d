"""Error texts for the operator from error answers of etcd: what etcd said, and what to do."""

import json

from pgleaderlock_etcd.api import EtcdError

__all__ = ["UNAVAILABLE", "explain", "printable"]

UNKNOWN, DEADLINE_EXCEEDED, UNAVAILABLE_CODE, UNAUTHENTICATED = 2, 4, 14, 16
UNAVAILABLE = frozenset({DEADLINE_EXCEEDED, UNAVAILABLE_CODE})
"""The codes with which a member says that it cannot answer now: another member may."""
_EXCERPT = 300
_NOT_FOUND, _SERVER_ERROR = 404, 500

_ADVICE = (
    # Parts of what etcd says, and what to do then.
    ("permission denied", "its role lacks this key: etcdctl role grant-permission ROLE readwrite {key}"),
    ("invalid user ID or password", "user or password is wrong"),
    ("user name is empty", "this etcd wants a user: etcd://user:password@host/…"),
    ("authentication is not enabled", "leave user and password out, or have them checked: etcdctl auth enable"),
    ("auth token", "the token was refused twice: do all members have the same --auth-token?"),
    ("space exceeded", "etcd is full: compact, defragment, etcdctl alarm disarm; see --auto-compaction-retention"),
    ("no leader", "the majority of the members must run and reach each other"),
    ("timed out", "the majority of the members must run and reach each other"),
    ("HTTP request to an HTTPS server", "this etcd speaks TLS: write etcds:// in place of etcd://"),
)


def explain(doing: str, endpoint: str, key: bytes, status: int, body: bytes) -> EtcdError:
    """Return the error for an answer with this HTTP status, with advice where there is some."""
    code, said = _read(body)
    advice = next((advice for part, advice in _ADVICE if part in said), "")
    if not advice and status == _NOT_FOUND:
        advice = "there is no gateway of the v3 API: is this etcd 3.4 or newer, with its gRPC gateway enabled?"
    if code is None:
        code = UNAVAILABLE_CODE if status >= _SERVER_ERROR else UNKNOWN
    hint = f": {advice.format(key=printable(key))}" if advice else ""
    return EtcdError(
        f"cannot {doing} in etcd: {endpoint} answers {status}, {said or 'nothing more'}{hint}", code, said=said
    )


def _read(body: bytes) -> tuple[int | None, str]:
    """Return gRPC's code and etcd's words; of an answer that is not etcd's, such as a proxy's page, the beginning."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        return None, printable(body[:_EXCERPT].strip())
    code, said = content.get("code"), content.get("error") or content.get("message") or ""
    return code if isinstance(code, int) else None, printable(str(said).encode()[:_EXCERPT])


def printable(text: bytes) -> str:
    """Return the text on one line, with escapes for what a terminal would obey."""
    words = text.decode("utf-8", "backslashreplace")
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in words)
