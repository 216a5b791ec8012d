"""Every interleaving of a few nodes, one server and a few faults, in search of a second leader.

A test runs what somebody thought of, a simulation what chance thought of. This is a third thing: a world so small that
*everything* that can happen in it is looked at, breadth first, until nothing new turns up. A violation therefore comes
with the shortest way to it, told step by step.

**What of the product is run.** A node's state is moved by the product's table (:mod:`pgleaderlock.fsm`) and by nothing
else; a fact that the table has no row for ends the search. What a grant is worth, and until when, is ``Lease.grant``;
what the past is worth is ``past_s``; the word for a loss is the engine's. ``is_leader`` is restated, as the state and
the clock.

**What is modelled.** The order of a node's requests (that of :mod:`pgleaderlock.backends.leased`), and PostgreSQL: two
locks with a first-come line each, sessions, the idle-session time-out, transaction ids, the term row, a restart.

**Time** is counted in ticks, of which a lease has two or three. Nobody is obliged to do anything before the next tick:
a node may stand still for any time before any of its steps, an answer may take any time, the server may end a silent
session at a lease or at any time after it. So a freeze, a slow network and an answer that never comes are not faults
here; they are the rule. The clocks of the nodes differ in rate from the server's by a constant, 10 % unless told
otherwise. **Faults** take away more than time: a session that is killed, a restart of the server, a crash of a node;
there is a number of each, and of all.

**What is checked** after every step:

- at most one node believes that it leads;
- whoever comes to lead has a greater token than everybody else who has led;
- a term that has ended by the clock does not come back;
- nobody holds a lock without knowing it;
- every loss has a cause that the engine has a word for;
- if asked (``hope``): from everywhere, somebody can come to lead again without a further fault.

**Worlds that are the same are looked at once**: nodes have no names, tokens are ranks, ages end where nothing more can
follow from them. And some pairs of steps are taken as one, where whatever could come between could as well come before
or after: a request that carries no time reaches the server when it is sent; the answer to a request for the server's
age is read when it is given, since to read it later is only to wait for longer.

**Rules** (:class:`Rules`) can be switched off one by one. Each of them is missed: :data:`MUTATIONS`.

**Not shown**, because it is not in the model: what the engine does between two facts; several statements in flight on
one connection; a session closed by its client while it waits in line, which the server would serve for a while; a
slice whose time-out races with its grant (55P03); batches of roles; fenced transactions; a promoted standby; that
``on_lost`` is heard before a successor's ``on_acquired``; and anything that takes more nodes, ticks or faults than were
looked at.

    python -m pgleaderlock.testing.exhaustive --nodes 2 --faults 1
"""

from pgleaderlock.testing.exhaustive._mutations import MUTATIONS, Mutation
from pgleaderlock.testing.exhaustive._rules import Rules, Scope
from pgleaderlock.testing.exhaustive._search import Explored, Violation, explore

__all__ = ["MUTATIONS", "Explored", "Mutation", "Rules", "Scope", "Violation", "explore"]
