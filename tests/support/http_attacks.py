"""Four ways in which an HTTP client attacks a node, as a process of its own, on this machine only.

    python -m tests.support.http_attacks KIND PORT SECONDS [COUNT]

``idle`` opens connections and sends nothing; ``unfinished`` sends a byte of a request now and then, half of them in the
headers and half in a body; ``streams`` opens event streams and reads them; ``connects`` opens connections at a rate and
closes each after a moment. What the server closes is opened again. ``COUNT`` is how many at once, or per second.
"""

import contextlib
import resource
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

KINDS = {"idle": 1100, "unfinished": 1100, "streams": 1000, "connects": 2000}
"""Each kind, and how many connections at once, or connects per second."""

_HEAD = b"GET /events HTTP/1.1\r\nHost: localhost\r\n"
_UNFINISHED = (
    _HEAD + b"X-Slow: ",
    b"POST /api/step-down HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n",
)
_HELLOS: dict[str, tuple[bytes, ...]] = {"idle": (b"",), "unfinished": _UNFINISHED, "streams": (_HEAD + b"\r\n",)}
_TICK_S = 0.01
_DRIP_EVERY_S = 1.0
_OPENED_PER_TICK = 20  # 2,000 a second: the attacker must not wear out the machine
_CONNECT_LIVES_S = 0.05


def _connect(port: int) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
    return client


def _ticks(seconds: float) -> Iterator[float]:
    began = time.monotonic()
    next_at = began
    while (now := time.monotonic()) < began + seconds:
        yield now
        next_at = max(next_at + _TICK_S, now)
        time.sleep(max(0.0, next_at - time.monotonic()))


@dataclass
class Swarm:
    """Many connections that are kept open."""

    port: int
    count: int
    hellos: tuple[bytes, ...]
    drip: bytes
    opened: int = 0
    closed: int = 0
    _poll: select.epoll = field(default_factory=select.epoll)
    _open: dict[int, socket.socket] = field(default_factory=dict)

    def attack(self, seconds: float) -> None:
        hellos, dripped_at = cycle(self.hellos), time.monotonic()
        for now in _ticks(seconds):
            for _ in range(min(_OPENED_PER_TICK, self.count - len(self._open))):
                self._begin(next(hellos))
            for number, events in self._poll.poll(0):
                self._hear(number, events)
            if self.drip and now - dripped_at > _DRIP_EVERY_S:
                dripped_at = now
                for client in list(self._open.values()):
                    with contextlib.suppress(OSError):
                        client.send(self.drip)

    def _begin(self, hello: bytes) -> None:
        client = _connect(self.port)
        if hello:
            # A full queue of the server's leaves the connection half open; the kernel takes it from here.
            with contextlib.suppress(OSError):
                client.send(hello)
        self._open[client.fileno()] = client
        self._poll.register(client.fileno(), select.EPOLLIN)
        self.opened += 1

    def _hear(self, number: int, events: int) -> None:
        try:
            is_over = not self._open[number].recv(65536)
        except BlockingIOError:
            is_over = False
        except OSError:
            is_over = True
        if is_over or events & (select.EPOLLHUP | select.EPOLLERR):
            self._poll.unregister(number)
            self._open.pop(number).close()
            self.closed += 1


def _attack_with_connects(port: int, per_second: int, seconds: float) -> int:
    clients: deque[tuple[float, socket.socket]] = deque()
    opened, began = 0, time.monotonic()
    for now in _ticks(seconds):
        for _ in range(min(100, int((now - began) * per_second) - opened)):
            clients.append((now, _connect(port)))
            opened += 1
        while clients and now - clients[0][0] > _CONNECT_LIVES_S:
            clients.popleft()[1].close()
    return opened


def main(kind: str, port: str, seconds: str, count: str = "") -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    number = int(count) if count else KINDS[kind]
    sys.stdout.write("attacking\n")
    sys.stdout.flush()
    if kind == "connects":
        sys.stdout.write(f"opened {_attack_with_connects(int(port), number, float(seconds))}\n")
        return
    swarm = Swarm(int(port), number, _HELLOS[kind], b"x" if kind == "unfinished" else b"")
    swarm.attack(float(seconds))
    sys.stdout.write(f"opened {swarm.opened} closed {swarm.closed}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
