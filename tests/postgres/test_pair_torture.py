"""The attack on a session pair finds what it is there for, and its judge is right."""

import argparse
import asyncio
import struct
from pathlib import Path

import pytest

from proofs.pair_members import Interval
from proofs.pair_torture import Blow, Outcome, attack_rounds, find_overlaps, parse, tell
from proofs.pair_trace import Loss, Overlap, Trace
from proofs.traced_relay import Ending, RelayProcess, SlowAnswer, find_backend_pid, read_trace


def test_intervals_of_one_role_that_overlap_are_found():
    one, other = Interval(3, 7, 10.0, 12.0), Interval(3, 8, 11.5, 14.0)
    (found,) = find_overlaps([("b", other), ("a", one), ("b", Interval(4, 9, 10.0, 20.0))])
    assert (found.role, found.names, found.began_at, found.lasted_s) == (3, ("a", "b"), 11.5, 0.5)
    assert (found.first_since, found.first_until) == (10.0, 12.0)


def test_one_process_cannot_overlap_with_itself_and_an_end_is_not_an_overlap():
    assert not find_overlaps([("a", Interval(0, 1, 1.0, 3.0)), ("a", Interval(0, 2, 2.0, 4.0))])
    assert not find_overlaps([("a", Interval(0, 1, 1.0, 3.0)), ("b", Interval(0, 2, 3.0, 4.0))])
    seen_once = Interval(0, 2, 2.0, 0.5)  # frozen between its look and the clock
    assert not find_overlaps([("a", Interval(0, 1, 1.0, 3.0)), ("b", seen_once)])


# --- The trace -------------------------------------------------------------------------------------------------------

LOCK, WITNESS, ANOTHERS = 100, 101, 200
OVERLAP = Overlap(3, ("n1.0", "n2.0"), began_at=12.0, lasted_s=0.05, first_since=10.0, first_until=12.05)


def trace(*records: Ending | SlowAnswer) -> Trace:
    found = Trace(lock_pids={LOCK, ANOTHERS})
    found.add(records)
    return found


@pytest.mark.parametrize(
    ("endings", "is_defect", "words"),
    [
        ([Ending(1, LOCK, 12.06, 12.07)], False, "reached its socket 20.0 ms after its last look (of that 10.0 ms in"),
        ([Ending(1, LOCK, 11.99, 12.07)], False, "20.0 ms after its last look (of that 20.0 ms in the relay)"),
        ([Ending(1, LOCK, 12.0, 12.01)], True, "at its socket for 40.0 ms, and it still led"),
        ([], True, "had not ended"),
        ([Ending(1, LOCK, 13.0, 13.0)], True, "had not ended"),
        ([Ending(1, WITNESS, 12.06, 12.06)], True, "had not ended"),  # the other session of the old leader
        ([Ending(2, ANOTHERS, 12.06, 12.06)], True, "had not ended"),  # the session of another node
        ([Ending(1, LOCK, 9.0, 9.0)], True, "had not ended"),  # before its term
    ],
)
def test_an_overlap_is_a_defect_unless_the_news_had_not_reached_the_old_leader(
    endings: list[Ending], is_defect: bool, words: str
):
    traced = trace(*endings).explain(OVERLAP)
    assert traced.is_defect is is_defect
    assert words in traced.words


ENDED, UNANSWERED = Ending(1, LOCK, 11.9, 11.9), SlowAnswer(1, LOCK, 10.5, float("inf"))
STOOD_STILL = (11.5, 11.9)


@pytest.mark.parametrize(
    ("cause", "record", "stall", "is_untrue"),
    [
        ("session_terminated", ENDED, None, False),
        ("session_terminated", Ending(1, LOCK, 12.2, 12.2, said_at=11.9), None, False),  # its words come before its end
        ("session_terminated", Ending(1, LOCK, 12.2, 12.2), None, True),
        ("session_terminated", UNANSWERED, STOOD_STILL, True),
        ("session_terminated", Ending(2, LOCK, 11.9, 11.9), None, True),
        ("witness_lost", ENDED, None, False),
        ("renew_timeout", UNANSWERED, None, False),
        ("renew_timeout", ENDED, STOOD_STILL, False),  # an answer that was not read looks like none
        ("renew_timeout", ENDED, (11.9, 11.95), True),
        ("renew_timeout", SlowAnswer(1, LOCK, 9.5, 11.0), None, True),
        ("stalled", ENDED, STOOD_STILL, False),
        ("stalled", ENDED, None, True),
        ("stalled", UNANSWERED, None, True),
        ("unknown", ENDED, STOOD_STILL, True),
    ],
)
def test_a_cause_is_untrue_if_the_trace_contradicts_it(
    cause: str, record: Ending | SlowAnswer, stall: tuple[float, float] | None, is_untrue: bool
):
    seen = trace(record)
    seen.stalls = {1: [stall] if stall else []}
    assert seen.contradicts(Loss(1, 12.0, cause), lease_s=3.0) is is_untrue


@pytest.mark.parametrize(("closed_at", "code"), [(12.06, 0), (12.01, 1)])
def test_only_a_defect_fails_the_torture(closed_at: float, code: int, capsys: pytest.CaptureFixture[str]):
    outcome = Outcome(terms=2, traced=[trace(Ending(1, LOCK, closed_at, closed_at)).explain(OVERLAP)])
    options = argparse.Namespace(mode="group", seed=1, lease=3.0)
    assert tell(outcome, options) == code
    shown = capsys.readouterr().out
    assert ("DEFECT" if code else "not reached: n1.0 and n2.0: 1 roles, up to 50.0 ms") in shown
    assert f"1 overlaps, {code} of them defects" in shown


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


HELLO = message(b"R", struct.pack("!i", 0)) + message(b"S", b"a\0b\0") + message(b"K", struct.pack("!ii", 4711, 1))


def test_the_pid_of_a_session_is_found_as_soon_as_it_is_there():
    assert [find_backend_pid(HELLO[:length]) for length in (0, 5, 20, len(HELLO))] == [None, None, None, 4711]


def test_half_a_line_of_a_trace_is_none():
    assert list(read_trace(['{"node": 1, "pid": 2, "closed_at": 3.0, "forwarded_at": 4.0}', '{"node": 1, "pi'])) == [
        Ending(1, 2, 3.0, 4.0)
    ]


async def test_the_end_of_a_session_is_passed_on_and_written_down(server_folder_root: Path):
    folder = server_folder_root / "traced"
    folder.mkdir()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)
        await reader.readexactly(2)
        writer.write(message(b"E", b"SFATAL\0VFATAL\0C57P01\0\0"))
        writer.close()

    server = await asyncio.start_unix_server(serve, folder / "server")
    relays = RelayProcess(folder, folder / "server", 2)
    await relays.start()
    try:
        await relays.delay_connects(1, 0.05)
        clock = asyncio.get_running_loop().time
        began_at = clock()
        reader, writer = await asyncio.open_unix_connection(relays.folders[1] / ".s.PGSQL.5432")
        assert await reader.readexactly(len(HELLO)) == HELLO
        assert clock() - began_at >= 0.05
        writer.write(b"x")
        await asyncio.sleep(0.15)  # a request that is long under way
        writer.write(b"x")
        assert b"57P01" in await reader.read()
        writer.close()
    finally:
        found = await relays.stop()
        server.close()
    assert [(type(each), each.node, each.pid) for each in found] == [(SlowAnswer, 1, 4711), (Ending, 1, 4711)]
    slow, ending = found
    assert isinstance(slow, SlowAnswer)
    assert isinstance(ending, Ending)
    assert slow.answered_at - slow.asked_at >= 0.1
    assert slow.asked_at < ending.said_at < float("inf")
    assert ending.said_at <= ending.closed_at <= ending.forwarded_at


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["lock", "group"])
def test_the_lock_session_ends_while_the_witness_is_replaced(mode: str, capsys: pytest.CaptureFixture[str]):
    options = parse(["--mode", mode, "--seed", "1"])
    blow = Blow(lock_first=False, apart_s=0.1, connect_s=1.5, slow_for_all=False)
    outcome = attack_rounds(options, [blow] * 2)
    assert outcome.rounds == 2
    assert tell(outcome, options) == 0, capsys.readouterr().out


@pytest.mark.proof
@pytest.mark.parametrize("mode", ["lock", "group"])
def test_a_pair_that_ends_in_the_other_order_is_one_loss_with_its_true_cause(mode: str):
    options = parse(["--mode", mode, "--roles", "2" if mode == "group" else "0", "--seed", "1"])
    outcome = attack_rounds(options, [Blow(lock_first=True, apart_s=0.2, connect_s=0.0, slow_for_all=False)])
    assert outcome.terms >= 2
    assert outcome.causes["session_terminated"] >= 1
    assert not outcome.defects
