"""A client that talks to the leader, and follows it from process to process.

Started with a port, this is a candidate that serves HTTP there, and advertises that address:

    PG_DSN=postgresql://... python examples/follow_the_leader.py 8081
    PG_DSN=postgresql://... python examples/follow_the_leader.py 8082

Started without, it is a client: it takes no part, watches who leads, and sends each new leader a request.
"""

import asyncio
import os
import sys

from pgleaderlock import LeaderLock
from pgleaderlock.stores.watching import LeaderUnknown, watch_leader

DSN, ROLE = os.environ["PG_DSN"], "examples/follow-the-leader"
REFUSED = "this process does not lead"


async def serve(port: int) -> None:
    """Take part, and answer whether this process leads."""
    lock = LeaderLock(DSN, role=ROLE, address=f"http://127.0.0.1:{port}")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # The client's knowledge may be old: what counts is whether this process leads now.
        leads = lock.is_leader
        status, text = ("200 OK", f"process {os.getpid()} leads") if leads else ("503 No leader", REFUSED)
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port), lock:
        print("serving", flush=True)
        await asyncio.Event().wait()


async def follow() -> None:
    """Send each leader a request."""
    async for leader in watch_leader(DSN, ROLE):
        if isinstance(leader, LeaderUnknown):
            print("unknown:", leader.error, flush=True)
        elif leader is None or leader.address is None:
            print("no leader", flush=True)
        else:
            print(await ask_until_it_leads(leader.address), flush=True)


async def ask_until_it_leads(address: str) -> str:
    """Ask again for a second: a new leader is shown some milliseconds before its term begins."""
    answer = await ask(address)
    for _ in range(20):
        if not answer.endswith(REFUSED):
            break
        await asyncio.sleep(0.05)
        answer = await ask(address)
    return answer


async def ask(address: str) -> str:
    """Send one request. A program of yours has an HTTP client for this."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError as error:
        return f"{address} is not reached: {error}"
    writer.write(b"GET / HTTP/1.1\r\nHost: leader\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.decode().rpartition("\r\n")[2]


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])) if len(sys.argv) > 1 else follow())
