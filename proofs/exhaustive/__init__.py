"""Model checking: every interleaving of a few nodes, one server and a few faults, in search of a split brain.

A test runs the cases that its author thought of, a simulation runs random ones. This is a third method: a world so
small that *every* state of it is visited, breadth first, until no new one is found. A violation therefore comes with
the shortest path to it, one sentence per step.

**What of the product is run.** A node's state is changed by the product's table (:mod:`pgleaderlock.engine.fsm`) and by
nothing else; a fact for which the table has no row ends the search. How long a grant is valid is ``Lease.grant``; how
long an earlier leader may still be valid is ``past_s``; the cause of a loss is the engine's. ``is_leader`` is restated,
as the state and the clock.

**What is modelled.** The order of a node's requests (that of :mod:`pgleaderlock.postgres.advisory` and ``pair``), and
PostgreSQL: two locks with a first-come queue each, sessions, the idle-session time-out, transaction ids, the term row,
a restart. On request (``places``) the succession too: only the heir is queued for the lock, the next heir for the place
of the heir, and the other followers try.

**Time** is counted in ticks, of which a lease has two or three. Neither a node nor the server has to do anything before
the next tick: a node may pause for any time before any of its steps, an answer may take any time, the server may end a
silent session at a lease or at any time after it. So a freeze, a slow network and an answer that never comes are not
faults here; they are always possible. The clocks of the nodes differ in rate from the server's by a constant, 10 % by
default. **Faults** do more than delay: a session that is killed, a restart of the server, a crash of a node; each kind
has a maximum number, and so has their sum.

**What is checked** after every step:

- at most one node claims to lead;
- a new leader has a greater token than every leader before it;
- a term that has ended by the clock does not come back;
- no node holds a lock without knowing it;
- every loss has a cause that the engine can name;
- on request (``hope``): from every state, a node can come to lead again without a further fault.

**Equivalent states are visited once**: nodes have no names, tokens are ranks, ages are capped where nothing more can
follow from them. And some pairs of steps are taken as one, where any step between the two could as well come before or
after both:

- a request reaches the server when it is sent, if it is the only one on its way and validity does not count from it.
  Of two that are sent at once, each arrives at its own time: the try for the witness lock, the release of either lock.
  The first request of a term, sent beside that try, need not: it reads only what no other node can change;
- what a node reads and what it sends next, if no validity counts from there;
- the answer to a request for the server's age is read when it is given: to read it later has the effect of a longer
  wait.

Where the server may do more than PostgreSQL would, nothing is missed. So heartbeats of a node that waits are left out:
they only keep the server from ending a session, and it never has to.

**Rules** (:class:`Rules`) can be switched off one by one. The search finds a violation without each: :data:`MUTATIONS`.

**Not shown**, because it is not in the model: what the engine does between two facts; several statements in flight on
one connection; a session closed by its client while it is queued or has a request on its way, which the server would
serve for a while; tokens that a crash of the server hands out again (the simulation's mutation "tokens reach the disk"
shows that); a wait slice whose time-out races with its grant (55P03); batches of roles; fenced transactions; a promoted
standby; that ``on_lost`` is called before a successor's ``on_acquired``; and anything that takes more nodes, ticks or
faults than were explored.

    python -m proofs.exhaustive --nodes 2 --faults 1
"""

from proofs.exhaustive._mutations import MUTATIONS, Mutation
from proofs.exhaustive._rules import Rules, Scope
from proofs.exhaustive._search import Explored, Violation, explore

__all__ = ["MUTATIONS", "Explored", "Mutation", "Rules", "Scope", "Violation", "explore"]
