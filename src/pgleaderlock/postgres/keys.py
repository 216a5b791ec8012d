"""``LockKey``: the keys of PostgreSQL's advisory locks as a type.

PostgreSQL has two separate spaces of advisory locks: pairs of two 32-bit integers, and single 64-bit integers. The
pair ``(0, 1)`` and the bigint ``1`` are different locks. A name is turned into a bigint, so that people need not
invent numbers:

    the first 8 bytes, big-endian and signed, of SHA-256 of "pgleaderlock/role/1/" + name in UTF-8

That formula is frozen: processes of different versions and languages must meet on the same lock. The prefix keeps
names apart from whatever else this library may ever hash into the same space.

``str(key)`` names the lock itself and not the way one came to it: a named key and the bigint that it hashes to are
the same lock, compare equal and print alike. ``LockKey.parse`` reads that form back, and numbers as SQL and source
code have them: ``bigint:0x464F524745_0001``. Such a text is no role name: hashed, it would be another lock.
"""

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from pgleaderlock._base.checks import check_int, quoted

__all__ = ["LockKey", "is_written_as_key"]

_INT4 = (-(2**31), 2**31 - 1)
_INT8 = (-(2**63), 2**63 - 1)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,199}", re.ASCII)
# As many digits as a number that is only out of range may have. Thousands of them Python refuses, in words of its own.
_DIGITS = r"(-?(?:0[xX][0-9a-fA-F](?:_?[0-9a-fA-F]){0,59}|\d(?:_?\d){0,59}))"
_PRINTED = re.compile(rf"pair:{_DIGITS}/{_DIGITS}|bigint:{_DIGITS}|named:(.+)", re.ASCII)
_PREFIXES = ("pair:", "bigint:", "named:")


@dataclass(frozen=True, slots=True)
class LockKey:
    """One advisory lock. Make it with :meth:`pair`, :meth:`bigint` or :meth:`named`."""

    space: Literal["pair", "bigint"]
    numbers: tuple[int, ...]
    name: str | None = field(default=None, compare=False)
    """The name that the number is the hash of, if there is one."""
    alias: str | None = field(default=None, compare=False)
    """What a role that has this lock is called, where its name does not say the lock. See :meth:`for_role`."""

    def __post_init__(self) -> None:
        if not isinstance(self.numbers, tuple):
            raise TypeError(f"numbers must be a tuple, not {type(self.numbers).__name__}")
        if self.space == "pair":
            if len(self.numbers) != 2:  # noqa: PLR2004 - a pair
                raise ValueError("a pair key has exactly two numbers")
            for label, number in zip(("key1", "key2"), self.numbers, strict=True):
                check_int(label, number, *_INT4)
        elif self.space == "bigint":
            if len(self.numbers) != 1:
                raise ValueError("a bigint key has exactly one number")
            check_int("key", self.numbers[0], *_INT8)
        else:
            raise ValueError(f"space must be 'pair' or 'bigint', got {quoted(self.space)}")
        if self.name is not None and (self.space, self.numbers) != ("bigint", (_hash_name(self.name),)):
            raise ValueError(f"the name {quoted(self.name)} belongs to another key: make it with LockKey.named()")
        if self.alias is not None:
            _check_name(self.alias)

    @classmethod
    def pair(cls, key1: int, key2: int) -> Self:
        """Two 32-bit signed integers: ``pg_try_advisory_lock(int, int)``."""
        return cls("pair", (key1, key2))

    @classmethod
    def bigint(cls, number: int) -> Self:
        """One 64-bit signed integer: ``pg_try_advisory_lock(bigint)``."""
        return cls("bigint", (number,))

    @classmethod
    def named(cls, name: str) -> Self:
        """The bigint that this name hashes to, the same in every process and version."""
        return cls("bigint", (_hash_name(name),), name)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``pair:1/100``, ``bigint:7``, ``bigint:0x464F524745_0001`` or ``named:billing/scheduler``."""
        if not isinstance(text, str):
            raise TypeError(f"a lock key is written as a str, not {type(text).__name__}")
        match = _PRINTED.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{quoted(text)} is not a lock key: write pair:1/100, bigint:7, bigint:0x464F524745_0001 or "
                "named:billing/scheduler"
            )
        key1, key2, number, name = match.groups()
        if name is not None:
            return cls.named(name)
        return cls.bigint(_number(number)) if number is not None else cls.pair(_number(key1), _number(key2))

    def for_role(self, role: str) -> Self:
        """Return the same lock under the name of a role, which log lines and messages then show."""
        return replace(self, alias=None if role == self.name else role)

    @property
    def role(self) -> str | None:
        """The name of the role that uses this lock; None if it has none."""
        return self.alias or self.name

    @property
    def labels(self) -> dict[str, object]:
        """The labels of this lock in log lines: its role, if that has a name, and its two keys or its number."""
        numbers: dict[str, object] = {"key": str(self)}
        if self.space == "pair":
            numbers = {"key1": self.numbers[0], "key2": self.numbers[1]}
        return numbers if self.role is None else {"role": self.role, **numbers}

    @property
    def described(self) -> str:
        """The lock in messages: the name of its role, if it has one, and its printed form."""
        return str(self) if self.role is None else f"{self.role} ({self})"

    def __str__(self) -> str:
        return f"{self.space}:{'/'.join(map(str, self.numbers))}"

    def __repr__(self) -> str:
        role = "" if self.alias is None else f".for_role({self.alias!r})"
        if self.name is not None:
            return f"LockKey.named({self.name!r}){role}"
        return f"LockKey.{self.space}({', '.join(map(str, self.numbers))}){role}"


def is_written_as_key(text: str) -> bool:
    """Return whether this has the form of a key, valid or not: then it is no role name."""
    return text.startswith(_PREFIXES)


def _number(text: str) -> int:
    return int(text, 16 if "x" in text.lower() else 10)


def _hash_name(name: str) -> int:
    _check_name(name)
    digest = hashlib.sha256(f"pgleaderlock/role/1/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a role name must be a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        # Letters that look alike and hash apart would make two leaders, so only plain ASCII gets in.
        raise ValueError(
            f"role name {quoted(name)} is not usable: start with an ASCII letter or digit, go on with "
            "those or any of . _ / : @ + - and keep it to 200 characters"
        )
    if "://" in name:
        raise ValueError("role name is not usable: it is a connection string (not shown, it may hold a password)")
    if is_written_as_key(name):
        raise ValueError(f"{quoted(name)} is a lock key, not a role name: pass it as the key")
