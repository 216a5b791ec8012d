"""Running a command only while leading, and having it dead in time: the machinery of ``pgleaderlock exec``.

Three kinds of processes, each with what it is trusted for::

    wrapper      takes part in the election, renews, forwards signals            supervisor.py, guardian_client.py
    └─ guardian  owns the deadline; standard library only, one thread, no locks  guardian.py
       └─ command and whatever it starts: the family                             family.py

**Who kills, whatever is broken.** The wrapper tells the guardian with each renewal until when it may be trusted. No
news, because the wrapper is frozen or cut off: the guardian sends SIGTERM, and SIGKILL in time. The wrapper is dead:
the guardian's end of their socket closes, and it kills at once. The guardian is frozen or dead: the wrapper, which
expects an answer to each renewal, kills the family and the guardian with it, releases the lock and waits to lead again.

**Nobody leaves the family.** The guardian is a subreaper (Linux): a grandchild that leaves the process group, forks
twice and loses its parents becomes the guardian's own child. The wrapper is one as well, so that a dead guardian's
family becomes the wrapper's.

**The lock is not free before the family is dead.** A server frees the lock of a process that was killed with -9 within
a millisecond, and the family is alive for a few more. So the guardian has copies of the election's sockets (its
*lifeline*), and closes them last: to the server nothing has happened until then.

Not promised: to kill what may not be killed (a process of another user, or one that hangs in the kernel), what was
started elsewhere on the family's behalf (by cron, systemd, a container engine, on another host), or anything while the
whole machine stands still; two failures at once, of wrapper and guardian; and, without a subreaper and /proc (macOS),
descendants that left the process group.
"""
