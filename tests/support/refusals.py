"""What tests of refusals share with others."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.embedded.programs import run_program
from tests.conftest import free_port

ADVISORY_LOCKS = "SELECT pid, classid, objid, granted FROM pg_locks WHERE locktype = 'advisory'"


@contextlib.contextmanager
def standby_of(primary: Server, folder: Path) -> Iterator[Server]:
    """A second server that streams from the first, as pg_basebackup makes one, or as a copy where that is missing."""
    standby = Server(folder, tcp_port=free_port())
    folder.mkdir()
    folder.chmod(0o755 if primary._account else 0o700)
    if not (primary._usable_binaries / "pg_basebackup").exists():
        copy_cold(primary, standby)
    else:
        copy_hot(primary, standby)
    try:
        standby.start()
        yield standby
    finally:
        standby.stop("immediate")


def copy_cold(primary: Server, standby: Server) -> None:
    primary.stop()
    shutil.copytree(primary.data, standby.data)
    primary.start()
    (standby.data / "standby.signal").touch()
    with (standby.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = '{primary.tcp_dsn}'\n")
    if account := primary._account:
        for path in (standby.data, *standby.data.rglob("*")):
            os.chown(path, account.uid, account.gid)


def copy_hot(primary: Server, standby: Server) -> None:
    standby.data.mkdir(0o700)
    if account := primary._account:
        os.chown(standby.data, account.uid, account.gid)
    code, output = run_program(
        primary._usable_binaries / "pg_basebackup",
        *("--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname", primary.tcp_dsn),
        *("--pgdata", standby.data),
        account=account,
    )
    assert code == 0, output
