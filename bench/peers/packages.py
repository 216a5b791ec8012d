"""Servers out of Debian's packages, unpacked into a cache: nothing is installed, and no daemon of theirs is started.

What is on the machine is used as it is; what is missing is fetched by the machine's own apt (no root needed) into
$XDG_CACHE_HOME/pgleaderlock/peers (``~/.cache`` by default).
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["NotHereError", "etcd", "etcdctl", "java", "redis_server", "zookeeper_jars"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgleaderlock" / "peers"
_JAR_PACKAGES = (
    "libzookeeper-java", "libslf4j-java", "libnetty-java", "libdropwizard-metrics-java", "libsnappy-java",
    "libcommons-cli-java", "libcommons-io-java", "libjackson2-core-java", "libjackson2-databind-java",
    "libjackson2-annotations-java",
)  # fmt: skip
_JARS = (
    "zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "netty-all", "netty-buffer", "netty-codec",
    "netty-common", "netty-handler", "netty-resolver", "netty-transport", "netty-transport-native-epoll",
    "netty-transport-native-unix-common", "metrics-core", "snappy-java", "commons-cli", "commons-io", "jackson-core",
    "jackson-databind", "jackson-annotations",
)  # fmt: skip


class NotHereError(Exception):
    """A program cannot be had on this machine; the text goes into the row of the peers that need it."""


def etcd() -> Path:
    return _program("etcd", "etcd-server")


def etcdctl() -> Path:
    return _program("etcdctl", "etcd-client")


def redis_server() -> Path:
    found = shutil.which("redis-server")
    if found is None:
        raise NotHereError("redis-server is not installed (Debian: redis-server)")
    return Path(found)


def java() -> Path:
    found = shutil.which("java")
    if found is None:
        raise NotHereError("java is not installed (Debian: default-jre-headless)")
    return Path(found)


def zookeeper_jars() -> list[Path]:
    """Return what ZooKeeper's server needs on its class path, its HTTP admin server left out."""
    places = [Path("/usr/share/java"), CACHE / "usr" / "share" / "java"]
    if not any((place / "zookeeper.jar").exists() for place in places):
        _unpack(*_JAR_PACKAGES)
    found = [next((place / f"{jar}.jar" for place in places if (place / f"{jar}.jar").exists()), None) for jar in _JARS]
    return [jar for jar in found if jar is not None]


def _program(name: str, package: str) -> Path:
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    place = CACHE / "usr" / "bin" / name
    if not place.exists():
        _unpack(package)
    return place


def _unpack(*packages: str) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pgll-peers-") as folder:
        Path(folder).chmod(0o755)  # apt may read as an account of its own
        try:
            subprocess.run(["apt-get", "download", *packages], cwd=folder, check=True, capture_output=True)
            for each in Path(folder).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", each, CACHE], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotHereError(f"Debian's {packages[0]} cannot be fetched: {error}") from error
