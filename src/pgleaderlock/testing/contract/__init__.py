"""What every backend must do, as tests that anyone can run over theirs.

    class TestMyBackend(BackendContract):
        def make_backend(self, name: str, **settings) -> Backend:
            return MyBackend(name, **settings)

``name`` is new for each test; backends that are made with the same one compete for the same lock. With pytest and
pytest-asyncio (``asyncio_mode = "auto"``) that class is a complete test file. Time is real: some tests wait for a
lease, which is why :attr:`~BackendContract.lease_s` is short.

The suite tests promises, not mechanisms: one holder at a time, trust that ends before anybody else's begins, tokens
that grow, a release that frees at once, silence that frees after a lease, and verbs that can be cut short. In a thread
and in processes of their own, contenders are as independent as the suite can make them; the class is sent to those
processes, so what it needs besides ``make_backend`` must be something that can be pickled.

Not shown by it: that a replacement is atomic on a bad day, and what happens when the store or the network fails.
"""

from pgleaderlock.testing.contract._crowds import CrowdTests, ProcessTests
from pgleaderlock.testing.contract._cut_short import CutShortTests
from pgleaderlock.testing.contract._terms import TermTests
from pgleaderlock.testing.contract._trust import TrustTests
from pgleaderlock.testing.contract._waiting import WaitingTests

__all__ = ["BackendContract", "InProcessContract"]


class InProcessContract(TermTests, TrustTests, WaitingTests, CutShortTests, CrowdTests):
    """The tests for a store that lives in one process. Inherit, and say how a backend is made."""


class BackendContract(InProcessContract, ProcessTests):
    """The tests for a store that several processes reach. Inherit, and say how a backend is made."""
