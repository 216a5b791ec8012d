"""``pgleaderlock leader``: who leads a lock, as a process sees it that takes no part."""

import asyncio
import contextlib
import signal

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import print_folded, visible
from pgleaderlock.cli.database import UnreachableError
from pgleaderlock.cli.roles import print_record
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.cli.target import Target
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import LeaderSeen, LeaderUnknown
from pgleaderlock.ops.answers import leader_fields
from pgleaderlock.stores.watching import find_leader, watch_leader

_Seen = LeaderSeen | LeaderUnknown | None


async def show_leader(target: Target, *, as_json: bool) -> int:
    """Print who leads now, and return the exit code; UnreachableError if the store does not answer."""
    try:
        leader = await find_leader(**target.watched)
    except PgLeaderLockError as error:
        raise UnreachableError.from_error(error, target.advice) from error
    _print(target, leader, as_json=as_json)
    return exit_codes.CLEAN if leader else exit_codes.NOT_ACQUIRED


async def follow_leader(target: Target, *, as_json: bool) -> None:
    """Print who leads, and each change, until a signal arrives."""
    task = asyncio.get_running_loop().create_task(_follow(target, as_json=as_json))

    def end(_signal: signal.Signals) -> None:
        task.cancel()

    with call_on_signal(end), contextlib.suppress(asyncio.CancelledError):
        await task


async def _follow(target: Target, *, as_json: bool) -> None:
    async with contextlib.aclosing(watch_leader(**target.watched)) as leaders:
        async for leader in leaders:
            _print(target, leader, as_json=as_json)


def _print(target: Target, leader: _Seen, *, as_json: bool) -> None:
    if as_json:
        print_record({**target.fields, **leader_fields(leader)})
    else:
        print_folded(f"{target.described} {_described(leader)}")


def _described(leader: _Seen) -> str:
    if leader is None:
        return "has no leader"
    if isinstance(leader, LeaderUnknown):
        return f"has an unknown leader: {visible(leader.error)}"
    known = {" at": leader.address, ", token": leader.token, ", since": leader.since}
    facts = "".join(f"{word} {value}" for word, value in known.items() if value is not None)
    return visible(f"is led by {leader.name}{facts}")
