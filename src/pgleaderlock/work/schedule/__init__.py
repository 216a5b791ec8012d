"""Scheduled work with a ledger: each slot of each job is claimed by one term, and its outcome is recorded.

``timetable`` and ``cron`` define when, ``policy`` what to do about slots that were missed, all of them pure. The ledger
is two tables in the database of the lock; ``reading`` reads it for operators.

Not promised, because it is impossible: that the effect of a function happens exactly once. A slot is *claimed* once;
its run may be cut off at any point, and then its effect may be missing (``if_killed="leave"``) or happen again
(``"repeat"``). Only an effect in the same database can happen exactly once: :meth:`Tick.done_in`.
"""
