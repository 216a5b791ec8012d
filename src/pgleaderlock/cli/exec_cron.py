"""``pgleaderlock exec --cron``: cron starts it on every host, and one of them runs the command."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pgleaderlock._base.schemes import is_postgres
from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.election_options import given_pod_label, given_settings
from pgleaderlock.cli.options import is_given, wrong_usage
from pgleaderlock.cli.target import Target
from pgleaderlock.cli.times import duration
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import ConnectionError, LockError, MissingExtra
from pgleaderlock.lock import LeaderLock
from pgleaderlock.options import BY_NAME
from pgleaderlock.work.exec.guardian_client import GuardedCommand
from pgleaderlock.work.exec.slot import ClaimedSlot, CommandFailedError, SlotElection
from pgleaderlock.work.exec.supervisor import Ending, How, Policy, Supervisor, Tell
from pgleaderlock.work.schedule.once import Once, OnceOptions, SlotClaim
from pgleaderlock.work.schedule.timetable import slot_meant

if TYPE_CHECKING:
    from pgleaderlock.work.schedule.cron import Cron

_WAIT_S = 60.0  # for the database, unless --wait says otherwise: cron starts the next one anyway
_PAUSE_S = 1.0
_LATE_S = 600.0  # after which a start is so late that --tz may be wrong
_JOB = "exec"
_NEEDS = "--cron needs a PostgreSQL: --dsn, or a postgresql:// URL."


@dataclass(frozen=True, slots=True)
class CronRun:
    """One start by cron: the schedule, what becomes of a slot that was cut off, how long to wait for the database."""

    cron: "Cron"
    options: OnceOptions
    wait_s: float


def cron_run(
    cron: str | None, tz: str, if_killed: str, *, url: str | None, wait_s: float | None, once: bool, restart: bool
) -> CronRun | None:
    """Return what the options say; None without ``--cron``. Wrong usage if they make no sense together."""
    if cron is None:
        if idle := [flag for name, flag in (("tz", "--tz"), ("if_killed", "--if-killed")) if is_given(name)]:
            raise click.UsageError(f"{', '.join(idle)}: only with --cron.")
        return None
    labels = given_pod_label() is not None
    if idle := [flag for is_set, flag in ((once, "--once"), (restart, "--restart"), (labels, "--pod-label")) if is_set]:
        raise click.UsageError(
            f"{', '.join(idle)}: not with --cron, which runs the command once per time slot, without a leader."
        )
    if url is not None and not is_postgres(url):
        raise click.UsageError(_NEEDS)
    _refuse_settings()
    from pgleaderlock.work.schedule.cron import Cron  # noqa: PLC0415 - it needs an extra of its own

    with wrong_usage((ValueError, MissingExtra), said="--cron: {}"):
        schedule = Cron(cron, tz)
    options = OnceOptions("repeat" if if_killed == "repeat" else "leave")
    return CronRun(schedule, options, _WAIT_S if wait_s is None else wait_s)


def _refuse_settings() -> None:
    """Refuse the settings of an election: without a leader they have no effect, except where the tables are."""
    used = [name for name, setting in BY_NAME.items() if setting.scope == "tables" or name == "allow_pooler"]
    if idle := [BY_NAME[name].flag for name in given_settings() if name not in used]:
        raise click.UsageError(f"{', '.join(idle)}: no effect with --cron, where no process leads. Leave it out.")


async def run_slot(lock: Election, target: Target, job: GuardedCommand, run: CronRun, tell: Tell) -> Ending | SlotClaim:
    """Run the command if this process gets the slot, and return how it ended; else the claim of the other process."""
    if not isinstance(lock, LeaderLock):
        raise click.UsageError(_NEEDS)
    slot_of = partial(slot_meant, run.cron)
    once = lock._once(_JOB, slot_of, run.options, run.cron.written)  # noqa: SLF001 - of this library
    try:
        await _open(once, run.wait_s)
        async with once as claim:
            if not claim:
                return claim
            election = SlotElection(ClaimedSlot(lock.labels, once.lifeline))
            return await _run_command(election, target, job, claim, tell)
    except CommandFailedError as failure:
        return failure.ending
    except ConnectionError as error:
        return Ending(How.UNREACHABLE, error=error)
    except LockError as error:
        return Ending(How.NOT_ACQUIRED, problem=visible(str(error)))


async def _open(once: Once, wait_s: float) -> None:
    """Connect, again and again until the time is up. Nothing is claimed by that."""
    loop = asyncio.get_running_loop()
    gives_up_at = loop.time() + wait_s
    while True:
        try:
            await once.open()
        except ConnectionError:
            if loop.time() + _PAUSE_S >= gives_up_at:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return


async def _run_command(election: Election, target: Target, job: GuardedCommand, claim: SlotClaim, tell: Tell) -> Ending:
    """Run the command; CommandFailedError, with the ending, if it did not end with the exit code 0."""
    _warn_if_late(claim, target, tell)
    slotted = replace(job, environment={**job.environment, "PGLEADERLOCK_SLOT": _written(claim.slot)})

    def tell_of_slot(level: str, event: str, text: str, /, **fields: Any) -> None:
        if event == "leads":
            event, text = "claimed", f"runs {target.name} for {_written(claim.slot)}: starting the command"
            fields = {"role": target.name, "slot": _written(claim.slot), "attempt": claim.attempt}
        tell(level, event, text, **fields)

    async def look() -> str:
        return ""

    ending = await Supervisor(election, slotted, Policy(once=True), target.name, tell_of_slot, look=look).run()
    if ending.how is not How.COMMAND or ending.code != exit_codes.CLEAN:
        why = f"exit code {ending.code}" if ending.how is How.COMMAND else ending.how.value
        raise CommandFailedError(why, ending)
    return ending


def _warn_if_late(claim: SlotClaim, target: Target, tell: Tell) -> None:
    late_s = (claim.claimed_at - claim.slot).total_seconds()
    if late_s > _LATE_S:
        late = f"{target.name} runs for {_written(claim.slot)}, {duration(late_s)} late"
        text = f"{late}. If cron was in time: is --tz right?"
        tell("WARNING", "late", text, role=target.name, slot=_written(claim.slot), seconds=round(late_s))


def tell_of_other(claim: SlotClaim, target: Target, tell: Tell, *, is_quiet: bool) -> int:
    """Print which process has the slot, and return the exit code."""
    words = {
        "running": "is being run by {holder}",
        "done": "was run by {holder}{took}",
        "failed": "was run by {holder}{took}, and failed: {detail}",
        "killed": "was begun by {holder}, and cut off: it is not run again (--if-killed repeat)",
    }
    took_s = 0.0 if claim.ended_at is None else (claim.ended_at - claim.claimed_at).total_seconds()
    how = words.get(claim.state, "is {state}, by {holder}").format(
        holder=visible(claim.holder),
        took=f", in {duration(took_s)}",
        detail=visible((claim.detail or "").removeprefix(f"{CommandFailedError.__name__}: ")),
        state=visible(claim.state),
    )
    if not is_quiet:
        text = f"{target.name} for {_written(claim.slot)} {how}"
        fields = {"role": target.name, "slot": _written(claim.slot), "holder": claim.holder, "state": claim.state}
        tell("INFO", "claimed_by_another", text, **fields)
    return exit_codes.EXEC_NOT_ACQUIRED


def _written(slot: datetime) -> str:
    return slot.astimezone(UTC).isoformat().replace("+00:00", "Z")
