"""Settings of ours that a PostgreSQL server can be started with: what its candidates are to know of it."""

__all__ = ["NO_FORMER_LEADER"]

NO_FORMER_LEADER = "pgleaderlock.no_former_leader"
"""``on``: when this server was started, no leader of an earlier run could be valid any more."""
