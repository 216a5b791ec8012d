"""The wrapper: an election, and a command that runs in each of its terms.

The command is a leader task. The engine cancels it when a term is lost or is to be handed over, and keeps the lock
until it has ended, for as long as leadership is valid. Cancelled, it ends the command and returns when the family is
dead: no successor can have begun by then. The run of the next term begins after that, and the runner restarts.

Each renewal is passed on to the guardian as an event reports it, with the sockets that the election has then.
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

from pgleaderlock.engine._leader_task import LeaderTask, TaskRun, WorkPolicy
from pgleaderlock.engine.election import Election
from pgleaderlock.engine.functions import to_the_end
from pgleaderlock.engine.term import Term
from pgleaderlock.engine.while_leader import leader_tasks_of
from pgleaderlock.models import Event, EventKind
from pgleaderlock.work.exec import family
from pgleaderlock.work.exec.guardian_client import GuardedCommand, GuardianClient, Outcome
from pgleaderlock.work.exec.terminal import Terminal, stop_as_job

__all__ = ["Ending", "How", "Look", "Policy", "Supervisor", "Tell"]

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*_ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ASKS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)  # SIGHUP may mean "read your settings again"
_MAY_BE_IGNORED = (*_FORWARDED, signal.SIGTTIN, signal.SIGTTOU)
_SHUTDOWN_S = 10.0
_SILENT_S = 2.0  # of waiting, before the store is asked whether anything is wrong


class How(enum.Enum):
    """Why a supervisor ended."""

    COMMAND = "command"
    """The command ended by itself or on request; ``code`` is its exit code."""
    SIGNALLED = "signalled"
    """A signal came while no command ran to which it could be passed on; ``code`` is 128 + its number."""
    REFUSED = "refused"
    """The command cannot be executed; ``code`` is the errno."""
    LOST = "lost"
    NOT_ACQUIRED = "not_acquired"
    UNREACHABLE = "unreachable"
    FAILED = "failed"
    """The guardian could not be started."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a supervisor ended, for the exit code."""

    how: How
    code: int = 0
    error: Exception | None = None
    problem: str = ""
    """What the store shows that keeps candidates from leading; empty if it shows nothing."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When to wait for leadership, and when to run the command again."""

    once: bool = False
    """End after a loss, instead of waiting to lead again."""
    restart: bool = False
    """Run the command again when it ends by itself, while still leading."""
    wait_s: float | None = None
    """How long to wait for leadership, each time; None is for ever, 0 is one attempt."""
    answer_s: float = 30.0
    """How long that one attempt may take."""


Look = Callable[[], Awaitable[str]]
"""Asks the store what keeps candidates from leading. Ends soon and does not raise; empty if nothing is known."""


class Tell(Protocol):
    """Prints what happened, for people or programs."""

    def __call__(self, level: str, event: str, text: str, /, **fields: Any) -> None:
        """Print one event."""


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
        self._leader_tasks = leader_tasks_of(election)
        again = WorkPolicy(on_failure="stop", note_pause=self._note_pause)
        self._task = LeaderTask(self._lead, again, self._leader_tasks.host, "exec")
        self._is_enrolled = False
        self._task_run: TaskRun | None = None
        self._client: GuardianClient | None = None
        """The guardian of the newest run of the command, which may have ended."""
        self._clients: list[GuardianClient] = []
        self._begun: asyncio.Queue[TaskRun] = asyncio.Queue()
        """The run of the leader task in each term that began."""
        loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = loop.create_future()
        self._signalled: asyncio.Future[int] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._answered = asyncio.Event()
        self._asked_by: int | None = None
        """The signal that asked the command to end."""
        self._last_error: Exception | None = None

    async def run(self) -> Ending:
        """Take part until there is nothing left to do; no process runs and no lock is held when it returns."""
        family.become_subreaper()
        self._election.subscribe(self._note_event)
        self._leader_tasks.enroll(self._task)
        self._is_enrolled = True
        with self._forwarding():
            try:
                await self._election.start()
                return await self._serve()
            finally:
                await self._end_command()
                await self._election.shutdown(_SHUTDOWN_S)
                self._terminal.take_back()
                self._terminal.close()
                for client in self._clients:
                    await client.reap()

    async def _end_command(self) -> None:
        """Begin the command in no later term, and end the one that runs.

        Before the shutdown, not by it: that has a time limit, after which it frees the lock.
        """
        if self._is_enrolled:
            self._is_enrolled = False
            if (over := self._leader_tasks.remove(self._task)) is not None:
                await asyncio.wait({over})

    async def _serve(self) -> Ending:
        while True:
            begun = await self._wait_in_queue()
            ending = begun if isinstance(begun, Ending) else await self._see_term(begun)
            if ending is not None:
                return ending

    async def _see_term(self, task_run: TaskRun) -> Ending | None:
        """Return how it ends; None when the term is over and there may be another."""
        ends: set[asyncio.Future[Any]] = {self._ending, self._signalled, task_run.over}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._ending.done():
            return self._ending.result()
        if self._task.error is not None:  # as from a terminal that is gone, to which nothing can be printed
            raise self._task.error
        if self._signalled.done():
            return Ending(How.SIGNALLED, 128 + self._signalled.result())
        return Ending(How.LOST) if self._policy.once else None

    # --- Waiting -----------------------------------------------------------------------------------------------

    async def _wait_in_queue(self) -> TaskRun | Ending:
        telling = asyncio.ensure_future(self._tell_what_is_wrong())
        try:
            return await self._wait_to_lead()
        finally:
            telling.cancel()
            await asyncio.wait({telling})

    async def _tell_what_is_wrong(self) -> None:
        """Print once, after a while, why no candidate may be able to lead: the wait may be long."""
        await asyncio.sleep(_SILENT_S)
        if problem := await self._look():
            self._tell("WARNING", "problem", f"waits to lead {self._role}: {problem}", role=self._role)

    async def _wait_to_lead(self) -> TaskRun | Ending:
        wait_s = self._policy.wait_s
        begun = await self._first_of(wait_s)
        if begun is None and wait_s == 0 and not self._answered.is_set():
            answered = asyncio.ensure_future(self._answered.wait())
            begun = await self._first_of(self._policy.answer_s, answered)
            answered.cancel()
        if begun is not None:
            return begun
        await self._end_command()  # a term that begins from now on is too late
        if self._signalled.done():
            return Ending(How.SIGNALLED, 128 + self._signalled.result())
        problem = await self._look()  # before we leave: our own session may be the one that waits
        if self._last_error is None and self._answered.is_set():
            return Ending(How.NOT_ACQUIRED, problem=problem)
        return Ending(How.UNREACHABLE, error=self._last_error, problem=problem)

    async def _first_of(self, timeout_s: float | None, *ends: asyncio.Future[Any]) -> TaskRun | None:
        """Return the run of the next term; None if the time is up, or something else ended the wait."""
        begun = asyncio.ensure_future(self._begun.get())
        try:
            waited_for: set[asyncio.Future[Any]] = {begun, self._signalled, self._stopped, *ends}
            await asyncio.wait(waited_for, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return begun.result() if begun.done() else None
        finally:
            begun.cancel()

    # --- Running: the leader task ------------------------------------------------------------------------------

    async def _lead(self, task_run: TaskRun) -> None:
        """Run the command once, in this term. The runner calls this again when it returns, after a pause."""
        term = task_run.term
        if task_run is not self._task_run:
            self._task_run = task_run
            self._begun.put_nowait(task_run)
        client = None if self._signalled.done() else self._start_command(term)
        if client is not None and await self._see_command(client, term):
            return
        await term.wait_until_ending()

    async def _see_command(self, client: GuardianClient, term: Term) -> bool:
        """Wait for the end of the command; return whether to run it again in this term. Cancelled, end it first."""
        try:
            await asyncio.wait({client.ended})
        finally:
            is_loss = term.is_ending and term.hand_over_at is None
            client.was_lost = client.was_lost or (is_loss and not client.ended.done())
            await to_the_end(client.end(term.trusted_until))
            self._terminal.take_back()
            is_to_run_again = self._conclude(client, term)
        return is_to_run_again

    def _start_command(self, term: Term) -> GuardianClient | None:
        self._tell("SUCCESS", "leads", f"leads {self._role}: starting the command", role=self._role, token=term.token)
        job = replace(self._job, environment={**self._job.environment, **_variables(self._role, term)})
        client = GuardianClient(job, self._on_stop, self._offer_terminal)
        terminal = os.getpgrp() if self._terminal.is_ours else None
        try:
            client.start(term.trusted_until, self._election.lifeline(), terminal=terminal)
        except OSError as error:
            self._finish(Ending(How.FAILED, error=error))
            return None
        self._clients = [former for former in self._clients if not former.is_reaped] + [client]
        self._client = client
        return client

    def _conclude(self, client: GuardianClient, term: Term) -> bool:
        """Decide what follows from the end of the command; return whether to run it again in this term."""
        outcome = client.ended.result()
        self._note(outcome)
        if outcome.errno is not None:
            self._finish(Ending(How.REFUSED, outcome.errno))
            return False
        if client.was_lost or outcome.status is None or outcome.complaint is not None:
            self._conclude_loss(outcome, term)
            return False
        why = ": it did not end when asked to, and was killed" if client.was_overdue else ""
        self._tell("INFO", "command_ended", f"the command ended with {outcome.code}{why}", code=outcome.code)
        if self._policy.restart and self._asked_by is None and outcome.code != 128 + signal.SIGHUP:
            return True
        self._finish(Ending(How.COMMAND, outcome.code))
        return False

    def _conclude_loss(self, outcome: Outcome, term: Term) -> None:
        """End if that was asked for. A guardian that failed is a loss too: another host may have a better one."""
        if self._asked_by is not None:
            was_run = outcome.status is not None
            self._finish(Ending(How.COMMAND, outcome.code) if was_run else Ending(How.SIGNALLED, 128 + self._asked_by))
        elif not term.is_ending:  # the guardian decided it, and the election does not know yet
            self._leader_tasks.host.leave("step_down")

    def _finish(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    def _note_pause(self, pause_s: float) -> None:
        self._tell("INFO", "restarting", f"runs again in {pause_s:g} s", seconds=pause_s)

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

    # --- Events of the election --------------------------------------------------------------------------------

    def _note_event(self, event: Event) -> None:
        match event.kind:
            case EventKind.ACQUIRED:
                self._last_error = None
            case EventKind.RENEWED if self._client is not None:
                trusted_until = math.inf if event.trusted_until is None else event.trusted_until
                self._client.extend(trusted_until, self._election.lifeline())
            case EventKind.LOST:
                self._tell("WARNING", "lost", f"no longer leads {self._role}: ending the command", role=self._role)
            case EventKind.ACQUIRE_FAILED:
                self._last_error = None
                self._answered.set()
            case EventKind.ERROR:
                self._last_error = event.error
                self._answered.set()
            case EventKind.STOPPED:
                if not self._stopped.done():
                    self._stopped.set_result(None)

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
                if number in _ENDING_SIGNALS:  # the clean-up is short, and the first signal has begun it
                    signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: signal.Signals) -> None:
        client = self._client
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
            client.signal(signal.SIGCONT)  # a stopped command handles no signal
        is_hung_up = number is signal.SIGHUP and self._terminal.is_gone
        if number in _ASKS_TO_END or is_hung_up:
            self._asked_by = self._asked_by or number
        if number is signal.SIGTERM or is_hung_up:  # others need not mean the end, as SIGINT at a prompt
            client.limit()

    # --- The terminal ------------------------------------------------------------------------------------------

    def _offer_terminal(self, group: int) -> None:
        """Lend the terminal to the command if it is its input. Otherwise the command never reads from it."""
        if os.isatty(0):
            self._terminal.lend(group)

    def _on_stop(self, number: int) -> None:
        """Handle a stop of the command: by Ctrl-Z, or because it uses a terminal that it does not have."""
        client = self._client
        if client is None or client.group is None:
            return
        wants_terminal = number != signal.SIGTSTP
        if wants_terminal and self._terminal.lend(client.group):
            client.signal(signal.SIGCONT)
            return
        is_for_all = wants_terminal or self._terminal.is_lent
        self._terminal.take_back()
        if stop_as_job(number, whole_group=is_for_all):
            return  # we were continued, and pass SIGCONT on as any signal
        if wants_terminal:  # no shell can ever give it the terminal: end it, as an error on reading would
            self._pass_on(client, signal.SIGHUP)
            self._asked_by = self._asked_by or signal.SIGHUP
            client.limit()
        else:  # no shell can ever continue it: it would not have stopped without us
            self._pass_on(client, signal.SIGCONT)


def _variables(role: str, term: Term) -> Mapping[str, str]:
    """Return the variables that describe the term to the command."""
    return {
        "PGLEADERLOCK_ROLE": role,
        "PGLEADERLOCK_TOKEN": "" if term.token is None else str(term.token),
        "PGLEADERLOCK_TRUSTED_UNTIL": f"{term.trusted_until:.6f}",
    }
