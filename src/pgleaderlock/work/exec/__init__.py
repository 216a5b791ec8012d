"""A command that runs only while leading and is dead before a successor leads: the parts of ``pgleaderlock exec``.

Three kinds of processes::

    wrapper      takes part in the election, renews, forwards signals               supervisor.py, guardian_client.py
    └─ guardian  enforces the deadline; standard library only, one thread, no locks guardian.py
       └─ command and all processes that it starts: the family                      family.py

**Which process kills the family in each failure.** The wrapper sends the guardian with each renewal until when
leadership is valid. No message, because the wrapper is frozen or cut off: the guardian sends SIGTERM, and SIGKILL in
time. The wrapper is dead: the guardian reads the end of their socket, and kills at once. The guardian is frozen or
dead: the wrapper, which expects an answer to each renewal, kills the family and the guardian, releases the lock and
waits to lead again.

**No process leaves the family.** The guardian is a subreaper (Linux): a grandchild that leaves the process group, forks
twice and loses its parents becomes the guardian's own child. The wrapper is one as well, so that a dead guardian's
family becomes the wrapper's.

**The lock is not free before the family is dead.** A server frees the lock of a process that was killed with -9 within
a millisecond, and the family is alive for a few more. So the guardian has copies of the election's sockets (its
*lifeline*), and closes them last: the server sees the end of the sessions only then.

Not promised: the end of a process that may not be killed (another user's, or one that hangs in the kernel), of one that
was started elsewhere for the command (by cron, systemd, a container engine, on another host), or of any while the whole
machine stands still; two failures at once, of wrapper and guardian; and, without a subreaper and /proc (macOS), the end
of descendants that left the process group.
"""
