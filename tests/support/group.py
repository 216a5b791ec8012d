"""What tests of group share with others."""

from collections.abc import Iterable
from typing import Any

from pgleaderlock import (
    LeaderGroup,
    LockKey,
)
from tests.support.lease import LEASE_S

END_HOLDER = """
SELECT pg_terminate_backend(pid) FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND classid::text::bigint = %s AND objid::text::bigint = %s AND objsubid = %s
"""


def make_group(dsn: str, roles: Iterable[str | LockKey], **settings: Any) -> LeaderGroup:
    settings.setdefault("lease_s", LEASE_S)
    settings.setdefault("health_interval_s", LEASE_S / 3)
    settings.setdefault("settle_s", 0)
    settings.setdefault("poll_s", 0.1)
    return LeaderGroup(dsn, roles, **settings)
