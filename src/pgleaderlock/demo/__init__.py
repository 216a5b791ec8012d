"""A failover to watch: a PostgreSQL of its own, real node processes, and ways to harm whoever leads.

    with own_server() as server:
        async with Stage(server, nodes=3, lease_s=3.0, hear=print) as stage:
            failover = await stage.act("kill")
            print(failover.failover_ms)

``pgleaderlock demo`` shows it on a page with buttons, or as a table. Everything that is measured really happened: the
nodes are processes, the kill is a ``kill -9``, and each of them says by the clock when it began to believe that it
leads and when it ceased to.

Not promised: that another machine is as fast, nor anything about a network between hosts. A process that is cut off
here is cut off by a relay between it and PostgreSQL, which holds back every byte and every end.
"""

from pgleaderlock.demo._ledger import Overlap
from pgleaderlock.demo._place import own_folder, own_server
from pgleaderlock.demo._script import ActionResult, Tally, play
from pgleaderlock.demo._stage import ACTIONS, Failover, Said, Stage

__all__ = [
    "ACTIONS",
    "ActionResult",
    "Failover",
    "Overlap",
    "Said",
    "Stage",
    "Tally",
    "own_folder",
    "own_server",
    "play",
]
