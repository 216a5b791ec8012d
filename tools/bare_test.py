"""Run a command as a newcomer would: in a fresh clone, as an ordinary user, with python3, make, git and little more.

    python3 tools/bare_test.py make test
    python3 tools/bare_test.py make run ARGS="--no-browser --script kill --rounds 1"

The clone is of what is committed here. PATH has the programs of ``_PROGRAMS`` and no others; of the environment only
what a network needs to fetch packages is kept (certificates, proxies, package indexes). Run by root, the command runs
as the account ``newcomer``, which is made when it is missing; run by another user, as that user. The exit code is the
command's.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ACCOUNT = "newcomer"
# What any Linux has without anything being installed, and the three that the README asks for.
_PROGRAMS = """
python3 make git
[ awk basename bash cat chgrp chmod chown cp cut date dd df diff dirname du echo env expr false find getconf grep gzip
head hostname id install kill ldd ln locale ls mkdir mkfifo mktemp mount mv nice nohup nproc od paste printf ps pwd
readlink realpath rm rmdir sed seq setsid sh sha256sum sleep sort stat stty sync tail tar tee test timeout touch tr true
tty umount uname uniq wc which whoami xargs
"""
_KEPT = ("SSL_CERT_", "PIP_", "UV_", "REQUESTS_CA_", "CURL_CA_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
_NOT_KEPT = ("UV_PROJECT", "UV_RUN")  # of the environment that we are run in
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(command: list[str]) -> int:
    """Run the command, and return its exit code."""
    if not command:
        sys.stderr.write(__doc__ or "")
        return 2
    top = subprocess.run(["git", "rev-parse", "--show-toplevel"], check=True, capture_output=True, text=True)
    account = _newcomer() if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="bare-", dir="/var/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        _link_programs(place / "bin")
        (place / "home").mkdir()
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", top.stdout.strip(), place / "clone"], check=True)
        if account is not None:
            for path in (place / "clone", *(place / "clone").rglob("*"), place / "home"):
                os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
        environment = {**_kept(), "HOME": f"{place}/home", "PATH": f"{place}/bin", "LANG": "C.UTF-8"}
        switch: dict[str, Any] = {}
        if account is not None:
            switch = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        words = [str(place / "bin" / "env"), *command]  # found on the new PATH, not on ours
        return subprocess.run(words, check=False, cwd=place / "clone", env=environment, **switch).returncode


def _newcomer() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(_ACCOUNT)
    except KeyError:
        subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", _ACCOUNT], check=True)
        return pwd.getpwnam(_ACCOUNT)


def _link_programs(folder: Path) -> None:
    folder.mkdir()
    for name in _PROGRAMS.split():
        if found := shutil.which(name, path=_SYSTEM_PATH):
            (folder / name).symlink_to(found)


def _kept() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(_KEPT) and not name.startswith(_NOT_KEPT)
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
