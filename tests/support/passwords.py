"""A real server whose role ``app`` logs in with a password, which tests change."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from pgleaderlock.testing.embedded import Server
from tests.conftest import free_port
from tests.support.servers import QuickServer

_RULES = "local all app scram-sha-256\nhost all app all scram-sha-256\nlocal all all trust\nhost all all all trust\n"


class GuardedServer:
    """A PostgreSQL that asks ``app`` for a password, and trusts its superuser."""

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port, self.admin_dsn = server, port, server.dsn
        self._changing = threading.Lock()
        self.password = ""
        self.asked = 0
        (server.data / "pg_hba.conf").write_text(_RULES)
        self.run("SELECT pg_reload_conf()")
        self.run("CREATE ROLE app LOGIN")
        self.run("GRANT ALL ON DATABASE postgres TO app")
        self.change()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}/postgres"

    def url(self, scheme: str = "postgresql") -> str:
        """Return a URL with the password, as a library would be given it."""
        return f"{scheme}://app:{quote(self.password, safe='')}@{self.place}"

    @property
    def bare_url(self) -> str:
        return f"postgresql://app@{self.place}"

    def run(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.admin_dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def change(self, password: str | None = None) -> str:
        """Give the role another password: the one before is refused from now on."""
        with self._changing:
            self.password = password or f"p@ss w/rd:{secrets.token_hex(8)}%?"
            statement = sql.SQL("ALTER ROLE app PASSWORD {}").format(sql.Literal(self.password))
            with psycopg.connect(self.admin_dsn, autocommit=True) as connection:
                connection.execute(statement)
            return self.password

    def one_time_password(self) -> str:
        """Return a new password, after which no earlier one is accepted: a session that did not ask is refused."""
        self.asked += 1
        return self.change()

    def end_sessions(self) -> int:
        """End all sessions of the role, and return how many there were."""
        return len(self.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"))


@contextmanager
def guarded_server(root: Path) -> Iterator[GuardedServer]:
    port = free_port()
    server = QuickServer(root / f"guarded-{port}", tcp_port=port)
    server.start()
    try:
        yield GuardedServer(server, port)
    finally:
        server.stop("immediate")
