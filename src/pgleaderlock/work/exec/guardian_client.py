"""The wrapper's side of one guardian: its start, the renewals that it gets, its end, and what to do if it fails.

A guardian answers every renewal. One that has left two of them unanswered when the third is due is frozen or dead: then
the wrapper kills it and all its descendants. One that has not started yet has no command that could outlive its
leadership, and so it has more time.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.work.exec import family
from pgleaderlock.work.exec.timing import DEFAULT_KILL_AFTER_S, KillTimes

__all__ = ["GuardedCommand", "GuardianClient", "Outcome"]


def _launch_words() -> tuple[str, ...]:
    """Return the words that start Python fast and without user settings, but with our settings for bytecode."""
    bytecode = ["-B"] if sys.dont_write_bytecode else []
    if sys.pycache_prefix is not None:
        bytecode += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return sys.executable, "-I", "-S", *bytecode, str(Path(__file__).with_name("_launch.py"))


LAUNCH = _launch_words()
_START_S = 10.0  # for a guardian to start and to read its order: Python on a very busy host
_MOST_UNANSWERED = 2
_MOST_UNSENT = 65536
_EXIT_S = 2.0
_HUNT_S = 0.001
_EMPTY_CHECKS = 100
_WAIT_STATUS_KILLED = int(signal.SIGKILL)
_NOT_IN_TIME = "the guardian did not end the command in time: is it stopped?"


@dataclass(frozen=True, slots=True)
class GuardedCommand:
    """The command, its environment, and the times of its end."""

    command: Sequence[str]
    times: KillTimes
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of this process."""
    unset: Sequence[str] = ()
    """Removed from it."""
    ignored: Sequence[int] = ()
    """Signals that were ignored when this process was started, and stay ignored."""
    kill_after_s: float | None = None
    spare: frozenset[int] = frozenset()
    """Children that this process had before: they are not killed."""
    launch: Sequence[str] = LAUNCH


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. The whole family is dead by then."""

    status: int | None
    """As of wait(2); None when the command was never started."""
    errno: int | None = None
    """The error number if it could not be executed."""
    untouchable: int = 0
    """How many processes are alive because we may not kill them."""
    complaint: str | None = None
    """How the guardian failed, if it did."""

    @property
    def code(self) -> int:
        """The exit code as a shell reports it."""
        code = os.waitstatus_to_exitcode(self.status or 0)
        return code if code >= 0 else 128 - code


class GuardianClient:
    """One guardian, and one run of the command under it. Make it in the running loop."""

    def __init__(
        self, job: GuardedCommand, on_stopped: Callable[[int], None], on_started: Callable[[int], None]
    ) -> None:
        self._job = job
        self._on_stopped = on_stopped
        self._on_started = on_started
        self.ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.was_lost = False
        """Whether leadership was lost before the command ended by itself."""
        self.group: int | None = None
        """The process group of the command, once it runs."""
        self._errno: int | None = None
        self._unread = b""
        self._unsent = b""
        self._most_unsent = _MOST_UNSENT
        self._sent = self._confirmed = 0
        self.is_up = False
        """Whether the guardian has read its order."""
        self.was_overdue = False
        """Whether the command was killed because it did not end when asked to."""
        self._lifeline: tuple[tuple[int, int], ...] = ()
        self._clearing: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes]
        self._control: socket.socket

    def start(self, trusted_until: float, lifeline: Sequence[int], *, terminal: int | None) -> None:
        """Start the guardian, and let it start the command. OSError if the system cannot start one more process.

        ``terminal`` is the group from which the command takes the foreground of its standard input, if any.
        """
        self._control, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            try:
                # Descriptors that were passed to us, as by a service manager, are passed on. Ours close by themselves.
                self._process = subprocess.Popen(  # noqa: S603 - our own program
                    [*self._job.launch, str(theirs.fileno())], close_fds=False, process_group=0
                )
            except OSError:
                self._control.close()
                raise
        self._control.settimeout(0)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._control, self._receive)
        loop.call_later(_START_S, self._expect_up)
        order = {
            "do": "start",
            "command": list(self._job.command),
            "environment": dict(self._job.environment),
            "unset": list(self._job.unset),
            "ignored": list(self._job.ignored),
            "terminal": terminal,
            "kill_after_s": self._kill_after_s,
            **self._times(trusted_until),
        }
        text = json.dumps(order).encode() + b"\n"
        self._most_unsent += len(text)
        self._send(text, lifeline)

    @property
    def guardian(self) -> int:
        """The process id of the guardian."""
        return self._process.pid

    @property
    def is_reaped(self) -> bool:
        """Whether the guardian has ended and is not even a zombie."""
        return self.ended.done() and self._process.poll() is not None

    def extend(self, trusted_until: float, lifeline: Sequence[int]) -> None:
        """Pass a renewal on. A guardian that has not answered the last two is killed, with the family."""
        if self.ended.done() or self._clearing is not None:
            return
        if self.is_up and self._sent - self._confirmed >= _MOST_UNANSWERED:
            self._give_up("the guardian does not answer: is it stopped?")
            return
        self._sent += 1
        self._order({"do": "until", "number": self._sent, **self._times(trusted_until)}, lifeline)

    def signal(self, number: int) -> None:
        """Pass a signal on to the command's group."""
        self._order({"do": "signal", "number": int(number)})

    def limit(self) -> None:
        """Have the family killed ``kill_after_s`` from now: the command was asked to end, and may ignore that."""
        after_s = self._kill_after_s
        self._order({"do": "limit", "kill_at": suspend_aware_clock() + after_s})
        backstop_s = after_s + self._job.times.backstop_s()
        asyncio.get_running_loop().call_later(backstop_s, self._give_up, _NOT_IN_TIME)

    async def end(self, trusted_until: float) -> None:
        """End the family before ``trusted_until``: ask, then kill; this process kills if the guardian does not."""
        if not self.ended.done():
            now = suspend_aware_clock()
            kill_at = self._job.times.kill_at_loss(now, trusted_until, self._job.kill_after_s)
            self._order({"do": "end", "kill_at": kill_at})
            left_s = kill_at + self._job.times.backstop_s() - now
            await asyncio.wait({self.ended}, timeout=max(0.0, left_s))
        if not self.ended.done():
            self._give_up(_NOT_IN_TIME)
        await asyncio.wait({self.ended})

    @property
    def _kill_after_s(self) -> float:
        return DEFAULT_KILL_AFTER_S if self._job.kill_after_s is None else self._job.kill_after_s

    # --- Messages ----------------------------------------------------------------------------------------------

    def _times(self, trusted_until: float) -> dict[str, float]:
        times = self._job.times
        return {"term_at": times.term_at(trusted_until), "kill_at": times.kill_at(trusted_until)}

    def _order(self, order: dict[str, Any], lifeline: Sequence[int] = ()) -> None:
        if not self.ended.done() and self._clearing is None:
            self._send(json.dumps(order).encode() + b"\n", lifeline)

    def _send(self, data: bytes, lifeline: Sequence[int]) -> None:
        """Send what the socket takes, and the rest when the guardian reads: the election must never wait for it."""
        if not self._unsent:
            data = data[self._send_with(lifeline, data) :]
            if data:
                asyncio.get_running_loop().add_writer(self._control, self._send_rest)
        # Behind unsent bytes a lifeline cannot be sent now: it comes with the next renewal, as one that was not sent.
        self._unsent += data
        if len(self._unsent) > self._most_unsent:
            self._give_up("the guardian does not read: is it stopped?")

    def _send_rest(self) -> None:
        self._unsent = self._unsent[self._send_with((), self._unsent) :]
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._control)

    def _send_with(self, lifeline: Sequence[int], data: bytes) -> int:
        """Send, with copies of these descriptors unless the guardian has them. Return how many bytes were taken."""
        named = tuple((number, os.fstat(number).st_ino) for number in lifeline)
        try:
            if not named or named == self._lifeline:
                return self._control.send(data)
            sent = socket.send_fds(self._control, [data], lifeline)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # it is dead, and the end of the socket is handled elsewhere
        self._lifeline = named
        return sent

    def _receive(self) -> None:
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        if not data and not self.ended.done():
            self._give_up("the guardian was killed")

    def _expect_up(self) -> None:
        if not self.is_up:
            self._give_up(f"the guardian did not start within {_START_S:g} s: is it stopped, or this host too busy?")

    def _handle(self, answer: dict[str, Any]) -> None:
        self.is_up = True
        match answer["is"]:
            case "started":
                self.group = answer["pid"]
                self._on_started(answer["pid"])
            case "refused":
                self._errno = answer["errno"]
            case "confirmed":
                self._confirmed = answer["number"]
            case "stopped":
                self.group = answer["pid"]
                self._on_stopped(answer["number"])
            case "expired":
                self.was_lost = True
            case "overdue":
                self.was_overdue = True
            case "ended":
                self._finish(Outcome(answer["status"], self._errno, answer["untouchable"]))

    def _finish(self, outcome: Outcome) -> None:
        if not self.ended.done():
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._control)
            loop.remove_writer(self._control)
            self._control.close()
            self.ended.set_result(outcome)

    async def reap(self) -> None:
        """Wait for the end of the guardian, and reap it. One that stays after its last message is killed."""
        await asyncio.wait({self.ended})
        try:
            async with asyncio.timeout(_EXIT_S):
                await self._guardian_exits()
        except TimeoutError:
            self._process.kill()
            await self._guardian_exits()

    async def _guardian_exits(self) -> None:
        while self._process.poll() is None:  # noqa: ASYNC110 - the kernel sets no event
            await asyncio.sleep(_HUNT_S)

    # --- Instead of the guardian -------------------------------------------------------------------------------

    def _give_up(self, complaint: str) -> None:
        """Kill the guardian and the family from this process."""
        if self._clearing is None and not self.ended.done():
            self._clearing = asyncio.get_running_loop().create_task(self._clear(complaint))

    async def _clear(self, complaint: str) -> None:
        """Kill the guardian: the family becomes ours. Then kill and reap our children until none is left."""
        self._process.kill()
        await self._guardian_exits()
        empty_checks = 0
        while True:
            untouchable = family.kill_children(self._job.spare)
            others = family.children() - self._job.spare
            empty_checks = 0 if others else empty_checks + 1
            if self._is_childless(empty_checks) or (others and len(others) == untouchable):
                break
            await asyncio.sleep(0)
        status = None if self.group is None else _WAIT_STATUS_KILLED
        self._finish(Outcome(status, untouchable=untouchable, complaint=complaint))

    def _is_childless(self, empty_checks: int) -> bool:
        """Whether the kernel reports no child. With children to spare it never does: then many checks must do."""
        return family.reap_children() or (bool(self._job.spare) and empty_checks >= _EMPTY_CHECKS)
