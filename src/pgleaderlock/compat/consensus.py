"""Leader election in five words: a Backend, a Config, a Manager that starts and stops, and a Lease that answers.

For those who have a store of their own, and for those who come from the Go package of the same shape:

    manager = Manager("k8s://default/my-app-leader", Config(identity=os.environ["POD_NAME"]))
    lease = manager.start()
    while await lease.wait_for_leadership():
        while lease.is_leader():
            await do_one_thing()

A :class:`Backend` has three verbs with plain answers. Everything else is :class:`~pgleaderlock.Election`, the one
engine: one failed renewal is tried again and several end leadership, trust is counted from sending, and errors are
reported and retried, never a crash. A built-in backend (by its URL, from :func:`~pgleaderlock.open_backend`, or from
``new_from_env`` of :mod:`pgleaderlock.stores.kubernetes`) does more, and can be used in its place. Whichever it is,
the :class:`Config` says who we are and how long the lease is. For code that blocks: :class:`pgleaderlock.sync.Manager`.

Not promised for a backend of three verbs: fencing tokens, which it does not have, and an expiry that its store does not
keep. ``try_acquire`` must be atomic, and must not give a lease away before ``lease_s`` has passed since its holder's
last renewal, by a clock that the holder's is not compared with.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pgleaderlock._base.causes import LossCause
from pgleaderlock._base.checks import check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._logging import get_logger
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import ConnectionError, LeadershipLost, LockError, PgLeaderLockError
from pgleaderlock.models import ErrorCallback, Event, EventKind, Grant, Holder, LockState
from pgleaderlock.retry import FixedInterval
from pgleaderlock.stores import base, open_backend
from pgleaderlock.stores._renewal_retry import renew_patiently
from pgleaderlock.stores.times import (
    USUAL_INTERVAL_S,
    USUAL_LEASE_S,
    UsualInterval,
    answer_bound_s,
    choose_times,
    is_too_rare,
    too_rare,
)

__all__ = ["Backend", "Config", "Lease", "Manager"]


@runtime_checkable
class Backend(Protocol):
    """A store that can keep one name for a while. Its errors may be anything; they are reported and retried."""

    async def try_acquire(self, identity: str, lease_s: float) -> bool:
        """Acquire or renew; False when another holds it."""
        ...

    async def renew(self, identity: str, lease_s: float) -> object:
        """Extend our lease; LeadershipLost, or the answer False, if it is certain that it is no longer ours."""
        ...

    async def release(self, identity: str) -> None:
        """Release the lease, if it is ours."""
        ...


@dataclass(frozen=True, slots=True)
class Config:
    """The name of this candidate, and its times."""

    identity: str
    """Unique among all candidates, such as the pod's name."""
    lease_duration_s: float = USUAL_LEASE_S
    """How long a lease is valid without renewal."""
    renew_interval_s: float = USUAL_INTERVAL_S
    """How often the leader renews; by default three times in a lease."""
    retry_interval_s: float = 2.0
    """How often a follower tries to acquire the lease."""

    def __post_init__(self) -> None:
        if not self.identity or type(self.identity) is not str:
            raise ValueError("identity must be a name that no other candidate has, such as the pod's")
        for name in ("lease_duration_s", "renew_interval_s", "retry_interval_s"):
            check_seconds(name, getattr(self, name))
        if isinstance(self.renew_interval_s, UsualInterval):
            object.__setattr__(self, "renew_interval_s", choose_times(self.lease_duration_s).health_interval_s)
        if is_too_rare(self.renew_interval_s, self.lease_duration_s):
            lease = f"lease_duration_s={self.lease_duration_s:g}"
            raise ValueError(too_rare(f"renew_interval_s={self.renew_interval_s:g}", lease))


class Lease:
    """Shows whether this instance leads, or waits for that. Ask from any thread; wait on the manager's event loop."""

    def __init__(self, election: Election, starting: asyncio.Task[None]) -> None:
        self._election = election
        self._starting = starting

    def is_leader(self) -> bool:
        """Whether this instance leads now. Never blocks."""
        return self._election.is_leader

    @property
    def token(self) -> int | None:
        """The fencing token of this term, where the backend has one."""
        return self._election.token

    async def wait_for_leadership(self, timeout_s: float | None = None) -> bool:
        """Wait to become the leader; False when the time is up or the manager was stopped."""
        await asyncio.wait({self._starting})
        if self._starting.cancelled():  # with its event loop, before it began
            return False
        return await self._election.wait_for_leadership(timeout_s)


class Manager:
    """Takes part in an election until it is stopped. If its event loop ends, it releases what it holds.

    The lock is that of ``backend``; the name under which it is held and the lease are those of ``config``, also where
    the backend was made with others.
    """

    def __init__(
        self,
        backend: Backend | base.Backend | str,
        config: Config,
        *,
        role: str | None = None,
        clock: Clock = suspend_aware_clock,
    ) -> None:
        self._election = Election(
            _as_backend(backend, config, role, clock),
            retry_strategy=FixedInterval(config.retry_interval_s),
            health_interval_s=config.renew_interval_s,
            clock=clock,
        )
        self._election.subscribe(self._note_error)
        self._starting: asyncio.Task[None] | None = None
        self._release_error: Exception | None = None

    @property
    def election(self) -> Election:
        """The election behind it, with all its callbacks and events."""
        return self._election

    def on_error(self, callback: ErrorCallback) -> ErrorCallback:
        """Call ``callback(error)`` for every error of the backend. It has been logged and will be retried."""
        return self._election.on_error(callback)

    def start(self) -> Lease:
        """Take part in the election, on the running event loop; returns at once."""
        self._starting = asyncio.get_running_loop().create_task(self._election.start())
        return Lease(self._election, self._starting)

    async def stop(self) -> None:
        """Release the lease if it is ours, and stop. Raises what the release failed with."""
        if self._starting is not None:
            await asyncio.wait({self._starting})  # not awaited: it must not be cancelled together with us
        await self._election.shutdown()
        self.raise_release_error()

    def raise_release_error(self) -> None:
        """Raise what the last release failed with, if it did; once."""
        error, self._release_error = self._release_error, None
        if error is not None:
            raise error

    def _note_error(self, event: Event) -> None:
        if event.kind is EventKind.ERROR and event.from_state is LockState.RELEASING:
            self._release_error = event.error
        elif event.kind is EventKind.ACQUIRED:
            self._release_error = None  # that was another term's

    async def __aenter__(self) -> Lease:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _as_backend(backend: Backend | base.Backend | str, config: Config, role: str | None, clock: Clock) -> base.Backend:
    if isinstance(backend, str):
        backend = open_backend(backend, role=role)
    if isinstance(backend, base.Backend):
        return _configured(backend, config, clock)
    if not isinstance(backend, Backend):
        raise TypeError(f"backend needs try_acquire, renew and release; {type(backend).__name__} has not all of them")
    return _Adapted(backend, config, clock)


def _configured(backend: base.Backend, config: Config, clock: Clock) -> base.Backend:
    """Return a candidate for the same lock that is as the configuration says."""
    if backend.make_another is not None:
        # Unique per process whatever the pod is called: an old container and a new one have the same name.
        identity = f"{config.identity}_{secrets.token_hex(4)}"
        return backend.make_another(identity=identity, lease_s=config.lease_duration_s, clock=clock)
    if backend.lease_s not in (None, config.lease_duration_s):
        raise ValueError(
            f"the backend has a lease of {backend.lease_s:g} s and the Config one of {config.lease_duration_s:g} s: "
            "make both the same, or pass the URL of the backend, which is then made as the Config says"
        )
    return backend


class _Adapted(base.Backend):
    """Three plain verbs behind the seam: a bool becomes a grant, and any exception "cannot tell".

    A request that was given up may still arrive. Of a release that would be the end of our own next term, so after one
    whose outcome is not known we go by another name.
    """

    def __init__(self, backend: Backend, config: Config, clock: Clock) -> None:
        self._backend = backend
        self._identity = config.identity
        self._renamed = 0
        self._lease_s = config.lease_duration_s
        self._clock = clock
        self._may_hold = False
        self._left_behind: set[asyncio.Task[object]] = set()
        self._logger = get_logger().bind(**self.labels)

    @property
    def labels(self) -> Mapping[str, object]:
        """Who we are: the backend has no name that we know."""
        return {"identity": self._identity}

    @property
    def lease_s(self) -> float:
        """Return the lease of the configuration, which the verbs are given."""
        return self._lease_s

    @property
    def _name(self) -> str:
        return f"{self._identity}#{self._renamed}" if self._renamed else self._identity

    async def open(self) -> None:
        """There is nothing to open."""

    async def try_acquire(self) -> Grant | None:
        """Ask once."""
        sent = self._clock()
        self._may_hold = True  # until it says no, for all we know
        answer = await self._ask("try_acquire", lambda: self._backend.try_acquire(self._name, self._lease_s))
        if not isinstance(answer, bool):
            raise ConnectionError(f"the backend's try_acquire must answer True or False, not {answer!r}")
        self._may_hold = answer
        return base.leased_grant(None, sent, self._lease_s) if answer else None

    async def renew(self, grant: Grant) -> Grant:
        """Extend it; a failure is tried again."""
        return await renew_patiently(self._renew_once, grant, self._lease_s, self._clock, self._logger)

    async def _renew_once(self) -> Grant:
        sent = self._clock()
        answer = await self._ask("renew", lambda: self._backend.renew(self._name, self._lease_s))
        if answer is False:  # as try_acquire says that it is another's
            raise LeadershipLost(
                f"the backend refused to renew the lease of {self._name}", cause=LossCause.HELD_BY_ANOTHER
            )
        return base.leased_grant(None, sent, self._lease_s)

    async def release(self, grant: Grant) -> None:  # noqa: ARG002 - the name is the grant
        """Give it up."""
        try:
            await self._release(answer_bound_s(self._lease_s))
        except ConnectionError as error:
            raise LockError(str(error)) from error

    async def holder(self) -> Holder | None:
        """Three verbs cannot tell who else."""
        return Holder(self._name) if self._may_hold else None

    async def close(self) -> None:
        """Give up what may be ours, if the store answers quickly."""
        if self._may_hold:
            try:
                await self._release(min(1.0, self._lease_s / 10))
            except PgLeaderLockError as error:
                self._logger.warning("not_released", error=error, free_in_s=self._lease_s)

    async def _release(self, timeout_s: float) -> None:
        self._may_hold = False
        name, self._renamed = self._name, self._renamed + 1
        await self._ask("release", lambda: self._backend.release(name), timeout_s)
        self._renamed -= 1  # it has arrived, and no other is on its way

    async def _ask(self, verb: str, call: Callable[[], Awaitable[object]], timeout_s: float | None = None) -> object:
        """Return the answer; ConnectionError for whatever else comes of it. A call that does not end is left behind."""

        async def made() -> object:
            return await call()

        task = asyncio.get_running_loop().create_task(made())
        try:
            await asyncio.wait({task}, timeout=answer_bound_s(self._lease_s) if timeout_s is None else timeout_s)
        finally:
            if not task.done():
                task.cancel()
                self._left_behind.add(task)
                task.add_done_callback(self._forget)
        if task in self._left_behind:
            raise ConnectionError(f"the backend's {verb} did not answer in time")
        try:
            return task.result()
        except PgLeaderLockError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            raise ConnectionError(f"the backend's {verb} failed: {error!r}") from error

    def _forget(self, task: "asyncio.Task[object]") -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it as forgotten
