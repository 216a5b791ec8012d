"""A real Kubernetes API server on this machine, for tests: built once from Debian's source package, run on loopback.

    python tools/k8s_server.py build                    about five minutes and 2 GB, once; needs root for apt
    python tools/k8s_server.py run -- pytest tests/...  etcd and kube-apiserver around a command
    python tools/k8s_server.py run --if-built -- ...    the same, but nothing where they would have to be built first

The command finds $PGLEADERLOCK_K8S_SERVER, a kubeconfig for it, and $PGLEADERLOCK_K8S_PEER, an elector made of the
client-go in the same source tree (``tools/k8s_peer/main.go``). Binaries are kept in $XDG_CACHE_HOME/pgleaderlock/k8s
(``~/.cache`` by default). Where packages come from is what this machine's own apt says, with their sources added in a
temporary list; nothing of the machine's configuration is changed, and no daemon is installed.
"""

import argparse
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgleaderlock" / "k8s"
SERVER, PEER, ETCD = CACHE / "kube-apiserver", CACHE / "peer", CACHE / "etcd"
TOOLS = Path(__file__).parent
PEER_SOURCE = TOOLS / "k8s_peer" / "main.go"
PACKAGES = ("golang-1.19-go", "dpkg-dev", "gcc", "libc6-dev", "rsync", "jq", "make", "openssl")
GO = Path("/usr/lib/go-1.19/bin")
ADMIN_TOKEN, NOBODY_TOKEN = "test-only-admin", "test-only-nobody"
READY_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or run a command; return its exit code."""
    parser = argparse.ArgumentParser(description="A real Kubernetes API server for tests.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("build", help="build what is not in the cache yet")
    run = actions.add_parser("run", help="run a command with a server")
    run.add_argument("--if-built", action="store_true", help="build nothing: if something is missing, say so, and end")
    run.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.action == "run" and options.if_built and not is_built():
        print(
            "Kubernetes: left out, the API server is not built yet. `make test-k8s` builds it (minutes; Debian, root)"
        )
        return 0
    build()
    if options.action == "build":
        print(CACHE)
        return 0
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("run needs a command")
    return run_with_server(command)


# --- Building ----------------------------------------------------------------------------------------------------


def is_built() -> bool:
    """Whether all three programs are there, and the peer is the one of its source."""
    return SERVER.exists() and ETCD.exists() and not _peer_is_new()


def _peer_is_new() -> bool:
    return not PEER.exists() or PEER.stat().st_mtime < PEER_SOURCE.stat().st_mtime


def build() -> None:
    """Make the three programs, those that are missing."""
    if is_built():
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    tree = CACHE / "go" / "src" / "k8s.io" / "kubernetes"
    if not tree.exists():
        _call("apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES)
        _fetch_source(tree)
    if not ETCD.exists():
        _fetch_etcd(ETCD)
    environment = _go_environment()
    if not SERVER.exists():
        # Plain "go build" lacks the code that the makefiles generate.
        _call("make", "WHAT=cmd/kube-apiserver", cwd=tree, env=environment)
        _keep(tree / "_output" / "bin" / "kube-apiserver", SERVER)
    if _peer_is_new():
        folder = tree / "cmd" / "pgleaderlock-peer"
        folder.mkdir(exist_ok=True)
        shutil.copy(PEER_SOURCE, folder / "main.go")
        _call("go", "build", "-o", str(CACHE / "peer.new"), "./cmd/pgleaderlock-peer", cwd=tree, env=environment)
        _keep(CACHE / "peer.new", PEER)
    # The sources stay, for the next peer; what was compiled on the way is the larger part and goes.
    for waste in (tree / "_output", CACHE / "go-build"):
        shutil.rmtree(waste, ignore_errors=True)


def _go_environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{GO}{os.pathsep}{os.environ['PATH']}",
        "GOPATH": str(CACHE / "go"),
        "GOCACHE": str(CACHE / "go-build"),
        "GO111MODULE": "off",
        "GOFLAGS": "",
    }


def _fetch_source(tree: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder, _apt_with_sources(Path(folder)) as apt:
        _call("apt-get", *apt, "update")
        _call("apt-get", *apt, "source", "kubernetes", cwd=Path(folder))
        (unpacked,) = (path for path in Path(folder).glob("kubernetes-*") if path.is_dir())
        tree.parent.mkdir(parents=True, exist_ok=True)
        unpacked.rename(tree)


@contextlib.contextmanager
def _apt_with_sources(folder: Path) -> Iterator[list[str]]:
    """Yield apt options that add the source packages of every place that this machine's apt knows."""
    parts, lists = folder / "parts", folder / "lists"
    parts.mkdir()
    lists.mkdir()
    configured = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in configured:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        old, new = ("deb ", "deb-src ") if path.suffix == ".list" else ("Types: deb", "Types: deb-src")
        lines = (line.replace(old, new, 1) if line.strip() != new else line for line in text.splitlines())
        (parts / path.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder.chmod(0o755)  # apt reads as an account of its own
    yield [
        "-o", "Dir::Etc::sourcelist=/dev/null",
        "-o", f"Dir::Etc::sourceparts={parts}",
        "-o", f"Dir::State::lists={lists}",
    ]  # fmt: skip


def _fetch_etcd(etcd: Path) -> None:
    """Take the program out of its package: installing that would start a daemon."""
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        Path(folder).chmod(0o755)
        _call("apt-get", "download", "etcd-server", cwd=Path(folder))
        (package,) = Path(folder).glob("etcd-server_*.deb")
        _call("dpkg-deb", "-x", str(package), folder)
        _keep(Path(folder) / "usr" / "bin" / "etcd", etcd)


def _keep(made: Path, place: Path) -> None:
    """Move it into the cache in one step, so that what is there is whole."""
    staged = place.with_suffix(".staged")
    shutil.copy2(made, staged)
    staged.replace(place)


def _call(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    print("+", " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, cwd=cwd, env=env, check=True, stdout=sys.stderr)


# --- Running -----------------------------------------------------------------------------------------------------


def run_with_server(command: Sequence[str]) -> int:
    """Run a command with a server of its own; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="pgleaderlock-k8s-") as folder, contextlib.ExitStack() as stack:
        kubeconfig = _start(Path(folder), stack)
        environment = {
            **os.environ,
            "PGLEADERLOCK_K8S_SERVER": str(kubeconfig),
            "PGLEADERLOCK_K8S_PEER": str(PEER),
        }
        return subprocess.run(command, env=environment, check=False).returncode


def _start(folder: Path, stack: contextlib.ExitStack) -> Path:
    client_port, peer_port, port = (_free_port() for _ in range(3))
    etcd = f"http://127.0.0.1:{client_port}"
    _daemon(
        stack, folder / "etcd.log", ETCD, f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync",
        f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
    )  # fmt: skip
    _make_keys(folder)
    tokens = folder / "tokens.csv"
    tokens.write_text(f"{ADMIN_TOKEN},admin,1,system:masters\n{NOBODY_TOKEN},nobody,2\n", encoding="utf-8")
    server = _daemon(
        stack, folder / "apiserver.log", SERVER, f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}",
        f"--tls-cert-file={folder / 'server.crt'}", f"--tls-private-key-file={folder / 'server.key'}",
        f"--client-ca-file={folder / 'client.crt'}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
        f"--service-account-key-file={folder / 'server.key'}",
        f"--service-account-signing-key-file={folder / 'server.key'}",
        "--disable-admission-plugins=ServiceAccount",
    )  # fmt: skip
    kubeconfig = _write_kubeconfig(folder, port)
    _wait_until_ready(folder, port, server)
    return kubeconfig


def _make_keys(folder: Path) -> None:
    """Make the server's certificate, which is its own authority, and one for a client that is an admin too."""
    for name, subject in (("server", "/CN=127.0.0.1"), ("client", "/O=system:masters/CN=by-certificate")):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", subject, "-addext",
             "subjectAltName=IP:127.0.0.1", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"],
            check=True, capture_output=True,
        )  # fmt: skip


def _write_kubeconfig(folder: Path, port: int) -> Path:
    users = {
        "admin": f"{{token: {ADMIN_TOKEN}}}",
        "nobody": f"{{token: {NOBODY_TOKEN}}}",
        "certificate": "{client-certificate: client.crt, client-key: client.key}",
    }
    lines = [
        "{apiVersion: v1, kind: Config, current-context: admin,",
        f"clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: server.crt}}}}],",
        f"contexts: [{', '.join(f'{{name: {name}, context: {{cluster: c, user: {name}}}}}' for name in users)}],",
        f"users: [{', '.join(f'{{name: {name}, user: {user}}}' for name, user in users.items())}]}}",
    ]
    path = folder / "kubeconfig"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _daemon(stack: contextlib.ExitStack, log: Path, program: Path, *arguments: str) -> subprocess.Popen[bytes]:
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen([program, *arguments], stdout=output, stderr=output, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(process.kill)  # before that wait; nothing of it is to last
    return process


def _wait_until_ready(folder: Path, port: int, server: subprocess.Popen[bytes]) -> None:
    context = ssl.create_default_context(cafile=str(folder / "server.crt"))
    paths = ["/readyz", "/api/v1/namespaces/default"]  # which the server makes itself, a moment later
    deadline = time.monotonic() + READY_S
    while paths:
        request = urllib.request.Request(f"https://127.0.0.1:{port}{paths[0]}")
        request.add_header("Authorization", f"Bearer {ADMIN_TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=2, context=context):
                paths.pop(0)
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                tail = (folder / "apiserver.log").read_text(encoding="utf-8", errors="replace")[-3000:]
                raise SystemExit(f"the API server did not become ready:\n{tail}") from None
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
