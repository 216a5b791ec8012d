"""The stores, each started once on a free loopback port and in a temporary folder, and stopped by its own pid.

Durability is each server's own default: PostgreSQL, etcd and ZooKeeper flush what they answer, Redis does not. Only
Redis's snapshots are off, which it would write to a folder that is gone a moment later.
"""

import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from peers import packages
from pgleaderlock.testing.embedded import Server

__all__ = ["Stores", "running_stores"]

_READY_S = 30.0
_CONNECTIONS = 300


@dataclass
class Stores:
    """Ports of what runs, versions, and why the others do not."""

    ports: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    programs: dict[str, Path] = field(default_factory=dict)


@contextmanager
def running_stores(folder: Path, *, only: Sequence[str] | None = None) -> Iterator[Stores]:
    """Start every server that can be had here."""
    starters: dict[str, Callable[[Path, ExitStack, Stores], None]] = {
        "postgres": _postgres,
        "redis": _redis,
        "etcd": _etcd,
        "zookeeper": _zookeeper,
    }
    stores = Stores()
    with ExitStack() as stack:
        for name, start in starters.items():
            if only is not None and name not in only:
                stores.missing[name] = "not asked for"
                continue
            try:
                start(folder, stack, stores)
            except packages.NotHereError as error:
                stores.missing[name] = str(error)
        yield stores


def _postgres(folder: Path, stack: ExitStack, stores: Stores) -> None:
    port = free_port()
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    server = Server(
        folder / "postgres",
        binaries=debian[-1] if debian else None,
        tcp_port=port,
        settings={"max_connections": str(_CONNECTIONS)},
    )
    server.start()
    stack.callback(server.stop, "immediate")
    program = (debian[-1] if debian else Path(server.folder)) / "postgres"
    stores.ports["postgres"] = port
    stores.versions["PostgreSQL"] = _version_of(program, "-V") if debian else "embedded"


def _redis(folder: Path, stack: ExitStack, stores: Stores) -> None:
    program, port = packages.redis_server(), free_port()
    home = _home(folder, "redis")
    _daemon(stack, home, port, program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home))
    stores.ports["redis"] = port
    stores.versions["Redis"] = _version_of(program, "--version")


def _etcd(folder: Path, stack: ExitStack, stores: Stores) -> None:
    program, stores.programs["etcdctl"] = packages.etcd(), packages.etcdctl()
    port, peer_port = free_port(), free_port()
    home = _home(folder, "etcd")
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    _daemon(
        stack, home, port, program, "--data-dir", str(home / "data"), "--listen-client-urls", url,
        "--advertise-client-urls", url, "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
        "--initial-cluster", f"default={peer_url}",
    )  # fmt: skip
    stores.ports["etcd"] = port
    stores.versions["etcd"] = _version_of(program, "--version")


def _zookeeper(folder: Path, stack: ExitStack, stores: Stores) -> None:
    program, jars, port = packages.java(), packages.zookeeper_jars(), free_port()
    home = _home(folder, "zookeeper")
    settings = {
        "tickTime": 2000,  # its default, and with it the shortest session: 4 s
        "dataDir": home / "data",
        "clientPort": port,
        "clientPortAddress": "127.0.0.1",
        "admin.enableServer": "false",  # it would listen on 8080
        "maxClientCnxns": 0,
    }
    (home / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    classes = ":".join(map(str, jars))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    _daemon(stack, home, port, program, "-Xmx256m", "-cp", classes, main, str(home / "zoo.cfg"))
    stores.ports["zookeeper"] = port
    log = (home / "log").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"zookeeper\.version=([0-9.]+)", log)
    stores.versions["ZooKeeper"] = found[1] if found else "unknown"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _home(folder: Path, name: str) -> Path:
    home = folder / name
    home.mkdir()
    return home


def _daemon(stack: ExitStack, home: Path, port: int, program: Path, *arguments: str) -> None:
    output = stack.enter_context((home / "log").open("wb"))
    process = subprocess.Popen([program, *arguments], stdout=output, stderr=output, cwd=home)
    stack.callback(process.wait)
    stack.callback(process.kill)  # before that wait; nothing of it is to last
    deadline = time.monotonic() + _READY_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (home / "log").read_text(encoding="utf-8", errors="replace")[-1000:]
            raise packages.NotHereError(f"{program.name} did not start: {tail}")
        time.sleep(0.05)
    time.sleep(0.5)  # etcd elects itself after it listens


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _version_of(program: Path, flag: str) -> str:
    said = subprocess.run([program, flag], capture_output=True, text=True, check=False).stdout
    found = re.search(r"[0-9]+(?:\.[0-9]+)+", said)
    return found[0] if found else "unknown"
