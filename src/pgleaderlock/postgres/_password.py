"""Passwords that change: the function of ``password=`` is asked for each new session."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from pgleaderlock._base import threads
from pgleaderlock.postgres import _engines
from pgleaderlock.postgres.login import Dsn, Login

__all__ = ["NoPassword", "PasswordSource", "find_source"]

Ask = Callable[[], str | Awaitable[str] | None]


class NoPassword(Exception):  # noqa: N818 - named after what there is
    """The function returned no password. Says why, without the function's own exception, whose frames may hold one."""


class PasswordSource:
    """Asks a function for the password: a plain one in a thread, one call at a time; a coroutine function here."""

    def __init__(self, ask: Ask, named: str = "the function of password=", *, none_ok: bool = False) -> None:
        self._ask, self._named, self._none_ok = ask, named, none_ok
        self._running: asyncio.Future[Any] | None = None

    async def get(self, bound_s: float) -> str | None:
        """Return the current password; NoPassword if the function fails, is late, or returns something else."""
        limit = asyncio.timeout(bound_s)
        try:
            async with limit:
                password = await self._answer()
        except Exception as error:  # noqa: BLE001 - a caller's function may raise anything
            late = isinstance(error, TimeoutError) and limit.expired()
            why = f"{self._named} has not returned within {bound_s:g} s" if late else self._described(error)
        else:
            unusable = "" if password is None and self._none_ok else _why_unusable(password)
            if not unusable:
                return password  # type: ignore[no-any-return] # as was just checked
            why = f"{self._named} {unusable}"
        # Raised here, where the function's exception is not being handled: it would come along as the context.
        raise NoPassword(why)

    def _described(self, error: Exception) -> str:
        if isinstance(error, _engines.ListenerFailed):  # which names the one listener that failed
            return str(error)
        return f"{self._named} raised {type(error).__name__}: {error}"

    async def _answer(self) -> Any:
        if inspect.iscoroutinefunction(self._ask):
            return await self._ask()
        answer = await self._call_in_thread()
        return await answer if inspect.isawaitable(answer) else answer

    async def _call_in_thread(self) -> Any:
        """Call the function when its last call has returned: one that hangs costs one thread, however often we try."""
        while self._is_running():
            await asyncio.wait({self._running})  # type: ignore[type-var] # it is running, so it is none but a future
        self._running = threads.begin(self._ask, "pgleaderlock-password")
        return await asyncio.shield(self._running)

    def _is_running(self) -> bool:
        running = self._running
        return running is not None and not running.done() and running.get_loop() is asyncio.get_running_loop()


def _why_unusable(password: object) -> str:
    if password is None:
        return "returned None"
    if not isinstance(password, str):
        return f"returned {type(password).__name__}, not str"
    if not password:
        return "returned an empty text"
    if not _is_encodable(password):
        return "returned a text that is not UTF-8: decode what was read with the encoding that it was written in"
    if "\0" in password or password != password.strip("\r\n"):
        return "returned a text with a line break around it, or with a NUL: strip() what was read from a file"
    return ""


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_source(dsn: Dsn | None) -> PasswordSource | None:
    """Return where the passwords for this database come from; None for one password, or none, in the dsn itself."""
    if isinstance(dsn, Login):
        return None if isinstance(dsn.password, str) else PasswordSource(dsn.password)
    if not _engines.is_engine(dsn):
        return None
    found = _engines.password_of(dsn)
    return None if found is None else PasswordSource(found.ask, found.named, none_ok=True)
