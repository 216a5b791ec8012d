"""The terminal's foreground, and stopping: the command behaves as a job of the shell, as if it had no wrapper.

The command has a process group of its own, and a shell knows the wrapper's only. So the wrapper lends the foreground to
the command's group and takes it back, as a shell does with a job: when the command starts, when a shell continues the
wrapper in the foreground, and when the command is stopped because it uses the terminal while the foreground is the
wrapper's (``fg`` of a job that runs sends no signal). When the command is stopped, the wrapper stops too: that is how
the shell learns of it.
"""

import contextlib
import os
import signal

__all__ = ["Terminal", "stop_as_job"]


class Terminal:
    """The controlling terminal of this process, if there is one."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            with contextlib.suppress(OSError):  # there is none: started by cron, a service manager, setsid
                descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        self._descriptor = descriptor
        self._lent_to: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether our process group is in the foreground."""
        return self._foreground() == os.getpgrp()

    @property
    def is_gone(self) -> bool:
        """Whether there was a terminal, and it was closed."""
        return self._descriptor is not None and self._foreground() is None

    @property
    def is_lent(self) -> bool:
        """Whether it is lent to the command."""
        return self._lent_to is not None

    def lend(self, group: int) -> bool:
        """Give the foreground to this group if it is ours. Return whether the group has it now."""
        if self.is_ours:
            self._hand_to(group)
        if self._foreground() == group:
            self._lent_to = group
            return True
        return False

    def take_back(self) -> None:
        """Put our group in the foreground again, unless another group, such as a shell's, took it from the command."""
        lent_to, self._lent_to = self._lent_to, None
        if lent_to is not None and self._foreground() == lent_to:
            self._hand_to(os.getpgrp())

    def close(self) -> None:
        """Close the terminal."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _foreground(self) -> int | None:
        """Return the group in the foreground; None without a terminal, or with one that does not control us."""
        if self._descriptor is None:
            return None
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return None

    def _hand_to(self, group: int) -> None:
        # A process in the background is stopped for this, unless the signal for it is blocked.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(OSError):  # the group is gone, or the terminal
                os.tcsetpgrp(self._descriptor or 0, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


def stop_as_job(number: int, *, whole_group: bool) -> bool:
    """Stop this process with the signal that stopped the command, and return True once it is continued.

    False if the kernel does not stop us: no shell is there that could continue us (an orphaned process group). With
    ``whole_group``, the other processes of a pipeline or a script are stopped too: the terminal would have done that.
    """
    # A SIGCONT continues also a process that blocks it, and is then pending: so we can check for it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    former = signal.signal(number, signal.SIG_IGN)
    try:
        if whole_group:
            os.killpg(os.getpgrp(), number)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        return signal.SIGCONT in signal.sigpending()
    finally:
        signal.signal(number, former)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
