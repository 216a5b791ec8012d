"""The record of an election in a shared folder, without the engine around it."""

from pathlib import Path

from pgleaderlock.stores.nfs.backend import NfsStore
from pgleaderlock.stores.record import Claim

LEASE_S = 60.0


async def test_an_epoch_that_was_renewed_since_it_was_read_is_not_replaced(tmp_path: Path):
    """A follower may have read it long ago, and its event loop have stood still since."""
    leader, follower = (
        NfsStore(tmp_path / "leader.lock", lease_s=LEASE_S, identity=name) for name in ("leader", "follower")
    )
    await leader.open()
    await follower.open()
    try:
        assert await leader.write(Claim("leader", 1, LEASE_S, is_new_term=True), None)
        read = await follower.read()
        assert await leader.write(Claim("leader", 1, LEASE_S, is_new_term=False), read)
        assert await follower.write(Claim("follower", 2, LEASE_S, is_new_term=True), read) is None
        newest = await follower.read()
        assert newest is not None
        assert newest.token == 1
    finally:
        await follower.close()
        await leader.close()
