"""The HTTP server for scrapes: the application of ``prometheus_client``, served as the dashboard is."""

from typing import Final, Self

from prometheus_client import REGISTRY, CollectorRegistry, make_asgi_app

from pgleaderlock._base.checks import check_int
from pgleaderlock.ops.http import HttpServer, limits_for, listen

_MOST_CONNECTIONS: Final = 64  # a few Prometheus servers; each answer is held in memory as a whole


class MetricsServer:
    """An HTTP server for Prometheus to scrape, on a thread of its own. Also a context manager."""

    def __init__(self, port: int, host: str, registry: CollectorRegistry) -> None:
        listening = listen(host, port)
        self._server = HttpServer(make_asgi_app(registry), listening, limits_for(_MOST_CONNECTIONS), name="metrics")
        self._server.start()

    @property
    def port(self) -> int:
        """The port on which it listens, also if any free one was asked for."""
        return self._server.port

    def close(self) -> None:
        """Stop listening. Takes up to half a second, so on an event loop ``await asyncio.to_thread(server.close)``."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_metrics(port: int, host: str = "127.0.0.1", registry: CollectorRegistry | None = None) -> MetricsServer:
    """Serve a registry, by default the global one, over HTTP. Port 0 is a free one.

    Its thread answers while the event loop is busy or stuck. There is no password and no TLS: every client
    that reaches ``host`` can read all that is registered, so by default it is reachable from this machine only.
    """
    check_int("port", port, 0, 65535)
    if not host:
        raise ValueError("host must not be empty, which would be every address of this machine: that is '0.0.0.0'")
    return MetricsServer(port, host, REGISTRY if registry is None else registry)
