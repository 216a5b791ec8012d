"""The wrapper: an election, and a command that runs in each of its terms.

The order that everything depends on:

- *Loss*: the election tells its listeners before it closes the second of its sessions, and waits for them until
  ``trusted_until``. The listener here returns when the family is dead, so a successor cannot have begun.
- *Release*: asked for only when the family is dead.
- *Renewal*: passed on to the guardian as it comes, with whatever sockets the election has now.
"""

import asyncio
import enum
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pgleaderlock.engine.election import Election
from pgleaderlock.models import Event, EventKind, LockState
from pgleaderlock.work.exec import family
from pgleaderlock.work.exec.guardian_client import GuardedCommand, GuardianClient, Outcome
from pgleaderlock.work.exec.terminal import Terminal, stop_as_job

__all__ = ["Ending", "How", "Look", "Policy", "Supervisor", "Tell"]

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*_ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ASKS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)  # SIGHUP may mean "read your settings again"
_MAY_BE_IGNORED = (*_FORWARDED, signal.SIGTTIN, signal.SIGTTOU)
_SHUTDOWN_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SILENT_S = 2.0  # of waiting, before the store is asked whether anything is wrong
_HEALTHY_S = 60.0  # a command that ran for so long and ended is restarted as after the first time


class How(enum.Enum):
    """What brought a supervisor to its end."""

    COMMAND = "command"
    """It ended by itself, or as it was asked to; ``code`` is its own."""
    SIGNALLED = "signalled"
    """Before there was a command to pass the signal on to; ``code`` is 128 + its number."""
    REFUSED = "refused"
    """The command cannot be executed; ``code`` is the errno."""
    LOST = "lost"
    NOT_ACQUIRED = "not_acquired"
    UNREACHABLE = "unreachable"
    FAILED = "failed"
    """There is no guardian to be had."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended, and what the exit code should tell of it."""

    how: How
    code: int = 0
    error: Exception | None = None
    problem: str = ""
    """What the store shows that keeps candidates from leading; nothing if it shows nothing."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do next."""

    once: bool = False
    """End after a loss, instead of waiting in line again."""
    restart: bool = False
    """Run the command again when it ends by itself, while still leading."""
    wait_s: float | None = None
    """How long to wait in line, each time; None is for ever, 0 is one question."""
    answer_s: float = 30.0
    """How long that one question may take."""


Look = Callable[[], Awaitable[str]]
"""Asks the store what keeps candidates from leading. Ends soon, does not raise; nothing if nothing is known."""


class Tell(Protocol):
    """Says what happened, to people or programs."""

    def __call__(self, level: str, event: str, text: str, /, **fields: Any) -> None:
        """Say it."""


class Supervisor:
    """One wrapper. Make it in the running loop."""

    def __init__(
        self, election: Election, job: GuardedCommand, policy: Policy, role: str, tell: Tell, *, look: Look
    ) -> None:
        self._election = election
        self._policy = policy
        self._role = role
        self._tell = tell
        self._look = look
        self._terminal = Terminal()
        ignored = [number for number in _MAY_BE_IGNORED if signal.getsignal(number) is signal.SIG_IGN]
        self._handled = [number for number in _FORWARDED if number not in ignored]
        self._job = replace(job, ignored=ignored, spare=frozenset(family.children()))
        self._ward: GuardianClient | None = None
        self._clients: list[GuardianClient] = []
        self._begun: asyncio.Queue[GuardianClient | OSError] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._signalled: asyncio.Future[int] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._answered = asyncio.Event()
        self._term_over = asyncio.Event()
        self._asked_by: int | None = None
        """The signal that asked the command to end."""
        self._closing = False
        self._last_error: Exception | None = None

    async def run(self) -> Ending:
        """Take part until there is nothing left to do; nothing runs and nothing is held when it returns."""
        family.become_subreaper()
        self._election.subscribe(self._hear)
        self._election.before_release(self._end_ward)
        with self._forwarding():
            await self._election.start()
            try:
                return await self._serve()
            finally:
                self._closing = True
                await self._end_ward()
                await self._election.shutdown(_SHUTDOWN_S)
                self._terminal.take_back()
                self._terminal.close()
                for client in self._clients:
                    await client.bury()

    async def _serve(self) -> Ending:
        while True:
            begun = await self._wait_in_line()
            if isinstance(begun, Ending):
                return begun
            ending = await self._run_command(begun)
            if ending is not None:
                return ending

    # --- Waiting -----------------------------------------------------------------------------------------------

    async def _wait_in_line(self) -> GuardianClient | Ending:
        telling = asyncio.ensure_future(self._tell_what_is_wrong())
        try:
            return await self._wait_to_lead()
        finally:
            telling.cancel()
            await asyncio.wait({telling})

    async def _tell_what_is_wrong(self) -> None:
        """Say why no candidate may be able to lead, once, while there may be a long time to wait."""
        await asyncio.sleep(_SILENT_S)
        if problem := await self._look():
            self._tell("WARNING", "problem", f"waits to lead {self._role}: {problem}", role=self._role)

    async def _wait_to_lead(self) -> GuardianClient | Ending:
        wait_s = self._policy.wait_s
        begun = await self._first_of(wait_s)
        if begun is None and wait_s == 0 and not self._answered.is_set():
            answered = asyncio.ensure_future(self._answered.wait())
            begun = await self._first_of(self._policy.answer_s, answered)
            answered.cancel()
        if begun is None and not self._begun.empty():
            begun = self._begun.get_nowait()
        if isinstance(begun, OSError):
            return Ending(How.FAILED, error=begun)
        if begun is not None:
            return begun
        self._closing = True
        if self._signalled.done():
            return Ending(How.SIGNALLED, 128 + self._signalled.result())
        problem = await self._look()  # before we leave: our own session may be the one that waits
        if self._last_error is None and self._answered.is_set():
            return Ending(How.NOT_ACQUIRED, problem=problem)
        return Ending(How.UNREACHABLE, error=self._last_error, problem=problem)

    async def _first_of(self, timeout_s: float | None, *ends: asyncio.Future[Any]) -> GuardianClient | OSError | None:
        """Return the next run of the command; None if the time is up, or something else ended the waiting."""
        begun = asyncio.ensure_future(self._begun.get())
        try:
            waited_for: set[asyncio.Future[Any]] = {begun, self._signalled, self._stopped, *ends}
            await asyncio.wait(waited_for, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return begun.result() if begun.done() else None
        finally:
            begun.cancel()

    # --- Running -----------------------------------------------------------------------------------------------

    async def _run_command(self, client: GuardianClient) -> Ending | None:
        """See one term through; None when it was lost and there may be another."""
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            began_at = loop.time()
            await asyncio.wait({client.ended})
            outcome = client.ended.result()
            self._terminal.take_back()
            self._note(outcome)
            if outcome.errno is not None:
                return Ending(How.REFUSED, outcome.errno)
            if client.was_lost or outcome.status is None or outcome.complaint is not None:
                return await self._after_loss(outcome)
            why = ": it did not end when asked to, and was killed" if client.was_overdue else ""
            self._tell("INFO", "command_ended", f"the command ended with {outcome.code}{why}", code=outcome.code)
            if not self._is_to_restart(outcome):
                return Ending(How.COMMAND, outcome.code)
            pause_s = _FIRST_PAUSE_S if loop.time() - began_at >= _HEALTHY_S else pause_s
            again = await self._restart_after(pause_s)
            if not isinstance(again, GuardianClient):
                return again
            client, pause_s = again, min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _after_loss(self, outcome: Outcome) -> Ending | None:
        """Return how it ends if it does. A guardian that failed is a loss too: another host may have a better one."""
        if self._asked_by is not None:
            was_run = outcome.status is not None
            return Ending(How.COMMAND, outcome.code) if was_run else Ending(How.SIGNALLED, 128 + self._asked_by)
        if not self._term_over.is_set():  # the guardian's doing, of which the election does not know
            await self._election.step_down(_SHUTDOWN_S)
        return Ending(How.LOST) if self._policy.once else None

    def _is_to_restart(self, outcome: Outcome) -> bool:
        return self._policy.restart and self._asked_by is None and outcome.code != 128 + signal.SIGHUP

    async def _restart_after(self, pause_s: float) -> GuardianClient | Ending | None:
        """Wait, and run the command once more; None when leadership is lost meanwhile."""
        self._tell("INFO", "restarting", f"runs again in {pause_s:g} s", seconds=pause_s)
        over = asyncio.ensure_future(self._term_over.wait())
        ends: set[asyncio.Future[Any]] = {over, self._signalled}
        await asyncio.wait(ends, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if self._signalled.done():
            return Ending(How.SIGNALLED, 128 + self._signalled.result())
        token, trusted_until = self._election.token, self._election.trusted_until
        if trusted_until is None or self._term_over.is_set():
            return Ending(How.LOST) if self._policy.once else None
        self._start_ward(token, trusted_until)
        begun = self._begun.get_nowait()
        return begun if isinstance(begun, GuardianClient) else Ending(How.FAILED, error=begun)

    def _note(self, outcome: Outcome) -> None:
        if outcome.complaint is not None:
            ended = "the command was killed" if outcome.status is not None else "the command was not started"
            self._tell("ERROR", "guardian_failed", f"{outcome.complaint}; {ended}, and leadership is given up")
        if outcome.untouchable:
            self._tell(
                "ERROR",
                "processes_left",
                f"{outcome.untouchable} process(es) of the command are another user's, and could not be killed",
                count=outcome.untouchable,
            )

    # --- What the election tells -------------------------------------------------------------------------------

    async def _hear(self, event: Event) -> None:
        match event.kind:
            case EventKind.ACQUIRED:
                self._last_error = None
                self._term_over.clear()
                if not self._closing and not self._signalled.done():
                    self._start_ward(event.token, _or_infinite(event.trusted_until))
            case EventKind.RENEWED if self._ward is not None:
                self._ward.extend(_or_infinite(event.trusted_until), self._election.lifeline())
            case EventKind.LOST if event.from_state is not LockState.ACQUIRING:  # where nothing was held
                self._tell("WARNING", "lost", f"no longer leads {self._role}: ending the command", role=self._role)
                await self._lose(_or_infinite(event.trusted_until))
            case EventKind.ACQUIRE_FAILED:
                self._last_error = None
                self._answered.set()
            case EventKind.ERROR:
                self._last_error = event.error
                self._answered.set()
            case EventKind.STOPPED:
                await self._lose(_or_infinite(event.trusted_until))
                if not self._stopped.done():
                    self._stopped.set_result(None)

    async def _lose(self, trusted_until: float) -> None:
        client, self._ward = self._ward, None
        self._term_over.set()
        if client is not None and not client.ended.done():
            client.was_lost = True
            await client.end(trusted_until)

    async def _end_ward(self) -> None:
        """Before a release, whoever asked for it: the command ends first, while leadership is renewed."""
        if self._ward is not None:
            trusted_until = self._election.trusted_until
            await self._ward.end(math.inf if trusted_until is None else trusted_until)

    def _start_ward(self, token: int | None, trusted_until: float) -> None:
        self._tell("SUCCESS", "leads", f"leads {self._role}: starting the command", role=self._role, token=token)
        job = replace(self._job, environment={**self._job.environment, **_term(self._role, token, trusted_until)})
        client = GuardianClient(job, self._on_stop, self._offer_terminal)
        terminal = os.getpgrp() if self._terminal.is_ours else None
        try:
            client.start(trusted_until, self._election.lifeline(), terminal=terminal)
        except OSError as error:
            self._begun.put_nowait(error)
            return
        self._clients = [former for former in self._clients if not former.is_buried] + [client]
        self._ward = client
        self._begun.put_nowait(client)

    # --- Signals -----------------------------------------------------------------------------------------------

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.add_signal_handler(number, self._on_signal, number)
        # While the command is in the foreground we are not, and our log lines must not stop us (stty tostop).
        former = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGTTOU, former)
            for number in self._handled:
                loop.remove_signal_handler(number)
                if number in _ENDING_SIGNALS:  # what is left is short, and what the first one asked for
                    signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: signal.Signals) -> None:
        client = self._ward
        if client is not None and not client.ended.done():
            self._pass_on(client, number)
        elif number in _ENDING_SIGNALS:
            self._tell("INFO", "signalled", f"{number.name} received", signal=number.name)
            if not self._signalled.done():
                self._signalled.set_result(number)
        elif number is signal.SIGTSTP:
            stop_as_job(number, whole_group=False)

    def _pass_on(self, client: GuardianClient, number: signal.Signals) -> None:
        if number is signal.SIGCONT and client.group is not None:
            self._offer_terminal(client.group)
        client.signal(number)
        if number in _ENDING_SIGNALS:
            client.signal(signal.SIGCONT)  # a stopped command cannot obey
        is_hung_up = number is signal.SIGHUP and self._terminal.is_gone
        if number in _ASKS_TO_END or is_hung_up:
            self._asked_by = self._asked_by or number
        if number is signal.SIGTERM or is_hung_up:  # others may mean less than the end, as SIGINT at a prompt does
            client.limit()

    # --- The terminal ------------------------------------------------------------------------------------------

    def _offer_terminal(self, group: int) -> None:
        """Let the command have the terminal that is its input. Without one it may never ask for it."""
        if os.isatty(0):
            self._terminal.lend(group)

    def _on_stop(self, number: int) -> None:
        """The command was stopped, by Ctrl-Z or because it wants a terminal that it does not have."""
        client = self._ward
        if client is None or client.group is None:
            return
        wants_terminal = number != signal.SIGTSTP
        if wants_terminal and self._terminal.lend(client.group):
            client.signal(signal.SIGCONT)
            return
        is_for_all = wants_terminal or self._terminal.is_lent
        self._terminal.take_back()
        if stop_as_job(number, whole_group=is_for_all):
            return  # we were continued, and pass that on as any signal
        if wants_terminal:  # from which it would have read an error: no shell can ever give it the terminal
            self._pass_on(client, signal.SIGHUP)
            self._asked_by = self._asked_by or signal.SIGHUP
            client.limit()
        else:  # for which it would not have stopped: no shell can ever continue it
            self._pass_on(client, signal.SIGCONT)


def _or_infinite(trusted_until: float | None) -> float:
    return math.inf if trusted_until is None else trusted_until


def _term(role: str, token: int | None, trusted_until: float) -> Mapping[str, str]:
    """What the command is told of its term."""
    return {
        "PGLEADERLOCK_ROLE": role,
        "PGLEADERLOCK_TOKEN": "" if token is None else str(token),
        "PGLEADERLOCK_TRUSTED_UNTIL": f"{trusted_until:.6f}",
    }
