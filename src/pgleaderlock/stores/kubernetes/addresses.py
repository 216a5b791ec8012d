"""Checks of addresses, before anything is connected.

An invalid address that is not detected here would raise an unrelated exception in the first request: OverflowError for
an invalid port, UnicodeError for an invalid host name. Each function returns what is wrong, as the end of a sentence,
or None. The text never contains the address itself, because a password may be part of it.
"""

import ipaddress
import re
from urllib.parse import urlsplit

__all__ = ["proxy_fault", "server_fault", "server_name_fault"]

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_HOST_LENGTH = 253
_PROXY_SCHEMES = ("http://", "https://", "socks5://", "socks5h://")


def server_fault(url: str) -> str | None:
    """Return why this cannot be the address of an API server; None when it can."""
    if not url.startswith(("https://", "http://")):
        return "must begin with https:// or http://"
    if "@" in url:  # every error names the server
        return "has a user name in it: name the user under users instead"
    if "?" in url or "#" in url:
        return "ends in a query or a fragment (? or #): an API server's address has neither"
    return _address_fault(url)


def proxy_fault(url: str) -> str | None:
    """Return why this cannot be the address of a proxy; None when it can."""
    if not url.startswith(_PROXY_SCHEMES):
        return f"must begin with one of {', '.join(_PROXY_SCHEMES)}"
    return _address_fault(url)


def server_name_fault(name: str) -> str | None:
    """Return why this cannot be the name in a certificate; None when it can."""
    return None if _is_host(name) else "must be a host name in ASCII or an IP address"


def _address_fault(url: str) -> str | None:
    if not url.isascii() or not url.isprintable() or " " in url:
        return "holds a space or a character beyond ASCII: write such a host name in its xn-- form"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "has no proper host and port: a port is 1 to 65535, and an IPv6 address stands in brackets"
    if port == 0 or parts.netloc.endswith(":"):
        return "has no proper port: write 1 to 65535 after the colon"
    return None if _is_host(host) else "has no proper host name: letters, digits, '-' and '.', at most 63 between dots"


def _is_host(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        labels = name.removesuffix(".").split(".")
        return len(name) <= _HOST_LENGTH and all(_LABEL.fullmatch(label) for label in labels)
    return True
