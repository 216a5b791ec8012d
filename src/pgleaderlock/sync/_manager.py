"""``sync.Manager``: the API of :mod:`pgleaderlock.compat.consensus`, for callers that block."""

from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock.compat import consensus
from pgleaderlock.engine.election import Election
from pgleaderlock.models import ErrorCallback
from pgleaderlock.stores import base
from pgleaderlock.sync._blocking import BlockingElection


class Lease:
    """Whether this instance leads, and waiting for that. Use it from any thread."""

    def __init__(self, election: BlockingElection[Election]) -> None:
        self._election = election

    def is_leader(self) -> bool:
        """Whether this instance leads now. Never blocks."""
        return self._election.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of this term, where the backend has one."""
        return self._election.token

    def wait_for_leadership(self, timeout_s: float | None = None) -> bool:
        """Block until this instance leads; False when the time is up or the manager was stopped."""
        return self._election.wait_for_leadership(timeout_s)


class Manager:
    """Takes part in an election until it is stopped, on a background thread.

        manager = Manager(new_from_env("my-app-leader"), Config(identity=os.environ["POD_NAME"]))
        lease = manager.start()

    Takes what :class:`pgleaderlock.compat.consensus.Manager` takes. The three verbs of a backend of your own are
    coroutines here too; they are called on the background thread and must not block.
    """

    def __init__(
        self,
        backend: consensus.Backend | base.Backend | str,
        config: consensus.Config,
        *,
        role: str | None = None,
        clock: Clock = suspend_aware_clock,
    ) -> None:
        self._manager = consensus.Manager(backend, config, role=role, clock=clock)
        self._election = BlockingElection(self._manager.election)

    @property
    def election(self) -> BlockingElection[Election]:
        """The election behind it, with all its callbacks and events."""
        return self._election

    def on_error(self, callback: ErrorCallback) -> ErrorCallback:
        """Call ``callback(error)`` for every error of the backend. It has been logged, and the call is repeated."""
        return self._election.on_error(callback)

    def start(self) -> Lease:
        """Take part in the election; returns at once."""
        self._election.start()
        return Lease(self._election)

    def stop(self) -> None:
        """Release the lease if it is ours, and stop. Raises what the release failed with."""
        self._election.shutdown()
        self._manager.raise_release_error()

    def __enter__(self) -> Lease:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
