"""``--metrics-port``: serve the metrics of one election while it runs."""

import contextlib
import os
import socket
from collections.abc import Iterator

import click

from pgleaderlock.engine.election import Election


@contextlib.contextmanager
def served_metrics(election: Election, role: str, port: int | None) -> Iterator[None]:
    """Serve the metrics of this election on loopback, if a port was named."""
    if port is None:
        yield
        return
    from pgleaderlock.ops.metrics import Metrics, serve_metrics  # noqa: PLC0415 - it needs an extra of its own

    Metrics().watch(election, role=role, node=f"{socket.gethostname()}:{os.getpid()}")
    try:
        server = serve_metrics(port)
    except OSError as error:
        raise click.UsageError(f"--metrics-port {port}: {error.strerror}") from error
    click.echo(f"metrics: http://127.0.0.1:{server.port}/metrics", err=True)
    with server:
        yield
