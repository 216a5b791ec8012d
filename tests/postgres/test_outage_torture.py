"""The torture by outages judges what it measured, and its network is silent."""

import asyncio
import contextlib

import pytest

from pgleaderlock.testing.torture._faulty_relay import Allowance, Target
from proofs.outage_torture import Return, SilentNetwork, Store, allowed_s, main, tell


def test_a_leader_may_take_a_third_of_the_lease_and_a_second(capsys: pytest.CaptureFixture[str]):
    assert allowed_s(3.0) == 2.0
    in_time, late = Return("lease rows", 5.0, 2.0, 1.0), Return("kubernetes", 34.0, 2.01, 1.0)
    assert tell([in_time], 3.0) == 0
    assert tell([in_time, late], 3.0) == 1
    assert "TOO LATE: kubernetes, away for 34 s, led again after 2.01 s" in capsys.readouterr().out
    assert tell([Return("kubernetes", 5.0, float("inf"), 1.0)], 3.0) == 1
    assert tell([], 3.0) == 1


def test_an_outage_within_the_lease_shows_nothing_and_is_refused():
    with pytest.raises(SystemExit):
        main(["--seconds", "2", "--lease", "3"])


async def test_what_connects_in_an_outage_gets_no_answer_and_does_not_reach_the_server(tmp_path):
    reached = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(100))
        writer.write(b"yes")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    target = Target(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    network = SilentNetwork(tmp_path, target, Allowance(100, 1e9, asyncio.get_running_loop().time))
    await network.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(network.close)
        stack.callback(server.close)

        async def ask(word: bytes) -> asyncio.Task[bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
            stack.callback(writer.close)
            writer.write(word)
            return asyncio.ensure_future(reader.read(100))

        network.drop()
        silent = await ask(b"during")
        await asyncio.wait({silent}, timeout=0.05)
        network.heal()
        async with asyncio.timeout(20):
            assert await (await ask(b"after")) == b"yes"
        assert reached == [b"after"]
        assert not silent.done()
        silent.cancel()


async def test_the_last_to_begin_is_whom_the_time_is_taken_from(tmp_path):
    network = SilentNetwork(tmp_path, Target(), Allowance(1, 1.0, asyncio.get_running_loop().time))
    store = Store("x", network, "url")
    store.hear(0, {"says": "leads", "at": 1.0})
    store.hear(0, {"says": "ended", "at": 2.0})
    assert not await store.wait_for_leader(0.0)
    store.hear(1, {"says": "leads", "at": 3.5})
    assert await store.wait_for_leader(1.0)
    assert store.began_at == 3.5
    assert not await store.wait_for_leader(0.0, all_take_part=True)
    store.hear(2, {"says": "follows", "at": 4.0})
    assert await store.wait_for_leader(1.0, all_take_part=True)
