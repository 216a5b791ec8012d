"""The torture: a judge that can say no, faults that are what they are called, and a command that leaves nothing."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import psycopg
import pytest

from pgleaderlock import LockError
from pgleaderlock.cli import exit_codes, torture_show
from pgleaderlock.cli.commands import invoke
from pgleaderlock.cli.torture import find_forbidden, parse_faults
from pgleaderlock.testing._claim import GAP_S, ClaimWriter, make_claim_file, read_claims
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.torture import (
    FAULTS,
    Claim,
    Fault,
    Ground,
    Logs,
    Options,
    Setting,
    Told,
    Verdict,
    WallClock,
    _conductor,
    _ground,
    as_record,
    find_overlaps,
    judge,
    page,
    percentile,
    read_logs,
    why_clocks_cannot_jump,
)
from pgleaderlock.testing.torture._clock_step import plan_step
from pgleaderlock.testing.torture._conductor import Conductor
from pgleaderlock.testing.torture._faulty_relay import Allowance, FaultyRelay, Target
from pgleaderlock.testing.torture._member import TorturedNode
from pgleaderlock.testing.torture._plan import Deed, draw
from tests.conftest import Postgres, free_port
from tests.support.cli import CLI
from tests.support.processes import Process
from tests.support.programs import skip_without
from tests.support.silent_proxy import SilentProxy

pytestmark = pytest.mark.asyncio_loop  # as in test_demo.py: the nodes of a torture are started as those of the demo
# --- The judge -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("intervals", "number"),
    [
        ([], 0),
        ([(1.0, 2.0, "a"), (2.0, 3.0, "b")], 0),
        ([(1.0, 2.5, "a"), (2.0, 3.0, "b")], 1),
        ([(1.0, 9.0, "a"), (2.0, 3.0, "b"), (4.0, 5.0, "c")], 2),
        ([(1.0, 2.5, "a"), (2.0, 3.0, "a")], 0),
        ([(2.0, 3.0, "b"), (1.0, 9.0, "a")], 1),
    ],
)
def test_overlaps_are_counted_between_members_only(intervals, number):
    assert len(find_overlaps(Claim(name, 1, 7, start, end) for start, end, name in intervals)) == number


def logs(*claims: Claim, told: list[Told] | None = None, faults: list[Fault] | None = None, until: float = 100.0):
    return Logs(0.0, until, 1.0, ["a", "b", "c"], list(claims), told or [], faults or [])


def lost(node: str, token: int, at: float, cause: str | None = "session_terminated", process: int = 1) -> Told:
    return Told(node, process, at, "on_lost", token, cause)


def test_terms_that_follow_each_other_are_good():
    verdict = judge(
        logs(
            Claim("a", 1, 10, 1.0, 50.0),
            Claim("b", 1, 11, 50.2, 99.99),
            told=[lost("a", 10, 50.001)],
            faults=[Fault("session", 50.0, 50.0, "a", 1)],
        )
    )
    assert verdict.problems() == []
    assert verdict.is_good
    assert verdict.endings() == {"session_terminated": 1, "the end": 1}
    [taken] = verdict.failovers_s()["session"]
    assert taken == pytest.approx(0.2)
    assert verdict.leaderless_s() == {
        "the beginning": 1.0,
        "session": pytest.approx(0.2),
        "the end": pytest.approx(0.01),
    }


def test_a_split_brain_is_found_however_short_it_was():
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 50.0004), Claim("b", 1, 11, 50.0, 99.99), told=[lost("a", 10, 50.001)]))
    assert not verdict.is_good
    [problem] = verdict.problems()
    assert problem.startswith("TWO LEADERS AT ONCE: a and b both led for 0.40 ms, 50.000 s after")


def test_a_process_and_the_next_in_its_place_are_two():
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 5.0), Claim("a", 2, 11, 4.0, 99.99), told=[lost("a", 10, 5.0)]))
    assert len(verdict.overlaps) == 1


def test_a_token_that_two_processes_had_is_found():
    verdict = judge(
        logs(Claim("a", 1, 10, 1.0, 2.0), Claim("b", 1, 10, 3.0, 99.99), told=[lost("a", 10, 2.0)]),
    )
    assert verdict.repeated_tokens == [10]
    assert verdict.problems() == ["TOKEN REPEATED: two processes led with 10"]


def test_a_token_that_goes_back_is_found():
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 2.0), Claim("b", 1, 9, 3.0, 99.99), told=[lost("a", 10, 2.0)]))
    assert verdict.problems() == ["TOKEN WENT BACK: 9 came after a greater one"]


def test_a_term_that_ended_without_a_cause_is_found():
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 2.0), Claim("b", 1, 11, 3.0, 99.99)))
    assert [term.node for term in verdict.unexplained] == ["a"]
    assert verdict.problems() == ["NO CAUSE: the term of a with token 10 ended, and the logs hold no reason"]
    assert verdict.endings() == {"unexplained": 1, "the end": 1}


def test_report_of_another_process_is_no_cause():
    verdict = judge(
        logs(Claim("a", 2, 10, 1.0, 2.0), Claim("b", 1, 11, 3.0, 99.99), told=[lost("a", 9, 0.5, process=1)])
    )
    assert len(verdict.unexplained) == 1


def test_killed_leader_needs_no_report_of_its_end():
    kill = Fault("kill", 2.001, 2.001, "a", 1)
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 2.0), Claim("b", 1, 11, 2.02, 99.99), faults=[kill]))
    assert verdict.endings() == {"killed": 1, "the end": 1}
    assert verdict.failovers_s() == {"kill": [pytest.approx(0.019)]}
    another = judge(logs(Claim("a", 2, 10, 1.0, 2.0), Claim("b", 1, 11, 2.02, 99.99), faults=[kill]))
    assert len(another.unexplained) == 1  # it was the one before that was killed


def test_run_without_any_leader_is_a_failure():
    verdict = judge(logs())
    assert verdict.problems() == ["NO LEADER EVER: no node led in the whole run, so nothing was tested"]
    assert verdict.leaderless_s() == {"the beginning": 100.0}


def test_a_leader_without_samples_is_not_taken_for_a_follower():
    told = [Told("b", 1, 5.0, "on_acquired", 11), lost("b", 11, 6.0)]
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 2.0), told=[lost("a", 10, 2.0), *told]))
    assert verdict.problems() == ["NOT WATCHED: b (process 1) led, and there are no samples of it"]


def test_a_frozen_leader_that_goes_on_is_leaderless_time_and_no_failover():
    verdict = judge(
        logs(
            Claim("a", 1, 10, 0.0, 20.0),
            Claim("a", 1, 10, 20.5, 30.0),
            Claim("a", 1, 10, 30.02, 99.99),
            faults=[Fault("freeze", 20.0, 20.5, "a", 1)],
        )
    )
    assert verdict.leaderless_s() == {"freeze": 0.5, "the end": pytest.approx(0.01)}
    assert verdict.not_sampled_s() == pytest.approx(0.02)
    assert verdict.failovers_s() == {}
    assert len(verdict.terms) == 1


def handover(*faults: Fault) -> Verdict:
    return judge(
        logs(
            Claim("a", 1, 10, 0.0, 20.0),
            Claim("b", 1, 11, 21.0, 99.99),
            told=[lost("a", 10, 20.1, "stalled")],
            faults=list(faults),
        )
    )


@pytest.mark.parametrize(
    ("faults", "cause"),
    [
        ([], "nothing that was done"),
        ([Fault("freeze", 19.9, 21.5, "a", 1)], "freeze"),
        ([Fault("restart", 19.9, 20.3)], "restart"),
        ([Fault("freeze", 19.9, 21.5, "b", 1)], "nothing that was done"),
        ([Fault("freeze", 10.0, 10.5, "a", 1)], "nothing that was done"),
        ([Fault("freeze", 20.5, 21.5, "a", 1)], "nothing that was done"),
        ([Fault("clock", 19.9, 19.9, "a", 1)], "nothing that was done"),
        ([Fault("freeze", 10.0, 10.5, "a", 1), Fault("drop", 19.0, 20.5, "a", 1)], "drop"),
        ([Fault("drop", 19.0, 20.5, "a", 1), Fault("freeze", 19.5, 20.9, "b", 1)], "several at once"),
        ([Fault("drop", 19.0, 20.5, "a", 1), Fault("clock", 19.5, 19.5, "b", 1)], "drop"),
    ],
)
def test_the_time_without_a_leader_belongs_to_what_hit_the_leader_last(faults: list[Fault], cause: str):
    verdict = handover(*faults)
    assert verdict.leaderless_s()[cause] == pytest.approx(1.0)
    assert cause in verdict.failovers_s() or cause == "nothing that was done"


def test_a_session_that_was_ended_in_the_moment_before_its_owner_led_is_the_cause():
    verdict = judge(
        logs(
            Claim("a", 1, 10, 20.0, 20.01),
            Claim("b", 1, 11, 20.5, 99.99),
            told=[lost("a", 10, 20.011)],
            faults=[Fault("session", 19.999, 19.999, "a", 1)],
        )
    )
    assert "session" in verdict.failovers_s()


def test_term_after_the_end_of_the_run_is_judged_and_not_drawn():
    verdict = judge(
        logs(Claim("a", 1, 10, 0.0, 99.0), Claim("b", 1, 11, 101.0, 101.1), told=[lost("a", 10, 99.0)]),
    )
    assert [term.node for term in verdict.terms] == ["a", "b"]
    assert verdict.leaderless_s() == {"the end": 1.0}


def test_a_percentile_is_one_of_the_values():
    assert [percentile([1.0, 2.0, 3.0, 4.0], percent) for percent in (1, 50, 90, 100)] == [1.0, 2.0, 4.0, 4.0]
    assert percentile([5.0], 50) == 5.0


# --- When a process claimed to lead ----------------------------------------------------------------------------------


def test_an_interval_lasts_from_the_later_reading_to_the_earlier(tmp_path: Path):
    assert samples(tmp_path, (1.000, 7, 1.001), (1.002, 7, 1.003), (1.004, None, 1.005)) == [(1.001, 1.002, 7)]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((1.001 + 2 * GAP_S, 7, 1.002 + 2 * GAP_S), (1.002 + 2 * GAP_S, 1.002 + 2 * GAP_S, 7)),  # frozen between
        ((1.002, 8, 1.003), (1.003, 1.003, 8)),  # another term
    ],
)
def test_a_gap_and_another_token_begin_an_interval(tmp_path: Path, second: Any, expected: Any):
    assert samples(tmp_path, (1.000, 7, 1.001), second) == [(1.001, 1.001, 7), expected]


def test_a_term_with_token_0_is_read_and_so_are_those_after_it(tmp_path: Path):
    """Files, rows and Leases begin with it. Taken for an empty place, it hid every first leader from the torture."""
    noted = (1.000, 0, 1.001), (1.002, 3, 1.003)
    assert samples(tmp_path, *noted) == [(1.001, 1.001, 0), (1.003, 1.003, 3)]


def test_an_answer_that_took_long_says_nothing(tmp_path: Path):
    assert samples(tmp_path, (1.0, 7, 1.0 + GAP_S)) == []


def test_what_a_kill_cut_in_half_is_not_read(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"\0" * 8 + b"x" * 4)
    assert list(read_claims(path)) == []
    assert list(read_claims(tmp_path / "none")) == []


def test_a_full_log_of_claims_is_an_error_and_does_not_look_like_a_node_that_never_leads():
    writer = ClaimWriter(bytearray(48))
    writer.note(1.0, 7, 1.0)
    writer.note(2.0, 8, 2.0)
    writer.note(3.0, None, 3.0)
    with pytest.raises(BufferError, match="no room"):
        writer.note(4.0, 9, 4.0)


def samples(folder: Path, *noted: tuple[float, int | None, float]) -> list[tuple[float, float, int]]:
    path = folder / "claims"
    make_claim_file(path)
    memory = bytearray(path.stat().st_size)
    writer = ClaimWriter(memory)
    for before, token, after in noted:
        writer.note(before, token, after)
    path.write_bytes(memory)
    return list(read_claims(path))


def test_logs_are_read_back_whole_and_half_a_line_is_none(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"began_at": 1.0, "ended_at": 9.0, "lease_s": 2.0, "nodes": ["a.b"]}')
    event = {"at": 2.0, "event": "on_lost", "token": 7, "cause": "stalled", "detail": None}
    (tmp_path / "a.b.3.events").write_text(json.dumps(event) + '\n{"at": 3.0, "ev')
    (tmp_path / "a.b.4.events").write_text('{"at": 5.0, "event": "ready"}\n')
    (tmp_path / "faults.jsonl").write_text('{"kind": "kill", "at": 2.0, "until": 2.0, "node": "a.b", "process": 3}\n')
    found = read_logs(tmp_path)
    assert found.told == [Told("a.b", 3, 2.0, "on_lost", 7, "stalled"), Told("a.b", 4, 5.0, "ready")]
    assert found.faults == [Fault("kill", 2.0, 5.0, "a.b", 3)]  # a node is away until another takes part in its place
    assert found.claims == []


# --- The plan --------------------------------------------------------------------------------------------------------


def test_a_seed_repeats_the_order_and_another_does_not():
    first, again, other = (deeds(seed, *FAULTS) for seed in (1, 1, 2))
    assert first == again != other
    assert {deed.kind for deed in deeds(1, "kill", "freeze")} == {"kill", "freeze"}


def deeds(seed: int, *kinds: str) -> list[Deed]:
    return list(islice(draw(seed, kinds, 3, lease_s=1.0, every_s=1.0), 50))


def test_what_may_be_done_depends_on_the_promise_and_on_the_server():
    assert parse_faults(None, find_forbidden(can_restart=True, is_ours=True)) == tuple(FAULTS)
    assert set(find_forbidden(can_restart=True, is_ours=False)) == {"standby", "step"}
    foreign = find_forbidden(can_restart=False, is_ours=False)
    assert set(FAULTS) - set(parse_faults(None, foreign)) == set(foreign) == {"restart", "standby", "step"}
    assert parse_faults("kill, freeze,kill", foreign) == ("kill", "freeze")


# --- The way to the server -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def relayed(folder: Path, connections: int = 5, messages_per_s: float = 1000.0) -> AsyncIterator[Any]:
    """Yield a relay before a server that says everything again, and a way to talk through it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    allowance = Allowance(connections, messages_per_s, asyncio.get_running_loop().time)
    relay = FaultyRelay(folder / "way", Target(host="127.0.0.1", port=port), allowance)
    await relay.start()
    writers: list[asyncio.StreamWriter] = []

    async def talk() -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writers.append(writer)
        return reader, writer

    try:
        yield relay, talk
    finally:
        for writer in writers:
            writer.close()
        server.close()
        await relay.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


async def say(stream: Any, words: bytes = b"one") -> bytes:
    stream[1].write(words)
    answer: bytes = await stream[0].read(100)
    return answer


async def test_what_falls_silent_stays_silent_and_what_comes_later_does_not(tmp_path: Path):
    async with relayed(tmp_path) as (relay, talk):
        before = await talk()
        assert await say(before) == b"one"
        relay.drop()
        during = await talk()
        heard = [asyncio.ensure_future(say(stream)) for stream in (before, during)]
        assert not (await asyncio.wait(heard, timeout=0.1))[0]
        assert not relay.is_fair
        relay.heal()
        assert relay.is_fair
        after = await talk()
        assert await say(after) == b"one"
        assert not any(future.done() for future in heard)
        for future in heard:
            future.cancel()


async def test_a_reset_breaks_off_one_conversation_or_all(tmp_path: Path):
    async with relayed(tmp_path) as (relay, talk):
        oldest, newest, third = [await talk() for _ in range(3)]
        for stream in (oldest, newest, third):
            await say(stream)
        assert relay.reset(0) == 1
        with pytest.raises(ConnectionResetError):
            await oldest[0].read(1)
        assert await say(newest) == b"one"
        await until(lambda: len(relay._conversations) == 2)  # it has been notified, and closes in its own time
        assert relay.reset(None) == 2
        with pytest.raises(ConnectionResetError):
            await newest[0].read(1)
        await until(lambda: not relay._conversations)
        assert relay.reset(0) == 0


async def test_a_slow_and_a_narrow_way_take_their_time(tmp_path: Path):
    async with relayed(tmp_path) as (relay, talk):
        stream = await talk()
        await say(stream)
        clock = asyncio.get_running_loop().time
        relay.delay_s = 0.03
        began_at = clock()
        await say(stream)
        assert clock() - began_at >= 0.05
        relay.heal()
        relay.bytes_per_s = 100.0
        began_at = clock()
        await say(stream, b"x" * 3)
        assert clock() - began_at >= 0.05


async def test_there_are_no_more_connections_than_were_promised(tmp_path: Path):
    async with relayed(tmp_path, connections=1) as (relay, talk):
        await say(await talk())
        refused = await talk()
        assert await refused[0].read(1) == b""
        assert relay._allowance.refused == 1
        assert relay._allowance.most_in_use == 1


@pytest.mark.virtual_time
async def test_there_are_no_more_statements_than_were_promised():
    clock = asyncio.get_running_loop().time
    allowance = Allowance(1, 10.0, clock)
    began_at = clock()
    for _ in range(40):
        await allowance.message()
    assert clock() - began_at == pytest.approx(3.0, abs=0.11)


async def test_a_relay_without_a_server_hangs_up(tmp_path: Path):
    relay = FaultyRelay(
        tmp_path / "way",
        Target(host="127.0.0.1", port=free_port()),
        Allowance(5, 10.0, asyncio.get_running_loop().time),
    )
    await relay.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    assert await reader.read() == b""
    writer.close()
    await relay.close()


# --- The page --------------------------------------------------------------------------------------------------------

EVIL = '<script>alert("&")</script>'


def setting(**changed: Any) -> Setting:
    values: dict[str, Any] = {
        "where": EVIL,
        "version": EVIL,
        "options": Options(60.0, 2, 1.0, "fast", ("kill",), 7, 1.5),
        "command": EVIL,
        "done": {"kill": 2, EVIL: 1},
    }
    return Setting(**{**values, **changed})


def evil_verdict() -> Verdict:
    evil = logs(
        Claim(EVIL, 1, 10, 1.0, 21.0),
        Claim("b", 1, 11, 20.0, 99.99),
        told=[lost(EVIL, 10, 21.0, EVIL)],
        faults=[
            Fault(EVIL, 19.0, 20.5, EVIL, 1, EVIL),
            Fault("restart", 40.0, 41.0, detail="a crash"),
            Fault("kill", 99.9, 99.9, "b", 1),
        ],
    )
    evil.nodes = [EVIL, "b"]
    return judge(evil)


def test_whatever_is_on_the_page_was_escaped():
    shown = page(evil_verdict(), setting(impossible={"clock": EVIL}, left_out=3, is_cut_short=True))
    assert "<script" not in shown
    assert "&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;" in shown
    assert "cut short" in shown


def test_the_page_needs_nothing_from_anywhere_and_says_what_is_wrong():
    shown = page(evil_verdict(), setting())
    assert "http" not in shown.replace("http-equiv", "")
    assert "default-src 'none'" in shown
    assert "The promise was not kept" in shown
    assert "TWO LEADERS AT ONCE" in shown
    assert 'class="overlap"' in shown


def test_a_good_page_says_so_and_draws_every_term():
    verdict = judge(logs(Claim("a", 1, 10, 1.0, 99.99), Claim("b", 1, 11, 99.995, 99.999), told=[lost("a", 10, 99.99)]))
    shown = page(verdict, setting(where="db", version="18", command="x", done={"kill": 1}))
    assert "Never two leaders" in shown
    assert "a led for 98.990 s with token 10; ended by: session_terminated" in shown
    assert shown.count("<svg") == 3  # 100 s in strips of about half a minute


def test_a_record_counts_what_the_page_shows():
    record = as_record(evil_verdict(), setting(where="db"))
    assert (record["good"], record["terms"], record["overlaps"][0]["ms"]) == (False, 2, 1000.0)
    assert record["overlaps"][0]["tokens"] == [10, 11]


# --- What cannot be meant, and servers that refuse -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--faults", "kill,dance"], "there is no fault 'dance'"),
        (["--faults", "standby", "--dsn", "host=x"], "synchronous_standby_names of your server is not changed"),
        (["--faults", "step", "--dsn", "host=x"], "the clock of your server is not changed"),
        (["--faults", "restart", "--dsn", "host=x"], "only with --restart-command"),
        (["--restart-command", "x"], "needs --dsn"),
        (["--nodes", "1"], "1 is not in the range"),
        (["--lease", "0.1"], "--lease must be at least 0.5"),
        (["--minutes", "0"], "0.0 is not in the range"),
        (["--report", "/nowhere/x.html"], "/nowhere/x.html cannot be written"),
        (["--logs", "/"], "is not empty"),
        (["--dsn", "mysql://x"], "not PostgreSQL's"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    assert invoke(["torture", *words]) == exit_codes.USAGE
    assert complaint in capsys.readouterr().err


def test_a_server_that_is_not_there_is_named_without_the_password(capsys: pytest.CaptureFixture[str]):
    dsn = f"postgresql://me:s3cret@127.0.0.1:{free_port()}/db"
    assert invoke(["torture", "--dsn", dsn, "--minutes", "0.01"]) == exit_codes.UNREACHABLE
    shown = capsys.readouterr().err
    assert "host=127.0.0.1" in shown
    assert "s3cret" not in shown


def test_a_server_that_cannot_carry_an_election_is_not_tortured(postgres: Postgres, capsys: pytest.CaptureFixture[str]):
    user = f"lonely_{os.getpid()}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 1")
        try:
            code = invoke(["torture", "--dsn", psycopg.conninfo.make_conninfo(postgres.dsn, user=user)])
        finally:
            connection.execute(f"DROP ROLE {user}")
    assert code == exit_codes.UNFIT
    assert "nothing to torture:\n  connections: room for 1" in capsys.readouterr().err


def test_where_nothing_of_it_is_possible_it_says_why(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert invoke(["torture", "--dsn", postgres.dsn, "--faults", "clock"]) == exit_codes.USAGE
    assert "none of them is possible here: faketime is not installed" in capsys.readouterr().err


async def test_faults_that_are_impossible_on_this_server_are_listed_in_one_line(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", str(tmp_path))
    forbidden = find_forbidden(can_restart=False, is_ours=False)
    options = Options(5.0, 1, 1.0, "fast", parse_faults(None, forbidden), 1, 1.0)
    request = torture_show.Request(options, postgres.dsn, None, None, None, as_json=False, forbidden=forbidden)
    ground = Ground(postgres.dsn)
    async with ground.tidied(has_schema=False):
        drawn = (await torture_show._Run(request, ground, tmp_path, tmp_path)._prepare()).faults
    assert set(FAULTS) - set(drawn) == {"restart", "standby", "step", "clock"}
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not possible here: ")]
    assert "step: the clock of your server is not changed; clock: faketime is not installed" in line


def test_a_server_of_ours_without_faketime_is_tortured_with_its_true_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    skip_without("libfaketime")
    started: list[dict[str, str]] = []

    @contextlib.contextmanager
    def start(environment: Callable[[Path], dict[str, str]]) -> Iterator[Any]:
        started.append(environment(tmp_path))
        yield SimpleNamespace(dsn="host=db", folder=tmp_path / "server")

    (tmp_path / "nodes").mkdir()
    monkeypatch.setattr(torture_show, "own_server", start)
    options = Options(5.0, 1, 1.0, "fast", ("step",), 1, 1.0)
    request = torture_show.Request(options, None, None, None, None, as_json=False, forbidden={})
    with torture_show._ground(request) as (ground, _):
        assert ground.wall_clock is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    with torture_show._ground(request) as (ground, _):
        assert ground.wall_clock is None
    [with_clock, without] = started
    assert with_clock["FAKETIME_TIMESTAMP_FILE"] == str(tmp_path / "server.clock")
    assert without == {}


def test_broken_promise_is_printed_at_the_end(capsys: pytest.CaptureFixture[str]):
    torture_show._print(evil_verdict(), setting(where="db\x1b[2J", impossible={"clock": "it is not there"}), None)
    out = capsys.readouterr().out
    assert "TWO LEADERS AT ONCE" in out
    assert "clock was not possible here: it is not there." in out
    assert "\x1b[2J" not in out
    assert "never two leaders" not in out


async def test_a_node_is_led_through_its_relay_and_the_password_is_not_in_its_arguments(
    postgres: Postgres, tmp_path: Path
):
    dsn = postgres.tcp_dsn.replace("postgres@", "postgres:s3cret@") + "?sslmode=prefer"
    ground = Ground(dsn)
    async with ground.tidied(has_schema=False):
        await ground.survey(1.0)
        relay = FaultyRelay(tmp_path / "way", ground.target, Allowance(5, 100.0, asyncio.get_running_loop().time))
        await relay.start()
        parts = psycopg.conninfo.conninfo_to_dict(ground.dsn_by(relay))
        assert (parts["host"], parts["hostaddr"], parts["port"]) == ("127.0.0.1", "127.0.0.1", str(relay.port))
        assert parts["sslmode"] == "prefer"
        assert "password" not in parts
        assert ground.environment() == {"PGPASSWORD": "s3cret"}
        await relay.close()


async def test_no_secret_of_a_connection_string_is_in_a_nodes_arguments(tmp_path: Path):
    relay = FaultyRelay(tmp_path / "way", Target(), Allowance(5, 100.0, asyncio.get_running_loop().time))
    dsn = "host=db sslkey=/k sslpassword=s3cret"
    member = TorturedNode("node-a", relay, tmp_path, {"role": "x"}, environment={"PGPASSWORD": "s3cret too"}, dsn=dsn)
    assert "s3cret" not in "".join(member._command())
    assert dsn in member._environment().values()


async def test_server_that_falls_silent_does_not_keep_the_torture_from_ending(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_ground, "_ANSWER_S", 0.5, raising=False)
    monkeypatch.setattr(_ground, "_TIDY_TRIES", 2)
    monkeypatch.setattr(_ground, "_TIDY_EVERY_S", 0.0)
    with SilentProxy(postgres.tcp_dsn) as proxy:
        ground = Ground(proxy.dsn)
        await ground.survey(1.0)
        proxy.mute()
        async with asyncio.timeout(20):
            assert await ground.end_session("session") == []
            with pytest.raises(LockError, match=f"DROP SCHEMA {ground.schema} CASCADE"):
                async with ground.tidied(has_schema=True):
                    pass


async def test_a_command_that_restarts_a_server_has_to_succeed(postgres: Postgres):
    await Ground(postgres.dsn, restart_command="true").restart(crash=False)
    with pytest.raises(LockError, match="ended with 1"):
        await Ground(postgres.dsn, restart_command="false").restart(crash=False)
    with pytest.raises(LockError, match="cannot be started"):
        await Ground(postgres.dsn, restart_command="/nowhere/restart now").restart(crash=False)


def test_without_faketime_clocks_cannot_jump_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_clocks_cannot_jump(tmp_path) == "faketime is not installed"


def test_a_faketime_that_changes_too_much_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "faketime"
    program.write_text("#!/bin/sh\necho /nowhere/lib.so\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert "does not leave the monotonic clock alone" in str(why_clocks_cannot_jump(tmp_path))


@pytest.mark.slow
async def test_nodes_that_do_not_start_end_the_torture_with_their_last_output(postgres: Postgres, tmp_path: Path):
    ground = Ground(postgres.dsn)
    async with ground.tidied(has_schema=False):
        await ground.survey(1.0)
        ground.role = ""  # which is no role
        conductor = Conductor(ground, tmp_path, tmp_path, Options(5.0, 1, 1.0, "fast", ("kill",), 1, 1.0))
        with pytest.raises(LockError, match=r"node-. does not start:[\s\S]*role"):
            await conductor.run(asyncio.Event())


async def test_nodes_that_never_take_part_end_it_too(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_conductor, "_READY_S", -10.0)
    ground = Ground(postgres.dsn)
    async with ground.tidied(has_schema=False):
        await ground.survey(1.0)
        conductor = Conductor(ground, tmp_path, tmp_path, Options(5.0, 1, 1.0, "fast", ("kill",), 1, 1.0))
        with pytest.raises(LockError, match="node-a neither led nor was queued"):
            await conductor.run(asyncio.Event())


# --- What the conductor does, and leaves out -------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def conductor_of_the_idle(
    dsn: str, folder: Path, takeover: Any, *faults: str, **ground_options: Any
) -> AsyncIterator[Conductor]:
    """A conductor whose nodes have relays, and no processes."""
    ground = Ground(dsn, **ground_options)
    async with ground.tidied(has_schema=False):
        await ground.survey(1.0)
        conductor = Conductor(ground, folder, folder, Options(5.0, 1, 1.0, takeover, faults, 1, 1.0))
        conductor._members.append(await conductor._make("node-a"))
        try:
            yield conductor
        finally:
            await conductor._end()


def deed(kind: str) -> Deed:
    return Deed(0.0, kind, to_leader=True, node=0, lasts_s=60.0, strength=0.5, jump_s=-3600)


@pytest.mark.parametrize(
    ("kind", "is_so"),
    [
        ("delay", lambda relay: relay.delay_s == 0.25),
        ("connect", lambda relay: relay.connect_delay_s == 0.35 and relay.is_quick),
        ("throttle", lambda relay: relay.bytes_per_s == 2200.0),
        ("cut", lambda relay: relay.is_cut),
        ("drop", lambda relay: relay.is_dropping),
    ],
)
async def test_a_network_fault_is_made_once_noted_and_ended(postgres: Postgres, tmp_path: Path, kind: str, is_so: Any):
    async with conductor_of_the_idle(postgres.dsn, tmp_path, "fast", kind) as conductor:
        relay = conductor._members[0].network
        assert await conductor._do(deed(kind))
        assert is_so(relay)
        assert not await conductor._do(deed("cut"))  # it has a fault already
        conductor._write_run(0.0)
        [fault] = read_logs(tmp_path).faults
        assert (fault.kind, fault.node) == (kind, "node-a")
        assert fault.until - fault.at == pytest.approx(61.0 if kind == "drop" else 60.0)
        relay.heal()
        assert relay.is_fair


async def test_what_cannot_be_done_is_left_out_and_not_noted(postgres: Postgres, tmp_path: Path):
    async with conductor_of_the_idle(postgres.dsn, tmp_path, "fast", "kill") as conductor:
        for kind in ("kill", "freeze", "session", "witness", "both", "apart", "standby", "reset", "step", "clock"):
            assert not await conductor._do(deed(kind)), kind
        assert not (tmp_path / "faults.jsonl").exists()


async def test_fast_spares_a_second_session_for_a_lease_and_strict_does_not(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def end(_kind: str) -> list[str]:
        return ["pgleaderlock host:1 1s wf"]

    for takeover, ended in (("fast", [True, False, False]), ("strict", [True, True, True])):
        (folder := tmp_path / takeover).mkdir()
        async with conductor_of_the_idle(postgres.dsn, folder, takeover) as conductor:
            monkeypatch.setattr(conductor._ground, "end_session", end)
            assert [await conductor._do(deed(kind)) for kind in ("session", "witness", "session")] == ended


async def test_a_wall_clock_jumps_by_what_was_planned(postgres: Postgres, tmp_path: Path):
    async with conductor_of_the_idle(postgres.dsn, tmp_path, "fast", "clock") as conductor:
        assert await conductor._do(deed("clock"))
        assert (tmp_path / "node-a.clock").read_text() == "-3600"


# --- The server's clock ----------------------------------------------------------------------------------------------

RUNNING, RESTARTED, BEHIND_THE_LEADER = 0.1, 0.5, 0.9
"""What of a deed's strength says how the server's clock is stepped."""


def step_of(strength: float, jump_s: int = 5, lasts_s: float = 0.4, node: int = 0) -> Deed:
    return Deed(0.0, "step", to_leader=True, node=node, lasts_s=lasts_s, strength=strength, jump_s=jump_s)


@pytest.mark.parametrize("lease_s", [0.5, 3.0])
def test_a_server_clock_is_stepped_by_more_than_a_lease_in_every_way(lease_s: float):
    steps = [plan_step(deed, lease_s) for deed in islice(draw(1, ["step"], 3, lease_s=lease_s, every_s=1.0), 300)]
    assert all(abs(step.by_s) > lease_s for step in steps)
    assert max(abs(step.by_s) for step in steps) <= 20 * lease_s
    # A session that has fallen silent keeps the lock for longer by as much as a running server's clock is set back.
    assert min(step.by_s for step in steps if not step.restarts) >= -4 * lease_s
    ways = {(step.by_s > 0, step.restarts, step.crashes, step.cuts_leader) for step in steps}
    assert {step.cuts_others for step in steps if step.restarts} == {True, False}
    assert len(ways) == 2 * (1 + 4)  # forward and back; running, or restarted: by a crash or not, the leader cut or not


def test_a_step_says_how_it_was_done():
    crash = plan_step(step_of(BEHIND_THE_LEADER, jump_s=-5, lasts_s=1.6, node=1), 1.0)
    assert crash.describe() == "-20.0 s, after a crash behind the leader's back"
    assert plan_step(step_of(RUNNING, lasts_s=0.0), 1.0).describe() == "+1.2 s, as it ran"


async def says_age_s(server: Server) -> float:
    """Return for how long the server runs, by its own wall clock."""
    async with await psycopg.AsyncConnection.connect(server.dsn) as connection:
        age = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8"
        row = await (await connection.execute(age)).fetchone()
    assert row is not None
    return float(row[0])


@pytest.mark.slow
async def test_the_clock_of_a_server_of_ours_is_stepped_as_it_runs_and_after_a_restart(
    server_with_a_clock: tuple[Server, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server, path = server_with_a_clock
    wall_clock = WallClock(path)
    ground = {"server": server, "wall_clock": wall_clock}
    async with conductor_of_the_idle(server.dsn, tmp_path, "strict", "step", **ground) as conductor:
        [member] = conductor._members
        pid = server.pid
        assert await conductor._do(step_of(RUNNING, lasts_s=1.6))
        assert (server.pid, path.read_text()) == (pid, "+0")
        assert await conductor._do(step_of(RESTARTED, lasts_s=1.6))
        assert server.pid != pid
        assert member.network.is_fair  # it was cut off until the step only
        assert await says_age_s(server) >= 20  # older than it is, by the step
        began_at = time.monotonic()
        assert not await conductor._do(step_of(BEHIND_THE_LEADER))  # there is none
        monkeypatch.setattr(member, "leads", lambda: True)
        assert await conductor._do(step_of(BEHIND_THE_LEADER, jump_s=-5, lasts_s=1.6, node=1))
        assert member.network.is_cut
        assert await says_age_s(server) <= time.monotonic() - began_at - 20  # younger
        assert not await conductor._do(step_of(BEHIND_THE_LEADER))  # it is cut off already
        conductor._write_run(0.0)
        assert [(fault.kind, fault.detail) for fault in read_logs(tmp_path).faults] == [
            ("step", "+20.0 s, as it ran"),
            ("step", "+20.0 s, after a restart"),
            ("step", "-20.0 s, after a crash behind the leader's back"),
        ]


async def test_fast_steps_a_clock_only_where_all_are_in_touch_and_then_waits_for_the_timers(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_conductor, "TOUCH_LEASES", 0.1)
    wall_clock = WallClock(tmp_path / "server.clock")
    async with conductor_of_the_idle(postgres.dsn, tmp_path, "fast", "step", wall_clock=wall_clock) as conductor:
        assert not await conductor._do(step_of(RUNNING))
        monkeypatch.setattr(conductor._members[0], "is_in_touch", lambda: True)
        shown: list[float] = []
        monkeypatch.setattr(wall_clock, "jump", shown.append)
        assert await conductor._do(step_of(RUNNING, jump_s=-5, lasts_s=1.6))
        assert shown == [4.0, 0]  # wrong, and then set right: that is the step
        assert not await conductor._do(deed("delay"))  # both sessions of the leader may end, and it must learn of it
        conductor._calm_until = 0.0
        assert await conductor._do(deed("delay"))


async def test_node_that_runs_knows_the_server_and_has_a_good_network_is_in_touch(tmp_path: Path):
    def make() -> TorturedNode:
        relay = FaultyRelay(tmp_path / "way", Target(), Allowance(5, 100.0, asyncio.get_running_loop().time))
        member = TorturedNode("node-a", relay, tmp_path, {"role": "x"}, environment={}, dsn="host=db")
        process: Any = SimpleNamespace(pid=1, returncode=None, send_signal=lambda _: None)
        member._process = process
        member._listen(member, 1, {"says": "ready"})
        return member

    assert make().is_in_touch()
    for harm in (TorturedNode.freeze, TorturedNode.kill, TorturedNode.cut_off, TorturedNode._command):
        member = make()
        harm(member)
        assert not member.is_in_touch(), harm
    silent: Any = SimpleNamespace(is_mute=True)  # half open, after the fault has ended
    member = make()
    member.network._conversations.append(silent)
    assert member.network.is_fair
    assert not member.network.is_quick
    assert not member.is_in_touch()


# --- For real --------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a torture puts its folder."""
    folder = Path(tempfile.mkdtemp(prefix="pgll-"))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


EVERYTHING = 27405
"""A seed whose faults of the first three seconds are of all kinds but one."""


@pytest.mark.slow
def test_everything_that_can_go_wrong_on_a_server_of_its_own(root: Path, tmp_path: Path):
    report, kept = tmp_path / "report.html", tmp_path / "logs"
    words = ["--minutes", "0.07", "--lease", "0.5", "--every", "0.25", "--nodes", "2", "--takeover", "strict"]
    words += ["--embedded", "--seed", str(EVERYTHING), "--report", str(report), "--logs", str(kept)]
    with Process(*CLI, "torture", *words) as process:
        assert process.wait(50) == 0, process.lines
        process.wait_for("report:")
    assert any("never two leaders" in line for line in process.lines)
    assert any("torture of a server of its own: 2 processes" in line for line in process.lines)
    verdict = judge(read_logs(kept))
    assert verdict.is_good
    assert len({fault.kind for fault in verdict.logs.faults}) > 3  # of sixteen: this machine may be slow
    assert "Never two leaders" in report.read_text()
    assert list(root.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_and_removes_everything_and_the_users_own_schema_is_never_touched(root: Path, postgres: Postgres):
    words = ("--dsn", postgres.tcp_dsn, "--lease", "0.5", "--takeover", "strict", "--faults", "kill,session")
    with Process(*CLI, "torture", *words, "--nodes", "2", "--minutes", "5", "--json") as process:
        schema = process.wait_for("is created, and dropped").partition("schema ")[2].split()[0]
        process.wait_for("the faults begin")
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            there = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
            assert connection.execute(there, (schema,)).fetchone() == (1,)
            process.signal(signal.SIGINT)
            assert process.wait(30) in (128 + signal.SIGINT, 0), process.lines
            assert connection.execute(there, (schema,)).fetchone() == (0,)
    assert list(root.iterdir()) == []
    assert not [line for line in process.lines if "Traceback" in line]


def test_a_port_on_the_loopback_address_is_all_that_listens():
    relay = FaultyRelay(Path("way"), Target(host="db", port=5432), Allowance(1, 1.0, lambda: 0.0))

    async def where() -> tuple[str, int]:
        await relay.start()
        assert relay._server is not None
        found: tuple[str, int] = relay._server.sockets[0].getsockname()
        await relay.close()
        return found

    host, port = asyncio.run(where())
    assert host == "127.0.0.1"
    assert relay.folder is None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


# --- What is shown while it runs -------------------------------------------------------------------------------------


class _NoGround:
    """A place where nothing is to be cleaned up."""

    @contextlib.asynccontextmanager
    async def tidied(self, *, has_schema: bool) -> AsyncIterator[None]:
        yield


def shown_run(logs: Path) -> torture_show._Run:
    request: Any = SimpleNamespace(options=None, logs=logs)
    ground: Any = _NoGround()
    return torture_show._Run(request, ground, logs, logs)


async def test_progress_is_printed_now_and_then(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(torture_show, "_PROGRESS_S", 0.01)
    monkeypatch.setattr("pgleaderlock.testing.torture.read_logs", lambda logs: logs)
    monkeypatch.setattr("pgleaderlock.testing.torture.judge", lambda _: SimpleNamespace(terms=[], overlaps=[]))
    told = asyncio.ensure_future(shown_run(tmp_path)._show_progress(cast("Any", SimpleNamespace(done={"kill": 3}))))
    lines: list[str] = []
    await until(lambda: any("3 faults, 0 terms, 0 times two leaders" in line for line in _read(capsys, lines)))
    told.cancel()
    await asyncio.wait({told})


def _read(capsys: pytest.CaptureFixture[str], lines: list[str]) -> list[str]:
    lines.extend(capsys.readouterr().err.splitlines())
    return lines


@pytest.mark.parametrize(
    ("error", "words"),
    [(LockError("nobody starts"), "nobody starts"), (OSError("no more"), "the torture failed: no more")],
)
async def test_a_torture_that_cannot_go_on_says_why(tmp_path: Path, error: Exception, words: str):
    async def run(*_: object) -> None:
        raise error

    with pytest.raises(click.ClickException, match=words):
        options = cast("Any", SimpleNamespace(takeover="fast"))
        await shown_run(tmp_path)._torture(cast("Any", SimpleNamespace(run=run)), options, asyncio.Event())


def test_logs_that_cannot_be_kept_there_are_wrong_usage():
    request: Any = SimpleNamespace(logs=Path("/dev/null/logs"))
    with pytest.raises(click.UsageError, match="--logs: /dev/null/logs cannot be made"):
        torture_show._logs_folder(request, Path("/tmp"))
