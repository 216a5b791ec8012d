"""A leader whose password is in a file that another program rewrites, such as a secret that is mounted.

    DATABASE_URL=postgresql://app@db/app PASSWORD_FILE=/run/secrets/app python examples/rotated_password.py

The file is read for each new session. A session that is open stays so when the password changes.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from pgleaderlock import LeaderLock


def read_password() -> str:
    """Return the password that is valid now. Runs in a thread: it may block."""
    return Path(os.environ["PASSWORD_FILE"]).read_text(encoding="utf-8").strip()


lock = LeaderLock(os.environ["DATABASE_URL"], role="examples/rotated-password", password=read_password)


@lock.on_acquired
def begin() -> None:
    """Say so, in each term."""
    print(f"process {os.getpid()} leads with token {lock.token}", flush=True)


async def main() -> None:
    """Take part until a signal comes."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    async with lock:
        await over.wait()
    print("stopped", flush=True)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
