"""``pgleaderlock run``: take part in an election until asked to stop, and show it as it happens."""

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime

from loguru import logger

from pgleaderlock.cli import exit_codes
from pgleaderlock.cli.console import discard_output, print_json, visible
from pgleaderlock.cli.participant import Participant
from pgleaderlock.cli.signals import call_on_signal
from pgleaderlock.cli.status import glance
from pgleaderlock.cli.target import Target
from pgleaderlock.engine.election import Election
from pgleaderlock.models import Event, EventKind


async def take_part(lock: Election, target: Target, *, as_json: bool) -> int:
    """Run the election to its end, and return the exit code that tells how it ended."""
    participant = Participant(lock)
    narrator = _Narrator(target)
    lock.subscribe(narrator.hear)
    if as_json:
        printer, fixed = EventPrinter(participant.stop), {**target.fields, "process_id": os.getpid()}
        lock.subscribe(lambda event: printer.print(event, fixed))
    with call_on_signal(participant.stop):
        narrator.tell_start()
        await lock.start()
        await asyncio.wait({participant.ended})
        was_asked = participant.stop_asked.done()
        await participant.leave()
        await narrator.finish()
    if was_asked and participant.ended_cleanly:
        return exit_codes.CLEAN
    reason = "the lock's release was not confirmed" if was_asked else "the election ended by itself"
    logger.error(f"{reason}; exit code {exit_codes.LEADERSHIP_ENDED}")
    return exit_codes.LEADERSHIP_ENDED


class _Narrator:
    """Logs in sentences what the events mean for this process, and what to do next."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._name = target.name
        self._told_to_wait = False
        self._glance: asyncio.Task[None] | None = None

    def tell_start(self) -> None:
        logger.info(f"process {os.getpid()} takes part in the election for {self._name}; Ctrl-C to leave it")

    def hear(self, event: Event) -> None:
        match event.kind:
            case EventKind.ACQUIRED | EventKind.RECOVERED:
                self._look_away()
                logger.success(f"this process leads {self._name}; press Ctrl-C (or send SIGTERM) to hand over")
            case EventKind.ACQUIRE_FAILED:
                self._tell_once_to_wait()
            case EventKind.LOST:
                logger.warning(f"this process no longer leads {self._name}: work that only the leader may do must stop")
            case EventKind.ERROR | EventKind.STOPPED:
                self._look_away()
            case _:
                pass

    async def finish(self) -> None:
        """Cancel the look at the holder, if one is running."""
        glance = self._glance
        self._look_away()
        if glance is not None:
            await asyncio.wait({glance})

    def _look_away(self) -> None:
        """Forget the logged leader: the next one may be another process, which is to be logged too."""
        self._told_to_wait = False
        if self._glance is not None:
            self._glance.cancel()
            self._glance = None

    def _tell_once_to_wait(self) -> None:
        """Log who leads at the first refusal only: a follower is refused at every attempt."""
        if not self._told_to_wait:
            self._told_to_wait = True
            # In a task, because the election waits for its listeners and the database may be slow to answer.
            self._glance = asyncio.get_running_loop().create_task(self._tell_who_leads())

    async def _tell_who_leads(self) -> None:
        holder, _ = await glance(self._target)
        pid = f", session pid {holder.pid}" if holder and holder.pid is not None else ""
        who = f" ({visible(holder.name)}{pid})" if holder else ""
        logger.info(f"another process leads {self._name}{who}; waiting to take over when it ends")


class EventPrinter:
    """Prints each event as a line of JSON, and calls ``stop`` when stdout has no reader any more."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._is_readable = True

    def print(self, event: Event, fixed: dict[str, object]) -> None:
        """Print one event, with the ``fixed`` fields."""
        if not self._is_readable or event.kind is EventKind.RENEWED:  # a renewal changes nothing
            return
        try:
            print_json(_event_record(event) | fixed)
        except OSError as error:
            self._is_readable = False
            discard_output()
            logger.warning(f"the events cannot be written to stdout any more ({error.strerror}): stopping")
            self._stop()


def _event_record(event: Event) -> dict[str, object]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": event.kind.value,
        "from": event.from_state.value,
        "to": event.to_state.value,
        "cause": event.cause,
        "attempt": event.attempt,
        "token": event.token,
        "error": None if event.error is None else str(event.error),
    }
