"""Proof that the hosts of ``tools/nfs_hosts.py`` are what tests need, in about half a minute:

    python tools/nfs_hosts.py run -- python -m proofs.nfs_guest_smoke

Each function is one proof, made with NFSv3 and with NFSv4.2; the first that fails ends it with its AssertionError.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.nfs_guest import EATER, EXPORT, FAULTY_HOST, HOSTS, V3, V4, Host, cut, errno_of, restore
from tests.support.nfs_reply_eater import Eater

ROUNDS = 100

_HELPERS = """
def link_at(when, old, new):
    while time.monotonic() < when:
        pass
    try:
        os.link(old, new)
    except FileExistsError:
        return False
    return True

def make(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
"""


def hosts_are_two(a: Host, b: Host, folder: Path) -> str:
    """Names and boot ids differ; the folder is one."""
    names = [host("socket.gethostname()") for host in (a, b)]
    boots = [host("open('/proc/sys/kernel/random/boot_id').read()") for host in (a, b)]
    assert names == HOSTS
    assert boots[0] != boots[1]
    a(f"make({str(folder / 'seen')!r})")
    assert b(f"os.path.exists({str(folder / 'seen')!r})")
    return " and ".join(names)


def links_have_one_winner(a: Host, b: Host, folder: Path) -> str:
    """Of two links to one name, made at one time, one succeeds; the name is the winner's."""
    won = [0, 0]
    for name, host in (("a", a), ("b", b)):
        host(f"make({str(folder / name)!r})")
    for number in range(ROUNDS):
        when = time.monotonic() + 0.01
        target = folder / f"e.{number}"
        for name, host in (("a", a), ("b", b)):
            host.send(f"link_at({when!r}, {str(folder / name)!r}, {str(target)!r})")
        winners = [host.receive() for host in (a, b)]
        assert sum(winners) == 1, f"round {number}: {winners}"
        at_server = Path(EXPORT, folder.name)
        assert (at_server / target.name).samefile(at_server / "ab"[winners.index(True)])
        won[winners.index(True)] += 1
    return f"{ROUNDS} rounds, {won[0]} to {won[1]}"


def a_cut_host_waits(a: Host, b: Host, folder: Path) -> str:
    """Without its cable a host's link waits, and the other's does not; with it, the waiting one is too late."""
    for name, host in (("a", a), ("b", b)):
        host(f"make({str(folder / name)!r})")
    cut(b.name)
    b.send(f"os.link({str(folder / 'b')!r}, {str(folder / 'e.1')!r})")
    time.sleep(0.5)
    a(f"os.link({str(folder / 'a')!r}, {str(folder / 'e.1')!r})")
    assert a.took_s < 0.4
    restore(b.name)
    try:
        b.receive()
    except FileExistsError:
        return f"EEXIST after {b.took_s:.1f} s"
    raise AssertionError("two links were made to one name")


def a_link_outlives_its_process(a: Host, b: Host, folder: Path) -> str:
    """A link that a killed process had begun while it was cut off is made when the cable is back."""
    with Host(b.name) as doomed:
        doomed(_HELPERS)
        doomed(f"make({str(folder / 'b')!r})")
        doomed(f"os.listdir({str(folder)!r})")  # or the request that waits would be one that asks about the folder
        cut(b.name)
        doomed.send(f"os.link({str(folder / 'b')!r}, {str(folder / 'e.1')!r})")
        time.sleep(0.5)
        os.kill(doomed.pid, signal.SIGKILL)
    made = Path(EXPORT, folder.name, "e.1")
    assert not made.exists()
    began = time.monotonic()
    restore(b.name)
    while not made.exists():
        assert time.monotonic() < began + 10, "this kernel took the request back: good, and new"
        time.sleep(0.01)
    return f"{time.monotonic() - began:.1f} s after it"


def a_lost_reply(a: Host, b: Host, folder: Path) -> str:
    """The server carries a link out twice for NFSv3, if it remembers nothing; NFSv4.1 has sessions, which remember."""
    found = []
    with Host(FAULTY_HOST) as host:
        host(_HELPERS)
        for verb in ("eat", "repeat"):
            old, new = str(folder / verb), str(folder / f"{verb}.linked")
            host(f"make({old!r})")
            with Eater(EATER, f"{verb} LINK") as eater:
                host.send(f"os.link({old!r}, {new!r})")
                eater.wait_for("eaten")
                try:
                    host.receive()
                    found.append(0)
                except OSError as error:
                    found.append(error.errno or -1)
            assert host(f"os.stat({old!r}).st_nlink") == 2
    assert found == ([errno.EEXIST, 0] if str(folder).startswith(V3) else [0, 0])
    return " and ".join(errno.errorcode.get(each, "success") for each in found)


def a_late_request(a: Host, b: Host, folder: Path) -> str:
    """A link arrives when others have long decided, and its sender is dead."""
    old, new = str(folder / "f"), str(folder / "e.1")
    with Host(FAULTY_HOST) as host, Eater(EATER, "hold LINK") as eater:
        host(_HELPERS)
        host(f"make({old!r})")
        host.send(f"os.link({old!r}, {new!r})")
        eater.wait_for("held")
        os.kill(host.pid, signal.SIGKILL)
        assert errno_of(a, f"os.stat({new!r})") == errno.ENOENT
        eater.release()
        time.sleep(0.2)
    assert Path(EXPORT, folder.name, "e.1").exists()
    return "made all the same"


def stopping_works(a: Host, b: Host, folder: Path) -> str:
    """A frozen process does nothing, and then goes on."""
    os.kill(a.pid, signal.SIGSTOP)
    a.send("time.monotonic()")
    time.sleep(0.3)
    thawed = time.monotonic()
    os.kill(a.pid, signal.SIGCONT)
    assert a.receive() >= thawed
    return "SIGSTOP and SIGCONT"


PROOFS: list[Callable[[Host, Host, Path], str]] = [
    hosts_are_two,
    links_have_one_winner,
    a_cut_host_waits,
    a_link_outlives_its_process,
    a_lost_reply,
    a_late_request,
    stopping_works,
]


def main() -> None:
    with Host(HOSTS[0]) as a, Host(HOSTS[1]) as b:
        for host in (a, b):
            host(_HELPERS)
        for proof in PROOFS:
            for root in (V3, V4):
                folder = Path(root, f"{proof.__name__}-{Path(root).name}")
                a(f"os.mkdir({str(folder)!r})")
                found = proof(a, b, folder)
                sys.stdout.write(f"{Path(root).name} {proof.__name__.replace('_', ' ')}: {found}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
