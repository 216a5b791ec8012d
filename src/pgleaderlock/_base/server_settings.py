"""Names of ours on a PostgreSQL server: a setting that it can be started with, and the channel of the registry."""

NO_FORMER_LEADER = "pgleaderlock.no_former_leader"
"""``on``: when this server was started, no leader of an earlier run could be valid any more."""
CHANGE_CHANNEL = "pgleaderlock_change"
"""On which a registry notifies that something was written."""
