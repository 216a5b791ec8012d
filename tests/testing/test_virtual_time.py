"""The loop whose clock jumps: no real time, the right order, and a word where a real loop would hang."""

import asyncio
import socket
import time

import pytest

from pgleaderlock.testing import Deadlock, VirtualTimeLoop


def test_an_hour_of_sleep_takes_no_real_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == pytest.approx(3600)
    assert time.monotonic() - began < 5


@pytest.mark.timeout(2)
def test_a_year_of_sleep_takes_no_real_time_either() -> None:
    """A selector is asked for a day at most, and past 2**24 s a float is coarser than the loop's idea of "now"."""

    async def main() -> float:
        await asyncio.sleep(365 * 86_400)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == pytest.approx(365 * 86_400)


def test_the_clock_starts_at_zero_and_stands_still_while_there_is_work() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for _ in range(100):
            await asyncio.sleep(0)
        times.append(loop.time())
        return times

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == [0.0, 0.0]


def test_timers_fire_in_the_order_of_their_times_and_at_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, fired = asyncio.get_running_loop(), list[tuple[str, float]]()

        def note(name: str) -> None:
            fired.append((name, loop.time()))

        for name, delay_s in [("late", 30.0), ("soon", 0.5), ("middle", 7.0), ("also soon", 0.5)]:
            loop.call_later(delay_s, note, name)
        await asyncio.sleep(31)
        return fired

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        fired = runner.run(main())
    assert [name for name, _ in fired][2:] == ["middle", "late"]
    assert {name for name, _ in fired[:2]} == {"soon", "also soon"}
    assert [at for _, at in fired] == pytest.approx([0.5, 0.5, 7.0, 30.0])


def test_two_runs_of_the_same_code_see_the_same_times() -> None:
    async def worker(period_s: float, times: list[float]) -> None:
        for _ in range(5):
            await asyncio.sleep(period_s)
            times.append(asyncio.get_running_loop().time())

    async def main() -> list[float]:
        times = list[float]()
        await asyncio.gather(worker(0.1, times), worker(0.7, times), worker(1 / 3, times))
        return times

    runs = []
    for _ in range(2):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runs.append(runner.run(main()))
    assert runs[0] == runs[1]
    assert len(runs[0]) == 15


def test_a_time_out_is_reached_at_its_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(90):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == pytest.approx(90)


def test_a_wait_that_can_never_end_is_an_error_that_names_the_tasks() -> None:
    async def main() -> None:
        async def wait_for_godot() -> None:
            await asyncio.Event().wait()

        await asyncio.gather(
            asyncio.create_task(wait_for_godot(), name="Vladimir"),
            asyncio.create_task(wait_for_godot(), name="Estragon"),
        )

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, pytest.raises(Deadlock) as caught:
        runner.run(main())
    assert "Vladimir" in str(caught.value)
    assert "Estragon" in str(caught.value)
    assert "wait_for_godot" in str(caught.value)


def test_a_deadlock_comes_only_after_the_last_timer() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1000, lambda: None)
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        with pytest.raises(Deadlock):
            runner.run(main())
        assert loop.time() == pytest.approx(1000)


def test_what_is_ready_on_a_socket_is_served_before_the_clock_moves() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        with here, there:
            heard = loop.create_future()
            loop.add_reader(here, heard.set_result, None)
            there.send(b"x")
            await asyncio.wait_for(heard, 1000)
            loop.remove_reader(here)
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == 0.0


@pytest.mark.virtual_time
async def test_the_marker_puts_a_test_on_this_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    before = time.monotonic()
    await asyncio.sleep(3600)
    assert time.monotonic() - before < 5


async def test_without_the_marker_a_test_runs_on_real_time() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
