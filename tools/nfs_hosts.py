"""Three hosts and an NFS server in one process, for tests, on a machine whose own kernel may know no NFS at all.

    python tools/nfs_hosts.py run -- COMMAND ARGS...    about five seconds around a command; needs root, for apt once

It boots Debian's user-mode-linux: a real kernel that runs as an ordinary process, without KVM. Its root is a throw-away
layer over this machine's files: the command finds its own Python, the repository and the current directory where they
are, and whatever it writes is gone afterwards; only /mnt, /run and /dev/shm are not this machine's. Nothing of this
machine is changed but for the Debian packages.

Inside are a server (knfsd on ext4) and client hosts that share nothing but the server and the kernel's clock: network,
mounts, host name and boot id are each one's own. All of them see the same folder, as NFSv3 and as NFSv4.2, with the
options that a plain ``mount`` gives (v3: ``nolock``). The command runs on the server, and finds:

    $PGLEADERLOCK_NFS_HOSTS        nfs-host-a nfs-host-b
    $PGLEADERLOCK_NFS_FAULTY_HOST  nfs-host-f: its way to the server leads through tests/support/nfs_reply_eater.py
    $PGLEADERLOCK_NFS_V3, _V4      the folder on the hosts, by either version
    $PGLEADERLOCK_NFS_EXPORT       the folder on the server
    $PGLEADERLOCK_NFS_EATER        the socket on which the reply eater takes its orders

    nfs-on HOST COMMAND ARGS...    a program on a host, in this directory; the process becomes the program
    nfs-cut HOST                   pull its cable: packets are lost, nobody is told
    nfs-restore HOST               put it back

``nfs_hosts.py on HOST -- COMMAND`` is nfs-on for those who have no such PATH. The command's output and exit code are
passed on; 124 says that the time was over, 125 that the kernel ended without an exit code.

It is slow where processes begin: 25 ms for a program, one to two seconds and 25 MB for a Python that imports the
library. System calls take 50 µs, those that go to the server about 0.5 ms.

Not promised: a second CPU, process ids of each host's own (``kill`` reaches all), NLM locks on v3.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

PACKAGES = {
    "user-mode-linux": "/usr/bin/linux.uml",
    "nfs-kernel-server": "/usr/sbin/rpc.nfsd",
    "nfs-common": "/usr/sbin/mount.nfs4",
    "rpcbind": "/usr/sbin/rpcbind",
    "kmod": "/usr/sbin/modprobe",
    "e2fsprogs": "/usr/sbin/mke2fs",
    "iproute2": "/usr/bin/ip",
    "util-linux": "/usr/bin/nsenter",
}
COMPILER = {"gcc": "/usr/bin/gcc", "libc6-dev": "/usr/include/stdio.h"}
UNWANTED_SERVICES = ("rpcbind.socket", "rpcbind.service", "nfs-server.service", "nfs-blkmap.service")
NO_SERVICES = Path("/usr/sbin/policy-rc.d")
SBIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
EATER = Path(__file__).resolve().parents[1] / "tests" / "support" / "nfs_reply_eater.py"

HOSTS = ("nfs-host-a", "nfs-host-b")
FAULTY_HOST = "nfs-host-f"
V3, V4, EXPORT = "/mnt/nfs3", "/mnt/nfs4", "/mnt/export"
STATE = Path("/run/nfs-hosts")
EATER_SOCKET = STATE / "eater"
EATER_PORT, NFS_PORT = 2050, 2049
TIME_IS_OVER, NO_EXIT_CODE = 124, 125
END_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command among the hosts, or, inside, on one of them; return its exit code."""
    parser = argparse.ArgumentParser(description="Hosts that share a folder over NFS, for tests.")
    actions = parser.add_subparsers(dest="action", required=True)
    run = actions.add_parser("run", help="run a command in a kernel of its own, with a server and hosts")
    run.add_argument("--timeout-s", type=float, default=300.0, help="end everything after so long (%(default)s)")
    run.add_argument("--memory-mb", type=int, default=1024, help="of the kernel inside (%(default)s)")
    run.add_argument("--verbose", action="store_true", help="show the kernel's messages afterwards")
    on = actions.add_parser("on", help="inside: run a command on a host")
    on.add_argument("host", choices=(*HOSTS, FAULTY_HOST))
    guest = actions.add_parser("guest", help="what the kernel inside starts")
    for action in (run, on, guest):
        action.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error(f"{options.action} needs a command")
    if options.action == "guest":
        live_as_init(command)
    if options.action == "on":
        os.execvp("nfs-on", ["nfs-on", options.host, *command])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what is on the stack is cleaned up then
    install()
    return run_in_kernel(command, options.timeout_s, options.memory_mb, is_verbose=options.verbose)


# --- Outside: installing -------------------------------------------------------------------------------------------


def install() -> None:
    """Install the packages that are missing. Their daemons are for inside, and not started here, now or at a boot."""
    needed = PACKAGES | COMPILER if _has_wide_state() else PACKAGES
    missing = [package for package, file in needed.items() if not Path(file).exists()]
    if not missing:
        return
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _without_services():
        subprocess.run(["apt-get", "update", "-qq"], env=quietly, stdout=sys.stderr, check=True)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        subprocess.run(install, env=quietly, stdout=sys.stderr, check=True)
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", *UNWANTED_SERVICES], check=False, capture_output=True)


def _has_wide_state() -> bool:
    """Whether this processor has registers that Debian's user-mode-linux does not know (uml_wide_state.c)."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")


@contextlib.contextmanager
def _without_services() -> Iterator[None]:
    """Have packages told that services are not started. A machine that has a policy of its own keeps it."""
    if NO_SERVICES.exists():
        yield
        return
    NO_SERVICES.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        NO_SERVICES.unlink()


# --- Outside: the kernel -------------------------------------------------------------------------------------------


def run_in_kernel(command: Sequence[str], timeout_s: float, memory_mb: int, *, is_verbose: bool) -> int:
    """Boot, run the command, power off; return its exit code. Nothing of it lasts, however this ends."""
    with tempfile.TemporaryDirectory(prefix="pgleaderlock-nfs-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        disk, init, log = folder / "disk", folder / "init", folder / "console.log"
        _make_disk(disk)
        init.write_text(_init_script(command), encoding="utf-8")
        init.chmod(0o755)
        # The command's output, its errors, and its exit code: three serial lines, of which this is the other end.
        lines = [os.pipe() for _ in range(3)]
        ours = [stack.enter_context(os.fdopen(ends[0], "rb", buffering=0)) for ends in lines]
        kernel = _boot(folder, memory_mb, [ends[1] for ends in lines])
        stack.callback(_end, kernel)
        copies = [_copy(ours[0], sys.stdout.buffer), _copy(ours[1], sys.stderr.buffer)]
        try:
            kernel.wait(timeout_s)
        except subprocess.TimeoutExpired:
            print(f"nfs_hosts: the time is over ({timeout_s:g} s)", file=sys.stderr)
            return TIME_IS_OVER
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        for copy in copies:
            copy.join()
        said = ours[2].read().strip()
        if is_verbose or not said:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
        return int(said) if said else NO_EXIT_CODE


def _make_disk(disk: Path) -> None:
    with disk.open("wb") as file:
        file.truncate(512 * 2**20)
    subprocess.run([PACKAGES["e2fsprogs"], "-q", "-t", "ext4", disk], check=True)


def _boot(folder: Path, memory_mb: int, lines: list[int]) -> subprocess.Popen[bytes]:
    """Start the kernel, which from here on has these ends of the pipes to itself."""
    serial = [f"ssl{number}=null,fd:{line}" for number, line in enumerate(lines)]
    arguments = [
        "setpriv", "--pdeathsig", "TERM",  # nobody kills us and leaves it behind
        PACKAGES["user-mode-linux"], f"mem={memory_mb}M", "rootfstype=hostfs", "rootflags=/", "ro",
        f"ubd0={folder / 'disk'}", f"init={folder / 'init'}", f"uml_dir={folder}/", "umid=kernel",
        "con=null", "con0=null,fd:1", "ssl=null", *serial,
    ]  # fmt: skip
    # Its memory is a file, and fastest in /dev/shm, where it looks when it is not told of another place.
    environment = {key: value for key, value in os.environ.items() if key not in ("TMPDIR", "TMP", "TEMP")}
    if shutil.disk_usage("/dev/shm").free < memory_mb * 2**20:
        environment["TMPDIR"] = str(folder)
    if _has_wide_state():
        environment["LD_PRELOAD"] = str(_make_wide_state(folder))
    with (folder / "console.log").open("wb") as log:
        kernel = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=lines, env=environment,
            start_new_session=True,
        )  # fmt: skip
    for line in lines:
        os.close(line)
    return kernel


def _make_wide_state(folder: Path) -> Path:
    """Compile what lets this kernel live on a processor with more state than it knows."""
    library, source = folder / "uml_wide_state.so", Path(__file__).with_name("uml_wide_state.c")
    subprocess.run([COMPILER["gcc"], "-shared", "-fPIC", "-O2", "-Wall", "-o", library, source, "-ldl"], check=True)
    return library


def _end(kernel: subprocess.Popen[bytes]) -> None:
    """Have it end, and bury its children, the processes inside; if it cannot, kill all of them, its session."""
    kernel.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        kernel.wait(END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait()


def _copy(source: IO[bytes], sink: IO[bytes]) -> threading.Thread:
    def copy() -> None:
        with contextlib.suppress(OSError, ValueError):  # ours or the reader's end is closed: there is nobody to tell
            while data := os.read(source.fileno(), 65536):
                sink.write(data)
                sink.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _init_script(command: Sequence[str]) -> str:
    """Return the first program: it covers this machine's files with a layer, and starts this file there.

    It is a script, because the kernel's command line could not carry any words but simple ones.
    """
    given = {**os.environ, "PATH": f"{STATE}/bin:{os.environ.get('PATH', '')}:{SBIN}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = [f"{key}={value}" for key, value in given.items()]
    python = [sys.executable, str(Path(__file__).resolve()), "guest", "--", *command]
    start = shlex.join(["env", "-i", *environment, *python])
    return f"""#!/bin/sh
set -e
PATH={SBIN}
mount -t tmpfs tmpfs /mnt
mkdir -p /mnt/lib /mnt/upper /mnt/work /mnt/root
ln -s /usr/lib/uml/modules /mnt/lib/modules
modprobe -d /mnt -a overlay nfsd nfs nfsv3 nfsv4 veth
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
pivot_root . mnt
umount -l /mnt
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
ln -s /proc/self/fd /dev/fd
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for folder in /run /mnt /dev/shm; do mount -t tmpfs tmpfs $folder; done
cd {shlex.quote(str(Path.cwd()))}
exec {start} </dev/null
"""


# --- Inside --------------------------------------------------------------------------------------------------------


def live_as_init(command: Sequence[str]) -> NoReturn:
    """Make the server and the hosts, run the command, say its exit code, and switch the power off."""
    output, errors, result = (_serial_line(number) for number in range(3))
    code = NO_EXIT_CODE
    try:
        _make_server()
        for number, host in enumerate((*HOSTS, FAULTY_HOST), start=1):
            _make_host(host, number)
        code = _run(command, output, errors)
    except (OSError, subprocess.SubprocessError) as error:
        output_of_it = getattr(error, "stderr", None) or b""
        os.write(errors, f"nfs_hosts: {error}\n".encode() + output_of_it)
    os.write(result, f"{code}\n".encode())
    for line in (output, errors, result):
        termios.tcdrain(line)
    Path("/proc/sysrq-trigger").write_text("o", encoding="ascii")  # there is no shutdown: of the disk nothing lasts
    while True:
        time.sleep(60)


def _serial_line(number: int) -> int:
    """Open a line to the outside that passes bytes on as they are."""
    line = os.open(f"/dev/ttyS{number}", os.O_RDWR | os.O_NOCTTY)
    mode = termios.tcgetattr(line)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(line, termios.TCSANOW, mode)
    return line


def _run(command: Sequence[str], output: int, errors: int) -> int:
    """Run it with pipes, as it would not be run on a terminal either; meanwhile bury every orphan, as init must."""
    environment = {
        **os.environ,
        "PGLEADERLOCK_NFS_HOSTS": " ".join(HOSTS),
        "PGLEADERLOCK_NFS_FAULTY_HOST": FAULTY_HOST,
        "PGLEADERLOCK_NFS_V3": V3,
        "PGLEADERLOCK_NFS_V4": V4,
        "PGLEADERLOCK_NFS_EXPORT": EXPORT,
        "PGLEADERLOCK_NFS_EATER": str(EATER_SOCKET),
    }
    cats = [subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=line) for line in (output, errors)]
    pipes = [cat.stdin for cat in cats]
    child = subprocess.Popen(command, stdout=pipes[0], stderr=pipes[1], env=environment, start_new_session=True)
    for pipe in pipes:
        assert pipe is not None
        pipe.close()
    ended, status = 0, 0
    while ended != child.pid:
        ended, status = os.waitpid(-1, 0)
    for cat in cats:
        with contextlib.suppress(subprocess.TimeoutExpired):  # whoever it left behind may keep the pipes for ever
            cat.wait(timeout=2)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _make_server() -> None:
    _call("hostname", "nfs-server")
    _call("ip", "link", "set", "lo", "up")
    Path(EXPORT).mkdir()
    _call("mount", "-t", "ext4", "-o", "nobarrier", "/dev/ubda", EXPORT)
    Path(EXPORT).chmod(0o1777)
    _call("mount", "-t", "tmpfs", "tmpfs", "/var/lib/nfs")
    for name in ("etab", "rmtab"):
        Path("/var/lib/nfs", name).touch()
    for name in ("v4recovery", "rpc_pipefs"):
        Path("/var/lib/nfs", name).mkdir()
    _call("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
    _call("rpcbind")
    # "insecure": the reply eater has no reserved port. The root of v4 is the folder itself, for a layer has no handles.
    _call("exportfs", "-o", "rw,sync,no_subtree_check,no_root_squash,insecure,fsid=0", f"*:{EXPORT}")
    _call("rpc.nfsd", "8")
    _call("rpc.mountd")
    for grace in ("/proc/fs/nfsd/v4_end_grace", "/proc/fs/lockd/nlm_end_grace"):  # nobody has anything to reclaim
        Path(grace).write_text("Y", encoding="ascii")
    _write_commands()


def _write_commands() -> None:
    folder = STATE / "bin"
    folder.mkdir(parents=True)
    for name, text in {
        "nfs-on": 'host=$1; shift; exec nsenter --target "$(cat {state}/$host.pid)" --net --uts --mount -- '
        """sh -c 'cd "$0" && exec "$@"' "$PWD" "$@" """,
        "nfs-cut": 'exec ip link set dev "to-${{1##*-}}" down',
        "nfs-restore": 'exec ip link set dev "to-${{1##*-}}" up',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text.format(state=STATE)}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


def _make_host(host: str, number: int) -> None:
    """Make namespaces, kept by a process that sleeps; a cable from there to the server; and the mounts."""
    keeper = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE
    )
    assert keeper.stdout is not None
    keeper.stdout.readline()
    (STATE / f"{host}.pid").write_text(f"{keeper.pid}\n", encoding="ascii")
    ours, server, client = f"to-{host.rpartition('-')[2]}", f"10.77.{number}.1", f"10.77.{number}.2"
    _call("ip", "link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
    _call("ip", "addr", "add", f"{server}/24", "dev", ours)
    _call("ip", "link", "set", "dev", ours, "up")
    boot_id = STATE / f"{host}.boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    port = NFS_PORT
    if host == FAULTY_HOST:
        port = EATER_PORT
        _start_eater(server)
    script = f"""set -e
hostname {host}
ip link set lo up
ip addr add {client}/24 dev eth0
ip link set eth0 up
mount --bind {boot_id} /proc/sys/kernel/random/boot_id
umount {EXPORT}
mkdir -p {V3} {V4}
mount -t nfs -o vers=3,nolock,proto=tcp,mountproto=tcp,port={port} {server}:{EXPORT} {V3}
mount -t nfs -o vers=4.2,port={port} {server}:/ {V4}
"""
    _call("nfs-on", host, "sh", "-c", script)


def _start_eater(address: str) -> None:
    command = [sys.executable, str(EATER), address, str(EATER_PORT), str(NFS_PORT), str(EATER_SOCKET)]
    eater = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert eater.stdout is not None
    if not eater.stdout.readline():
        raise OSError("the reply eater did not start")


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    sys.exit(main())
