"""Settings of ours that a PostgreSQL server can be started with, for its candidates to read."""

NO_FORMER_LEADER = "pgleaderlock.no_former_leader"
"""``on``: when this server was started, no leader of an earlier run could be valid any more."""
