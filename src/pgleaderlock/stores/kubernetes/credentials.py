"""Credentials for the API server, and their renewal.

Tokens of service accounts are replaced in their file about every hour, and the old one is refused some time after; a
client that read its token only once would stop working then. So the file is read again every minute, and at once when
the server refuses the token.

No secret is part of a repr, an error or a log line.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import ConnectionError

__all__ = ["Credential", "CredentialSource", "FixedCredential", "TokenFile"]

_REREAD_S = 60.0


@dataclass(frozen=True, slots=True)
class Credential:
    """A token, a client certificate with its key (both PEM), both or neither."""

    token: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # httpx quotes a header that it cannot send in its error, and this one is a secret.
        if self.token is not None:
            token = str(self.token).strip()  # YAML's "|" adds a line end
            if not token.isascii() or not token.isprintable():
                raise ValueError("a Kubernetes token (not shown) holds characters that no token has")
            object.__setattr__(self, "token", token or None)


class CredentialSource(Protocol):
    """A source of credentials. Its ``str()`` names it for the operator, without secrets."""

    async def get(self, *, refused: bool = False) -> Credential:
        """Return the credential for a request. ``refused`` says that the server refused the last one."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredential:
    """A credential that never changes."""

    credential: Credential

    async def get(self, *, refused: bool = False) -> Credential:  # noqa: ARG002 - there is no other
        """Return the credential."""
        return self.credential


class TokenFile:
    """A token in a file that another program replaces."""

    def __init__(
        self, path: Path, base: Credential | None = None, *, clock: Clock = suspend_aware_clock, origin: str = ""
    ) -> None:
        """``origin`` says, for the operator, which key of which kubeconfig names the file."""
        self._named = f"the Kubernetes token file {path}{f' ({origin})' if origin else ''}"
        self._path = path
        self._base = base or Credential()
        self._clock = clock
        self._read_at = 0.0
        self._credential: Credential | None = None

    async def get(self, *, refused: bool = False) -> Credential:
        """Return the token, read again when a minute has passed."""
        if refused or self._credential is None or self._clock() - self._read_at >= _REREAD_S:
            self._credential = Credential(self._read(), self._base.certificate, self._base.key)
            self._read_at = self._clock()
        return self._credential

    def _read(self) -> str:
        try:
            content = self._path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a path that no file system takes
            raise ConnectionError(f"cannot read {self._named}: {error}") from error
        token = content.decode("ascii", "replace").strip()  # an error of decoding would carry the whole file
        if not token.isascii() or not token.isprintable() or not token:
            raise ConnectionError(f"{self._named} holds no token: it is empty or not text")
        return token
