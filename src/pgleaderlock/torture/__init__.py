"""Torture of a database: real processes elect a leader on it, are harmed in every way, and a judge reads their logs.

    ground = Ground(dsn)
    await ground.survey(options.lease_s)
    await Conductor(ground, folder, logs, options).run(stop)
    assert judge(read_logs(logs)).is_good

``pgleaderlock torture`` is its command. The nodes are processes of their own, the server is a real one, and what is
done to them is done for real: kill -9, SIGSTOP, ended sessions, a bad network, a restart, a stepped server clock. Each
node writes down what it believes, on the machine's one clock, in a file that outlives it. The judge (``_checker.py``)
imports nothing that elects, and reads those files only.

Not promised: that what was not seen cannot happen. A torture finds faults, it proves nothing; it is as long as it is,
on one machine, and between two samples of a belief there is about a millisecond. A network between hosts is imitated by
a relay on this one, and a wall clock that jumps by libfaketime, where it is installed.
"""

from pgleaderlock.torture._checker import Gap, Overlap, Term, Verdict, find_overlaps, judge, percentile
from pgleaderlock.torture._conductor import Conductor
from pgleaderlock.torture._ground import Ground
from pgleaderlock.torture._logs import Belief, Fault, Logs, Told, read_logs
from pgleaderlock.torture._options import Options
from pgleaderlock.torture._page import page
from pgleaderlock.torture._plan import FAULTS
from pgleaderlock.torture._summary import PERCENTS, Setting, as_record, ms, seconds
from pgleaderlock.torture._wall_clock import WallClock, why_clocks_cannot_jump

__all__ = [
    "FAULTS",
    "PERCENTS",
    "Belief",
    "Conductor",
    "Fault",
    "Gap",
    "Ground",
    "Logs",
    "Options",
    "Overlap",
    "Setting",
    "Term",
    "Told",
    "Verdict",
    "WallClock",
    "as_record",
    "find_overlaps",
    "judge",
    "ms",
    "page",
    "percentile",
    "read_logs",
    "seconds",
    "why_clocks_cannot_jump",
]
