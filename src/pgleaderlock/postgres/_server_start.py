"""When the server last lost all its locks, as far as one candidate knows, and the quiet period after it. Pure.

A start, a crash recovery and a change of server free every lock at once, while a leader that is cut off may be valid
for up to a lease. So no candidate leads before that lease is over: the quiet period after a server start.

No wall clock of the server decides alone. The server's own age is a difference of two readings of its wall clock: a
clock that was stepped forward makes it too old, and one that was stepped back makes it too young, or negative. A
candidate that knew an earlier run of the server knows better: the present run may have begun at any time up to the
candidate's first contact with it, so the quiet period counts from there, on the candidate's own clock. That is later
than the start by the time of one reconnection. Only for the first run that a candidate ever meets does the age that
the server reports count, and an age below zero counts as zero. So the quiet period ends ``settle_s`` after the first
contact, or before.

A server may say that no leader of an earlier run can be valid: its age is then infinite. An embedded server says so of
its first run ever, and of a run that began after all users had left (:mod:`pgleaderlock.testing.embedded`). It does not
hold for a crash recovery within that run, which the statistics show.

Not promised: a candidate that had not started when the server did knows only what the server reports. A clock that was
stepped forward between the start and the candidate's first contact, or a promoted standby that has run for long, then
shortens its quiet period; ``takeover="strict"`` closes the first, and the term row the second. A reset of the
statistics (``pg_stat_reset_shared('bgwriter')``) looks like a crash recovery and costs one quiet period.
"""

import math


class ServerStart:
    """What one candidate knows about the present run of its server."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._run: str | None = None
        self.quiet_until = -math.inf
        """On the candidate's own clock: no term begins earlier."""
        self.is_another = False
        """Whether the last look met another run than the one before it."""

    def learn(self, run: str, age_s: float, read_at: float) -> None:
        """Note which run of the server answered, and the age that it reported, which was read at ``read_at``."""
        is_first = self._run is None
        self.is_another = not is_first and run != self._run
        if run == self._run:
            return
        self._run = run
        is_plausible = is_first and age_s > 0  # so not where it is no number
        self.quiet_until = read_at - (age_s if is_plausible else 0.0) + self._settle_s
