"""Which database, and with which password: what every place of the Python API takes as ``dsn``."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Dsn", "HasUrl", "Login", "Password", "log_in"]

Password = str | Callable[[], str | Awaitable[str]]
"""A password, or a function that returns the current one: plain (run in a thread) or async."""


class HasUrl(Protocol):
    """A SQLAlchemy ``Engine`` or ``AsyncEngine``. SQLAlchemy is never imported here."""

    @property
    def url(self) -> Any:
        """The URL of the engine."""


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """A database and the password for it. Every place that takes a ``dsn`` takes this instead.

    A function as the password is called for each new session, so that it may change at any time:

        login = Login("postgresql://app@db/app", password=fetch_token)
        registry, lock = Registry(login), LeaderLock(login, role="billing")

    A plain function runs in a thread of its own, a coroutine function on the event loop of the election. It has less
    time than connecting has; when it fails or is late, the connection has failed and is tried again.
    """

    dsn: "Dsn"
    password: Password

    def __post_init__(self) -> None:
        if isinstance(self.dsn, Login):
            raise TypeError("dsn of a Login must not be another Login: one password is enough")
        if not (isinstance(self.password, str) or callable(self.password)):
            raise TypeError(f"password must be a str or a function, not {type(self.password).__name__}")

    def __repr__(self) -> str:
        return "<Login>"  # the connection string may hold a secret, too


Dsn = str | Mapping[str, Any] | HasUrl | Login
"""A connection string or DATABASE_URL, an entry of Django's DATABASES, a SQLAlchemy engine, or a :class:`Login`."""


def log_in(dsn: Dsn, password: Password | None) -> Dsn:
    """Return the database with this password, if there is one."""
    if password is None:
        return dsn
    if isinstance(dsn, Login):
        raise TypeError("password is given twice: by the Login, and by password=")
    return Login(dsn, password)
