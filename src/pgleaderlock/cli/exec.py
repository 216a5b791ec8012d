"""``pgleaderlock exec``: run a command only while leading, and end it before another process leads."""

import asyncio
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from loguru import logger

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.argv_secrets import MOVED_VARIABLE, STORE_VARIABLES
from pgleaderlock.cli.beside_config import config_for_lock
from pgleaderlock.cli.config import config_option
from pgleaderlock.cli.console import visible
from pgleaderlock.cli.database import UnreachableError, explained
from pgleaderlock.cli.elect import chosen_times, elected
from pgleaderlock.cli.election_options import election_options, pod_label_option
from pgleaderlock.cli.exec_cron import cron_run, run_slot, tell_of_other
from pgleaderlock.cli.options import LockName, naming_options, seconds_option, wrong_usage
from pgleaderlock.cli.status import ANSWER_TIMEOUT_S, glance
from pgleaderlock.cli.target import Target
from pgleaderlock.cli.words import texts
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import ConnectionError
from pgleaderlock.retry import ExponentialBackoff
from pgleaderlock.work.exec.guardian_client import GuardedCommand
from pgleaderlock.work.exec.supervisor import Ending, How, Policy, Supervisor, Tell
from pgleaderlock.work.exec.timing import KillTimes
from pgleaderlock.work.schedule.once import SlotClaim

_LONGEST_RETRY_S = 5.0  # the command should run soon after its database is up again
_NO_SUCH = {errno.ENOENT, errno.ENOTDIR}
_Complain = Callable[[int, str], int]
"""Print why the process ends with this exit code, and return the code."""


class _Command(click.Command):
    """A command that requires ``--`` before the program to run, so that its options and ours cannot mix."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Require a ``--``, except for --help."""
        if "--" not in args and not set(args) & set(ctx.help_option_names):
            raise click.UsageError("put -- before the command: pgleaderlock exec --role NAME -- COMMAND ARGS", ctx)
        return super().parse_args(ctx, args)


@click.command("exec", cls=_Command, **texts("exec"))
@naming_options
@election_options
@pod_label_option
@seconds_option(
    "--wait",
    "How long to wait for leadership, each time; 0 tries once. With --cron, how long to try to reach the database. "
    "[default: forever; with --cron 60]",
    zero_ok=True,
)
@seconds_option(
    "--kill-after",
    "Time between SIGTERM and SIGKILL. [default: after a loss as late as is safe, otherwise 10]",
    zero_ok=True,
)
@click.option("--once", is_flag=True, help=f"Exit with {exit_codes.EXEC_LOST} after a loss; do not take part again.")
@click.option("--restart", is_flag=True, help="Run the command again when it ends by itself, after a growing pause.")
@click.option(
    "--cron", metavar="EXPRESSION", help="For cron on several hosts: one of them runs the command, each time."
)
@click.option("--tz", default="UTC", show_default=True, help="The time zone of --cron: that of the hosts' cron.")
@click.option(
    "--if-killed",
    type=click.Choice(["leave", "repeat"]),
    default="leave",
    show_default=True,
    help="With --cron: what a later start for the same time does if the run was cut off.",
)
@click.option("--pass-dsn", is_flag=True, help="Let the command inherit $PG_DSN and the like, with their passwords.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only, for cron.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stderr; stdout is the command's.")
@config_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_command(
    context: click.Context,
    *,
    config_file: Path | None,
    dsn: str | None,
    url: str | None,
    named: LockName,
    as_json: bool,
    wait_s: float | None,
    kill_after_s: float | None,
    once: bool,
    restart: bool,
    cron: str | None,
    tz: str,
    if_killed: str,
    pass_dsn: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Wait for leadership, and run COMMAND while it lasts: SIGTERM when it is lost, SIGKILL before a successor leads.

    Signals are passed on to the command, and its exit code becomes that of exec. Its environment has
    PGLEADERLOCK_ROLE, PGLEADERLOCK_TOKEN, and PGLEADERLOCK_TRUSTED_UNTIL as of the start, with --cron also
    PGLEADERLOCK_SLOT, but not PG_DSN and PGLEADERLOCK_URL.

    With --config, --role is a role of that file. Its store and times apply unless an option overrides them.

    With --cron there is no leader: one of the processes that cron starts for the same time runs the command, at most
    once; the others print which one has it, and exit with 124. Hosts' clocks may be up to 30 s ahead of the database's.
    Options of an election (--lease, --takeover, --term-table, ...) have no effect there and are refused.
    """
    slotted = cron_run(cron, tz, if_killed, url=url, wait_s=wait_s, once=once, restart=restart)
    complain = _json_complaint if as_json else _complaint
    if (why := _why_refused(command[0])) is not None:
        context.exit(_refuse(command[0], why, complain))
    configured = config_for_lock(context, config_file, takes_part=True)
    with wrong_usage(said="--lease: {}"):
        kill_times = KillTimes(chosen_times(configured).lease_s)
    moved = os.environ.get(MOVED_VARIABLE, "").split()
    unset = (*moved, MOVED_VARIABLE, *(() if pass_dsn else STORE_VARIABLES))
    job = GuardedCommand(command, kill_times, unset=unset, kill_after_s=kill_after_s)
    policy = Policy(once=once, restart=restart, wait_s=wait_s, answer_s=ANSWER_TIMEOUT_S)
    level = "CRITICAL" if as_json else "ERROR" if quiet else "INFO"
    tell = _json_teller(quiet=quiet) if as_json else _log
    try:
        retry = ExponentialBackoff(0.5, _LONGEST_RETRY_S)
        ways = {"has_tables": cron is not None, "labels_pod": cron is None}
        with elected(dsn, url, named, configured=configured, log_level=level, retry_strategy=retry, **ways) as (
            lock,
            target,
        ):
            if slotted is None:
                ending = asyncio.run(_supervise(lock, target, job, policy, tell))
            else:
                outcome = asyncio.run(run_slot(lock, target, job, slotted, tell))
                if isinstance(outcome, SlotClaim):
                    context.exit(tell_of_other(outcome, target, tell, is_quiet=quiet))
                ending = outcome
    except UnreachableError as error:
        context.exit(complain(exit_codes.EXEC_UNREACHABLE, error.message))
    context.exit(_code_of(ending, target, command[0], complain, quiet=quiet))


async def _supervise(lock: Election, target: Target, job: GuardedCommand, policy: Policy, tell: Tell) -> Ending:
    tell("INFO", "waits", f"process {os.getpid()} waits to lead {target.name}", role=target.name)

    async def look() -> str:
        return visible((await glance(target))[1])

    return await Supervisor(lock, job, policy, target.name, tell, look=look).run()


def _why_refused(program: str) -> int | None:
    """Check before waiting whether the command can be executed; return the system's error number if not."""
    if shutil.which(program) is not None:
        return None
    if "/" in program and Path(program).exists():
        return errno.EACCES
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = "/" not in program and any(Path(folder, program).is_file() for folder in folders if folder)
    return errno.EACCES if found else errno.ENOENT


def _refuse(program: str, why: int, complain: _Complain) -> int:
    if why in _NO_SUCH:
        return complain(exit_codes.NOT_FOUND, f"{visible(program)} {_what_is_missing(program)}")
    return complain(exit_codes.CANNOT_EXECUTE, f"{visible(program)} cannot be executed: {os.strerror(why)}")


def _what_is_missing(program: str) -> str:
    if shutil.which(program) is not None:  # the file exists, but the kernel does not find its interpreter
        return "exists, but the system did not find it: check that the interpreter in its first line (#!) exists"
    if "/" in program:
        return "was not found"
    return f"was not found in $PATH, which is {visible(os.environ.get('PATH', os.defpath))}"  # cron's is a short one


def _code_of(ending: Ending, target: Target, program: str, complain: _Complain, *, quiet: bool) -> int:
    """Return the exit code of this ending; print the cause unless it is the command's own exit."""
    if ending.how in (How.COMMAND, How.SIGNALLED):
        return ending.code
    if ending.how is How.REFUSED:
        return _refuse(program, ending.code, complain)
    code, text = _explain(ending, target)
    if (
        quiet and ending.how is How.NOT_ACQUIRED and not ending.problem
    ):  # the normal case of a cron job on all hosts but one
        return code
    return complain(code, text)


def _explain(ending: Ending, target: Target) -> tuple[int, str]:
    could_not = f"{target.name} could not be acquired: {ending.problem}" if ending.problem else ""
    match ending.how:
        case How.LOST:
            return exit_codes.EXEC_LOST, f"leadership of {target.name} was lost"
        case How.NOT_ACQUIRED:
            return exit_codes.EXEC_NOT_ACQUIRED, could_not or f"another process leads {target.name}"
        case How.UNREACHABLE:
            error = ending.error or ConnectionError("the store did not answer in time")
            return exit_codes.EXEC_UNREACHABLE, could_not or explained(error, target.advice)
        case _:
            return exit_codes.EXEC_FAILED, f"the command's guardian could not be started: {ending.error}"


# --- How it is told ---


def _complaint(code: int, text: str) -> int:
    click.echo(f"Error: {text}", err=True)
    return code


def _json_complaint(code: int, text: str) -> int:
    _json_line("ERROR", "failed", text, code=code)
    return code


def _log(level: str, _event: str, text: str, /, **_fields: Any) -> None:
    logger.log(level, text)


def _json_teller(*, quiet: bool) -> Tell:
    def tell(level: str, event: str, text: str, /, **fields: Any) -> None:
        if not quiet or level == "ERROR":
            _json_line(level, event, text, **fields)

    return tell


def _json_line(level: str, event: str, text: str, /, **fields: Any) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": at, "event": event, "level": level.lower(), "text": text, **fields})
    click.echo(line, file=sys.stderr)
