"""How we show the API server who we are, and how that is kept fresh.

Tokens of service accounts are replaced in their file about every hour and refused some time after; a client that read
its token once stops working then. So the file is read again every minute, and at once when the server refuses what was
in it.

Nothing here is ever printed: no secret is part of a repr, an error or a log line.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pgleaderlock.clock import Clock, suspend_aware_clock
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
        # A header that cannot be sent is quoted in the error of whoever tries, and this one is a secret.
        if self.token is not None:
            token = str(self.token).strip()  # YAML's "|" adds a line end
            if not token.isascii() or not token.isprintable():
                raise ValueError("a Kubernetes token (not shown) holds characters that no token has")
            object.__setattr__(self, "token", token or None)


class CredentialSource(Protocol):
    """Where credentials come from. Printed, it names itself to people, without what it holds."""

    async def get(self, *, refused: bool = False) -> Credential:
        """Return what to show. ``refused`` says that the last answer was of no use any more."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredential:
    """One that never changes."""

    credential: Credential

    async def get(self, *, refused: bool = False) -> Credential:  # noqa: ARG002 - there is no other
        """Return it."""
        return self.credential


class TokenFile:
    """A token in a file that somebody else replaces."""

    def __init__(
        self,
        path: Path,
        base: Credential | None = None,
        *,
        clock: Clock = suspend_aware_clock,
        origin: str = "",
    ) -> None:
        """``origin`` is where a person finds who named the file: the key and the kubeconfig."""
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
