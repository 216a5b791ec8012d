"""Torture of a database: real processes elect a leader on it while faults are injected, and a judge reads their logs.

    ground = Ground(dsn)
    await ground.survey(options.lease_s)
    await Conductor(ground, folder, logs, options).run(stop)
    assert judge(read_logs(logs)).is_good

``pgleaderlock torture`` is its command. The nodes are separate processes, the server is a real one, and the faults are
real: kill -9, SIGSTOP, ended sessions, a bad network, a restart, a stepped server clock. Each node records when it
claims to lead, by the machine's one clock, in a file that outlives the process. The judge (``_checker.py``) imports no
election code, and reads those files only.

Not promised: that a failure which was not observed cannot happen. A torture finds failures, it proves nothing; it runs
for a limited time on one machine, and a node's claim is sampled only about every millisecond. A relay on this machine
imitates the network between hosts, and libfaketime, where it is installed, a wall clock that jumps.
"""

from pgleaderlock._base.overlaps import Overlap
from pgleaderlock.testing.torture._any_store import StoreVerdict, torture_store
from pgleaderlock.testing.torture._checker import Gap, ObservedTerm, Verdict, find_overlaps, judge, percentile
from pgleaderlock.testing.torture._conductor import Conductor
from pgleaderlock.testing.torture._ground import Ground
from pgleaderlock.testing.torture._logs import Claim, Fault, Logs, Told, read_logs
from pgleaderlock.testing.torture._options import Options
from pgleaderlock.testing.torture._page import page
from pgleaderlock.testing.torture._plan import FAULTS
from pgleaderlock.testing.torture._summary import PERCENTS, Setting, as_record, ms, seconds
from pgleaderlock.testing.torture._wall_clock import WallClock, why_clocks_cannot_jump

__all__ = [
    "FAULTS",
    "PERCENTS",
    "Claim",
    "Conductor",
    "Fault",
    "Gap",
    "Ground",
    "Logs",
    "ObservedTerm",
    "Options",
    "Overlap",
    "Setting",
    "StoreVerdict",
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
    "torture_store",
    "why_clocks_cannot_jump",
]
