"""Candidates for one lock, each in a process of its own that was forked from this one.

    PYTHONPATH=/path/to/src python proofs/succession_members.py

Each line of its input is a JSON object, :func:`contend` takes it: one candidate more. With such an object as its
argument it is one candidate itself, which ends with its input. A candidate writes
``born PID NAME``, and ``leads PID TIME TOKEN NAME`` for each of its terms; it steps down on SIGUSR1 and releases and
ends on SIGTERM. All of them end with this process.

It runs with any version of the library since 0.1.0: of the library it uses public names only, and it writes the claims
to lead with the module that stands beside it in the present tree.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

import pgleaderlock
from pgleaderlock import FixedInterval, LeaderLock, LockKey

_CLAIM = Path(__file__).parents[1] / "src" / "pgleaderlock" / "testing" / "_claim.py"
_SAMPLE_IDLE_S = 0.001


def clock() -> float:
    """Read the machine's one clock, as the library's own suspend-aware clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece, so that lines of several processes do not mix


def _sample(lock: LeaderLock, path: str) -> None:
    spec = importlib.util.spec_from_file_location("claim", _CLAIM)
    assert spec is not None
    assert spec.loader is not None
    claim = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(claim)
    ask = partial(claim.sample_forever, lambda: lock.token, Path(path), clock, _SAMPLE_IDLE_S)
    threading.Thread(target=ask, daemon=True).start()


def _connect_through(dsn: str, second_dsn: str) -> Any:
    """Return a factory of connections: the first one is direct, later ones go the other way."""
    is_first = True

    async def connect() -> psycopg.AsyncConnection[Any]:
        nonlocal is_first
        chosen, is_first = dsn if is_first else second_dsn, False
        return await psycopg.AsyncConnection.connect(chosen, autocommit=True)

    return connect


async def contend(
    lifeline: int,
    *,
    name: str,
    dsn: str,
    key: str,
    path: str,
    retry_s: float,
    lease_s: float,
    second_dsn: str = "",
    wake: str = "",
    settings: dict[str, Any] | None = None,
) -> None:
    """Take part until SIGTERM, or until the process that forks is gone."""
    more = dict(settings or {})
    if wake:
        from pgleaderlock.options import LockOptions

        more["options"] = LockOptions(wake=wake)  # type: ignore[arg-type] # one of its words
    if second_dsn:
        more["connect_fn"] = _connect_through(dsn, second_dsn)
    lock = LeaderLock(
        dsn,
        key=LockKey.parse(key),
        retry_strategy=FixedInterval(retry_s),
        lease_s=lease_s,
        health_interval_s=lease_s / 3,
        settle_s=0,
        **more,
    )
    loop, over, tasks = asyncio.get_running_loop(), asyncio.Event(), set()
    lock.on_acquired(lambda: _say(f"leads {os.getpid()} {clock()} {lock.token or 0} {name}"))
    _sample(lock, path)
    loop.add_reader(lifeline, over.set)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.add(loop.create_task(lock.step_down())))
    _say(f"born {os.getpid()} {name}")
    async with lock:
        await over.wait()


def main() -> None:
    """Be a candidate, or fork one for each line."""
    if len(sys.argv) > 1:
        asyncio.run(contend(sys.stdin.fileno(), **json.loads(sys.argv[1])))
        return
    lifeline, held = os.pipe()  # at an end when this process is gone, however that went
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # this process waits for none of them
    _say(f"ready {pgleaderlock.__file__}")
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                os.close(held)
                with contextlib.suppress(asyncio.CancelledError):
                    asyncio.run(contend(lifeline, **json.loads(line)))
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(0)


if __name__ == "__main__":
    main()
