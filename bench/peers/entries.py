"""Who takes part: ours on each store, the physical limit, and what people use instead, each as its documentation shows.

Each is measured with its defaults, and, where it has a lease or something like it, again with that set to `TUNED_S`:
4 s, because ZooKeeper's shortest session is two of its ticks, which are 2 s by default.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LIMIT", "TUNED_S", "Entry", "Place", "all_entries"]

TUNED_S = 4.0
LIMIT = "pg_advisory_lock, bare"
FOLDER_LOCK = "pgleaderlock.stores.nfs.Lock"
_CANDIDATE = Path(__file__).with_name("candidate.py")


@dataclass(frozen=True)
class Place:
    """Where one crew meets: a store's port, a folder, a name of its own, and programs that are no Python."""

    port: int
    folder: str
    name: str
    programs: dict[str, Path]
    act: bool = False
    kubeconfig: Path | None = None


@dataclass(frozen=True)
class Entry:
    """One row: one library on one store with one setting."""

    name: str
    setting: str
    """ "default" or "tuned"."""
    store: str
    """The server that it needs; "" for files."""
    lease_s: float | None
    """What it has for a lease; None if nothing ever expires."""
    command: Callable[[Place, int], Sequence[str]]
    ours: bool = False
    compared_with: str = "postgresql://"
    """Which of ours its user would take instead."""
    dies_quickly: bool = False
    """Whether a kill is seen at once, so that rounds are cheap and are taken alone."""
    notices: bool = True
    """Whether a frozen leader loses it at all."""
    is_python: bool = True

    @property
    def row(self) -> str:
        return f"{self.name} ({self.setting})"

    def leads(self, place: Place) -> str:
        return "acquired" if self.is_python or "client-go" in self.name else f"{place.name}/"

    @property
    def says_waiting(self) -> bool:
        return self.is_python or "client-go" in self.name

    @property
    def patience_s(self) -> float:
        """Twice what could be expected; where nothing expires, long enough to say "never" with a good conscience."""
        return 40.0 if self.lease_s is None else 2 * self.lease_s + 15.0


def _python(kind: str, url: str = "", lease_s: float | None = None) -> Callable[[Place, int], Sequence[str]]:
    def command(place: Place, _: int) -> Sequence[str]:
        options = {
            "port": place.port,
            "name": place.name,
            "folder": place.folder,
            "lease_s": lease_s,
            "act": place.act,
            "url": url.format(port=place.port, folder=place.folder, name=place.name),
        }
        environment = [] if place.kubeconfig is None else ["env", f"KUBECONFIG={place.kubeconfig}"]
        return [*environment, sys.executable, str(_CANDIDATE), kind, json.dumps(options)]

    return command


def _etcdctl(*words: str) -> Callable[[Place, int], Sequence[str]]:
    def command(place: Place, number: int) -> Sequence[str]:
        proposal = [f"candidate-{number}"] if words[0] == "elect" else []
        program = [str(place.programs["etcdctl"]), f"--endpoints=127.0.0.1:{place.port}"]
        return ["env", "ETCDCTL_API=3", *program, words[0], place.name, *proposal, *words[1:]]

    return command


def _client_go(*times: str) -> Callable[[Place, int], Sequence[str]]:
    def command(place: Place, number: int) -> Sequence[str]:
        where = ["-kubeconfig", str(place.kubeconfig), "-lease", place.name, "-identity", f"candidate-{number}"]
        return [str(place.programs["client-go"]), *where, *times]

    return command


def all_entries() -> list[Entry]:
    return [*_ours(), _limit(), *_tooz(), *_servers(), *_files(), *_kubernetes_peer()]


def _ours() -> list[Entry]:
    stores = {
        "postgresql://": ("postgres", "postgresql://postgres@127.0.0.1:{port}/postgres"),
        "postgresql+lease://": ("postgres", "postgresql+lease://postgres@127.0.0.1:{port}/postgres"),
        "file://": ("", "file://{folder}/lock"),
        "nfs://": ("", "nfs://{folder}/shared"),
        "k8s://": ("kubernetes", "k8s://default/{name}"),
    }
    settings = (("default", 15.0), ("tuned", TUNED_S))
    elections = [
        Entry(
            name, setting, store, lease_s, _python("ours", url, lease_s),
            ours=True, compared_with=name, dies_quickly=name in ("postgresql://", "file://"),
        )
        for name, (store, url) in stores.items()
        for setting, lease_s in settings
    ]  # fmt: skip
    locks = [
        Entry(
            FOLDER_LOCK, setting, "", lease_s, _python("our-folder-lock", lease_s=lease_s),
            ours=True, compared_with=FOLDER_LOCK, dies_quickly=True,
        )
        for setting, lease_s in settings
    ]  # fmt: skip
    return elections + locks


def _limit() -> Entry:
    return Entry(LIMIT, "default", "postgres", None, _python("bare"), dies_quickly=True, notices=False)


def _tooz() -> list[Entry]:
    redis, etcd = "redis://127.0.0.1:{port}", "etcd3+http://127.0.0.1:{port}"
    zookeeper = "zookeeper://127.0.0.1:{port}"
    postgres = "postgresql://postgres@127.0.0.1:{port}/postgres"
    tuned = "?timeout=4"
    return [
        Entry(
            "tooz lock, postgresql", "default", "postgres", None, _python("tooz-lock", postgres),
            dies_quickly=True, notices=False,
        ),
        Entry("tooz election, redis", "default", "redis", 30.0, _python("tooz-election", redis)),
        Entry("tooz election, redis", "tuned", "redis", TUNED_S, _python("tooz-election", redis + tuned)),
        Entry("tooz election, zookeeper", "default", "zookeeper", 10.0, _python("tooz-election", zookeeper)),
        Entry("tooz election, zookeeper", "tuned", "zookeeper", TUNED_S, _python("tooz-election", zookeeper + tuned)),
        Entry("tooz lock, etcd3gw", "default", "etcd", 30.0, _python("tooz-lock", etcd)),
        Entry("tooz lock, etcd3gw", "tuned", "etcd", TUNED_S, _python("tooz-lock", etcd + tuned)),
        Entry(
            "tooz lock, file", "default", "", None, _python("tooz-lock", "file://{folder}/tooz"),
            compared_with="file://", dies_quickly=True, notices=False,
        ),
    ]  # fmt: skip


def _servers() -> list[Entry]:
    return [
        Entry("kazoo Election", "default", "zookeeper", 10.0, _python("kazoo")),
        Entry("kazoo Election", "tuned", "zookeeper", TUNED_S, _python("kazoo", lease_s=TUNED_S)),
        Entry("etcdctl elect", "default", "etcd", 60.0, _etcdctl("elect"), is_python=False),
        Entry("etcdctl lock", "default", "etcd", 10.0, _etcdctl("lock"), is_python=False),
        Entry("etcdctl lock", "tuned", "etcd", TUNED_S, _etcdctl("lock", "--ttl=4"), is_python=False),
        Entry("redis-py Lock", "default", "redis", None, _python("redis-py"), notices=False),
        Entry("redis-py Lock", "tuned", "redis", TUNED_S, _python("redis-py", lease_s=TUNED_S)),
        Entry("python-redis-lock", "default", "redis", None, _python("python-redis-lock"), notices=False),
        Entry("python-redis-lock", "tuned", "redis", TUNED_S, _python("python-redis-lock", lease_s=TUNED_S)),
    ]


def _files() -> list[Entry]:
    lease = "filelock SoftFileLease"
    return [
        Entry(
            "filelock FileLock", "default", "", None, _python("filelock"),
            compared_with="file://", dies_quickly=True, notices=False,
        ),
        Entry(lease, "default", "", 30.0, _python("filelock-lease"), compared_with=FOLDER_LOCK),
        Entry(lease, "tuned", "", TUNED_S, _python("filelock-lease", lease_s=TUNED_S), compared_with=FOLDER_LOCK),
        Entry("flufl.lock", "default", "", 15.0, _python("flufl"), compared_with=FOLDER_LOCK),
        Entry("flufl.lock", "tuned", "", TUNED_S, _python("flufl", lease_s=TUNED_S), compared_with=FOLDER_LOCK),
    ]  # fmt: skip


def _kubernetes_peer() -> list[Entry]:
    defaults = ("-duration", "15s", "-deadline", "10s", "-period", "2s")
    tuned = ("-duration", "4s", "-deadline", "2500ms", "-period", "500ms")
    return [
        Entry(
            "client-go leaderelection", setting, "kubernetes", lease_s, _client_go(*times),
            compared_with="k8s://", is_python=False,
        )
        for setting, lease_s, times in (("default", 15.0, defaults), ("tuned", TUNED_S, tuned))
    ]  # fmt: skip
