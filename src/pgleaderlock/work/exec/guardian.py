"""The guardian: starts the command, and kills all processes of its family before the deadline.

A process of its own, because a frozen wrapper cannot kill. It imports the standard library and :mod:`.family` only,
has one thread, takes no lock, and only waits for one of: an order, the end of a child, a point in time.

Orders come as lines of JSON over a socket from the wrapper; copies of the lock's descriptors (the *lifeline*) come with
them, and are closed when the whole family is dead, not before. All times are readings of the suspend-aware clock.

======== ==================================================================================================
start    the command, its environment, the terminal's group; and the times, as in ``until``
until    leadership was renewed: SIGTERM not before ``term_at``, SIGKILL not before ``kill_at``; it is answered
signal   pass this one on to the command's group
limit    the command was asked to end: SIGKILL at ``kill_at`` for all processes of the family that are left
end      leadership is lost: SIGTERM now, SIGKILL at ``kill_at`` at the latest
======== ==================================================================================================

It answers ``ready`` (it has its order), ``started``, ``refused`` (the command cannot be executed), ``confirmed``,
``stopped`` (by a signal such as that of Ctrl-Z), ``expired`` (no renewal came, and it ends the command), ``overdue``
(the command did not end when asked to, and is killed), and at last ``ended``.

The end of the socket is the wrapper's death: the whole family is killed at once.

The command is not reaped before its group was signalled: until then the kernel gives its pid, which is also the number
of the group, to no other process.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

from pgleaderlock.work.exec import family

__all__ = ["Guardian", "main", "now"]

_LONGEST_WAIT_S = 0.25  # a wait does not count the time in which the host was suspended; the clock does
_WATCH_S = 0.02  # how often to check which processes are left, while the family was asked to end
_HUNT_S = 0.001  # and while it is being killed, between two bursts
_BURST = 100
_MOST_LIFELINES = 16
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_NOT_FOUND_STATUS = 127
_LAST_STANDARD = 2
_KEPT = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGSEGV, signal.SIGBUS})


def now() -> float:
    """Read the clock that :data:`pgleaderlock._base.clock.suspend_aware_clock` reads."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Guardian:
    """One command, from its start to the end of its last descendant."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._unread = b""
        self._lifeline: list[int] = []
        self._wrapper_lives = True
        self._order: dict[str, Any] | None = None
        self._pid: int | None = None
        self._early: list[int] = []  # signals that came with the order to start
        self._exec_pipe: int | None = None
        self._term_at = self._kill_at = float("inf")
        self._limit_at = float("inf")  # when a command that was asked to end must have ended
        self._end_by = float("inf")  # deadline of an end that has begun: later renewals do not extend it
        self._is_ending = False
        self._has_exited = False
        self._status: int | None = None  # once the command is reaped
        self._untouchable = 0
        self._wake, self._wakes = os.pipe()

    def run(self) -> None:
        """Wait for the order, run the command, and return when its whole family is dead."""
        self._ignore_signals()
        while self._order is None and self._wrapper_lives:
            self._wait()
        if self._order is None or self._is_ending or now() >= self._term_at:  # too late before it began
            self._send({"is": "ended", "status": None, "untouchable": 0})
            return
        self._start(self._order)
        while not self._is_over():
            self._wait()
        self._report_end()

    # --- Listening ---------------------------------------------------------------------------------------------

    def _ignore_signals(self) -> None:
        """Ignore all signals but the end of children: they must not end the guardian before its command."""
        for number in signal.valid_signals() - _KEPT:
            signal.signal(number, signal.SIG_IGN)
        for descriptor in (self._wake, self._wakes):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        family.become_subreaper()

    def _wait(self) -> None:
        """Wait for an order, the end of a child or the next point in time, and read what has come."""
        watched = [self._wake]
        if self._wrapper_lives:
            watched.append(self._control.fileno())
        if self._exec_pipe is not None:
            watched.append(self._exec_pipe)
        poller = select.poll()  # not select(), which fails for descriptors past 1023, and many may be passed to us
        for descriptor in watched:
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(1000 * self._wait_s())}
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._control.fileno() in ready:
            self._receive()
        if self._exec_pipe in ready:
            self._read_exec_pipe()

    def _wait_s(self) -> float:
        if self._is_ending:
            return _HUNT_S if now() >= self._deadline else min(_WATCH_S, max(0.0, self._deadline - now()))
        return max(0.0, min(_LONGEST_WAIT_S, self._term_at - now(), self._limit_at - now()))

    @property
    def _deadline(self) -> float:
        return min(self._kill_at, self._end_by)

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 65536, _MOST_LIFELINES)
        except ConnectionError:
            data, descriptors = b"", []
        if descriptors:
            for descriptor in descriptors:
                # The command must not have them: it could keep the lock.
                os.set_inheritable(descriptor, False)  # noqa: FBT003 - it takes no keyword
            former, self._lifeline = self._lifeline, descriptors
            _close(former)
        if not data:
            self._wrapper_lives = False
            self._end_by = now()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "start":
                self._order = order
                self._term_at, self._kill_at = order["term_at"], order["kill_at"]
                self._send({"is": "ready"})
            case "until":
                self._term_at, self._kill_at = order["term_at"], order["kill_at"]
                self._send({"is": "confirmed", "number": order["number"]})
            case "signal" if self._pid is None:
                self._early.append(order["number"])
            case "signal":
                self._signal_group(order["number"])
            case "limit":
                self._limit_at = min(self._limit_at, order["kill_at"])
            case "end":
                self._end_by = min(self._end_by, order["kill_at"])
                self._ask_to_end()

    def _send(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the wrapper may be dead, or frozen with a full buffer
            self._control.send(json.dumps(answer).encode() + b"\n", getattr(socket, "MSG_DONTWAIT", 0))

    # --- Starting ----------------------------------------------------------------------------------------------

    def _start(self, order: dict[str, Any]) -> None:
        self._exec_pipe, exec_errors = os.pipe()
        guardian = os.getpid()
        # Until the child has its own handlers it has ours, which ignore: a blocked signal waits for the right ones.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._pid = os.fork()
        if self._pid == 0:
            _become_command(order, exec_errors, guardian)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(exec_errors)
        with contextlib.suppress(OSError):  # it did so itself already
            os.setpgid(self._pid, self._pid)
        # So that a reader of the command's output sees its end when the command ends, not when the guardian does.
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):
            os.dup2(null, standard)
        for number in self._early:
            self._signal_group(number)

    def _read_exec_pipe(self) -> None:
        """Read the pipe of the child: closed when the command was executed, otherwise it has the errno."""
        assert self._exec_pipe is not None  # noqa: S101 - it was just read from
        why_not = os.read(self._exec_pipe, 16)
        os.close(self._exec_pipe)
        self._exec_pipe = None
        if why_not:
            self._send({"is": "refused", "errno": int(why_not)})
        else:
            self._send({"is": "started", "pid": self._pid})

    # --- Ending ------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        """Reap and end the family as the time requires. Return whether all of it is dead."""
        if self._status is None:
            self._reap_orphans()
        if not self._is_ending:
            self._decide()
        if not self._is_ending:
            return False
        return self._kill() if now() >= self._deadline else self._reap()

    def _reap_orphans(self) -> None:
        """Reap orphans; note whether the command has stopped or exited."""
        assert self._pid is not None  # noqa: S101 - it was started
        with contextlib.suppress(ChildProcessError):  # the command has exited, and cannot stop
            stopped = os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WNOHANG)
            if stopped is not None and stopped.si_status in _STOPS:
                self._send({"is": "stopped", "number": stopped.si_status, "pid": self._pid})
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if dead.si_pid == self._pid:
                self._has_exited = True
                return  # to be reaped with its family
            os.waitpid(dead.si_pid, os.WNOHANG)

    def _decide(self) -> None:
        if not self._wrapper_lives:
            self._is_ending = True
        elif self._has_exited:  # its descendants end with it, while leadership is still renewed
            assert self._order is not None  # noqa: S101 - it was started
            self._end_by = min(self._end_by, self._limit_at, now() + self._order["kill_after_s"])
            self._ask_to_end()
        elif now() >= self._limit_at:
            self._send({"is": "overdue"})
            self._end_by = now()
            self._ask_to_end()
        elif now() >= self._term_at:
            self._send({"is": "expired"})
            self._end_by = self._kill_at  # a renewal that comes now is too late: the command was asked to end
            self._ask_to_end()

    def _ask_to_end(self) -> None:
        self._is_ending = True
        self._signal_group(signal.SIGTERM)
        self._signal_group(signal.SIGCONT)  # a stopped process handles no other signal
        for member in family.descendants(os.getpid()):
            if member.group != self._pid:
                family.send(member, signal.SIGTERM)
                family.send(member, signal.SIGCONT)

    def _kill(self) -> bool:
        """Kill and reap the family. Return whether no process is left that may be killed."""
        self._signal_group(signal.SIGKILL)
        for _ in range(_BURST):  # again at once, because the children of those killed are ours now
            self._untouchable = family.kill_children()
            if self._reap():
                return True
        return self._untouchable > 0 and self._untouchable == len(family.children())

    def _signal_group(self, number: int) -> None:
        if self._pid is not None and self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def _reap(self) -> bool:
        """Reap the dead, and return whether the whole family is."""
        if self._status is None:
            pid, status = os.waitpid(self._pid or 0, os.WNOHANG)
            if pid == 0:
                return False
            self._status = status
        return family.reap_children()

    def _report_end(self) -> None:
        """Report that the family is dead, and close the lifeline: the lock is free from now on."""
        if self._exec_pipe is not None:
            self._read_exec_pipe()
        self._send({"is": "ended", "status": self._status, "untouchable": self._untouchable})
        _close(self._lifeline)


def _become_command(order: dict[str, Any], exec_errors: int, guardian: int) -> NoReturn:
    """In the forked child: set its group, terminal and signals, and execute the command."""
    try:
        os.setpgid(0, 0)
        with contextlib.suppress(OSError):  # no terminal, or not the one that controls us
            if order["terminal"] is not None and os.tcgetpgrp(0) == order["terminal"]:  # not the shell's again
                os.tcsetpgrp(0, os.getpgrp())  # allowed, because SIGTTOU is still blocked
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN if number in order["ignored"] else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        family.die_with_parent()
        if os.getppid() != guardian:
            os._exit(_NOT_FOUND_STATUS)  # the guardian was killed meanwhile
        environment = {name: value for name, value in os.environ.items() if name not in order["unset"]}
        os.execvpe(order["command"][0], order["command"], {**environment, **order["environment"]})  # noqa: S606 - our purpose
    except OSError as error:
        os.write(exec_errors, str(error.errno or 0).encode())
    finally:
        os._exit(_NOT_FOUND_STATUS)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _fill_standard_descriptors() -> None:
    """Open the standard descriptors that are missing: one of ours with such a number would be replaced later.

    They are not inherited: the command starts without them, as this process did.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(descriptor)


def _above_standard(descriptor: int) -> int:
    """Return the descriptor moved to a number above the standard ones, for the same reason."""
    if descriptor > _LAST_STANDARD:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD + 1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    return moved


def main(arguments: list[str]) -> int:
    """Run a guardian on this descriptor."""
    _fill_standard_descriptors()
    with socket.socket(fileno=_above_standard(int(arguments[1]))) as control:
        control.set_inheritable(False)
        Guardian(control).run()
    return 0
