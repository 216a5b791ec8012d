"""Files that a configuration names. One that cannot be read is a ValueError that says which setting names it."""

from pathlib import Path

__all__ = ["exists", "read_file"]


def exists(path: Path) -> bool:
    """Whether the file exists, or cannot be checked.

    ``Path.exists`` raises OSError for a folder that we may not enter; reading the file then raises an error with its
    name.
    """
    try:
        return path.exists()
    except OSError:
        return True


def read_file(path: Path, named_by: str) -> bytes:
    """Return the content of the file; ``named_by`` completes the error "cannot read <path>, which ..."."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path that no file system takes
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no such path is possible"
        raise ValueError(f"cannot read {path}, which {named_by}: {reason}") from error
