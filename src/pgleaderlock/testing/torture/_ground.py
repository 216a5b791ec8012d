"""The server under torture, as the conductor sees it: which faults are permitted there, and what is removed afterwards.

A user's own server is touched in these ways only: sessions of our nodes, for one advisory lock with a random name; the
schema of the term table, with the same name, if take-over is strict; and ``pg_terminate_backend`` for the holder of
that lock, which can only be one of our nodes. It is never restarted without a command that says how.
"""

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.errors import ConnectionError, LockError
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres._connector import Connector
from pgleaderlock.postgres.connection import Connection
from pgleaderlock.postgres.doctor import Verdict, examine
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.testing.demo._relay import SOCKET_NAME
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.torture._faulty_relay import FaultyRelay, Target
from pgleaderlock.testing.torture._wall_clock import WallClock

_RESTART_S = 120.0
_ANSWER_S = 10.0
"""The timeout of our own queries, connecting included: a server that fell silent must not keep Ctrl-C waiting."""
_TIDY_TRIES = 60
_TIDY_EVERY_S = 0.5
_OWN_WAY = ("host", "hostaddr", "port", "user", "dbname", "password", "passfile", "target_session_attrs")

_END_HOLDER = """
SELECT a.application_name, pg_terminate_backend(l.pid) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory' AND l.granted AND a.usename = current_user
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid::text::bigint = %s AND l.objid::text::bigint = %s AND l.objsubid = %s
"""


_HOLDERS = _END_HOLDER.replace("pg_terminate_backend(l.pid)", "l.pid")
_END_BACKEND = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE pid = %s AND application_name = %s AND usename = current_user
"""


class Ground:
    """A server: an embedded one of ours, which may be restarted, or a user's."""

    def __init__(
        self,
        dsn: str,
        *,
        server: Server | None = None,
        wall_clock: WallClock | None = None,
        restart_command: str | None = None,
    ) -> None:
        mark = secrets.token_hex(6)
        self.dsn = dsn
        self.role = f"pgleaderlock-torture/{mark}"
        self.schema = f"pgleaderlock_torture_{mark}"
        self.key = LockKey.named(self.role)
        self.where = _dsn.describe(_dsn.check_dsn(dsn)) if server is None else "a server of its own"
        self.version = ""
        self._server = server
        self.wall_clock = wall_clock
        """The wall clock of our own server, if it can be stepped."""
        self._restart_command = restart_command
        self._connector = Connector("the torture", dsn=dsn)
        self._connection: Connection | None = None
        self._parts: dict[str, str] = {}
        self._password = ""
        self.target = Target()

    @property
    def is_ours(self) -> bool:
        """Whether the server exists for this torture only."""
        return self._server is not None

    @property
    def can_restart(self) -> bool:
        """Whether we may restart the server."""
        return self._server is not None or self._restart_command is not None

    async def survey(self, lease_s: float) -> None:
        """Check that an election can be held there, and find its address. ConnectionError or LockError if not."""
        examination = await examine(self.dsn, None, lease_s)
        problems = [each for each in examination.findings if each.verdict is Verdict.PROBLEM]
        if problems:
            lines = "".join(
                f"\n  {each.check}: {each.found}" + (f" -> {each.advice}" * bool(each.advice)) for each in problems
            )
            raise LockError(f"no election can be held on this database, so there is nothing to torture:{lines}")
        connection = await self._connected()
        info = connection.info
        self.version = str(info.parameter_status("server_version") or "")
        self._password = info.password
        self._parts = {**_dsn.check_dsn(self.dsn), "user": info.user, "dbname": info.dbname, "host": info.host}
        if info.host.startswith("/"):
            self.target = Target(path=Path(info.host) / SOCKET_NAME.replace("5432", str(info.port)))
        else:
            self.target = Target(host=info.hostaddr or info.host, port=info.port)

    def dsn_by(self, relay: FaultyRelay) -> str:
        """Return the DSN by which a node connects through its relay, without the password: others could see it."""
        kept = {name: value for name, value in self._parts.items() if name not in _OWN_WAY}
        way = {name: self._parts[name] for name in ("host", "user", "dbname")}
        if relay.folder is not None:
            way["host"] = str(relay.folder)
        else:
            way["hostaddr"] = "127.0.0.1"
        return _dsn.join({**kept, **way, "port": relay.port})

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that a node needs beside its DSN."""
        return {"PGPASSWORD": self._password} if self._password else {}

    # --- Harm ---

    async def end_session(self, kind: str) -> list[str]:
        """End the leader's lock session, its witness session, or both. Return their application names."""
        keys = {"session": [self.key], "witness": [witness_key(self.key)], "both": [self.key, witness_key(self.key)]}
        return [str(row[0]) for key in keys[kind] for row in await self._ask(_END_HOLDER, lock_columns(key))]

    async def find_pair(self) -> list[tuple[str, int]]:
        """Return application name and pid of the leader's lock session and witness session; [] unless both exist."""
        keys = self.key, witness_key(self.key)
        pair = [(str(row[0]), int(row[1])) for key in keys for row in await self._ask(_HOLDERS, lock_columns(key))]
        return pair if len(pair) == len(keys) and pair[0][0] == pair[1][0] else []

    async def end_backend(self, name: str, pid: int) -> bool:
        """End the session of one of our nodes."""
        return bool(await self._ask(_END_BACKEND, (pid, name)))

    async def set_standby(self, *, is_absent: bool) -> None:
        """Make commits wait for a synchronous standby that does not exist, or end that. On our own server only."""
        await self._ask(f"ALTER SYSTEM SET synchronous_standby_names = '{'absent' if is_absent else ''}'")
        await self._ask("SELECT pg_reload_conf()")

    async def restart(self, *, crash: bool) -> None:
        """Restart the server. LockError if it does not come back."""
        if self._server is not None:
            await asyncio.to_thread(self._server.restart, "immediate" if crash else "fast")
            return
        words = shlex.split(str(self._restart_command))
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            raise LockError(f"--restart-command cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_RESTART_S):
                code = await process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        if code:
            raise LockError(f"--restart-command ended with {code}")

    # --- Our own connection ---

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._connector.open(bound_s=_ANSWER_S, survives_errors=True)
        return self._connection

    async def _ask(self, statement: str, values: tuple[int | str, ...] = ()) -> list[Any]:
        """Run a statement and return its rows; none if the server does not answer now, as while it restarts."""
        try:
            return await (await self._connected()).fetch_all(statement, values, bound_s=_ANSWER_S)
        except ConnectionError:
            return []

    @contextlib.asynccontextmanager
    async def tidied(self, *, has_schema: bool) -> AsyncIterator[None]:
        """Drop our schema at the end of the block, and close the connection."""
        try:
            yield
        finally:
            if has_schema and not self.is_ours:
                await self._drop_schema()
            await self.close()

    async def close(self) -> None:
        """Close the connection of the conductor."""
        if self._connection is not None:
            await self._connection.close()

    async def _drop_schema(self) -> None:
        why_not = ""
        gives_up_at = clock() + _TIDY_TRIES * _TIDY_EVERY_S
        for _ in range(_TIDY_TRIES):
            try:
                connection = await self._connected()
                await connection.fetch(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE", bound_s=_ANSWER_S)
            except ConnectionError as why:
                why_not = str(why)
                if clock() > gives_up_at:
                    break
                await asyncio.sleep(_TIDY_EVERY_S)
            else:
                return
        raise LockError(
            f"the schema of the torture could not be removed ({why_not}): DROP SCHEMA {self.schema} CASCADE"
        ) from None
