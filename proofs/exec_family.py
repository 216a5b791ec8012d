"""A command that does not want to end: it ignores signals, its relatives leave the group, and all of it floods stdout.

    python -I -S proofs/exec_family.py FOLDER

The whole family inherits one open file, locked with flock(2): the kernel frees that lock when the last of them is dead,
wherever they went. So a successor that cannot lock the file at its start has found one of them alive. What it finds
goes into ``FOLDER/ledger``, a line per start: the token, its pid, the time, and ``alone`` or ``OVERLAP``.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable

# Whatever is broken, nothing of this outlives its test for long.
ENDS_AT = time.monotonic() + 90


def fork_into(work: Callable[[], None]) -> None:
    if os.fork() == 0:
        try:
            work()
        finally:
            os._exit(0)


def flood() -> None:
    while time.monotonic() < ENDS_AT:
        with contextlib.suppress(OSError):
            os.write(1, b"more and more\n" * 5000)  # which blocks as soon as its reader is gone


def leave() -> None:
    """Be in another session, without a parent."""
    os.setsid()
    fork_into(sleep)


def sleep() -> None:
    while time.monotonic() < ENDS_AT:
        time.sleep(1)


def comet() -> None:
    """Change the process id every few milliseconds, in a group of its own."""
    while time.monotonic() < ENDS_AT:
        time.sleep(0.005)
        os.setpgid(0, 0)
        if os.fork() != 0:
            os._exit(0)


def main(folder: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    alive = os.open(f"{folder}/alive", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = "alone"
    except BlockingIOError:
        found = "OVERLAP"
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    for work in (flood, leave, sleep, comet):
        fork_into(work)
    line = f"{os.environ['PGLEADERLOCK_TOKEN']} {os.getpid()} {began} {found}\n"
    with open(f"{folder}/ledger", "a") as ledger:  # noqa: PTH123 - quick to start
        ledger.write(line)
    sleep()


if __name__ == "__main__":
    main(sys.argv[1])
