"""A real PgBouncer before a server, which can be killed and started again."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.embedded.programs import poll
from tests.conftest import free_port
from tests.support.programs import find_program

START_TIMEOUT_S = 10.0

_CONFIG = """
[databases]
postgres = host=127.0.0.1 port={server_port} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = extra_float_digits
{more}
"""


class Pooler:
    """One PgBouncer on one port, in one pool mode."""

    def __init__(self, server: Server, mode: str, *, more: str = "") -> None:
        self._program = find_program("pgbouncer")
        self._port = free_port()
        self._config = server.folder / "pgbouncer.ini"
        self._log_path = server.folder / "pgbouncer.log"
        self._config.write_text(_CONFIG.format(server_port=server._port, port=self._port, mode=mode, more=more))
        self._config.chmod(0o644)  # whatever the umask: as root it runs as another, who must read this
        self._switch: dict[str, Any] = {}
        if account := server._account:
            self._switch = {"user": account.uid, "group": account.gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                [self._program, self._config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                **self._switch,
            )
        self._process = process
        up = poll(lambda: process.poll() is not None or is_listening(self._port), START_TIMEOUT_S)
        assert up, "pgbouncer did not start in time"
        assert process.poll() is None, self._log_path.read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()  # since 1.23 it takes SIGTERM for a wish to see its clients out
            self._process.wait()


@contextlib.contextmanager
def pgbouncer(server: Server, mode: str, *, more: str = "") -> Iterator[str]:
    """How to connect through a PgBouncer before this server, in this pool mode; ``more`` are further settings."""
    pooler = Pooler(server, mode, more=more)
    try:
        pooler.start()
        yield pooler.dsn
    finally:
        pooler.kill()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
