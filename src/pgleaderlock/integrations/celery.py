"""Celery: a beat that runs in a thread of whichever process leads.

    app = Celery(...)
    gate_beat(lock, app)

For a beat without a change to any code there is ``pgleaderlock exec --role beat -- celery -A proj beat``. This is for
processes that have an event loop and want no other process.

What is due is looked at in each term anew, as Celery's scheduler does when it is started: what it keeps in its file
(``beat_schedule_filename``) is this host's alone. So after a failover an interval counts from the last run that this
host knows of, or from now; entries with a ``crontab`` are on time. Nothing is sent once the term is ending: each send
asks.

Needs ``pgleaderlock[celery]``.

Not promised: that a message that was sent is processed once. That is between the broker and the workers.
"""

from pathlib import Path
from typing import Any

from pgleaderlock.engine.election import Election
from pgleaderlock.engine.term import Term
from pgleaderlock.errors import MissingExtra

try:
    from celery import Celery, signals
    from celery.beat import Service
    from celery.utils.imports import symbol_by_name
except ModuleNotFoundError as error:
    raise MissingExtra(f"beat needs the package {error.name}: pip install 'pgleaderlock[celery]'") from error

__all__ = ["gate_beat"]


def gate_beat(
    lock: Election,
    app: Celery,
    *,
    scheduler: type | str | None = None,
    schedule_file: str | Path | None = None,
    max_interval_s: float | None = None,
    name: str = "celery beat",
) -> None:
    """Let the beat of this application run while ``lock`` leads.

    ``scheduler``, ``schedule_file`` and ``max_interval_s`` are beat's own, from the application's settings by default.
    """
    base = symbol_by_name(scheduler or app.conf.beat_scheduler)

    def beat(term: Term) -> None:
        service = Service(
            app,
            max_interval=max_interval_s,
            schedule_filename=None if schedule_file is None else str(schedule_file),
            scheduler_cls=_asking(base, term),
        )
        signals.beat_init.send(sender=service)
        _tick(service.scheduler, term)

    lock.while_leader(name=name)(beat)


def _asking(base: Any, term: Term) -> type:
    """Return this scheduler, but one that asks before each send: it may have waited for its broker until long after."""

    def apply_async(self: Any, entry: Any, *arguments: Any, **settings: Any) -> Any:
        term.check()
        return base.apply_async(self, entry, *arguments, **settings)

    return type(base.__name__, (base,), {"apply_async": apply_async, "__doc__": base.__doc__})


def _tick(scheduler: Any, term: Term) -> None:
    try:
        while not term.is_ending:
            interval_s = scheduler.tick()
            if interval_s and interval_s > 0:
                term.wait(interval_s)
                if scheduler.should_sync():
                    scheduler._do_sync()  # noqa: SLF001 - as beat itself does
    finally:
        scheduler.close()
