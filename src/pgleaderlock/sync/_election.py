"""``sync.Election``: the blocking election, whatever store keeps the lock."""

from pgleaderlock.engine.election import Election as AsyncElection
from pgleaderlock.sync._arguments import takes_arguments_of
from pgleaderlock.sync._blocking import BlockingElection


class Election(BlockingElection[AsyncElection]):
    """One candidate for one lock, whatever store keeps it, for callers that block.

        election = Election(open_backend("file:///run/app/leader"))

    Takes the keywords of :class:`pgleaderlock.Election`, but for ``shutdown_event``: any thread may call
    :meth:`shutdown`. A stopped election can be started again. What you pass in (a retry strategy, a clock) is called on
    the background thread and must not block.
    """

    @takes_arguments_of(AsyncElection)
    def __init__(self, engine: AsyncElection) -> None:
        super().__init__(engine)
