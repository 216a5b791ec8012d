"""URLs of locks in etcd: ``etcd://user:password@host1,host2:2379/key`` and ``etcds://…?ca=…&cert=…&key=…``.

A wrong one is a ValueError before anything is connected. No message repeats the part with the password.
"""

import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, unquote_to_bytes

__all__ = ["Tls", "Where", "parse"]

_PORT = 2379
_HIGHEST_PORT = 65_535
_LONGEST_KEY = 1024
_HOST = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_FORM = "etcd://host1,host2,host3/name-of-the-lock"
_FILES = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a TLS connection, as paths. Read for each new connection pool: certificates are replaced in time."""

    ca: str | None = None
    """The authority that signed the servers' certificates; None for those that the system trusts."""
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context; ValueError, which names the files, when they cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password=_no_passphrase)
        except (OSError, ValueError) as error:  # of which SSLError is one
            files = ", ".join(f"{name}={path}" for name in _FILES if (path := getattr(self, name)) is not None)
            raise ValueError(f"the TLS files of etcds:// cannot be used ({files or 'none given'}): {error}") from error
        return context


def _no_passphrase() -> str:
    raise ValueError("the client's key is encrypted with a passphrase, which cannot be asked for here")


@dataclass(frozen=True, slots=True)
class Where:
    """The lock that a URL names, and how to reach it."""

    endpoints: tuple[str, ...]
    """``http://host:port`` of each member."""
    key: bytes
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None


def parse(
    url: str,
    role: str | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> Where:
    """Return what the URL and the options name together. A ``role`` is appended to the path, after a slash."""
    scheme, _, rest = url.partition("://")
    rest, has_fragment, _ = rest.partition("#")
    rest, _, query = rest.partition("?")
    place, has_path, path = rest.partition("/")
    if scheme not in ("etcd", "etcds") or has_fragment:
        raise ValueError(f"a lock in etcd is named as {_FORM}; a #, ? or @ in a name or password is written as %23, …")
    userinfo, has_user, hosts = place.rpartition("@")
    url_user, url_password = _user_of(userinfo) if has_user else (None, None)
    files = _together(_files_of(query), {"ca": ca, "cert": cert, "key": key})
    named = _together({"user": url_user, "password": url_password}, {"user": user, "password": password})
    if (named["user"] is None) != (named["password"] is None):
        raise ValueError(
            "etcd needs user and password, and one of them is missing: etcd://user:password@host/…, or the options "
            "user= and password="
        )
    return Where(
        endpoints=_endpoints(hosts, "https" if scheme == "etcds" else "http"),
        key=_key(path if has_path else "", role),
        user=named["user"],
        password=named["password"],
        tls=_tls(scheme, files),
    )


def _together(in_url: dict[str, str | None], given: dict[str, str | None]) -> dict[str, str | None]:
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} must be a str, not {type(value).__name__}")
        if value is not None and in_url.get(name) is not None:
            raise ValueError(f"{name} is both in the URL and an option: leave one out")
    return {name: in_url.get(name) if value is None else value for name, value in given.items()}


def _user_of(userinfo: str) -> tuple[str, str | None]:
    user, has_password, password = userinfo.partition(":")
    if not user:
        raise ValueError("the URL of etcd has an @ without a user before it")
    return unquote(user), unquote(password) if has_password else None


def _files_of(query: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _FILES or not value or name in found:
            raise ValueError("after ? a URL of etcds:// has ca=, cert= and key=, each a path, and at most once")
        found[name] = value
    return found


def _tls(scheme: str, files: dict[str, str | None]) -> Tls | None:
    if scheme == "etcd":
        if any(files.values()):
            raise ValueError("ca, cert and key are for TLS: write etcds:// in place of etcd://")
        return None
    if (files["cert"] is None) != (files["key"] is None):
        raise ValueError("a client's certificate needs both cert= and key=")
    tls = Tls(**files)
    tls.context()  # so that a wrong file is refused now
    return tls


def _endpoints(hosts: str, protocol: str) -> tuple[str, ...]:
    found = []
    for number, host in enumerate(hosts.split(","), 1):
        match = _HOST.fullmatch(host)
        port = int((match and match["port"]) or _PORT)
        if match is None or not 0 < port <= _HIGHEST_PORT:
            # Not quoted: with a stray @ or / in it, what stands here may be a part of the password.
            raise ValueError(f"host number {number} of the URL is not host, host:port or [IPv6]:port, as in {_FORM}")
        found.append(f"{protocol}://{match['host'].lower()}:{port}")
    if len(set(found)) < len(found):
        raise ValueError("the URL of etcd names a host twice")
    return tuple(found)


def _key(path: str, role: str | None) -> bytes:
    name = unquote_to_bytes(path)
    if role is not None:
        name = name.removesuffix(b"/") + b"/" * bool(name) + role.encode()
    if not name or name.endswith(b"/") or len(name) > _LONGEST_KEY:
        raise ValueError(
            f"the path of the URL is the key of the lock, as in {_FORM}: up to {_LONGEST_KEY} bytes that do not end "
            "with a slash; or the path is a prefix, and role= names the lock"
        )
    return name
