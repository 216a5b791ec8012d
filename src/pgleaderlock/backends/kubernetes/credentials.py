"""How we show the API server who we are, and how that is kept fresh.

Tokens of service accounts are replaced in their file about every hour and refused some time after; a client that read
its token once stops working then. So the file is read again every minute, and at once when the server refuses what was
in it. Exec plug-ins say themselves how long their credentials last.

Nothing here is ever printed: no secret is part of a repr, an error or a log line, and what a plug-in writes to its
standard error goes to ours, unread.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pgleaderlock.clock import Clock, suspend_aware_clock
from pgleaderlock.errors import ConnectionError

__all__ = ["Credential", "CredentialSource", "ExecPlugin", "FixedCredential", "TokenFile"]

_REREAD_S = 60.0
_EXPIRY_MARGIN_S = 30.0  # so that what is sent now is still good when it arrives
_PLUGIN_TIMEOUT_S = 30.0


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
    """Where credentials come from."""

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

    def __init__(self, path: Path, base: Credential | None = None, *, clock: Clock = suspend_aware_clock) -> None:
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
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConnectionError(f"cannot read the Kubernetes token file {self._path}: {error}") from error
        if not token.isascii() or not token.isprintable() or not token:
            raise ConnectionError(f"the Kubernetes token file {self._path} holds no token: it is empty or not text")
        return token


class ExecPlugin:
    """A program that prints credentials, as kubeconfig files name one (``aws eks get-token`` and the like)."""

    def __init__(
        self,
        command: Sequence[str],
        api_version: str,
        *,
        environment: Mapping[str, str] | None = None,
        cluster: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._command = list(command)
        self._api_version = api_version
        self._environment = dict(environment or {})
        self._cluster = cluster
        self._folder = folder
        self._credential: Credential | None = None
        self._expires: datetime | None = None

    async def get(self, *, refused: bool = False) -> Credential:
        """Return what the plug-in said, asked again when that has expired."""
        if refused or self._credential is None or self._is_expired():
            self._credential, self._expires = self._parse(await self._run())
        return self._credential

    def _is_expired(self) -> bool:
        if self._expires is None:
            return False
        return (self._expires - datetime.now(UTC)).total_seconds() < _EXPIRY_MARGIN_S

    async def _run(self) -> bytes:
        spec: dict[str, Any] = {"interactive": False}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._api_version, "kind": "ExecCredential", "spec": spec}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                cwd=self._folder,
            )
        except OSError as error:
            raise self._failed(f"cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_PLUGIN_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            raise self._failed(f"did not end within {_PLUGIN_TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise self._failed(f"ended with exit code {process.returncode}; its own words are on standard error")
        return output

    def _parse(self, output: bytes) -> tuple[Credential, datetime | None]:
        try:
            answer = json.loads(output)
            if answer["apiVersion"] != self._api_version:
                raise self._failed(f"answered in {answer['apiVersion']!r} and was asked in {self._api_version!r}")
            status = answer["status"]
            credential = Credential(
                status.get("token"), status.get("clientCertificateData"), status.get("clientKeyData")
            )
            expires = status.get("expirationTimestamp")
            moment = None if expires is None else datetime.fromisoformat(expires)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._failed("printed something that is no ExecCredential") from None  # which may hold a secret
        if credential.token is None and credential.certificate is None:
            raise self._failed("printed neither a token nor a client certificate")
        return credential, moment

    def _failed(self, how: str) -> ConnectionError:
        return ConnectionError(f"the credential plug-in {self._command[0]!r} of the kubeconfig {how}")
