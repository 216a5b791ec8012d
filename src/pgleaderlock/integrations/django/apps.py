"""The Django application: the command ``leader_exec``, and functions that run in the server process that leads.

``PGLEADERLOCK = {"role": ..., "while_leader": ["shop.jobs.consume"]}`` runs ``consume(term)`` in a thread of whichever
process leads, for as long as it does: ``while not term.wait(5): ...``.

It is begun in processes that serve: not under a management command (``migrate`` must not wait for a leader to end),
unless that is ``runserver``. A server that forks after loading the application leads with the process that loaded it;
tell it not to preload.

Not promised: an end of a function that does not look at its term. It is reported as an overrun.
"""

import os
import sys
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.utils.module_loading import import_string

from pgleaderlock.integrations.django.conf import find_dsn, find_options, find_role, find_work
from pgleaderlock.options import LockSettings
from pgleaderlock.sync import LeaderLock

__all__ = ["LeaderLockConfig"]

_PROGRAMS = {"manage.py", "django-admin", "django-admin.py"}


class LeaderLockConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """Found by Django through ``INSTALLED_APPS``."""

    name = "pgleaderlock.integrations.django"
    label = "pgleaderlock"
    verbose_name = "Leader election"
    lock: LeaderLock | None = None
    """The lock of this process, where the settings name work for it."""

    def ready(self) -> None:
        """Take part, if the settings name work and this process serves."""
        work = find_work()
        if not work or not _serves(sys.argv, os.environ):
            return
        lock = LeaderLock(find_dsn(), role=find_role(), **LockSettings(**find_options()).keywords())
        for path in work:
            lock.while_leader(name=path)(import_string(path.replace(":", ".")))
        lock.start()
        self.lock = lock


def _serves(argv: list[str], environment: Any) -> bool:
    """Whether this process is to lead: a server, and not one that only watches another for changes."""
    name = Path(argv[0]).name
    if name not in _PROGRAMS and not (name == "__main__.py" and Path(argv[0]).parent.name == "django"):
        return True
    if argv[1:2] != ["runserver"]:
        return False
    return "--noreload" in argv or environment.get("RUN_MAIN") == "true"
