"""Checks of arguments, shared by every constructor so that wrong values fail alike and early.

``True`` is an ``int`` and NaN is a ``float`` in Python; neither is ever a sensible key or duration, so both are
refused here, by name, before anything runs.
"""

import math
import re
import reprlib
from typing import Any, NoReturn

_PRINTABLE_BITS = 256
_SHORTEST_TOKEN = 16
_ADDRESS = re.compile(r"[!#$&(-\[\]-~]{1,200}", re.ASCII)  # what needs no escaping in SQL, JSON and a terminal
_LONGEST_SHOWN = 240
_MAY_HOLD_PASSWORD = re.compile(r"://.*@|passw(?:or)?d\s*=", re.DOTALL | re.IGNORECASE)
_SHORTENED = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = _LONGEST_SHOWN


def quoted(value: object) -> str:
    """Return a user's value for a message: on one line, shortened, and never a connection string.

    A mixed-up variable can put a connection string where a name belongs, and messages end up in logs.
    """
    if isinstance(value, str) and _MAY_HOLD_PASSWORD.search(value):
        return "(what was given is not shown: it may hold a password)"
    return _SHORTENED.repr(value)


def visible(text: str) -> str:
    """Return the text with control characters escaped, so that a terminal does not obey them."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def shown(name: str) -> str:
    """Return another program's name for a message: quoted if it is not plain, short and without a secret."""
    is_plain = name.isprintable() and len(name) <= _LONGEST_SHOWN and not _MAY_HOLD_PASSWORD.search(name)
    return name if is_plain else quoted(name)


def check_int(name: str, value: Any, low: int, high: int) -> int:
    """Return ``value`` if it is a whole number in ``low..high``; raise an error that names the argument otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        # A number of thousands of digits cannot be printed, and the attempt would raise an error of its own.
        got = str(value) if value.bit_length() <= _PRINTABLE_BITS else f"a number of {value.bit_length()} bits"
        raise ValueError(f"{name} must be between {low} and {high}, got {got}")
    return value


def check_number(name: str, value: Any, what: str = "a number") -> float:
    """Return ``value`` as a finite float; raise an error that names the argument otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {what}, not {type(value).__name__}")
    # float() of a huge int raises OverflowError, which would name neither the argument nor the cause.
    if isinstance(value, int) and abs(value) > 10**15:  # in seconds, thirty million years
        raise ValueError(f"{name} is too large to be {what}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def check_seconds(name: str, value: Any, *, zero_ok: bool = False) -> float:
    """Return ``value`` as a finite positive number of seconds; raise an error that names the argument otherwise."""
    seconds = check_number(name, value, "a number of seconds")
    if seconds < 0 or (seconds == 0 and not zero_ok):
        wanted = "zero or more" if zero_ok else "greater than zero"
        raise ValueError(f"{name} must be {wanted}, got {value}")
    return seconds


def check_flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is a bool; a string "false" would be true otherwise."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def check_name(name: str, value: Any) -> str:
    """Return the value if it is text that can name something in a database."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.strip() or "\0" in value:
        raise ValueError(f"{name} must be a name, got {shown(value)}")
    return value


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called, at registration instead of at the first event."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")


def refuse_pickling(self: object, _protocol: object = None) -> NoReturn:
    """Refuse to be pickled or copied, as the ``__reduce_ex__`` of a class: two objects would act on one session."""
    raise TypeError(
        f"{type(self).__name__} cannot be pickled or copied: it stands for this process and holds sessions of it. "
        "Pass the settings instead, and create one in the process that uses it"
    )


def refuse_plain_with(self: object, *_: object) -> NoReturn:
    """Refuse ``with``, as the ``__enter__`` and ``__exit__`` of a class of asyncio: Python would not say what to do."""
    raise TypeError(
        f"{type(self).__name__} is for asyncio: write `async with`. For code that blocks, pgleaderlock.sync has "
        "LeaderLock and Election of its own"
    )


def check_token(token: str) -> str:
    """Return an operator's token if a header can carry it and it is long enough; an error does not repeat it."""
    if len(token) < _SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError(f"must have at least {_SHORTEST_TOKEN} characters, all printable ASCII and none a blank")
    return token


def address_fault(address: object) -> str | None:
    """Return why a leader cannot advertise this address, in words that follow its name; None when it can."""
    if isinstance(address, str) and _ADDRESS.fullmatch(address):
        return None
    return "must be a text of 1 to 200 ASCII characters, without spaces, quotes, backslashes and %"


def check_address(address: str | None) -> str | None:
    """Return the address; ValueError for one that a leader cannot advertise. None is no address."""
    if address is not None and (fault := address_fault(address)) is not None:
        raise ValueError(f"address {fault}, got {quoted(address)}")
    return address
