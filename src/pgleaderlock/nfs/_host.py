"""This host: its name, and its processes. For people."""

import functools
import os
import socket

__all__ = ["hostname", "is_running"]


@functools.cache
def hostname() -> str:
    """Return a name that other hosts know this one by."""
    try:
        name = socket.getfqdn()  # which is the name of the loop where /etc/hosts has it first
    except (OSError, UnicodeError):  # Linux lets a host's name be one character longer than DNS does
        return socket.gethostname()
    return socket.gethostname() if name.startswith(("localhost", "ip6-localhost")) else name


def is_running(pid: int) -> bool:
    """Whether there is a process with this number, if perhaps another one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's, or a number that this system does not have
    return True
