"""HTTP beside elections: a server with a thread and an event loop of its own, within limits.

The dashboard, the sidecar and the metrics endpoint are served by :class:`HttpServer`. Whatever its clients do, the
election's event loop does not wait for it, the process keeps descriptors for the election's sessions, and the processor
time that anonymous clients can use is bounded, because both threads share the interpreter's lock (GIL).

- ``_limits.py``: how many connections, how long a client may keep the server waiting, how much processor time.
- ``_acceptor.py``: accepts connections; a failure to accept is logged once a minute, and does not spin.
- ``_waiting_room.py``: where a connection stays until its request has come, for some microseconds of work, and where
  it is decided which connection gives way when there are too many.
- ``_protocol.py``: one request, by uvicorn's protocol under a deadline.
- ``_server.py``: the thread.

uvicorn has no time-out for a request that is not complete, and asyncio's own accept loop writes one log record for each
place in the backlog when descriptors run out, every second. Those two are why the acceptor and the waiting room are
ours; parsing, responses and shutdown are uvicorn's. A connection carries one request: so there is no idle connection to
bound, and each request passes the waiting room.

Not promised: that HTTP costs an election nothing. Python code gives up the GIL every 5 ms; each step of a renewal may
wait that long while a request is answered, and longer on a machine whose processors are overloaded.
"""

from pgleaderlock.ops.http._limits import HttpLimits, limits_for
from pgleaderlock.ops.http._server import HttpServer, listen, listen_for, url_of
from pgleaderlock.ops.http._waiting_room import Classify, Visit

__all__ = ["Classify", "HttpLimits", "HttpServer", "Visit", "limits_for", "listen", "listen_for", "url_of"]
