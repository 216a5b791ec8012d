"""Scheduled work with a ledger: each slot of each job is claimed by one term, and accounted for whatever happens.

``schedule`` and ``cron`` say when, ``policy`` what to do about slots that were missed, all of them pure. The ledger is
two tables in the database of the lock; ``reading`` shows it to people.

Not promised, because nobody can: that what a function does happens exactly once. A slot is *claimed* once; its run may
be cut off at any point, and then either its effect is missing, perhaps (``if_killed="leave"``), or it happens again,
perhaps (``"repeat"``). Only an effect in the same database can be had exactly once: :meth:`Tick.done_in`.
"""
