"""What tests of terms share with others."""

from pgleaderlock import FixedInterval, LeaderLock, LockKey
from tests.support.doubles import Witness
from tests.support.lease import make_leased


def make_termed(dsn: str, key: LockKey, **settings) -> tuple[LeaderLock, Witness]:
    settings.setdefault("retry_strategy", FixedInterval(0.2))
    return make_leased(dsn, key, term_table=True, **settings)
