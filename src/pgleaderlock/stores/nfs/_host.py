"""This host's name and processes, for display."""

import functools
import os
import socket


@functools.cache
def hostname() -> str:
    """Return the name by which other hosts know this one."""
    try:
        name = socket.getfqdn()  # which is that of the loopback address where /etc/hosts has it first
    except (OSError, UnicodeError):  # Linux lets a host's name be one character longer than DNS does
        return socket.gethostname()
    return socket.gethostname() if name.startswith(("localhost", "ip6-localhost")) else name


def is_running(pid: int) -> bool:
    """Whether a process with this id runs. It may be another one: ids are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's, or a number that this system does not have
    return True
