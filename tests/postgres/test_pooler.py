"""Which pooler is let in, on the session port alone: a model lends server processes; a real one is in test_refusals."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.postgres._session_setup import ReadySession, SessionSetup
from pgleaderlock.postgres.lease import Lease
from pgleaderlock.postgres.session import OnEnd, ServerFacts

pytestmark = pytest.mark.virtual_time

LEASE_S = 15.0
ANSWER_BOUND_S = LEASE_S * 2 / 3
TOLD_PID = 1_000_000


class Client:
    """A session through a pooler, which lends it a server process for each statement, or keeps it one."""

    def __init__(self, pooler: "PoolerModel") -> None:
        self._pooler = pooler
        self.facts = ServerFacts(180000, TOLD_PID)
        self.closed = self.has_ended = False
        self.asked: list[str] = []
        self.descriptor = None

    async def fetch(self, statement: str, parameters: Sequence[Any] = (), *, bound_s: float) -> tuple[Any, ...] | None:
        pid = await self._pooler.lend(self, statement)
        if "pg_is_in_recovery" in statement:
            is_ours = parameters[0] == pid
            self.asked.append("set" if is_ours else "introduce")
            return (["done"] if is_ours else None, pid, False, 1.0, 10_000.0, "yesterday")
        self.asked.append(statement.split(maxsplit=1)[0])
        return (pid,)

    async def close(self) -> None:
        self.closed = True

    async def listen(self, channel: str, heard: Any = None) -> None: ...
    async def notified(self) -> None: ...
    def watch(self, on_end: OnEnd) -> None: ...
    def on_announcement(self, call: Callable[[], None]) -> None: ...


class PoolerModel:
    """Lends what ``choose(client number, how many statements were lent before)`` says."""

    def __init__(self, choose: Callable[[int, int], int | Exception | None]) -> None:
        self._choose = choose
        self.clients: list[Client] = []
        self._lent = 0

    async def open(self) -> Client:
        self.clients.append(client := Client(self))
        return client

    async def lend(self, client: Client, _statement: str) -> int:
        number, self._lent = self._lent, self._lent + 1
        lent = self._choose(self.clients.index(client), number)
        if lent is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(lent, Exception):
            raise lent
        assert isinstance(lent, int)
        return lent


async def set_up(pooler: PoolerModel, *, with_facts: bool = True, **settings: Any) -> ReadySession:
    clock = asyncio.get_running_loop().time
    setup = SessionSetup(pooler.open, Lease(LEASE_S, **settings), clock, "lock x", "the model")
    return await setup.set_up(5.0, with_facts=with_facts)


async def refusal(pooler: PoolerModel) -> str:
    with pytest.raises(ConnectionError, match="connection pooler") as refused:
        await set_up(pooler, allow_pooler=True)
    assert all(client.closed for client in pooler.clients)
    assert "set" not in pooler.clients[0].asked, "behind a pooler that shares, settings would be other people's"
    return str(refused.value)


async def test_on_a_direct_connection_nothing_is_asked_besides():
    direct = PoolerModel(lambda _, __: TOLD_PID)
    await set_up(direct, allow_pooler=True)
    assert [client.asked for client in direct.clients] == [["set"]]


async def test_a_pooler_that_gives_each_client_its_own_session_is_let_in_and_nothing_stays_open():
    pooler = PoolerModel(lambda client, _: 100 + client)
    ready = await set_up(pooler, allow_pooler=True)
    ours, *rivals = pooler.clients
    assert (ready.pid, ours.closed, ours.asked[-1]) == (100, False, "set")
    assert len(rivals) == 5
    assert all(rival.closed and rival.asked == ["BEGIN;", "ROLLBACK"] for rival in rivals)


async def test_the_session_of_a_witness_comes_through_a_pooler_that_was_looked_at():
    pooler = PoolerModel(lambda client, _: 100 + client)
    await set_up(pooler, with_facts=False, allow_pooler=True)
    assert [client.asked for client in pooler.clients] == [["introduce", "set"]]


async def test_a_process_that_is_lent_to_a_second_client_is_not_ours():
    assert "a second client was lent server process 7" in await refusal(PoolerModel(lambda _, __: 7))


@pytest.mark.parametrize("moved_at", range(2, 20))
async def test_a_process_that_changes_at_any_look_is_not_ours(moved_at: int):
    """Statement by statement: 0 is the introduction, and of each look the second and the fourth are ours."""

    def choose(client: int, number: int) -> int:
        return 100 + client if client or number < moved_at else 99

    assert "our statements went to server process 100, then to 99" in await refusal(PoolerModel(choose))


async def test_a_process_that_changes_when_the_session_is_put_in_order_is_not_ours():
    last = 1 + 4 * 5
    words = await refusal(PoolerModel(lambda client, number: 100 + client + (number == last)))
    assert "then to 101" in words


async def test_a_pool_without_room_for_a_second_client_is_refused_in_bounded_time():
    began = asyncio.get_running_loop().time()
    words = await refusal(PoolerModel(lambda client, _: None if client else 7))
    assert "default_pool_size" in words
    assert asyncio.get_running_loop().time() - began == pytest.approx(ANSWER_BOUND_S)


async def test_a_pooler_that_refuses_transactions_is_refused_with_its_own_words():
    words = await refusal(PoolerModel(lambda client, _: ConnectionError("no blocks here") if client else 7))
    assert "statement mode" in words
    assert "no blocks here" in words
