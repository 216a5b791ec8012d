"""The blocking API: leader election for threads, Flask, Django and scripts.

    with LeaderLock("postgresql://app@db/app", role="billing/scheduler") as lock:
        if lock.wait_for_leadership(timeout_s=60):
            while lock.is_leader:
                do_one_thing()

It is the asyncio engine, not a second one. All blocking elections of a process share **one background thread with one
event loop**, which is started with the first of them and ends with the last. Calls that block wait for that thread;
``is_leader``, ``token`` and the like are computed in the calling thread, at any time.

**Callbacks** are plain functions. Those of one lock run one after another, on a thread of that lock's own and never on
the event loop's: one that blocks delays later callbacks of the same lock, and no renewal. The engine waits for
``on_lost`` as it does in the asyncio API, with the session still open, until it has returned or validity has ended.

**Forks.** A forked child has its parent's memory, but neither its threads nor its lock. There ``is_leader`` is False,
and a lock that was started before the fork refuses every call. Start it in each process, after the fork.

**At exit** of the interpreter, elections that still lead release their locks, in a few seconds at most.

Not promised: a release when a signal or ``os._exit`` ends the process. The server then frees the lock.
"""

from pgleaderlock.sync._election import Election
from pgleaderlock.sync._lock import LeaderLock
from pgleaderlock.sync._manager import Lease, Manager
from pgleaderlock.sync._watching import find_leader, watch_leader

__all__ = ["Election", "LeaderLock", "Lease", "Manager", "find_leader", "watch_leader"]
