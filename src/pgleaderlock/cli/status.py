"""``pgleaderlock status``: who holds a lock, who is next and who queues for it, as its store shows it now."""

import asyncio

from pgleaderlock.cli.console import describe_holder, holder_fields, print_folded, print_json, visible
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.target import Sight, Target
from pgleaderlock.errors import ConnectionError, PgLeaderLockError
from pgleaderlock.models import Holder

ANSWER_TIMEOUT_S = 30.0  # longer than the time-out for connecting; for a server that accepts and then does not answer
_GLANCE_TIMEOUT_S = 3.0
_QUIET = "  quiet followers hold no lock and are not counted here; a registry shows them"


async def show_status(target: Target, *, as_json: bool) -> None:
    """Print holder and queue as the store shows them; UnreachableError if it does not answer."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            seen = await target.look()
    except PgLeaderLockError as error:
        raise UnreachableError.from_error(error, target.advice) from error
    except TimeoutError as error:
        silence = ConnectionError(f"the store did not answer about lock {target.name} within {ANSWER_TIMEOUT_S:g} s")
        raise UnreachableError.from_error(silence, target.advice) from error
    if as_json:
        _print_as_json(target, seen)
    else:
        _print_as_text(target, seen)


async def glance(target: Target) -> tuple[Holder | None, str]:
    """Return the holder of the lock and any problem, as an optional part of a message: None and "" if unknown."""
    try:
        async with asyncio.timeout(_GLANCE_TIMEOUT_S):
            seen = await target.look()
    except (PgLeaderLockError, TimeoutError):
        return None, ""
    return next((candidate.holder for candidate in seen.candidates if candidate.granted), None), seen.note


def _print_as_json(target: Target, seen: Sight) -> None:
    holders = [holder_fields(candidate.holder) for candidate in seen.candidates if candidate.granted]
    waiting = [
        {**holder_fields(candidate.holder), "place": candidate.place or None}
        for candidate in seen.candidates
        if not candidate.granted
    ]
    state = "held" if holders else "free"
    note = {"note": seen.note} if seen.note else {}
    print_json({**target.fields, "state": state, "holder": next(iter(holders), None), "waiting": waiting, **note})


def _print_as_text(target: Target, seen: Sight) -> None:
    name = target.described
    is_held = any(candidate.granted for candidate in seen.candidates)
    if not is_held:
        print_folded(f"{name} has no holder: {seen.note}" if seen.note else f"{name} is free")
    for candidate in seen.candidates:
        if candidate.granted:
            print_folded(f"{name} is held by {describe_holder(candidate.holder)}")
        else:
            print_folded(f"  {candidate.place or 'queued'}: {describe_holder(candidate.holder)}")
    if target.has_quiet_followers and seen.candidates:
        print_folded(_QUIET)
    if is_held and seen.note:
        print_folded(f"  problem: {visible(seen.note)}")
