"""A failover to watch: a PostgreSQL of its own, real node processes, and faults for the leader.

    with own_server() as server:
        async with Stage(server, nodes=3, lease_s=3.0, hear=print) as stage:
            failover = await stage.act("kill")
            print(failover.failover_ms)

``pgleaderlock demo`` shows it on a page with buttons, or as a table. Everything that is measured really happened: the
nodes are processes, the kill is a ``kill -9``, and each node reports by the clock when it began to act as leader and
when it ceased to.

Not promised: that another machine is as fast, nor anything about a network between hosts. A process that is cut off
here is cut off by a relay between it and PostgreSQL, which holds back every byte and every close.
"""

from pgleaderlock.testing.demo._place import own_folder, own_server
from pgleaderlock.testing.demo._script import ActionResult, Tally, play
from pgleaderlock.testing.demo._stage import ACTIONS, Failover, Said, Stage

__all__ = ["ACTIONS", "ActionResult", "Failover", "Said", "Stage", "Tally", "own_folder", "own_server", "play"]
