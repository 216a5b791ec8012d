"""Run ``pgleaderlock torture`` and print it: the plan, the progress, then tables or JSON, and a page."""

import asyncio
import contextlib
import dataclasses
import shlex
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import print_json, visible
from pgleaderlock.cli.database import CHECK_DSN, UnreachableError
from pgleaderlock.cli.signals import call_on_signal, unwind_on_hangup
from pgleaderlock.cli.tables import console_for, fitting_table
from pgleaderlock.errors import ConnectionError, EmbeddedServerError, LockError
from pgleaderlock.testing import torture
from pgleaderlock.testing.demo import own_folder, own_server

_PROGRESS_S = 10.0


class _UnfitError(click.ClickException):
    exit_code = exit_codes.UNFIT


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one run."""

    options: torture.Options
    dsn: str | None
    """None means the embedded PostgreSQL."""
    restart_command: str | None
    report: Path | None
    logs: Path | None
    as_json: bool
    forbidden: Mapping[str, str]
    """Faults that may not be injected on this server, if all were requested, and why."""


def run_torture(request: Request) -> int:
    """Run to the end, clean up, and return the exit code."""
    unwind_on_hangup()
    try:
        with _ground(request) as (ground, folder):
            logs = _logs_folder(request, folder)
            return asyncio.run(_Run(request, ground, folder, logs).run())
    except EmbeddedServerError as error:
        raise UnreachableError(str(error)) from error


@contextlib.contextmanager
def _ground(request: Request) -> Iterator[tuple[torture.Ground, Path]]:
    """Yield the server, and a folder for sockets that only this user can enter."""
    if request.dsn is None:
        click.echo("starting a PostgreSQL...", err=True)
        clocks: list[torture.WallClock] = []

        def give_clock(folder: Path) -> dict[str, str]:
            if not ("step" in request.options.faults and torture.why_clocks_cannot_jump(folder / "nodes") is None):
                return {}
            clocks.append(torture.WallClock(folder / "server.clock"))
            return clocks[0].environment(at_once=True)

        with own_server(give_clock) as server:
            wall_clock = clocks[0] if clocks else None
            yield torture.Ground(server.dsn, server=server, wall_clock=wall_clock), server.folder.parent / "nodes"
    else:
        with own_folder() as folder:
            yield torture.Ground(request.dsn, restart_command=request.restart_command), folder / "nodes"


def _logs_folder(request: Request, folder: Path) -> Path:
    logs = request.logs or folder / "logs"
    try:
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--logs: {logs} cannot be made: {error.strerror}.") from error
    return logs.absolute()


class _Run:
    def __init__(self, request: Request, ground: torture.Ground, folder: Path, logs: Path) -> None:
        self._request = request
        self._ground = ground
        self._folder = folder
        self._logs = logs
        self._impossible: dict[str, str] = {}
        self._came: list[signal.Signals] = []

    async def run(self) -> int:
        stop = asyncio.Event()

        def end(number: signal.Signals) -> None:
            self._came.append(number)
            stop.set()

        with call_on_signal(end, also=(signal.SIGHUP,)):
            try:
                options = await self._prepare()
                conductor = torture.Conductor(self._ground, self._folder, self._logs, options)
                await self._torture(conductor, options, stop)
            finally:
                await self._ground.close()
        if self._came and not conductor.done:
            return exit_codes.of_signal(self._came[0])
        return self._tell(conductor, options)

    async def _prepare(self) -> torture.Options:
        """Find out which faults are possible on this server and this machine, and print the plan."""
        options = self._request.options
        try:
            await self._ground.survey(options.lease_s)
        except ConnectionError as error:
            raise UnreachableError.from_error(error, CHECK_DSN) from error
        except LockError as error:
            raise _UnfitError(str(error)) from error
        self._impossible = await self._find_impossible(options)
        options = dataclasses.replace(options, faults=tuple(k for k in options.faults if k not in self._impossible))
        if not options.faults:
            reasons = "; ".join(dict.fromkeys(self._impossible.values()))
            raise click.UsageError(f"--faults: none of them is possible here: {reasons}.")
        click.echo(visible(self._intention(options)), err=True)
        if self._impossible:
            reasons = "; ".join(f"{kind}: {why}" for kind, why in self._impossible.items())
            click.echo(f"not possible here: {reasons}", err=True)
        return options

    async def _find_impossible(self, options: torture.Options) -> dict[str, str]:
        """Return which faults are impossible here, and why. Clock steps need faketime."""
        found = dict(self._request.forbidden)
        clocks = [kind for kind in ("step", "clock") if kind in options.faults]
        if clocks and (why := await asyncio.to_thread(torture.why_clocks_cannot_jump, self._folder)):
            found |= dict.fromkeys(clocks, why)
        return found

    def _intention(self, options: torture.Options) -> str:
        load = f"{options.most_connections} connections and {options.most_statements_per_s} statements per second"
        words = [
            f"torture of {self._ground.where}: {options.nodes} processes for {options.seconds / 60:g} min",
            f"at most {load} there",
            f"faults {','.join(options.faults)}, to these processes and their sessions only",
        ]
        if not self._ground.is_ours and options.takeover == "strict":
            words.append(f"schema {self._ground.schema} is created, and dropped at the end")
        if not self._ground.is_ours and "restart" in options.faults:
            words.append(f"the server is restarted with {self._request.restart_command}")
        words.append(f"seed {options.seed}")
        return "; ".join(words)

    async def _torture(self, conductor: torture.Conductor, options: torture.Options, stop: asyncio.Event) -> None:
        progress = asyncio.ensure_future(self._show_progress(conductor))
        try:
            async with self._ground.tidied(has_schema=options.takeover == "strict"):
                await conductor.run(stop, lambda: click.echo("all processes take part: the faults begin", err=True))
        except LockError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:  # for example: no further process can be started
            raise click.ClickException(f"the torture failed: {error}") from error
        finally:
            progress.cancel()

    async def _show_progress(self, conductor: torture.Conductor) -> None:
        passed_s = 0.0
        while True:
            await asyncio.sleep(_PROGRESS_S)
            passed_s += _PROGRESS_S
            verdict = await asyncio.to_thread(lambda: torture.judge(torture.read_logs(self._logs)))
            faults, terms, overlaps = sum(conductor.done.values()), len(verdict.terms), len(verdict.overlaps)
            line = f"{torture.seconds(passed_s)}: {faults} faults, {terms} terms, {overlaps} times two leaders at once"
            click.echo(click.style(line, fg="red", bold=True) if overlaps else line, err=True)

    # --- Afterwards ---

    def _tell(self, conductor: torture.Conductor, options: torture.Options) -> int:
        verdict = torture.judge(torture.read_logs(self._logs))
        setting = torture.Setting(
            where=self._ground.where,
            version=self._ground.version,
            options=options,
            command=self._command(options),
            done=conductor.done,
            left_out=conductor.left_out,
            impossible=self._impossible,
            is_cut_short=bool(self._came),
            most_connections=conductor.allowance.most_in_use,
        )
        if self._request.report is not None:
            self._request.report.write_text(torture.page(verdict, setting), encoding="utf-8")
        if self._request.as_json:
            print_json(torture.as_record(verdict, setting))
        else:
            _print(verdict, setting, self._request.report)
        if not verdict.is_good:
            return exit_codes.OVERLAP
        return exit_codes.of_signal(self._came[0]) if self._came else exit_codes.CLEAN

    def _command(self, options: torture.Options) -> str:
        """Return the command that repeats this run, without the connection string, which may hold a password."""
        words = ["pgleaderlock", "torture", "--seed", str(options.seed), "--minutes", f"{options.seconds / 60:g}"]
        words += ["--nodes", str(options.nodes), "--lease", f"{options.lease_s:g}", "--every", f"{options.every_s:g}"]
        words += ["--takeover", options.takeover, "--faults", ",".join(options.faults)]
        return shlex.join(words)


def _print(verdict: torture.Verdict, setting: torture.Setting, report: Path | None) -> None:
    console = console_for()
    click.echo(visible(setting.sentence()))
    rows = [
        [
            Text(cause),
            Text(str(len(times)), justify="right"),
            *(Text(torture.ms(torture.percentile(times, percent)), justify="right") for percent in torture.PERCENTS),
        ]
        for cause, times in verdict.failovers_s().items()
    ]
    headings = ("Failover after", "Times", *(f"p{percent}" for percent in torture.PERCENTS[:-1]), "Max")
    console.print(fitting_table(headings, rows, console.width))
    leaderless = [
        [Text(cause), Text(torture.seconds(lasted_s), justify="right")]
        for cause, lasted_s in verdict.leaderless_s().items()
    ]
    console.print(fitting_table(("Leaderless after", "In all"), leaderless, console.width))
    endings = [[Text(cause), Text(str(times), justify="right")] for cause, times in verdict.endings().items()]
    console.print(fitting_table(("Terms ended by", "Times"), endings, console.width))
    if setting.not_done():
        click.echo(setting.not_done())
    for problem in verdict.problems():
        click.echo(click.style(visible(problem), fg="red", bold=True))
    if verdict.is_good:
        words = f"{len(verdict.terms)} terms, {sum(setting.done.values())} faults, never two leaders; tokens only grew"
        click.echo(click.style(words, fg="green", bold=True))
    if report is not None:
        click.echo(f"report: {report.absolute()}")
