"""The least that a candidate of each store can be, with neither lease nor engine: what a hand-over costs by itself.

python bench/bare_candidate.py empty                an event loop that waits for a signal
python bench/bare_candidate.py file PATH            a blocking flock, then a record that is written and synced
python bench/bare_candidate.py rows DSN             LISTEN, then one UPDATE; on SIGTERM one UPDATE with a NOTIFY
python bench/bare_candidate.py lease NAMESPACE NAME a watch, then one PUT; on SIGTERM one PUT

It prints "waiting" and "acquired", and on SIGUSR1 how often its threads have waited, as ``candidate.py`` does.
"""

import asyncio
import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import psycopg

from candidate import answer_signals, run, say
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.api import LeaseObject
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import read_kubeconfig

_MAKE = "CREATE TABLE IF NOT EXISTS bare_leases (role text PRIMARY KEY, holder text, version uuid)"
_FIRST = "INSERT INTO bare_leases VALUES ('bare', '', gen_random_uuid()) ON CONFLICT DO NOTHING"
_TAKE = "UPDATE bare_leases SET holder = %s, version = gen_random_uuid() WHERE role = 'bare' AND holder = ''"
_FREE = """
UPDATE bare_leases SET holder = '', version = gen_random_uuid() WHERE role = 'bare'
RETURNING pg_notify('bare_leases', 'bare')
"""


async def empty(stop: asyncio.Event) -> None:
    say("waiting")
    await stop.wait()


async def file(stop: asyncio.Event, path: str) -> None:
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    say("waiting")
    await asyncio.to_thread(fcntl.flock, number, fcntl.LOCK_EX)
    await asyncio.to_thread(_write_record, Path(f"{path}.record"))
    say("acquired")
    await stop.wait()
    os.close(number)


def _write_record(record: Path) -> None:
    """Replace the record, and sync what a power cut must not undo."""
    draft = record.with_name(f"{record.name}.{secrets.token_hex(4)}")
    with draft.open("w") as text:
        text.write("{}")
        text.flush()
        os.fsync(text.fileno())
    draft.replace(record)
    folder = os.open(record.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


async def rows(stop: asyncio.Event, dsn: str) -> None:
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as listener,
    ):
        await connection.execute(_MAKE)
        await connection.execute(_FIRST)
        await listener.execute("LISTEN bare_leases")
        say("waiting")
        while (await connection.execute(_TAKE, (str(os.getpid()),))).rowcount == 0:
            async for _ in listener.notifies(stop_after=1):
                pass
        say("acquired")
        await stop.wait()
        await connection.execute(_FREE)


async def lease(stop: asyncio.Event, namespace: str, name: str) -> None:
    client = HttpLeaseClient(read_kubeconfig(Path(os.environ["KUBECONFIG"])))
    say("waiting")
    while True:
        held = await _take(client, namespace, name)
        if held is not None:
            break
    say("acquired")
    await stop.wait()
    held["spec"]["holderIdentity"] = ""
    await client.replace(namespace, name, held)
    await client.close()


async def _take(client: HttpLeaseClient, namespace: str, name: str) -> LeaseObject | None:
    """Watch the Lease until it is free, and replace it; None when another candidate was first."""
    found = await client.get(namespace, name)
    if found["spec"].get("holderIdentity"):
        async for event in client.watch(namespace, name, found["metadata"]["resourceVersion"]):
            found = event["object"]
            if not found["spec"].get("holderIdentity"):
                break
    found["spec"]["holderIdentity"] = str(os.getpid())
    try:
        return await client.replace(namespace, name, found)
    except ConnectionError:
        return None  # a conflict


SIDES: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    "empty": empty,
    "file": file,
    "rows": rows,
    "lease": lease,
}


async def main(side: str, *arguments: str) -> None:
    await SIDES[side](answer_signals(), *arguments)


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
