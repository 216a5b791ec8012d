"""One entry's figures, each taken by a crew of its own: a leader and two who wait."""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path

from peers.crew import Crew
from peers.entries import Entry, Place
from peers.relay import Relay
from peers.servers import Stores

__all__ = ["Bench", "Figures"]

_WARM_UP_S, _IDLE_S = 5.0, 12.0
_FOLLOWERS = 2


@dataclass
class Figures:
    """What was measured of one entry; an empty list or None where it was not, infinite where it never came."""

    graceful_ms: list[float] = field(default_factory=list)
    crash_ms: list[float] = field(default_factory=list)
    freeze_ms: list[float] = field(default_factory=list)
    overlap_ms: list[float] = field(default_factory=list)
    requests_per_s: float | None = None
    leader_connections: float | None = None
    follower_connections: float | None = None
    wakeups_per_s: float | None = None
    rss_mib: float | None = None
    missing: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Bench:
    """Knows the stores that run, and measures one entry after the other, or several side by side."""

    def __init__(self, stores: Stores, kubeconfig: Path | None) -> None:
        self._stores = stores
        self._kubeconfig = kubeconfig
        self._numbers = count()

    def missing(self, entry: Entry) -> str:
        """Return why it cannot take part here; "" if it can."""
        if entry.store in ("", *self._stores.ports):
            return ""
        if entry.store == "kubernetes":
            return "" if self._kubeconfig else "the API server is not built: `make test-k8s` builds it (Debian, root)"
        return self._stores.missing[entry.store]

    def replacements_ms(self, entry: Entry, rounds: int, *, by_kill: bool) -> list[float]:
        """Time one leader's end after the other; the first that has no successor ends it."""
        times: list[float] = []
        with self._place(entry) as place, self._crew(entry, place) as crew:
            for _ in range(rounds):
                times.append(crew.replace(by_kill=by_kill))
                if times[-1] == float("inf"):
                    break
        return times

    def freezes(self, entry: Entry, rounds: int) -> tuple[list[float], list[float]]:
        """Return the times to take over, and the overlaps of those that were taken over."""
        taken: list[float] = []
        overlaps: list[float] = []
        with self._place(entry) as place, self._crew(entry, replace(place, act=entry.is_python)) as crew:
            for _ in range(rounds if entry.notices else 1):
                freeze = crew.freeze_leader(acts=entry.is_python)
                taken.append(freeze.took_ms)
                if freeze.overlap_ms is None:
                    break
                overlaps.append(freeze.overlap_ms)
        return taken, overlaps

    def idle(self, entry: Entry, figures: Figures) -> None:
        """Watch a leader and two followers while nothing happens, each role through a relay of its own."""
        with ExitStack() as stack:
            place = stack.enter_context(self._place(entry))
            leader = follower = None
            places = [place] * 2
            if entry.store:
                leader, follower = (stack.enter_context(Relay(place.port)) for _ in range(2))
                places = [self._through(place, relay) for relay in (leader, follower)]
            crew = stack.enter_context(self._crew(entry, *places))
            time.sleep(_WARM_UP_S)
            before = follower.requests if follower else 0
            cost = crew.followers_cost(_IDLE_S)
            figures.wakeups_per_s, figures.rss_mib = cost.wakeups_per_s, cost.rss_mib
            if leader and follower:
                figures.requests_per_s = (follower.requests - before) / _IDLE_S / _FOLLOWERS
                figures.leader_connections = float(leader.connections)
                figures.follower_connections = follower.connections / _FOLLOWERS

    def _crew(self, entry: Entry, leaders: Place, followers: Place | None = None) -> Crew:
        others = followers or leaders
        return Crew(
            lambda number: entry.command(others if number else leaders, number),
            leads=entry.leads(leaders),
            patience_s=entry.patience_s,
            says_waiting=entry.says_waiting,
        )

    @contextmanager
    def _place(self, entry: Entry) -> Iterator[Place]:
        """Every crew has a lock of its own: a name, and a folder."""
        with tempfile.TemporaryDirectory(prefix="pgll-peers-") as folder:
            Path(folder, "tooz").mkdir()
            kubeconfig = self._kubeconfig if entry.store == "kubernetes" else None
            port = _port_in(kubeconfig) if kubeconfig else self._stores.ports.get(entry.store, 0)
            yield Place(
                port, folder, f"bench-peers-{next(self._numbers)}", self._stores.programs, kubeconfig=kubeconfig
            )

    def _through(self, place: Place, relay: Relay) -> Place:
        if place.kubeconfig is None:
            return replace(place, port=relay.port)
        text = place.kubeconfig.read_text(encoding="utf-8").replace(f":{place.port}'", f":{relay.port}'")
        beside = place.kubeconfig.with_name(f"kubeconfig-{relay.port}")  # its certificates are named by relative paths
        beside.write_text(text, encoding="utf-8")
        return replace(place, port=relay.port, kubeconfig=beside)


def _port_in(kubeconfig: Path) -> int:
    found = re.search(r"https://127\.0\.0\.1:(\d+)", kubeconfig.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("the comparison needs the API server of tools/k8s_server.py")
    return int(found[1])
