"""``pgleaderlock step-down``: ask the leader to hand over, and report the result.

The leader answers an ask: it accepts, or refuses with a reason. The result is read from the history, into which the
nodes write when the leader released and when the next one acquired. Both times are by the database's clock, so their
difference is the time without a leader.
"""

import asyncio
import getpass
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.roles import find_role, opened, print_record, silence_s
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.times import duration
from pgleaderlock.ops.registry.asking import Asked, AskRefused, Target
from pgleaderlock.ops.registry.audit import Line
from pgleaderlock.ops.registry.reading import Candidate, KnownRole, Leader, RegistryReader, RoleStatus

_BEGINS = ("acquired", "recovered")
_ENDS = ("released", "lost", "reconnecting", "stopped")
_LOOK_EVERY_S = 1.0
_LATE_S = 2.0
"""How long the old leader may take to write the end of its term after its successor has written its beginning."""
_SILENCE_S = 2.0  # after which it is said what the leader may be waiting for
_LAST_ASK_S = 60.0  # how far back the last request is looked for: most leases are shorter
_SLACK_S = 5.0  # by how much the times that nodes write may differ from the server time that we read

_NOT_HEARD = "{} has not been heard of for too long."
_NOT_SHOWN = (
    "the registry shows no candidate {} for it. Check the name with pgleaderlock status; a candidate without a "
    "registry cannot be named, so give it one."
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the history shows of one hand-over."""

    is_heard: bool = False
    """Whether the leader wrote that it received the ask."""
    end: Line | None = None
    """The end of the old term as the old leader wrote it; None if it wrote none."""
    successor: Line | None = None
    refusal: str | None = None
    is_asked: bool = True

    @property
    def seconds(self) -> float | None:
        """The time without a leader; None if it is not known."""
        return None if self.end is None or self.successor is None else max(0.0, self.successor.at - self.end.at)


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of one ``step-down``."""

    role: str | None
    lock: str | None
    wait_s: float
    reason: str | None = None
    token: int | None = None
    """The fencing token of the term to end; None means the term that the registry shows."""
    to: str | None = None
    """The node that is to lead next, by its name or as host:pid; None is any."""


async def step_down(dsn: str, place: ShownRoles, wish: Wish, *, as_json: bool) -> int:
    """Ask the leader, wait, print the result, and return the exit code."""
    async with opened(dsn, place) as reader:
        known = await find_role(reader, wish.role, wish.lock)
        if known is None:
            raise click.UsageError("name the role whose leader is meant: --role, or --lock.")
        since = await reader.now() - _SLACK_S
        role = next(iter(await reader.status(known.lock)), None)
        leader = None if role is None else role.leader
        problem = await reader.standby_problem() if leader is None else ""
        if problem and role is not None:  # no node can write the registry then: the last leader in it still leads
            leader = role.last_leader
        nominee, objection = (None, None) if wish.to is None or role is None else _nominee(role, wish.to)
        if leader is not None and objection is not None:
            seen = _Seen(refusal=objection, is_asked=False)
        elif leader is not None:
            seen = await _ask(reader, known.lock, leader, since, wish=wish, nominee=nominee)
        else:
            seen = _Seen(refusal=problem or None, is_asked=False)
    outcome = _outcome(leader, seen, nominee)
    is_done = outcome == "handed_over"
    if as_json:
        print_record(_fields(known, leader, seen, outcome))
    else:
        click.echo(_sentence(known, leader, seen, outcome, wish.wait_s), err=not is_done)
    return exit_codes.CLEAN if is_done else exit_codes.NOT_HANDED_OVER


def _who_asks() -> str:
    """Return user, host and process id, for the leader's log and the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's account without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def _nominee(role: RoleStatus, name: str) -> tuple[Candidate | None, str | None]:
    """Return the candidate of this name; or None, and why it cannot lead next."""
    named = [each for each in role.current_candidates if name in (each.node, _process(each))]
    alive = [each for each in named if each.is_alive]
    if not alive:
        why = _NOT_HEARD if named else _NOT_SHOWN
        return None, f"{why.format(visible(name))} {_followers(role)}"
    if len(alive) > 1:
        return None, f"{len(alive)} candidates are called {visible(name)}: name one by its process, --to host:pid"
    if role.leader is not None and alive[0].instance == role.leader.instance:
        return None, f"{visible(name)} leads it already"
    return alive[0], None


def _followers(role: RoleStatus) -> str:
    leading = None if role.leader is None else role.leader.instance
    alive = [each.node for each in role.current_candidates if each.is_alive and each.instance != leading]
    return f"Followers that are alive: {', '.join(map(visible, alive)) or 'none'}"


def _process(candidate: Candidate) -> str:
    return f"{candidate.host}:{candidate.process_id}"


async def _ask(
    reader: RegistryReader, lock: str, leader: Leader, since: float, *, wish: Wish, nominee: Candidate | None
) -> _Seen:
    """Write the ask, and return what the history then shows."""
    target = Target(leader.instance, leader.token if wish.token is None else wish.token)
    to = None if nominee is None else _process(nominee)
    try:
        asked = await reader.ask_to_step_down(
            lock, _who_asks(), leader=target, reason=wish.reason, wait_s=wish.wait_s, to=to
        )
    except (AskRefused, ValueError) as error:
        return _Seen(refusal=str(error), is_asked=False)
    return await _wait(reader, asked, leader, since, wish.wait_s)


async def _wait(reader: RegistryReader, asked: Asked, leader: Leader, since: float, wait_s: float) -> _Seen:
    """Read the history until both successor and old leader have written, the leader refused, or the time is over."""
    loop = asyncio.get_running_loop()
    deadline, has_successor = loop.time() + wait_s, False
    tell_at = loop.time() + _SILENCE_S
    while True:
        answer = await reader.answer_to(asked)
        seen = _look(await reader.history(lock=asked.lock, since=since, limit=10_000), leader)
        if answer is not None and not answer.is_obeyed and seen.successor is None:
            return replace(seen, refusal=answer.why or "it gave no reason")
        if seen.successor is not None and not has_successor:
            deadline, has_successor = loop.time() + _LATE_S, True
        left_s = deadline - loop.time()
        if (has_successor and seen.end is not None) or left_s <= 0:
            return seen
        if answer is None and not has_successor and loop.time() >= tell_at:
            tell_at = math.inf
            await _tell_silence(reader, asked.lock, leader, left_s)
        await reader.wait_for_change(min(left_s, _LOOK_EVERY_S))


async def _tell_silence(reader: RegistryReader, lock: str, leader: Leader, left_s: float) -> None:
    """Print on stderr that a leader without an answer may wait, if another term was ended on request lately."""
    now = await reader.now()
    lines = await reader.history(lock=lock, since=now - _LAST_ASK_S, limit=10_000)
    asked = [line.at for line in lines if line.event == "step_down_asked" and line.token != leader.token]
    if asked:
        click.echo(
            f"{visible(leader.node)} has not answered yet: a leader accepts one step-down per lease, and the last was "
            f"{duration(max(0.0, now - max(asked)))} ago. Waiting for {duration(left_s)} more at most.",
            err=True,
        )


def _look(lines: Sequence[Line], leader: Leader) -> _Seen:
    later = [line for line in lines if line.at >= leader.acquired_at]
    ours = [line for line in later if (line.instance, line.token) == (leader.instance, leader.token)]
    others = [line for line in later if (line.instance, line.token) != (leader.instance, leader.token)]
    return _Seen(
        any(line.event == "step_down_asked" for line in ours),
        next((line for line in ours if line.event in _ENDS), None),
        next((line for line in others if line.event in _BEGINS), None),
    )


def _outcome(leader: Leader | None, seen: _Seen, nominee: Candidate | None) -> str:
    if seen.refusal is not None and leader is not None:
        return "refused"
    if seen.successor is not None and leader is not None:
        if seen.successor.instance == leader.instance:
            return "same_node"
        return "another_node" if nominee is not None and seen.successor.instance != nominee.instance else "handed_over"
    return "no_leader" if leader is None or seen.end is not None or seen.is_heard else "not_heard"


def _fields(known: KnownRole, leader: Leader | None, seen: _Seen, outcome: str) -> dict[str, Any]:
    return {
        "role": known.role,
        "lock": known.lock,
        "from": None if leader is None else leader.node,
        "to": None if seen.successor is None else seen.successor.node,
        "from_token": None if leader is None else leader.token,
        "to_token": None if seen.successor is None else seen.successor.token,
        "seconds": None if seen.seconds is None else round(seen.seconds, 6),
        "outcome": outcome,
        "why": seen.refusal,
    }


def _sentence(known: KnownRole, leader: Leader | None, seen: _Seen, outcome: str, wait_s: float) -> str:
    role = f"{visible(known.role)} ({visible(known.lock)})"
    if leader is None:
        why = "" if seen.refusal is None else f" {visible(seen.refusal)}"
        return f"No node leads {role}, as far as the registry shows: there is no leader to ask.{why}"
    node, within = visible(leader.node), f"within {duration(wait_s)}"
    if outcome in ("refused", "not_heard"):
        return _no_consent(leader, seen, role, within)
    if seen.successor is None and seen.end is None:
        return f"{node} received the ask, but had not released {role} {within}."
    if seen.successor is None:
        return f"{node} released {role}, but no candidate took over {within}: are there other candidates?"
    time, tokens = _how_long(seen), f"(token {leader.token} -> {seen.successor.token})"
    if outcome == "same_node":
        return f"{node} stepped down and acquired {role} again {time} {tokens}: no other candidate did."
    instead = ", not to the node that --to names," if outcome == "another_node" else ""
    return f"{node} handed over to {visible(seen.successor.node)}{instead} {time} {tokens}"


def _no_consent(leader: Leader, seen: _Seen, role: str, within: str) -> str:
    node = visible(leader.node)
    if seen.refusal is not None and not seen.is_asked:
        return f"{node} was not asked to step down from {role}: {visible(seen.refusal)}"
    if seen.refusal is not None:
        return f"{node} refused the ask to step down from {role}: {visible(seen.refusal)}"
    silent_s = silence_s(leader)
    last = "" if silent_s is None else f" It has written nothing to the registry for {duration(silent_s)}."
    return (
        f"{node} did not answer {within}, and leads {role} as far as the registry shows.{last} Check that its registry "
        "is connected, that it accepts asks (accept_asks), and what its log says about them."
    )


def _how_long(seen: _Seen) -> str:
    return "without writing when it ended" if seen.seconds is None else f"in {duration(seen.seconds)}"
