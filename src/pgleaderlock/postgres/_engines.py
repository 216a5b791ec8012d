"""What a SQLAlchemy engine connects to. SQLAlchemy is not imported: what has its attributes is an engine.

The arguments of a connection (those of the URL together with ``connect_args``) are in no public attribute: they are
variables of the function that the engine's pool makes connections with. An engine with another such function
(``creator``, ``async_creator``, ``pool``) is refused.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["EnginePassword", "ListenerFailed", "fixed_arguments_of", "is_engine", "is_url", "password_of", "text_of"]


class ListenerFailed(Exception):  # noqa: N818 - named after what happened
    """A listener of ``do_connect`` cannot be followed. Says which one, and why."""


@dataclass(frozen=True, slots=True)
class EnginePassword:
    """Where an engine gets its passwords from."""

    ask: Callable[[], str | Awaitable[str] | None]
    named: str
    """In errors."""


def is_engine(found: object) -> bool:
    """Return whether this is an Engine or an AsyncEngine."""
    sync = getattr(found, "sync_engine", found)
    return all(hasattr(sync, name) for name in ("url", "pool", "dialect"))


def is_url(found: object) -> bool:
    """Return whether this is a URL of SQLAlchemy."""
    return hasattr(found, "drivername") and callable(getattr(found, "render_as_string", None))


def text_of(url: Any) -> str:
    """Return a URL of SQLAlchemy as a text, with its password."""
    return str(url.render_as_string(hide_password=False))


def fixed_arguments_of(engine: Any) -> Mapping[str, Any]:
    """Return the arguments with which an engine connects, in the words of its driver, but for a changing password."""
    arguments = _arguments_of(engine)
    return {**arguments, "password": None} if callable(arguments.get("password")) else arguments


def _arguments_of(engine: Any) -> Mapping[str, Any]:
    sync = getattr(engine, "sync_engine", engine)
    if sync.dialect.name != "postgresql":
        raise ValueError(f"dsn is an engine of {sync.dialect.name}, and not of PostgreSQL")
    creator = getattr(sync.pool, "_creator", None)
    if not inspect.isfunction(creator) or creator.__module__ != "sqlalchemy.engine.create":
        raise ValueError(
            "dsn is an engine with a creator or a pool of its own, and only that knows how to connect: pass a "
            "connection string, or connect_fn"
        )
    inside = inspect.getclosurevars(creator).nonlocals
    arguments = inside.get("cparams")
    positional = [each for each in inside.get("cargs_tup", inside.get("cargs", ())) if each]
    if not isinstance(arguments, Mapping) or positional:
        raise ValueError("dsn is an engine of a SQLAlchemy that keeps its connect_args elsewhere: pass its URL instead")
    return arguments


def password_of(engine: Any) -> EnginePassword | None:
    """Return the function that the engine gets its passwords from; None if its password does not change.

    That is a function as the password (asyncpg), or listeners of ``do_connect``, which are asked as SQLAlchemy does.
    """
    arguments = _arguments_of(engine)
    sync = getattr(engine, "sync_engine", engine)
    if list(sync.dialect.dispatch.do_connect):
        return EnginePassword(lambda: _ask_listeners(sync.dialect, arguments), "a listener of the engine's do_connect")
    password = arguments.get("password")
    return EnginePassword(password, "the function in the engine's connect_args") if callable(password) else None


def _ask_listeners(dialect: Any, arguments: Mapping[str, Any]) -> str | None:
    asked = dict(arguments)
    for listener in dialect.dispatch.do_connect:
        named = f"the listener {getattr(listener, '__qualname__', type(listener).__name__)} of the engine's do_connect"
        try:
            connection = listener(dialect, None, [], asked)
        except Exception as error:  # noqa: BLE001 - a caller's listener may raise anything
            raise ListenerFailed(f"{named} raised {type(error).__name__}: {error}") from None
        if connection is not None:
            raise ListenerFailed(f"{named} made a connection: pass connect_fn instead")
        changed = {name for name in {**arguments, **asked} if arguments.get(name) != asked.get(name)}
        if others := sorted(changed - {"password"}):
            raise ListenerFailed(
                f"{named} changed more than the password: {', '.join(others)}. Put that into the engine's URL, or pass "
                "connect_fn"
            )
    password: str | None = asked.get("password")
    return password
