"""What a second host sees, and when: measured, for the decisions of a lock on NFS.

    python tools/nfs_hosts.py run -- python -m proofs.nfs_guest_facts           about two minutes
    python tools/nfs_hosts.py run --timeout-s 900 -- python -m proofs.nfs_guest_facts --slow    with the long waits

Each line is a fact, for NFSv3 and for NFSv4.2, with the default mount options. Host A changes something, B
has looked before and looks again. "same tick" says that the server's clock, which stamps files, gave the change the
same time as the one before, which B had seen: 10 ms with this kernel, 1 to 10 with others. What happened at another
time happened 50 ms later.
"""

import argparse
import errno
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.nfs_guest import EXPORT, HOSTS, V3, V4, Host, cut_off, seconds_until

TIMES = 5
LATEST_S = 65.0  # acdirmax, and a little
WRITTEN_OUT_S = 4.0  # the server keeps a file open for a while after a write, and delegates nothing meanwhile

_HELPERS = """
def put(path, data=b"one", flags=os.O_WRONLY | os.O_CREAT):
    file = os.open(path, flags, 0o666)
    os.write(file, data)
    os.close(file)

def get(path):
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 100), os.fstat(file)[1:9]
    finally:
        os.close(file)

def outcome(do, *arguments, **keywords):
    try:
        do(*arguments, **keywords)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"

import errno
"""


class Stage:
    """The two hosts, and the folder in which the next fact is looked for: claims, and epochs up to e.4, A's."""

    def __init__(self, a: Host, b: Host, root: str) -> None:
        self.a, self.b, self._root = a, b, root
        self._count = 0
        self.folder = Path(root)

    def anew(self) -> None:
        self._count += 1
        self.folder = Path(self._root, f"{Path(self._root).name}-{self._count}")
        self.on_a("os.mkdir('{d}')")
        self.on_a("put('{d}/claim-a')")
        self.on_a("os.link('{d}/claim-a', '{d}/e.4')")
        self.on_b("put('{d}/claim-b')")

    def on_a(self, source: str) -> Any:
        return self.a(source.format(d=self.folder))

    def on_b(self, source: str) -> Any:
        return self.b(source.format(d=self.folder))

    def change(self, before: str, change: str, *, in_same_tick: bool) -> None:
        """Have B look in a new folder, and then A change it."""
        at_server = Path(EXPORT)
        for _ in range(200):
            self.anew()
            at_server = Path(EXPORT, self.folder.name)
            self.on_a("os.link('{d}/claim-a', '{d}/other')")
            time.sleep(0 if in_same_tick else 0.05)
            self.on_b(before)
            stamp = at_server.stat().st_mtime_ns
            time.sleep(0 if in_same_tick else 0.05)
            self.on_a(change)
            if not in_same_tick or at_server.stat().st_mtime_ns == stamp:
                return
        raise AssertionError("the server's clock is finer than a message takes")


Fact = Callable[[Stage], object]
LINK = "os.link('{d}/claim-a', '{d}/e.5')"
LOOKED = "(os.listdir('{d}'), outcome(os.stat, '{d}/e.5'))"


def listed(after: str, *, in_same_tick: bool) -> Fact:
    """Whether e.5 is in B's listing, after something that B does first."""

    def fact(stage: Stage) -> object:
        seen = 0
        for _ in range(TIMES):
            stage.change("os.listdir('{d}')", LINK, in_same_tick=in_same_tick)
            stage.on_b(after)
            seen += stage.on_b("'e.5' in os.listdir('{d}')")
        return f"{seen} of {TIMES}"

    return fact


def told(source: str, *, in_same_tick: bool = False, change: str = LINK) -> Fact:
    """What B's first attempt gives."""

    def fact(stage: Stage) -> object:
        stage.change(LOOKED, change, in_same_tick=in_same_tick)
        return stage.on_b(source)

    return fact


def late(before: str, change: str, seen: str) -> Fact:
    """After how many seconds B sees it."""

    def fact(stage: Stage) -> object:
        stage.change(before, change, in_same_tick=False)
        seconds = seconds_until(stage.b, seen.format(d=stage.folder), LATEST_S)
        return f"not in {LATEST_S:g} s" if seconds is None else f"{seconds:.1f} s"

    return fact


def takes(source: str) -> Fact:
    """How long it takes A, the median."""

    def fact(stage: Stage) -> object:
        stage.anew()
        times = []
        for number in range(50):
            stage.a(source.format(d=stage.folder, n=number))
            times.append(stage.a.took_s)
        return f"{statistics.median(times) * 1000:.2f} ms"

    return fact


def unlinked_under_a(source: str) -> Fact:
    """What A can do with a file that it has open, and that B has removed."""

    def fact(stage: Stage) -> object:
        stage.anew()
        stage.on_a("file = os.open('{d}/claim-a', os.O_RDWR)\n")
        stage.on_b("(os.unlink('{d}/e.4'), os.unlink('{d}/claim-a'))")
        time.sleep(WRITTEN_OUT_S)
        try:
            return stage.on_a(source)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        finally:
            stage.on_a("outcome(os.close, file)")

    return fact


def beat_with_a_reader_cut_off(*, is_kept_open: bool) -> Fact:
    """How long A's heartbeat takes when B had read it, and then lost its network."""

    def fact(stage: Stage) -> object:
        stage.anew()
        if is_kept_open:
            stage.on_a("file = os.open('{d}/claim-a', os.O_RDWR)\n")
        time.sleep(WRITTEN_OUT_S)
        for _ in range(3):
            stage.on_b("get('{d}/e.4')")
        with cut_off(stage.b.name):
            stage.on_a("os.utime('{d}/claim-a')")
        return f"{stage.a.took_s:.1f} s"

    return fact


APPEND = "put('{d}/claim-a', b'+', os.O_WRONLY | os.O_APPEND)"
REPLACE = "(put('{d}/new', b'new'), os.rename('{d}/new', '{d}/e.4'))"
FACTS: dict[str, Fact] = {
    "link takes": takes("os.link('{d}/claim-a', '{d}/n.{n}')"),
    "open, fstat, close takes": takes("get('{d}/claim-a')"),
    "utime takes": takes("os.utime('{d}/claim-a')"),
    "write, fsync takes": takes("put('{d}/claim-a')"),
    "link, listdir takes": takes("(os.link('{d}/claim-a', '{d}/n.{n}'), os.listdir('{d}'))"),
    "A links e.5: in B's listdir": listed("0", in_same_tick=False),
    "the same in the same tick": listed("0", in_same_tick=True),
    "... after stat of the folder": listed("os.stat('{d}')", in_same_tick=True),
    "... after open of e.5": listed("outcome(os.open, '{d}/e.5', 0)", in_same_tick=True),
    "... after a link that failed at e.5": listed("outcome(os.link, '{d}/claim-b', '{d}/e.5')", in_same_tick=True),
    "... after a link that failed at e.4": listed("outcome(os.link, '{d}/claim-b', '{d}/e.4')", in_same_tick=True),
    "... after a link of its own": listed("os.link('{d}/claim-b', '{d}/e.6')", in_same_tick=True),
    "... after making and removing a file": listed("(put('{d}/t'), os.unlink('{d}/t'))", in_same_tick=True),
    "... after a rename of its own": listed("os.rename('{d}/claim-b', '{d}/claim-c')", in_same_tick=True),
    "... after utime of the folder": listed("os.utime('{d}')", in_same_tick=True),
    "B's link to e.5": told("outcome(os.link, '{d}/claim-b', '{d}/e.5')"),
    "the same in the same tick ": told("outcome(os.link, '{d}/claim-b', '{d}/e.5')", in_same_tick=True),
    "B's link to e.4, which A removed": told(
        "outcome(os.link, '{d}/claim-b', '{d}/e.4')", change="os.unlink('{d}/e.4')"
    ),
    "B's open of e.5, which was not there": told("outcome(os.open, '{d}/e.5', 0)"),
    "... after listdir": told("(os.listdir('{d}'), outcome(os.open, '{d}/e.5', 0))[1]"),
    "... after listdir, in the same tick": told(
        "(os.listdir('{d}'), outcome(os.open, '{d}/e.5', 0))[1]", in_same_tick=True
    ),
    "... after a file of its own and listdir": told(
        "(put('{d}/t'), os.listdir('{d}'), outcome(os.open, '{d}/e.5', 0))[2]", in_same_tick=True
    ),
    "A appends: open, fstat sees it after": late("get('{d}/e.4')", APPEND, "get('{d}/e.4')[0] == b'one+'"),
    "stat sees it after": late("os.stat('{d}/e.4')", APPEND, "os.stat('{d}/e.4').st_size == 4"),
    "fstat of a held file sees it after": late(
        "globals().update(held=os.open('{d}/e.4', 0))", APPEND, "os.fstat(held).st_size == 4"
    ),
    "both names agree": told("get('{d}/e.4') == get('{d}/claim-a')", change=APPEND),
    "B unlinked it: A's fstat": unlinked_under_a("os.fstat(file)[3]"),
    "B unlinked it: A's write and fsync": unlinked_under_a("(os.pwrite(file, b'x', 0), os.fsync(file))"),
}
SLOW_FACTS: dict[str, Fact] = {
    "B's open of e.5, which was not there, sees it after": late(LOOKED, LINK, "outcome(os.open, '{d}/e.5', 0) == 'ok'"),
    "A replaces e.4, also named claim-a: open sees it after": late(
        "get('{d}/e.4')", REPLACE, "get('{d}/e.4')[0] == b'new'"
    ),
    "utime takes, a reader being cut off": beat_with_a_reader_cut_off(is_kept_open=False),
    "... while A keeps the file open for writing": beat_with_a_reader_cut_off(is_kept_open=True),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", action="store_true")
    facts = {**FACTS, **SLOW_FACTS} if parser.parse_args().slow else FACTS
    with Host(HOSTS[0]) as a, Host(HOSTS[1]) as b:
        for host in (a, b):
            host(_HELPERS)
        stages = [Stage(a, b, root) for root in (V3, V4)]
        for name, fact in facts.items():
            answers = [str(fact(stage)) for stage in stages]
            sys.stdout.write(f"{name:56} {answers[0]:24} {answers[1]}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
