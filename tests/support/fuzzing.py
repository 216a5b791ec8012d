"""What the fuzz tests are written with: hostile material, how much of it, and what must be true whatever it is.

In ``make test`` the examples are always the same ones, and few. ``make fuzz ARGS="--minutes 10"`` (:mod:`proofs.fuzz`)
draws others, many times as many; $PGLEADERLOCK_FUZZ_FACTOR says how many times.
"""

import atexit
import contextlib
import copy
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import Grant
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.nfs import LockError as NfsLockError

SECRET = "s3cr3t-pw"
LONGEST_MESSAGE = 2000
LEASE_S = 10.0
FACTOR = int(os.environ.get("PGLEADERLOCK_FUZZ_FACTOR", "0"))
RAN: Counter[str] = Counter()
"""How many examples each test has seen, which a long run prints at the end."""

Test = Callable[..., None]


@atexit.register
def _tell_how_many() -> None:
    if FACTOR:
        Path(os.environ["PGLEADERLOCK_FUZZ_COUNTS"]).write_text(json.dumps(RAN), encoding="utf-8")


def fuzzed(*material: st.SearchStrategy[Any], examples: int, **named: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Run a test with so many examples, always the same ones; on a long run with many more, and other ones."""

    def decorate(test: Test) -> Test:
        @wraps(test)
        def counted(*arguments: Any, **more: Any) -> None:
            RAN[test.__name__] += 1
            test(*arguments, **more)

        return settings(
            max_examples=examples * (FACTOR or 1),
            derandomize=not FACTOR,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )(given(*material, **named)(counted))

    return decorate


# --- Material ---------------------------------------------------------------------------------------------------------

_PIECES = [
    *("\x1b[31m", "\x1b]0;owned\x07", "\0", "\n", "\r", "\x7f", "\x85", "\u2028", "\u202e", "\ud800", "\udcff"),
    *("<script>alert(1)</script>", "&amp;", "'; DROP TABLE leases; --", "${jndi:ldap://x}", "%s%n", "{0.__class__}"),
    *("９", "²", "İ", "%", "%00", "%ff", "%zz", "[", "]", "::", "/", "//", "@", ":", ",", "=", "'", '"', "\\", " "),
    *("-", "-1", "0", "1", "9" * 5000, "1e999", "inf", "nan", "x" * 10_000, "..", "?", "#", "&", "*", "*/", "L", "h"),
    *("ms", "mon", f"postgresql://u:{SECRET}@h/d", f"host=h password={SECRET}", f"PASSWD = {SECRET}"),
]


def texts(*pieces: str) -> st.SearchStrategy[str]:
    """What a stranger may put where a text is expected, with these among it."""
    piece = st.sampled_from([*_PIECES, *(pieces * 4)]) | st.text(max_size=5)
    return st.lists(piece, max_size=6).map("".join)


_NUMBERS: list[Any] = [
    *(0, -1, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**18 - 1, 10**400, 0.0, -0.0, 1e-300, 1.5, 1e308),
    *(float("inf"), float("-inf"), float("nan"), True, False, None),
]


def values() -> st.SearchStrategy[Any]:
    """Whatever JSON can hold, and Python makes of it."""
    leaves = st.sampled_from(_NUMBERS) | texts() | st.sampled_from(["15s", "1ns", "9999h", "2099-01-01T00:00:00Z"])
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3), max_leaves=6
    )


def with_other_values(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The same object with some of its values, at whatever depth, replaced or left out, and something new in it."""
    paths = list(_paths(fields))
    changes = st.dictionaries(st.sampled_from(paths), values() | st.just(_GONE), min_size=1, max_size=3)
    return st.builds(_changed, st.just(fields), changes, st.dictionaries(texts(), values(), max_size=1))


_GONE = object()


def _paths(fields: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in fields.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))


def _changed(fields: dict[str, Any], changes: dict[tuple[str, ...], Any], more: dict[str, Any]) -> dict[str, Any]:
    fields = {**copy.deepcopy(fields), **more}
    for path, value in changes.items():
        place: Any = fields
        for name in path[:-1]:
            place = place.get(name) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[path[-1]] = value
            if value is _GONE:
                del place[path[-1]]
    return fields


_RUBBISH = [
    *(b"", b"\0" * 4096, b"{", b"[]", b"null", b"0", b'"', b"\xff\xfe{", b"\xef\xbb\xbf{}", b"#!/bin/sh\nexit\n"),
    *(b"[" * 60_000, b'{"holder":' * 6000, b"x" * 70_000, b'{"holder": "' + b"\x1b[31m" * 100 + b'"}', b"9" * 5000),
]


def damaged(text: bytes) -> st.SearchStrategy[bytes]:
    """What a disk, an editor, another version or an enemy makes of a text."""
    place = st.integers(0, len(text))
    piece = st.binary(max_size=8) | st.sampled_from(_RUBBISH)
    cut = place.map(lambda end: text[:end])
    flipped = st.builds(lambda at, bit: bytes([*text[:at], text[at] ^ bit, *text[at + 1 :]]), place.filter(
        lambda at: at < len(text)
    ), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]))  # fmt: skip
    spliced = st.builds(lambda at, to, new: text[:at] + new + text[max(at, to) :], place, place, piece)
    rewritten = with_other_values(json.loads(text)).map(_dumped)
    return st.sampled_from(_RUBBISH) | st.binary(max_size=64) | cut | flipped | spliced | rewritten


def _dumped(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


# --- What must be true ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def refused_in_words(*also: type[Exception]) -> Iterator[list[Exception]]:
    """Whatever is refused is refused by us, in one line that can be shown anywhere. Yields what was."""
    refusals: list[Exception] = []
    try:
        yield refusals
    except Exception as error:
        if not isinstance(error, (PgLeaderLockError, NfsLockError, *also)):
            raise
        refusals.append(error)
        check_words(error)


def check_words(error: Exception) -> None:
    """One line, of a bounded length, that no terminal obeys, without a secret and without another library's words."""
    text = str(error)
    assert text, f"{type(error).__name__} says nothing"
    assert len(text) < LONGEST_MESSAGE, text[:200]
    assert text.isprintable(), ascii(text)
    leaked = SECRET in text
    assert not leaked, "a secret is shown"
    assert type(error).__module__.startswith("pgleaderlock") or type(error) in (ValueError, TypeError), repr(error)
    for foreign in ("Exceeds the limit", "IPv6", "codec can't", "invalid literal", "out of range for", "object has no"):
        assert foreign not in text, text


# --- A lock under harm ------------------------------------------------------------------------------------------------


class Clock:
    """Stands still until it is asked to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def asked(attempt: Awaitable[Grant | None]) -> Grant | None:
    """Return the answer, None also where it is unknown: then the candidate does not lead by it."""
    with refused_in_words():
        return await attempt
    return None


async def play(make_candidate: Callable[[], Backend], clock: Clock, harm: Callable[[], None]) -> None:
    """Harm the record of a lock that is held, and observe which candidates are valid, until long after the lease."""
    async with contextlib.AsyncExitStack() as stack:
        holder, follower, newcomer = [await opened(stack, make_candidate) for _ in range(3)]
        held = await holder.try_acquire()
        assert held is not None
        assert held.token is not None
        assert await follower.try_acquire() is None
        harm()
        for other in (follower, newcomer):
            assert await asked(other.try_acquire()) is None, "what is damaged was taken for free"
        clock.now = held.lost_at - 0.001
        held = await asked(holder.renew(held)) or held
        for _ in range(3):
            clock.now += LEASE_S * 1.01
            for other in (follower, newcomer):
                taken = await asked(other.try_acquire())
                if taken is not None:
                    assert clock.now >= held.trusted_until, "two may be valid"
                    assert taken.token is not None
                    assert taken.token > (held.token or 0), "a number came twice"
                    with pytest.raises(PgLeaderLockError) as caught:
                        await holder.renew(held)
                    check_words(caught.value)
                    return


async def opened(stack: contextlib.AsyncExitStack, make_candidate: Callable[[], Backend]) -> Backend:
    candidate = make_candidate()
    stack.push_async_callback(candidate.close)
    await candidate.open()
    return candidate
