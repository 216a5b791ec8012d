"""``simulate``: a cluster under any faults, on virtual time, with the real engine and the real backends' decisions.

One run is one seed. The same seed takes the same steps, so what fails once fails every time, with the transcript of
what led to it.
"""

import asyncio
import contextlib
import inspect
import logging
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pgleaderlock.engine.election import Election
from pgleaderlock.models import Event, EventKind
from pgleaderlock.retry import FixedInterval
from pgleaderlock.stores.base import Backend
from pgleaderlock.testing.simulation._loop import NodeLoop
from pgleaderlock.testing.simulation.checks import Checker
from pgleaderlock.testing.simulation.fault_injector import FaultInjector
from pgleaderlock.testing.simulation.fault_profiles import FAULT_PROFILES, FaultProfile
from pgleaderlock.testing.simulation.node import Role, SimulatedNode
from pgleaderlock.testing.simulation.postgres import ModelledPostgres
from pgleaderlock.testing.simulation.stores import STORES, Store
from pgleaderlock.testing.simulation.world import World

__all__ = ["Report", "Simulation", "quiet", "simulate"]

T = TypeVar("T")

Build = Callable[[SimulatedNode], object]
"""Registers a user's callbacks and work on ``node.lock``, before it is started. Called at every start of the node."""

_PATIENCE = 9.0
"""Leases within which a node leads again without a new fault: after a frozen holder, a restart, a strict take-over."""
_SETTLED = 3.0
_HOURS = 0.5
_BURIALS = 5


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one simulation in which no invariant was violated."""

    seed: int
    store: str
    profile: str
    hours: float
    steps: int
    terms: int
    faults: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    gaps_s: tuple[float, ...] = ()
    """How long each time without a leader lasted."""
    transcript: tuple[str, ...] = ()

    @property
    def median_gap_s(self) -> float:
        """The median of the times without a leader; 0 if there was none."""
        return statistics.median(self.gaps_s) if self.gaps_s else 0.0


class Simulation:
    """A cluster that has not started yet. Most callers want :func:`simulate`; this class is for scripts."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        profile: str | FaultProfile = "storm",
        store: str | Store = "postgres",
        lease_s: float = 15.0,
        hours: float = _HOURS,
        build: Build | None = None,
        keep_transcript: bool = False,
        settings: dict[str, object] | None = None,
    ) -> None:
        if nodes < 1 or hours < 0:
            raise ValueError(f"a cluster has at least one node and hours to come, not nodes={nodes}, hours={hours:g}")
        self.seed = seed
        self.profile = _known("profile", FAULT_PROFILES, profile) if isinstance(profile, str) else profile
        self.store = _known("store", STORES, store) if isinstance(store, str) else store
        self.lease_s = lease_s
        self.world = World(seed)
        self._build = build
        self._settings = self._draw_settings() if settings is None else settings
        self.checker = Checker(self.world, lease_s, self._replay(nodes, hours), keep=keep_transcript)
        self.server = self.store.make_server(self.world, self.checker, self.profile)
        for number in range(nodes):
            rate = self.world.random.uniform(1 - self.profile.clock_spread, 1 + self.profile.clock_spread)
            node = SimulatedNode(f"n{number + 1}", self.world, rate, self.checker, self._make_election)
            node.cable.slow_share, node.cable.slow_s = self.profile.slow_share, self.profile.slowness * lease_s
            self.checker.nodes.append(node)
        self._add_roles()
        self.faults = FaultInjector(self.world, self.profile, self.server, self.checker)
        self._loops: list[NodeLoop] = []

    @property
    def nodes(self) -> list[SimulatedNode]:
        """The nodes, which are all candidates."""
        return self.checker.nodes

    def _replay(self, nodes: int, hours: float) -> str:
        settings = [
            f"nodes={nodes}",
            f"profile={self.profile.name!r}",
            f"store={self.store.name!r}",
            *([] if hours == _HOURS else [f"hours={hours:g}"]),
            f"lease_s={self.lease_s:g}",
            *([] if self._build is None else [f"build={getattr(self._build, '__name__', self._build)}"]),
        ]
        return f"simulate({self.seed}, {', '.join(settings)})"

    def _add_roles(self) -> None:
        for number in range(1, self.store.roles):
            checker = self.checker.for_another_role()
            checker.nodes += [Role(node, f"{node.name}.{number + 1}", checker) for node in self.nodes]

    # --- Setup -------------------------------------------------------------------------------------------------

    def _draw_settings(self) -> dict[str, object]:
        """Draw the settings that differ between users."""
        draw = self.world.random
        return {
            "retry_strategy": FixedInterval(self.lease_s * draw.choice([0.1, 1 / 3, 1.0, 1.0])),
            "health_interval_s": self.lease_s / draw.choice([3, 4]),
            "reconnect_grace_s": draw.choice([None, None, self.lease_s / 2, 2 * self.lease_s]),
        }

    def _make_election(self, node: SimulatedNode) -> Election:
        self._loops.append(node.loop)
        made = self.store.contend(node, self.server, self.lease_s, self.store.lease)
        if isinstance(made, Backend):
            alone = Election(made, clock=node.loop.time, **self._settings)  # type: ignore[arg-type]
            node.service, elections = alone, [alone]
        else:
            node.service, elections = made, list(made.values())
        for seat, election in zip(node.seats, elections, strict=True):
            seat.lock = election
            seat.listen()
            self._add_slow_callbacks(seat)
            self._build_on(seat)
        return node.lock

    def _build_on(self, seat: SimulatedNode) -> None:
        if self._build is not None and inspect.iscoroutine(unawaited := self._build(seat)):
            unawaited.close()
            raise TypeError("build is called before the loop runs, and cannot be async: start work from a callback")

    def _add_slow_callbacks(self, node: SimulatedNode) -> None:
        """Register slow callbacks; a successor has to wait for them, for as long as it could not lead anyway."""
        node.is_notifying = False
        takes_s = self.lease_s * self.world.random.choice([0.0, 0.02, 0.3])

        @node.lock.on_lost
        async def on_lost(event: Event) -> None:
            node.is_notifying = event.kind is EventKind.LOST
            try:
                await asyncio.sleep(takes_s)
            finally:  # also when a shutdown ran out of time and cancelled the callback: nothing is notified any more
                node.is_notifying = False

        @node.lock.on_stopped
        async def tidy_up() -> None:
            await asyncio.sleep(takes_s)

    # --- The run -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all nodes, and check periodically that a node leads."""
        for node in self.nodes:
            self.world.later(self.world.random.random() * self.lease_s / 10, partial(self._boot, node))
        self._look()

    def _boot(self, node: SimulatedNode) -> None:
        if not self.checker.course.is_over:
            node.boot()

    def _look(self) -> None:
        if self.checker.course.is_over:
            return
        if not self.server.is_up:
            self.checker.disturb()  # no node can lead without the server
        if isinstance(self.server, ModelledPostgres):
            self._look_at_standby(self.server)
        slow = 1 + 10 * self.profile.slow_share
        self.checker.look(_PATIENCE * self.lease_s * slow**2)
        self.world.later(self.lease_s / 2, self._look)

    def _look_at_standby(self, server: ModelledPostgres) -> None:
        if server.waits_for_standby:
            self.checker.disturb()  # no token can be assigned meanwhile
        dead = server.dead_holder()
        if dead is not None:
            session, lock = dead
            self.checker.check_dead_holder(session.client.owner, lock, session.client_left_at or 0.0)

    def run(self, seconds: float) -> None:
        """Run for so many virtual seconds."""
        self.world.run(self.world.now + seconds)

    def settle(self) -> None:
        """End all faults; a node must lead soon, and keep the lead once half-open connections have been detected."""
        self.faults.clear()
        self._await_leader()
        self.run(_SETTLED * self.lease_s)
        self._await_leader()
        leader, terms = self.checker.leader, self.checker.course.terms
        self.run(_SETTLED * self.lease_s)
        if leader is not self.checker.leader or terms != self.checker.course.terms:
            self.checker.note_unrest()
        if self.store.has_places:
            self.checker.check_places()
        for loop in self._loops:
            loop.forget_finished()
        self.checker.raise_failure()

    def _await_leader(self) -> None:
        deadline = self.world.now + _PATIENCE * self.lease_s
        self.world.run(deadline, unless=lambda: self.checker.is_led)
        if not self.checker.is_led:
            self.checker.look(0.0)

    def end(self) -> None:
        """Shut all nodes down, and cancel the tasks of dead ones, so that none is destroyed while pending."""
        self.checker.course.is_over = True
        self.faults.end()
        for node in self.nodes:
            if node.is_alive:
                node.loop.create_task(node.service.shutdown(self.lease_s))
        self.world.run(
            self.world.now + 4 * self.lease_s,
            unless=lambda: all(not node.is_alive or _is_stopped(node) for node in self.nodes),
        )
        for _ in range(_BURIALS):
            for loop in self._loops:
                loop.bury()
            self.world.run(self.world.now + 2 * self.lease_s, unless=lambda: all(loop.is_empty for loop in self._loops))
        self.server.end()

    def report(self) -> Report:
        """Return the figures and the transcript."""
        return Report(
            self.seed,
            self.store.name,
            self.profile.name,
            self.world.now / 3600,
            self.world.steps,
            self.checker.course.terms,
            self.faults.counts,
            self.checker.course.losses,
            tuple(self.checker.course.gaps_s),
            tuple(self.checker.transcript()),
        )


def _is_stopped(node: SimulatedNode) -> bool:
    return all(seat.lock.state.is_stopped for seat in node.seats)


def simulate(
    seed: int,
    nodes: int = 3,
    profile: str | FaultProfile = "storm",
    *,
    store: str | Store = "postgres",
    hours: float = _HOURS,
    lease_s: float = 15.0,
    build: Build | None = None,
    keep_transcript: bool = False,
) -> Report:
    """Run a cluster of so many nodes for so many virtual hours; :class:`SimulationFailed` if an invariant is violated.

    ``build(node)`` registers your own callbacks and work on ``node.lock``; call ``node.act()`` where your code does
    what only a leader may. ``profile`` and ``store`` are names (:data:`FAULT_PROFILES`, :data:`STORES`) or your own.
    """
    with quiet(seed):
        simulation = Simulation(
            seed,
            nodes=nodes,
            profile=profile,
            store=store,
            lease_s=lease_s,
            hours=hours,
            build=build,
            keep_transcript=keep_transcript,
        )
        try:
            simulation.start()
            simulation.faults.begin(simulation.store.faults | simulation.profile.insists)
            simulation.run(hours * 3600)
            simulation.settle()
        finally:
            simulation.end()
        return simulation.report()


def _known(what: str, named: Mapping[str, T], name: str) -> T:
    if name not in named:
        raise ValueError(f"there is no {what} {name!r}, but there are {', '.join(named)}")
    return named[name]


@contextlib.contextmanager
def quiet(seed: int) -> Iterator[None]:
    """Log nothing, and seed Python's own random generator, so that every run draws the same numbers."""
    logger, state = logging.getLogger("pgleaderlock"), random.getstate()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        logger.setLevel(level)
