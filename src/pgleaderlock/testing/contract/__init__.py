"""The contract of a backend, as a test suite that the author of a backend can run.

    class TestMyBackend(BackendContract):
        def make_backend(self, name: str, **settings) -> Backend:
            return MyBackend(name, **settings)

``name`` is new for each test; backends that are made with the same one compete for the same lock. With pytest and
pytest-asyncio (``asyncio_mode = "auto"``) that class is a complete test file. Time is real: some tests wait for a
lease, which is why :attr:`~BackendContract.lease_s` is short.

The suite tests promises, not mechanisms: one holder at a time, validity that ends before a successor's begins, tokens
that grow, a release that frees the lock at once, silence that frees it after a lease, and calls that can be cancelled.
Some candidates run in threads and in separate processes, to be as independent as possible; the class is sent to those
processes, so its attributes must be picklable.

Not shown by it: that a take-over in the store is atomic under failures, and how the backend behaves when the store or
the network fails.
"""

from pgleaderlock.testing.contract._crowds import CrowdTests, ProcessTests
from pgleaderlock.testing.contract._cut_short import CutShortTests
from pgleaderlock.testing.contract._terms import TermTests
from pgleaderlock.testing.contract._trust import TrustTests
from pgleaderlock.testing.contract._waiting import WaitingTests

__all__ = ["BackendContract", "InProcessContract"]


class InProcessContract(TermTests, TrustTests, WaitingTests, CutShortTests, CrowdTests):
    """The tests for a store that lives in one process. Inherit, and define ``make_backend``."""


class BackendContract(InProcessContract, ProcessTests):
    """The tests for a store that several processes share. Inherit, and define ``make_backend``."""
