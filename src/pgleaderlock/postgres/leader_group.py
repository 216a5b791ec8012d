"""``LeaderGroup``: any number of roles in one process, on one lock session and one witness session.

Each role is an :class:`~pgleaderlock.engine.election.Election` of its own, with its state, its token and its callbacks.
They share the sessions of :mod:`pgleaderlock.postgres.group`.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Self, overload

from pgleaderlock._base.checks import check_int, check_seconds, refuse_pickling, refuse_plain_with
from pgleaderlock.engine._run import Run
from pgleaderlock.engine.callbacks import NOT_GIVEN
from pgleaderlock.engine.election import Election
from pgleaderlock.errors import PgLeaderLockError
from pgleaderlock.models import Event, Grant, RetryContext
from pgleaderlock.options import SETTINGS, LockOptions, LockSettings, check_options
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.group import Group
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.login import Dsn, Password, log_in
from pgleaderlock.postgres.session import Session
from pgleaderlock.retry import RetryStrategy
from pgleaderlock.stores.times import USUAL_INTERVAL_S

__all__ = ["GroupPatience", "GroupRole", "LeaderGroup"]

_FIRST_ANSWER_S = 2.0


class GroupPatience:
    """How long a role of a group waits between two attempts of its own.

    The group tries for it all the time, so few attempts of its own are needed. After a refusal or a step-down the role
    pauses for ``rest_s``, which lets other candidates go first, and then waits for the group for up to ``long_s``.
    After an error it tries again, with growing delays.
    """

    def __init__(self, rest_s: float = 2.0, long_s: float = 600.0, longest_error_s: float = 10.0) -> None:
        self._rest_s = check_seconds("rest_s", rest_s)
        self._long_s = check_seconds("long_s", long_s)
        self._longest_error_s = check_seconds("longest_error_s", longest_error_s)

    def next_delay_s(self, context: RetryContext) -> float:
        """Return the delay; never None, so that a role never gives up."""
        if context.last_error is not None:
            longest_s = min(self._longest_error_s, 0.1 * 2.0 ** min(context.attempt, 10))
            return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - it spreads load
        return self._rest_s if context.attempt == 1 else self._long_s


class GroupRole(Election):
    """One role of a group. Started and stopped with it."""

    def __init__(self, name: str, key: LockKey, group: Group, labels: Mapping[str, object], **settings: Any) -> None:
        super().__init__(group.member(key, labels), **settings)
        self._group = group
        self.name = name
        self._key = key

    @property
    def key(self) -> LockKey:
        """The key of this role's lock."""
        return self._key

    def begin(self, won: Grant | None) -> bool:
        """Start, with the grant that the group has for this role. Return False when a run has not ended yet."""
        if self._run_here() is not None:
            return False
        self._begin_run(won)
        return True

    def _begin_run(self, won: Grant | None = None) -> None:
        super()._begin_run(won)
        run: Run = self._running  # type: ignore[assignment]  # set by the line before
        run.task.add_done_callback(lambda _: self._give_up_after(run))

    def _give_up_after(self, run: Run) -> None:
        """Release the lock that an ended run has left held, unless a later run leads with it."""
        if self._running in (None, run):
            self._group.give_up(self._key)

    @property
    def is_over(self) -> bool:
        """Whether no run is left, including one that is stopped and still notifies its listeners."""
        return self._running is None

    def ask_to_stop(self) -> None:
        """Request the end of the run without waiting, for a caller that is being cancelled."""
        if self._running is not None:
            self._running.ask_to_stop()

    def __repr__(self) -> str:
        return f"<GroupRole {self.name!r} {self.state.value}>"


RoleCallback = Callable[[GroupRole], object]
"""``fn(role)``"""


class LeaderGroup(Mapping[str, GroupRole]):
    """Takes part in the elections of many roles at once, with two connections in all.

        group = LeaderGroup(dsn, roles=["billing", "mails", LockKey.pair(7, 1)])

        @group.on_acquired
        def begin(role: GroupRole) -> None: ...

        async with group:
            await group["billing"].wait_for_leadership()

    ``max_roles`` limits how many this process leads at a time, so that roles spread over processes. Roles may be names,
    or any :class:`LockKey`, or a mapping of names to keys; a process is a candidate for the roles that it names. A
    :class:`~pgleaderlock.LeaderLock` in another process may be a candidate for the same lock.

    A released role is taken by another process in milliseconds; the role of a process that died, within ``poll_s``.
    """

    __reduce_ex__ = refuse_pickling
    __enter__ = __exit__ = refuse_plain_with

    def __init__(
        self,
        dsn: Dsn,
        roles: Iterable[str | LockKey] | Mapping[str, LockKey],
        *,
        lease_s: float | None = None,
        health_interval_s: float = USUAL_INTERVAL_S,
        poll_s: float = 0.25,
        max_roles: int | None = None,
        settle_s: float | None = None,
        witness: bool = True,
        address: str | None = None,
        allow_pooler: bool = False,
        retry_strategy: RetryStrategy | None = None,
        shutdown_event: asyncio.Event | None = None,
        password: Password | None = None,
        options: LockOptions | None = None,
    ) -> None:
        keys = _keys_of(roles)
        if max_roles is not None:
            check_int("max_roles", max_roles, 1, 2**31 - 1)
        lease = _lease_of_group(
            LockSettings(
                lease_s=lease_s,
                health_interval_s=health_interval_s,
                settle_s=settle_s,
                witness=witness,
                address=address,
                allow_pooler=allow_pooler,
                retry_strategy=retry_strategy or GroupPatience(),
                **check_options(options).values(),
            )
        )
        self._connector = Connector(f"a group of {len(keys)} roles", dsn=log_in(dsn, password), lease=lease)
        poll_s = check_seconds("poll_s", poll_s)
        self._group = Group(
            self._open_session,
            lease,
            lease.clock,
            self._connector.where,
            poll_s=poll_s,
            renew_every_s=lease.health_interval_s,
            max_roles=max_roles,
        )
        database = {} if self._connector.database is None else {"db": self._connector.database}
        settings = {**lease.of_election(), "shutdown_event": shutdown_event}
        self._starting = asyncio.Lock()
        self._roles = {
            name: GroupRole(name, key, self._group, {**_labels(name, key), **database}, **settings)
            for name, key in keys.items()
        }

    async def _open_session(self) -> Session:
        return await self._connector.open_session()

    # --- A mapping of roles --------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> GroupRole:
        return self._roles[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    @property
    def leading(self) -> list[GroupRole]:
        """The roles that this process leads now."""
        return [role for role in self._roles.values() if role.is_leader]

    # --- Lifecycle -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take part in the elections of all roles. Free roles are taken at once, if the database answers soon.

        Roles that run go on; for those that are still stopping it waits. If cancelled, it stops what it has started.
        """
        async with self._starting:
            won: Mapping[LockKey, Grant] = {}
            was_running = {role for role in self._roles.values() if not role.is_over}
            if not was_running:
                with contextlib.suppress(PgLeaderLockError, TimeoutError):
                    async with asyncio.timeout(_FIRST_ANSWER_S):
                        won = await self._group.win_what_is_free()
            late = [role for role in self._roles.values() if not role.begin(won.get(role.key))]
            self._group.return_unused(role.key for role in late if role.key in won)
            try:
                for role in late:
                    await role.start()
            except BaseException:  # the caller cannot stop roles of a start that failed
                for role in self._roles.values():
                    if role not in was_running:
                        role.ask_to_stop()
                raise

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """Release all roles, and stop."""
        await asyncio.gather(*(role.shutdown(timeout_s) for role in self._roles.values()))
        is_stopped = all(role.state.is_stopped for role in self._roles.values())
        if is_stopped and not self._starting.locked():  # not started again meanwhile
            await self._group.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self.shutdown(timeout_s=None if exc_type is None else 10.0)

    # --- Callbacks -----------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[GroupRole, Event], object]) -> Callable[[GroupRole, Event], object]:
        """Notify ``listener(role, event)`` of every event of every role."""
        for role in self._roles.values():
            role.subscribe(lambda event, role=role: listener(role, event))
        return listener

    def on_renewed(self, fn: Callable[[float], object]) -> Callable[[float], object]:
        """Call ``fn(took_s)`` after each renewal, which is one for all roles. It must not block, or raise."""
        self._group.renewal_listeners.append(fn)
        return fn

    def on_acquired(self, fn: RoleCallback) -> RoleCallback:
        """Call ``fn(role)`` when this process became the leader of a role."""
        for role in self._roles.values():
            role.on_acquired(lambda role=role: fn(role))
        return fn

    def on_released(self, fn: RoleCallback) -> RoleCallback:
        """Call ``fn(role)`` when the leadership of a role was released on request."""
        for role in self._roles.values():
            role.on_released(lambda role=role: fn(role))
        return fn

    def before_release(self, fn: RoleCallback) -> RoleCallback:
        """Call ``fn(role)`` before a role is released on request, and wait for it, renewing meanwhile."""
        for role in self._roles.values():
            role.before_release(lambda role=role: fn(role))
        return fn

    @overload
    def on_lost(self, fn: RoleCallback, *, attempts: bool = True) -> RoleCallback: ...
    @overload
    def on_lost(self, *, attempts: bool = True) -> Callable[[RoleCallback], RoleCallback]: ...
    def on_lost(self, fn: RoleCallback = NOT_GIVEN, *, attempts: bool = True) -> Callable[..., object]:
        """Call ``fn(role)`` when the leadership of a role was lost, or an attempt to acquire it ended in an error.

        ``@group.on_lost(attempts=False)`` leaves the second out.
        """
        if fn is NOT_GIVEN:
            return partial(self.on_lost, attempts=attempts)
        for role in self._roles.values():
            role.on_lost(lambda role=role: fn(role), attempts=attempts)
        return fn

    def on_error(self, fn: Callable[[GroupRole, Exception], object]) -> Callable[[GroupRole, Exception], object]:
        """Call ``fn(role, exception)`` for every error. An error of the group is reported for each role."""
        for role in self._roles.values():
            role.on_error(lambda error, role=role: fn(role, error))
        return fn

    def __repr__(self) -> str:
        return f"<LeaderGroup of {len(self)} roles, leading {len(self.leading)}>"


def _lease_of_group(settings: LockSettings) -> Lease:
    """Return the lease of a group; ValueError for a setting that needs sessions of a lock's own."""
    for each in SETTINGS:
        if not each.in_groups and getattr(settings, each.name) != each.default:
            raise ValueError(f"{each.name} has no effect in a LeaderGroup, whose roles share their sessions")
    return Lease.choose(settings)


def _keys_of(roles: Iterable[str | LockKey] | Mapping[str, LockKey]) -> dict[str, LockKey]:
    if isinstance(roles, str):
        raise TypeError("roles must be a list of names or keys, not one str")
    if isinstance(roles, Mapping):
        named = [(_name_of(name), _key_of(key)) for name, key in roles.items()]
    else:
        named = [(_name_of(role), _key_of(role)) for role in roles]
    keys = dict(named)
    if not named or len(keys) < len(named):
        raise ValueError("roles must be different names or keys, and at least one")
    return keys


def _key_of(role: str | LockKey) -> LockKey:
    if isinstance(role, LockKey):
        return role
    if not isinstance(role, str):
        raise TypeError(f"a role is a name or a LockKey, not {type(role).__name__}")
    return LockKey.named(role)


def _name_of(role: str | LockKey) -> str:
    return role if isinstance(role, str) else getattr(role, "name", None) or str(role)


def _labels(name: str, key: LockKey) -> dict[str, object]:
    """Return the labels of a role in log lines; a role without a name has those of its key only."""
    return key.labels if name == str(key) else {"role": name} | key.labels | {"role": name}
