"""Files that a configuration names. One that cannot be read is a wrong setting, and is said with who named it."""

from pathlib import Path

__all__ = ["exists", "read_file"]


def exists(path: Path) -> bool:
    """Whether there is something to read, or to complain about.

    A folder that we may not enter is an OSError to ``Path.exists``; reading the file then says so by name.
    """
    try:
        return path.exists()
    except OSError:
        return True


def read_file(path: Path, named_by: str) -> bytes:
    """Return what is in the file; ``named_by`` completes "cannot read it, which ..."."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path that no file system takes
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no such path is possible"
        raise ValueError(f"cannot read {path}, which {named_by}: {reason}") from error
