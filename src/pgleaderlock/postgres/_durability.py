"""Commits that a crash of the server does not undo, also where ``synchronous_commit`` is ``off`` for the user.

A commit that is not flushed is forgotten in a crash: its token would be handed out again, and a slot that was claimed
by it would be claimed a second time. So ``off`` becomes ``local``: the commit waits for the disk, and for no standby.
"""

__all__ = ["FLUSHED", "FLUSHED_IN_TRANSACTION"]

_SET = "set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'local'), {is_local})"
FLUSHED = _SET.format(is_local="false")
"""An expression that makes all later commits of the session wait for the disk."""
FLUSHED_IN_TRANSACTION = _SET.format(is_local="true")
"""The same for the commit of this transaction."""
