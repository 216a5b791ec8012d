"""A credential plug-in: a program, named in a kubeconfig, that prints credentials (``aws eks get-token`` and the like).

Its output states when the credentials expire. Each call ends: the program has a time limit and a limit for its output,
and runs in a session of its own, so that its child processes are ended with it.

Its output is never quoted, and its standard error is passed on to ours, unread.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.credentials import Credential

__all__ = ["ExecPlugin"]

_EXPIRY_MARGIN_S = 30.0  # so that a credential that is sent now is still valid when it arrives
_PLUGIN_TIMEOUT_S = 30.0
_KILLED_TIMEOUT_S = 1.0
_MOST_OUTPUT_BYTES = 1024 * 1024
_NO_CREDENTIAL = "printed something that is no ExecCredential: run it by hand to see what"


class ExecPlugin:
    """The program, and the credential that it printed last."""

    def __init__(
        self,
        command: Sequence[str],
        api_version: str,
        *,
        environment: Mapping[str, str] | None = None,
        cluster: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        origin: str = "exec in the kubeconfig",
    ) -> None:
        """``origin`` says, for the operator, which key of which file names the program."""
        self._command = list(command)
        self._api_version = api_version
        self._environment = dict(environment or {})
        self._cluster = cluster
        self._folder = folder
        self._origin = origin
        self._credential: Credential | None = None
        self._expires: datetime | None = None

    def __str__(self) -> str:
        return f"the credential plug-in {self._command[0]!r} ({self._origin})"

    async def get(self, *, refused: bool = False) -> Credential:
        """Return the plug-in's credential; run it again when that has expired or was refused."""
        if refused or self._credential is None or self._is_expired():
            self._credential, self._expires = self._parse(await self._run())
        return self._credential

    def _is_expired(self) -> bool:
        if self._expires is None:
            return False
        return (self._expires - datetime.now(UTC)).total_seconds() < _EXPIRY_MARGIN_S

    # --- Running it --------------------------------------------------------------------------------------------

    async def _run(self) -> bytes:
        process = await self._start()
        try:
            async with asyncio.timeout(_PLUGIN_TIMEOUT_S):
                output = await self._output_of(process)
                exit_code = await process.wait()
        except TimeoutError:
            raise self._failed(
                f"did not end within {_PLUGIN_TIMEOUT_S:g} s: run it by hand to see what it waits for"
            ) from None
        finally:
            await _end(process)
        if exit_code != 0:
            raise self._failed(f"ended with exit code {exit_code}; its own words are on standard error")
        return output

    async def _start(self) -> asyncio.subprocess.Process:
        spec: dict[str, Any] = {"interactive": False}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._api_version, "kind": "ExecCredential", "spec": spec}
        try:
            if "\0" in "".join([*self._command, *self._environment.values()]):
                raise ValueError  # noqa: TRY301 - as asyncio does; uvloop passes on what comes before the character
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                cwd=self._folder,
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise self._failed(f"cannot be started: {reason}. Install it, or correct its command") from error
        except ValueError:  # an argument or a variable that no program can be handed, which it quotes
            raise self._failed("cannot be started: its command, args or env hold an invalid character") from None

    async def _output_of(self, process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        output = b""
        while chunk := await process.stdout.read(65536):
            output += chunk
            if len(output) > _MOST_OUTPUT_BYTES:
                raise self._failed(f"printed more than {_MOST_OUTPUT_BYTES} bytes, which is no ExecCredential")
        return output

    # --- What it said ------------------------------------------------------------------------------------------

    def _parse(self, output: bytes) -> tuple[Credential, datetime | None]:
        try:
            answer = json.loads(output)
            version, status = _text(answer, "apiVersion"), answer["status"]
            certificate, key = _text(status, "clientCertificateData"), _text(status, "clientKeyData")
            credential = Credential(_text(status, "token"), certificate, key)
            expires = _text(status, "expirationTimestamp")
            moment = None if expires is None else _moment(expires)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._failed(_NO_CREDENTIAL) from None  # which may hold a secret
        if version != self._api_version:
            raise self._failed(f"answered in {(version or '')[:80]!r} and was asked in {self._api_version!r}")
        if (certificate is None) != (key is None):
            raise self._failed("printed a client certificate or a key, but not both")
        if credential.token is None and certificate is None:
            raise self._failed("printed neither a token nor a client certificate")
        return credential, moment

    def _failed(self, how: str) -> ConnectionError:
        return ConnectionError(f"{self} {how}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the program and its children if it still runs, and close the pipe, which a child may keep open."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone by itself, or another user's by now
            os.killpg(process.pid, signal.SIGKILL)
        # Some versions of asyncio wait here for the end of the pipe as well.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_TIMEOUT_S):
                await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way to do that


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    return value or None


def _moment(text: str) -> datetime:
    """Return the time of an ISO 8601 text; one without a zone is UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
