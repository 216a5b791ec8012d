"""``sync.Election``: the blocking election, whatever store keeps the lock."""

from typing import Unpack

from pgleaderlock.engine.election import Election as AsyncElection
from pgleaderlock.stores.base import Backend
from pgleaderlock.sync._blocking import BlockingElection
from pgleaderlock.sync._settings import ElectionSettings, refuse_shutdown_event

__all__ = ["Election"]


class Election(BlockingElection[AsyncElection]):
    """One candidate for one lock, whatever store keeps it, for callers that block.

        election = Election(open_backend("file:///run/app/leader"))

    Takes the keywords of :class:`pgleaderlock.Election`, but for ``shutdown_event``: any thread may call
    :meth:`shutdown`. A stopped election can be started again. What you pass in (a retry strategy, a clock) is called on
    the background thread and must not block.
    """

    def __init__(self, backend: Backend, **settings: Unpack[ElectionSettings]) -> None:
        refuse_shutdown_event(settings)
        super().__init__(AsyncElection(backend, **settings))
