"""The place of a lock's files: its absolute path, and whether its file system supports the lock.

On a network file system inotify does not report changes by other hosts, and flock(2) may be silently local to each host
(``nolock``, ``local_lock=``), which would be split brain. So the ``file://`` backend refuses such a place. A file
system that is not known to be a network file system is accepted.

Not supported: on systems without /proc/self/mountinfo (macOS) a network file system is not recognised.
"""

import ctypes
import errno
import functools
import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from pgleaderlock._base.checks import quoted
from pgleaderlock.errors import ConnectionError

__all__ = ["boot_id", "check_folder", "check_shared_folder", "describe", "explained", "hint_for", "is_local", "path_of"]

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LONGEST_NAME = 200  # of 255: the names of the other files begin with this one
_NETWORK = re.compile(
    "9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|glusterfs|gpfs|lustre|ncpfs|nfs4?|orangefs|prl_fs|pvfs2|smb[23]?|smbfs|"
    "vboxsf|virtiofs|vmhgfs"
)
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuseblk"})
_OURS = re.compile(r".*\.(live\.\d+|tmp\.[0-9a-f]{16}|unreadable)", re.DOTALL)


def path_of(url_or_path: str | os.PathLike[str], scheme: str = "file", *, takes_url: bool = True) -> Path:
    """Return the absolute path for a URL or a path; ValueError when it cannot be the path of a lock."""
    text = os.fspath(url_or_path)
    if not isinstance(text, str):
        raise TypeError(f"a path must be a str or a Path, not {type(url_or_path).__name__}")
    if takes_url and text.startswith(f"{scheme}:") and _is_encodable(text):
        text = _path_of_url(text, scheme)
    if not text or "\0" in text or not _is_encodable(text):
        raise ValueError(f"this is not the path of a file: {quoted(text)}")
    path = Path(text)
    if text.endswith("/") or path.name in ("", ".."):
        raise ValueError(_names_a_folder(text, scheme))
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise ValueError(f"the name of the file must not be longer than {_LONGEST_NAME} bytes: {quoted(path.name)}")
    if _OURS.fullmatch(path.name):
        raise ValueError(f"{quoted(path.name)} is the name of a companion file of another lock: choose another name")
    # If the file itself is a link, it is not followed. Links in its folder are resolved only if the path has a "..",
    # which needs that: resolving asks the file server, which may not answer.
    folder = os.path.realpath(path.parent) if ".." in path.parts else os.path.abspath(path.parent)  # noqa: PTH100
    return Path(folder, path.name)


def _is_encodable(text: str) -> bool:
    """Whether the text can be a file name: half of a surrogate pair cannot."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _names_a_folder(text: str, scheme: str) -> str:
    path = text.rstrip("/")
    if scheme != "nfs":
        return f"{quoted(text)} names a folder: name a file in it, such as {_as_in(path)}/leader.json"
    if Path(path).name not in ("", ".."):
        return f"{quoted(text)} is not the path of a lock: leave out the slash at the end, as in {_as_in(path)}"
    return (
        f"{quoted(text)} names a folder: name a path in it, such as {_as_in(path)}/name.lock, and leave out the slash "
        "at the end"
    )


def _as_in(path: str) -> str:
    """Return a path for an example in a message: unchanged, or "…" if the message may not repeat it."""
    shown = quoted(path)
    return shown[1:-1] if shown.startswith(("'", '"')) else "…"


def _path_of_url(url: str, scheme: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that does not belong to an IPv6 address
        raise ValueError(
            f"{quoted(url)} names an invalid host: after {scheme}:// a path begins with a third slash"
        ) from None
    if parts.netloc not in ("", "localhost"):
        if scheme == "nfs":
            raise ValueError(
                f"{quoted(url)} names a host, {quoted(parts.netloc)}: name the path where it is mounted, as in "
                "nfs:///mnt/shared/name"
            )
        raise ValueError(
            f"after {scheme}:// a host is named, {quoted(parts.netloc)}: a path begins with a third slash, as in "
            f"{scheme}:///{_as_in(parts.netloc)}…"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{quoted(url)} has a ? or a #: in a file's name they are written as %3F and %23")
    return os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))


def check_folder(path: Path) -> None:
    """Raise ConnectionError, with advice, for a place that does not support a lock of ``file://``."""
    _check_parent(path)
    folder = path.parent
    kind = _mount_of(folder)[0]
    if _is_network(kind):
        raise ConnectionError(
            f"the lock file {path} is on a network file system ({kind}), where file locks may hold for one host only: "
            "two hosts could lead. Use the nfs:// backend there, or a folder on a local disk"
        )
    if not os.access(folder, os.W_OK | os.X_OK | os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ConnectionError(
            f"the folder of the lock file {path} cannot be read and written by this process (uid {os.geteuid()}): "
            "a read-only file system, or its permissions; every candidate must be able to create files there"
        )


def check_shared_folder(path: Path) -> None:
    """Raise ConnectionError, with advice, for a shared place in which hosts would see heartbeats too late."""
    _check_parent(path)
    kind, options = _mount_of(path)
    if "nocto" in options.split(","):
        raise ConnectionError(
            f"the lock {path} is on a file system ({kind}) that is mounted with nocto: a heartbeat of another host "
            "would be seen late, and two could lead. Mount it without"
        )


def _check_parent(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConnectionError(f"the folder of the lock file {path} {what}: create it, for every candidate to write to")


def hint_for(error: OSError, path: Path) -> str:
    """Return advice on an OSError, to append to its text; empty where there is none."""
    if error.errno in (errno.EACCES, errno.EPERM):
        folder = path.parent if error.filename == str(path.parent) else path
        return f". Every candidate must be able to create and remove files in {folder} (uid {os.geteuid()} cannot)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ". Free some space"
    if error.errno == errno.EROFS:
        return ". Mount it so that it can be written"
    return ""


def explained(error: OSError, path: Path) -> OSError:
    """Return the same error with advice in its text."""
    hint = hint_for(error, path)
    if not hint or hint in str(error):
        return error
    return OSError(error.errno, f"{error.strerror}{hint}", error.filename, None, error.filename2)


def is_local(folder: Path) -> bool:
    """Whether this folder is on a local file system, as far as the system reports it.

    The folder may be a mount point or a link; one that does not exist yet will be on the file system of its parent.
    """
    kind = _mount_of(folder)[0]
    return bool(kind) and not _is_network(kind)


def _is_network(kind: str) -> bool:
    return bool(_NETWORK.fullmatch(kind)) or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def describe(folder: Path) -> str | None:
    """Return the file system of a folder, for display; None when this system does not report it."""
    kind, _, source = _mount_with_source(folder)
    if not kind:
        return None
    return f"{kind} {source}" if _is_network(kind) else f"local disk ({kind})"


def _mount_of(folder: Path) -> tuple[str, str]:
    """Return the type of the file system, and its options; empty when this system does not report them."""
    return _mount_with_source(folder)[:2]


def _mount_with_source(folder: Path) -> tuple[str, str, str]:
    try:
        # The kernel escapes only spaces, tabs and line ends of a name as digits: all other characters that Python
        # regards as white space or line ends are part of a name.
        mounts = os.fsdecode(_MOUNTS.read_bytes()).removesuffix("\n").split("\n")
    except OSError:
        return "", "", ""
    here = os.path.realpath(folder)
    found, depth = ("", "", ""), -1
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = _unescaped(left.split(" ")[4])
        is_above = point in ("/", here) or here.startswith(point + "/")
        if is_above and len(point) >= depth:  # of two mounts on one point, the later one is visible
            kind, *sources, options = right.split(" ")
            found, depth = (kind, options, _unescaped("".join(sources[:1]))), len(point)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


@functools.cache
def boot_id() -> str | None:
    """Return the id of this boot of this host; None when the system has none."""
    try:
        return _BOOT_ID.read_bytes().decode().strip() or None
    except (OSError, ValueError):
        return _boot_id_of_macos()


def _boot_id_of_macos() -> str | None:
    ask = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if ask is None:
        return None
    answer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    if ask(b"kern.bootsessionuuid", answer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return answer.value.decode("utf-8", "replace") or None
