"""The recipes for structlog and Sentry, as their page has them, with the real libraries and a real loss."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from pgleaderlock import LeaderLock
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.testing import lose_leadership
from tests.conftest import Postgres
from tests.support.doubles import until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "log-and-report-errors.md"


def recipe(library: str) -> dict[str, Any]:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [each for each in programs if f"import {library}" in each]
    names: dict[str, Any] = {}
    exec(program, names)
    return names


async def test_structlog_gets_the_fields_of_a_loss_as_keys(postgres: Postgres, key: LockKey):
    names = recipe("structlog")
    written = io.StringIO()
    names["handler"].setStream(written)
    async with LeaderLock(postgres.dsn, key=key) as lock:
        await lock.wait_for_leadership()
        await lose_leadership(lock)
    logging.getLogger("pgleaderlock").error("not of an election")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    (lost,) = [line for line in lines if line["event"] == "leadership_lost"]
    assert {name: lost[name] for name in ("cause", "key1", "key2", "level")} == {
        "cause": "session_terminated",
        "key1": key.numbers[0],
        "key2": key.numbers[1],
        "level": "warning",
    }
    assert "timestamp" in lost
    assert lines[-1]["event"] == "not of an election"


class InProcess(Transport):
    """Keeps what Sentry would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


@pytest.fixture
def sentry() -> Iterator[InProcess]:
    transport = InProcess()
    # Of the default integrations the one that matters: the others change this process, which has other tests to run.
    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=transport,
        default_integrations=False,
        integrations=[LoggingIntegration()],
    )
    yield transport
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init()  # without a DSN: it sends nothing


async def test_sentry_gets_one_event_for_a_loss_with_its_cause(postgres: Postgres, key: LockKey, sentry: InProcess):
    lock = LeaderLock(postgres.dsn, key=key)
    recipe("sentry_sdk")["report_losses"](lock, "billing")
    async with lock:
        await lock.wait_for_leadership()
        await lose_leadership(lock)
    (event,) = sentry.events
    assert event["message"] == "leadership of billing was lost: session_terminated"
    assert event["tags"] == {"pgleaderlock.role": "billing", "pgleaderlock.cause": "session_terminated"}
    assert event["level"] == "warning"
    assert "administrator command" in event["contexts"]["election"]["error"]
    assert "leadership_lost" in str(event["breadcrumbs"])


async def test_sentry_takes_failed_work_by_itself(postgres: Postgres, key: LockKey, sentry: InProcess):
    lock = LeaderLock(postgres.dsn, key=key)

    @lock.while_leader(on_failure="stop")
    async def work() -> None:
        raise ValueError("of the work")

    async with lock:
        await until(lambda: bool(sentry.events))
    (event,) = sentry.events
    assert event["exception"]["values"][-1]["value"] == "of the work"
