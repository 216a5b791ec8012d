"""The terminal's foreground: lent to the command's group while it runs, as a shell does with a job, and taken back."""

import contextlib
import os
import signal

__all__ = ["Terminal"]


class Terminal:
    """The terminal on our standard input, if there is one and it is ours to lend."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lent_to: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether we are in the foreground of a terminal now."""
        try:
            return os.isatty(self._descriptor) and os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # a terminal, but not the one that controls us
            return False

    @property
    def is_lent(self) -> bool:
        """Whether the command has it from us."""
        return self._lent_to is not None

    def lend(self, group: int) -> None:
        """Give the foreground to this group. Does nothing if we do not have it, or the group has it already."""
        if self.is_ours:
            self._hand_to(group)
        if self._foreground() == group:
            self._lent_to = group

    def take_back(self) -> None:
        """Be in the foreground again, unless somebody else, such as a shell, took it from the command."""
        lent_to, self._lent_to = self._lent_to, None
        if lent_to is not None and self._foreground() == lent_to:
            self._hand_to(os.getpgrp())

    def _foreground(self) -> int | None:
        try:
            return os.tcgetpgrp(self._descriptor) if os.isatty(self._descriptor) else None
        except OSError:
            return None

    def _hand_to(self, group: int) -> None:
        # Whoever is in the background is stopped for this, unless it does not hear of it.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(OSError):  # the group is gone, or the terminal
                os.tcsetpgrp(self._descriptor, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
