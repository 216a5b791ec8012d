"""The session pair under attack, on a real server: both sessions of a leader end while it replaces one of them.

    python -m proofs.pair_torture --mode lock --rounds 200
    python -m proofs.pair_torture --mode group --roles 20 --rounds 200
    python -m proofs.pair_torture --mode many --roles 2000 --seconds 300
    PGLEADERLOCK_PG_BIN=/path/to/postgres-14/bin python -m proofs.pair_torture ...      another version of PostgreSQL

``lock`` and ``group``: in each round one session of the leader is ended, either, and the other after 0 to 0.5 s, while
new connections (of the leader, or of all) take 0 to 2 s longer and established ones are as quick as ever. ``many``:
three candidates for thousands of roles are killed, frozen and asked to step down, and one, both or all of their
sessions are ended.

Every candidate process samples whether it leads (``proofs/pair_members.py``), and the relays before the server write
down when the end of a session reached a candidate's socket (``proofs/traced_relay.py``), by one clock. Each overlap is
traced (``proofs/pair_trace.py``): the news had not reached the socket, which ``takeover="fast"`` does not promise, or
it had. Exit code 1 when it had, or when the trace contradicts the cause of a loss (only in rounds).
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.postgres.lease import witness_key
from pgleaderlock.testing import torture as proof
from pgleaderlock.testing.embedded import Server
from pgleaderlock.testing.torture import Claim
from proofs.pair_members import Interval, key_of, make_file, read_file
from proofs.pair_trace import Loss, Overlap, Trace, Traced
from proofs.traced_relay import RelayProcess
from tests.conftest import free_port

__all__ = ["Outcome", "attack_roles", "attack_rounds", "find_overlaps"]

_NODES = 3
_APART_S = 0.5
_CONNECT_S = 2.0
_LEADS_S = 30.0

_HOLDER = """
SELECT l.pid, a.application_name FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
 WHERE locktype = 'advisory' AND granted AND classid::text::bigint = %s AND objid::text::bigint = %s AND objsubid = %s
"""


_LOCK_SESSIONS = """
SELECT DISTINCT pid FROM pg_locks
 WHERE locktype = 'advisory' AND granted AND classid::text::bigint = %s AND objsubid = %s
"""
_OTHERS = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
_DEEDS = {"kill": 2, "freeze": 2, "step_down": 3, "one": 3, "both": 4, "all": 1, "apart": 4, "slow": 2}
"""How often each is done, beside the others."""


@dataclass
class Strike:
    """What was done, to whom and when."""

    at: float
    text: str
    name: str


@dataclass
class Outcome:
    """What was seen."""

    rounds: int = 0
    terms: int = 0
    traced: list[Traced] = field(default_factory=list)
    """Each overlap, with what it was."""
    causes: Counter[str] = field(default_factory=Counter)
    untrue: list[str] = field(default_factory=list)
    unexplained: Counter[str] = field(default_factory=Counter)
    """What was said of losses that came without a known cause."""
    strikes: list[Strike] = field(default_factory=list)

    @property
    def defects(self) -> list[Traced]:
        """The overlaps that must not be."""
        return [each for each in self.traced if each.is_defect]

    def what_came_before(self, overlap: Overlap) -> str:
        """The last things that were done before it, the newest last."""
        before = [strike for strike in self.strikes if strike.at <= overlap.began_at]
        return "; ".join(f"{overlap.began_at - strike.at:.3f} s before: {strike.text}" for strike in before[-3:])

    def told_once(self) -> Iterator[str]:
        """A line for each event, with how many roles of the two processes overlapped then."""
        same: dict[tuple[tuple[str, str], int, bool], list[Traced]] = defaultdict(list)
        for each in self.traced:
            last = sum(strike.at <= each.overlap.began_at for strike in self.strikes)
            same[each.overlap.names, last, each.is_defect].append(each)
        for (names, _, is_defect), ones in same.items():
            longest = max(ones, key=lambda each: each.overlap.lasted_s)
            yield (
                f"{'DEFECT' if is_defect else 'not reached'}: {' and '.join(names)}: {len(ones)} roles, "
                f"up to {longest.overlap.lasted_s * 1e3:.1f} ms: {longest.words}; "
                + self.what_came_before(longest.overlap)
            )


@dataclass(frozen=True)
class Blow:
    """One round: which session first, how long until the other, and how slow new connections are for whom."""

    lock_first: bool
    apart_s: float
    connect_s: float
    slow_for_all: bool


class Candidate:
    """One member: its process of the moment, and the files of all before it."""

    def __init__(self, number: int, folder: Path, settings: dict[str, Any]) -> None:
        self.number = number
        self.name = f"n{number}"
        self.files: list[Path] = []
        self.frozen_until = 0.0
        self._folder = folder
        self._settings = settings
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        path = self._folder / f"{self.name}-{len(self.files)}"
        make_file(path)
        self.files.append(path)
        words = json.dumps({**self._settings, "path": str(path)})
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "proofs.pair_members", words, stdin=asyncio.subprocess.PIPE, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)
            await self.process.wait()
        self.frozen_until = 0.0

    def ask_to_step_down(self, roles: list[int]) -> None:
        request = Path(f"{self.files[-1]}.step-down")
        request.with_suffix(".new").write_text(json.dumps(roles))
        request.with_suffix(".new").replace(request)

    def intervals(self) -> Iterator[tuple[str, Interval]]:
        for number, path in enumerate(self.files):
            for interval in read_file(path):
                yield f"{self.name}.{number}", interval

    def losses(self) -> Iterator[Loss]:
        for loss in self._lines("losses"):
            yield Loss(self.number, loss["at"], loss["cause"], loss["detail"])

    def stalls(self) -> Iterator[tuple[float, float]]:
        """From when to when an event loop of its processes stood still."""
        yield from self._lines("stalls")

    def _lines(self, kind: str) -> Iterator[Any]:
        for path in self.files:
            with contextlib.suppress(FileNotFoundError):
                for line in Path(f"{path}.{kind}").read_text().splitlines():
                    with contextlib.suppress(ValueError):  # half a line of one that was killed
                        yield json.loads(line)


def find_overlaps(intervals: list[tuple[str, Interval]]) -> list[Overlap]:
    """Compare, for each role, each interval with those that begin before it ends."""
    by_role: dict[int, list[tuple[str, Interval]]] = defaultdict(list)
    for each in intervals:
        by_role[each[1].role].append(each)
    found = []
    for role, ones in by_role.items():
        claims = [Claim(name, 0, 0, each.began_at, each.seen_at) for name, each in ones]
        for both in proof.find_overlaps(claims):
            first, names = both.first, (both.first.node, both.second.node)
            if both.lasted_s > 0:
                found.append(Overlap(role, names, both.began_at, both.lasted_s, first.began_at, first.seen_at))
    return sorted(found, key=lambda overlap: overlap.began_at)


class Attack:
    """Candidates behind relays on one server, and what is done to their sessions."""

    def __init__(self, folder: Path, server: Server, options: argparse.Namespace) -> None:
        self._folder = folder
        self._server = server
        self._options = options
        self._random = random.Random(options.seed)
        self.candidates: list[Candidate] = []
        self.relays = RelayProcess(folder, server.socket_path, _NODES)
        self.trace = Trace()
        self.outcome = Outcome()
        self._connection: psycopg.AsyncConnection[Any]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        options = self._options
        await self.relays.start()
        for number, folder in enumerate(self.relays.folders):
            dsn = f"postgresql://postgres@/postgres?host={folder}&port=5432"
            settings = {"dsn": dsn, "roles": options.roles, "lease_s": options.lease, "pause_s": options.pause_ms / 1e3}
            self.candidates.append(Candidate(number, self._folder, settings))
        self._connection = await psycopg.AsyncConnection.connect(self._server.dsn, autocommit=True)
        try:
            for candidate in self.candidates:
                await candidate.start()
            yield
        finally:
            for candidate in self.candidates:
                await candidate.kill()
            self.trace.add(await self.relays.stop())
            await self._connection.close()
        self._judge()

    def _judge(self) -> None:
        intervals = [each for candidate in self.candidates for each in candidate.intervals()]
        self.outcome.terms = len(intervals)
        self.trace.stalls = {candidate.number: list(candidate.stalls()) for candidate in self.candidates}
        self.outcome.traced = [self.trace.explain(overlap) for overlap in find_overlaps(intervals)]
        losses = [loss for candidate in self.candidates for loss in candidate.losses()]
        self.outcome.causes = Counter(loss.cause for loss in losses)
        self.outcome.unexplained = Counter(str(loss.detail) for loss in losses if loss.cause == "unknown")
        untrue = [loss for loss in losses if self.trace.contradicts(loss, self._options.lease)]
        self.outcome.untrue = [f"{loss.cause}: {loss.detail}" for loss in untrue]

    async def _pair(self, role: int = 0) -> tuple[Candidate, list[int]] | None:
        """The leader of a role and its two sessions, the lock's first; None while there is none."""
        rows = []
        for key in (key_of(role), witness_key(key_of(role))):
            rows += await (await self._connection.execute(_HOLDER, lock_columns(key))).fetchall()
        names = {str(name).rpartition(":")[2].split()[0] for _, name in rows}
        if len(rows) != 2 or len(names) != 1:
            return None
        owner = next((each for each in self.candidates if str(each.pid) in names), None)
        return None if owner is None else (owner, [pid for pid, _ in rows])

    async def _await_pair(self, other_than: list[int]) -> tuple[Candidate, list[int]]:
        deadline = clock() + _LEADS_S + 3 * self._options.lease
        while clock() < deadline:
            found = await self._pair()
            if found is not None and not set(found[1]) & set(other_than):
                return found
            await asyncio.sleep(0.02)
        raise TimeoutError(f"no leader within {_LEADS_S:g} s and three leases")

    async def _end(self, candidate: Candidate, *pids: int, text: str) -> None:
        classid, _, objsubid = lock_columns(key_of(0))
        rows = await (await self._connection.execute(_LOCK_SESSIONS, [classid, objsubid])).fetchall()
        self.trace.lock_pids |= {row[0] for row in rows}
        self.outcome.strikes.append(Strike(clock(), f"{candidate.name}: {text}", candidate.name))
        statement = "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid"  # all in one statement
        await self._connection.execute(statement, [list(pids)])

    # --- Rounds ------------------------------------------------------------------------------------------------

    def draw_blows(self, rounds: int) -> Iterator[Blow]:
        draw = self._random
        for _ in range(rounds):
            yield Blow(
                lock_first=draw.random() < 0.5,
                apart_s=draw.random() * draw.choice([0.02, _APART_S, _APART_S]),
                connect_s=draw.choice([0.0, draw.uniform(0, _CONNECT_S), draw.uniform(0, _CONNECT_S)]),
                slow_for_all=draw.random() < 0.3,
            )

    async def run_rounds(self, blows: Iterable[Blow]) -> None:
        async with self.running():
            former: list[int] = []
            for blow in blows:
                leader, pair = await self._await_pair(former)
                for candidate in self.candidates:
                    await self.relays.delay_connects(candidate.number, 0.0)
                await asyncio.sleep(0.3 + self._random.random() * self._options.lease / 3)
                await self._strike(blow, leader, pair)
                former = pair
            await self._await_pair(former)

    async def _strike(self, blow: Blow, leader: Candidate, pair: list[int]) -> None:
        for candidate in self.candidates if blow.slow_for_all else [leader]:
            await self.relays.delay_connects(candidate.number, blow.connect_s)
        whose = "all" if blow.slow_for_all else "the leader"
        names = ["lock", "witness"] if blow.lock_first else ["witness", "lock"]
        first, second = pair if blow.lock_first else reversed(pair)
        slow = f"new connections of {whose} {blow.connect_s:.3f} s slower"
        await self._end(leader, first, text=f"round {self.outcome.rounds}, {slow}, {names[0]} session ended")
        await asyncio.sleep(blow.apart_s)
        await self._end(leader, second, text=f"{names[1]} session ended")
        self.outcome.rounds += 1

    # --- Many roles --------------------------------------------------------------------------------------------

    async def run_many(self, seconds: float) -> None:
        async with self.running():
            await self._await_pair([])
            ends_at = clock() + seconds
            while clock() < ends_at:
                await asyncio.sleep(self._random.expovariate(1 / self._options.every))
                self._thaw()
                await self._harm()
                self.outcome.rounds += 1

    def _thaw(self) -> None:
        for candidate in self.candidates:
            if candidate.frozen_until and clock() > candidate.frozen_until:
                candidate.frozen_until = 0.0
                self.outcome.strikes.append(Strike(clock(), f"{candidate.name}: thawed", candidate.name))
                candidate.signal(signal.SIGCONT)

    async def _harm(self) -> None:
        draw, roles = self._random, max(1, self._options.roles)
        deed = draw.choices(list(_DEEDS), list(_DEEDS.values()))[0]
        found = await self._pair(draw.randrange(roles))
        if found is None:
            return
        candidate, pair = found
        if deed in ("one", "both", "all", "apart"):
            await self._end_sessions(deed, candidate, pair)
            return
        self.outcome.strikes.append(Strike(clock(), f"{candidate.name}: {deed}", candidate.name))
        if deed == "kill":
            await candidate.kill()
            await candidate.start()
        elif deed == "freeze" and not candidate.frozen_until:
            candidate.frozen_until = clock() + draw.uniform(0.2, 1.6) * self._options.lease
            candidate.signal(signal.SIGSTOP)
        elif deed == "step_down":
            candidate.ask_to_step_down(draw.sample(range(roles), k=max(1, roles // 20)))
        elif deed == "slow":
            await self.relays.delay_connects(candidate.number, draw.choice([0.0, draw.uniform(0, _CONNECT_S)]))

    async def _end_sessions(self, deed: str, candidate: Candidate, pair: list[int]) -> None:
        draw = self._random
        if deed == "one":
            await self._end(candidate, draw.choice(pair), text="one session ended")
        elif deed == "both":
            await self._end(candidate, *pair, text="both sessions ended in one statement")
        elif deed == "apart":
            draw.shuffle(pair)
            await self._end(candidate, pair[0], text="one session ended")
            await asyncio.sleep(draw.random() * draw.choice([0.02, _APART_S]))
            await self._end(candidate, pair[1], text="the other session ended")
        else:
            rows = await (await self._connection.execute(_OTHERS)).fetchall()
            await self._end(candidate, *(row[0] for row in rows), text="all sessions of all ended")


@contextlib.contextmanager
def server_for(options: argparse.Namespace) -> Iterator[tuple[Path, Server]]:
    with tempfile.TemporaryDirectory(prefix="pgll-pair-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        locks = str(max(64, options.roles))
        settings = {"max_locks_per_transaction": locks, "fsync": "off"}
        server = Server(folder / "server", tcp_port=free_port(), settings=settings)
        server.start()
        try:
            yield folder, server
        finally:
            server.stop("immediate")


def attack_rounds(options: argparse.Namespace, blows: Iterable[Blow] | None = None) -> Outcome:
    """Run the rounds on a server of their own: these, or as many as the options say."""
    with server_for(options) as (folder, server):
        attack = Attack(folder, server, options)
        asyncio.run(attack.run_rounds(attack.draw_blows(options.rounds) if blows is None else blows))
        return attack.outcome


def attack_roles(options: argparse.Namespace) -> Outcome:
    """Attack a group of many roles for a while."""
    with server_for(options) as (folder, server):
        attack = Attack(folder, server, options)
        asyncio.run(attack.run_many(options.seconds))
        return attack.outcome


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tell(outcome: Outcome, options: argparse.Namespace) -> int:
    """Print what was seen; return the exit code."""
    say(f"{options.mode} seed={options.seed} lease={options.lease:g}: {outcome.rounds} rounds, {outcome.terms} terms")
    say("losses: " + (", ".join(f"{count} {cause}" for cause, count in outcome.causes.most_common()) or "none"))
    for detail, count in outcome.unexplained.most_common(3):
        say(f"  {count} losses without a known cause: {detail}")
    for line in outcome.told_once():
        say(f"  {line}")
    say(f"{len(outcome.traced)} overlaps, {len(outcome.defects)} of them defects")
    is_untrue = options.mode != "many" and outcome.untrue
    if is_untrue:
        say(f"{len(outcome.untrue)} losses with a cause that the trace contradicts, such as: {outcome.untrue[0]}")
    if not outcome.terms:
        say("no candidate ever led: nothing was attacked")
    return 1 if outcome.defects or is_untrue or not outcome.terms else 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mode", choices=["lock", "group", "many"], default="lock")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--roles", type=int)
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--every", type=float, default=0.7, help="seconds between two faults, in many (default 0.7)")
    parser.add_argument("--pause-ms", type=float, help="between two looks at all roles (default 1, in many 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args(arguments)
    if options.roles is None:
        options.roles = {"lock": 0, "group": 20, "many": 2000}[options.mode]
    if options.pause_ms is None:
        options.pause_ms = 10.0 if options.mode == "many" else 1.0
    return options


def main(arguments: list[str] | None = None) -> int:
    """Attack, print the result, and return the exit code."""
    options = parse(arguments)
    return tell((attack_roles if options.mode == "many" else attack_rounds)(options), options)


if __name__ == "__main__":
    sys.exit(main())
