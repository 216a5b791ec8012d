"""Soak: minutes of faults on three configured nodes with 12 roles and open pages; then their reports are compared.

    python -m proofs.soak --minutes 15 --pages 50 --rows 1000000

The nodes observe themselves (``proofs/soak_node.py``), independently of the registry. At the end ``pgleaderlock
audit``, ``status`` and ``history``, a fresh page, and a page that was open from the beginning have to agree with that
(``proofs/soak_judge.py``). With ``--rows`` the history is then filled, and the same questions are asked again, with
bounds on how long an answer may take. Exit code 1 on any disagreement. Faults come one after the other: what two at
once do is for the other tortures.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.testing.embedded import Server
from proofs import soak_judge as judge
from proofs.soak_pages import Page, dashboard, pages
from tests.support.registry_rows import fill_registry

LEASE_S = 3.0
HEARTBEAT_S = 1.0
ROLES = [f"role-of-soak-{number}" for number in range(12)]
NODES = ("n1", "n2", "n3")
SPARED = "n1"  # from kills, so that the memory of a process that lived through all of it can be measured
FAULTS = {"kill": 4, "leave": 1, "freeze": 4, "end_session": 5, "step_down": 5, "restart_server": 1}
SEEN_EVERY_S = LEASE_S / 3 + 0.5  # how often a leader's row is written, on a busy machine
FILLED_ROLES, FILLED_LEASE_S = 200, 15.0
PAGE_READY_S, AUDIT_S, IDLE_PAGE_BYTES_PER_S = 2.0, 5.0, 2000.0
_LED_AGAIN_S = 60.0
_SCHEMA = "pgleaderlock"

_CONFIG = """
[cluster]
node = {node}
[cluster.leader_election]
backend = {dsn}
roles = {roles}
lease_duration = "{lease_s}s"
refresh_interval = "{refresh_s}s"
[registry]
heartbeat = "{heartbeat_s}s"
"""
_SESSIONS = """
SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid
"""
_RENEW = f"""
WITH n AS (UPDATE {_SCHEMA}.nodes SET seen_at = clock_timestamp() WHERE node LIKE 'node-%')
UPDATE {_SCHEMA}.leaders SET renewed_at = clock_timestamp(), lease_until = clock_timestamp() + interval '10000 s'
 WHERE lock LIKE 'bigint:___' OR lock LIKE 'bigint:__' OR lock LIKE 'bigint:_'
"""


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def offset_s() -> float:
    """Lead from the machine's clock to the epoch, which the database's times are in."""
    return time.time() - clock()


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


# --- Nodes --------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A place for a node, and the processes that were in it, the running one last."""

    name: str
    folder: Path
    config: Path
    running: asyncio.subprocess.Process | None = None
    processes: list[judge.Process] = field(default_factory=list)

    async def start(self) -> None:
        place = self.folder / f"{self.name}-{len(self.processes)}"
        place.mkdir()
        with (place / "log").open("wb") as log:
            self.running = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "proofs.soak_node", str(self.config), str(place),
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        self.processes.append(judge.Process(self.name, self.running.pid, place))

    def signal(self, number: signal.Signals) -> None:
        assert self.running is not None
        self.running.send_signal(number)

    async def kill(self) -> None:
        if self.running is not None:
            with contextlib.suppress(ProcessLookupError):
                self.running.kill()
            await self.running.wait()
            self.processes[-1] = replace(self.processes[-1], killed_at=time.time())
            self.running = None

    async def leave(self) -> None:
        """Let it hand over and end, as at a deployment."""
        assert self.running is not None
        assert self.running.stdin is not None
        self.running.stdin.close()
        await asyncio.wait_for(self.running.wait(), 30)
        self.running = None


# --- The soak -----------------------------------------------------------------------------------------------------


class Soak:
    """Three nodes on one server, what is done to them, and what they have observed."""

    def __init__(self, server: Server, folder: Path, seed: int) -> None:
        self.server, self.dsn = server, server.dsn
        self._rng = random.Random(seed)
        self.faults: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.nodes = {name: self._node(name, folder) for name in NODES}

    def _node(self, name: str, folder: Path) -> Node:
        times = {"lease_s": LEASE_S, "refresh_s": LEASE_S / 3, "heartbeat_s": HEARTBEAT_S}
        texts = {"node": json.dumps(name), "dsn": json.dumps(self.dsn), "roles": json.dumps(ROLES)}
        config = folder / f"{name}.toml"
        config.write_text(_CONFIG.format(**times, **texts), encoding="utf-8")
        return Node(name, folder, config)

    @property
    def processes(self) -> list[judge.Process]:
        return [process for node in self.nodes.values() for process in node.processes]

    def terms(self) -> list[judge.Led]:
        offset = offset_s()
        return [term for process in self.processes for term in judge.read_terms(process, ROLES, offset)]

    async def until_led(self) -> None:
        """Wait until each role has a leader; that it takes very long is a problem by itself."""
        deadline = clock() + _LED_AGAIN_S
        while missing := {*ROLES} - {term.role for term in self.terms() if term.ended_before is None}:
            if clock() > deadline:
                self.problems.append(f"no leader of {sorted(missing)} within {_LED_AGAIN_S:g} s after {self.faults}")
                return
            await asyncio.sleep(0.1)

    async def run(self, seconds: float, pause_s: float) -> None:
        """Do harm for so long, with some seconds in between, and wait each time until all roles are led again."""
        deadline = clock() + seconds
        while clock() < deadline:
            fault = self._rng.choices([*FAULTS], [*FAULTS.values()])[0]
            name = self._rng.choice([each for each in NODES if each != SPARED or fault not in ("kill", "leave")])
            await getattr(self, f"_{fault}")(self.nodes[name])
            self.faults[fault] += 1
            await self.until_led()
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * pause_s)

    async def _kill(self, node: Node) -> None:
        await node.kill()
        await asyncio.sleep(self._rng.uniform(0, 2) * LEASE_S)
        await node.start()

    async def _leave(self, node: Node) -> None:
        await node.leave()
        await node.start()

    async def _freeze(self, node: Node) -> None:
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(0.2, 2) * LEASE_S)
        node.signal(signal.SIGCONT)

    async def _end_session(self, _node: Node) -> None:
        """End any session: of a lock, a witness, a registry or a page."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            rows = await (await connection.execute(_SESSIONS)).fetchall()
            if rows:
                await connection.execute("SELECT pg_terminate_backend(%s)", self._rng.choice(rows))

    async def _step_down(self, _node: Node) -> None:
        await ask("step-down", "--dsn", self.dsn, "--role", self._rng.choice(ROLES), "--json", codes=(0, 1))

    async def _restart_server(self, _node: Node) -> None:
        await asyncio.to_thread(self.server.restart, self._rng.choice(["fast", "immediate"]))

    async def end_with_a_dead_node(self) -> dict[str, bool]:
        """Kill one node, and wait until its silence shows; return who is alive."""
        self.problems += [
            f"{node.name} has ended by itself: see its log" for node in self.nodes.values()
            if node.running is None or node.running.returncode is not None
        ]  # fmt: skip
        dead = self._rng.choice([name for name in NODES if name != SPARED])
        await self.nodes[dead].kill()
        await self.until_led()
        await asyncio.sleep(3 * HEARTBEAT_S + 1 + LEASE_S)
        return {name: name != dead for name in NODES}


async def ask(*words: str, codes: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Run a command of ``pgleaderlock`` and return its records."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "pgleaderlock", *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    if process.returncode not in codes:
        raise RuntimeError(f"{words[0]} answered {process.returncode}: {err.decode()}")
    return [json.loads(line) for line in out.splitlines()]


# --- The questions ------------------------------------------------------------------------------------------------


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@dataclass
class Answers:
    """What the product says, and how long it took."""

    audits: list[dict[str, Any]]
    status: list[dict[str, Any]]
    history: list[dict[str, Any]]
    page: dict[str, Any]
    took_s: dict[str, float]


async def ask_all(soak: Soak, url: str) -> Answers:
    took_s, given = {}, ("--dsn", soak.dsn, "--json")

    async def timed(name: str, *words: str) -> list[dict[str, Any]]:
        began = clock()
        records = await ask(name, *given, *words)
        took_s[name] = clock() - began
        return records

    audits = await timed("audit", "--since", "30d")
    history = await timed("history", "--since", "2h", "--limit", "1000000")
    began = clock()
    async with httpx.AsyncClient(timeout=60) as client:
        page = (await client.get(f"{url}api/state")).json()
    took_s["page"] = clock() - began
    return Answers(audits, await timed("status"), history, page, took_s)


def ours(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in records if each["role"] in ROLES]


def compare(soak: Soak, answers: Answers, alive: dict[str, bool]) -> list[str]:
    """Return each disagreement of an answer with what was observed."""
    history, roles = ours(answers.history), ours(answers.page["roles"])
    observed = soak.terms()
    terms = judge.written(observed, history)
    say(f"  {len(observed)} terms were observed; {len(observed) - len(terms)} ended before they could be written")
    audits = [{**each, "since": epoch(each["since"]), "until": epoch(each["until"])} for each in ours(answers.audits)]
    shown = [{**term, "role": role["role"]} for role in roles for term in role["terms"]]
    paged = [
        {**each, "since": each["counted_since"], "until": each["judged_at"], "terms": len(each["terms"])}
        for each in roles
    ]
    found = judge.overlaps(soak.processes, ROLES)
    found += judge.compare_history(terms, history)
    found += judge.compare_audit("audit", terms, audits, ROLES, SEEN_EVERY_S)
    found += judge.compare_audit("page", terms, paged, ROLES, SEEN_EVERY_S)
    found += judge.compare_terms("page", terms, shown, SEEN_EVERY_S)
    found += judge.compare_standing("status", terms, ours(answers.status), alive)
    found += judge.compare_standing("page", terms, roles, alive)
    nodes = {each["node"]: each["is_alive"] for each in answers.page["nodes"] if each["node"] in NODES}
    return found + ([f"page: nodes are {nodes}, observed {alive}"] if nodes != alive else [])


async def ask_with_rows(soak: Soak, rows: int, alive: dict[str, bool]) -> list[str]:
    """Fill the history, ask the same questions of it, and measure."""
    began = clock()
    await asyncio.to_thread(fill_registry, soak.dsn, _SCHEMA, lines=rows, roles=FILLED_ROLES)
    say(f"{rows} rows over {FILLED_ROLES} more roles, written in {clock() - began:.1f} s")
    began = clock()
    async with dashboard(soak.dsn) as (_process, url):
        listens_s = clock() - began
        ready_s = await until_ready(url)
        answers = await ask_all(soak, url)
        found = compare(soak, answers, alive)
        idle = await idle_page_bytes_per_s(url, soak.dsn)
    filled = sum(each["terms"] for each in answers.audits if each["role"] not in ROLES)
    if filled != rows // 2:
        found.append(f"audit: {filled} terms of the filled roles, written {rows // 2}")
    say_times(answers)
    say(f"  fresh page: listens after {listens_s:.2f} s, ready {ready_s:.2f} s later; idle: {idle:.0f} bytes/s")
    figures = {
        "page ready": (ready_s, PAGE_READY_S),
        "audit": (answers.took_s["audit"], AUDIT_S),
        "idle page": (idle, IDLE_PAGE_BYTES_PER_S),
    }
    return found + [
        f"{name}: {figure:.2f}, bound {most:g}" for name, (figure, most) in figures.items() if figure > most
    ]


async def until_ready(url: str) -> float:
    """Return how long it takes until a page is ready and shows all roles."""
    began = clock()
    async with httpx.AsyncClient(timeout=60) as client:
        while (await client.get(f"{url}readyz")).status_code != httpx.codes.OK:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        roles = (await client.get(f"{url}api/state")).json()["roles"]
    assert len(roles) == len(ROLES) + FILLED_ROLES, f"the page shows {len(roles)} roles"
    return clock() - began


async def idle_page_bytes_per_s(url: str, dsn: str, rounds: int = 3) -> float:
    """Have the filled leaders renew every third of a lease, and count what one page is sent."""
    page = Page(url)
    task = asyncio.ensure_future(page.follow())
    try:
        while not page.roles:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        before, began = page.received_bytes, clock()
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for _ in range(rounds):
                await connection.execute(_RENEW.encode())
                await asyncio.sleep(FILLED_LEASE_S / 3)
        return (page.received_bytes - before) / (clock() - began)
    finally:
        task.cancel()


# --- The report ---------------------------------------------------------------------------------------------------


def say_times(answers: Answers) -> None:
    say("  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in answers.took_s.items()))


def memory(soak: Soak, process: asyncio.subprocess.Process) -> dict[str, float]:
    """Return the memory of what lives through the whole soak."""
    return {SPARED: memory_mb(soak.nodes[SPARED].processes[0].pid), "dashboard": memory_mb(process.pid)}


def say_memory(before: dict[str, float], after: dict[str, float]) -> None:
    said = ", ".join(f"{name} {before[name]:.0f} -> {after[name]:.0f}" for name in before)
    say(f"resident memory in MB, at the start and at the end: {said}")


@contextlib.contextmanager
def own_server() -> Iterator[tuple[Server, Path]]:
    with tempfile.TemporaryDirectory(prefix="pgll-soak-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Server(folder / "server", settings={"fsync": "off"})
        server.start()
        try:
            yield server, folder
        finally:
            server.stop("immediate")


async def run(options: argparse.Namespace) -> list[str]:
    """Soak, ask, compare; return all disagreements."""
    with own_server() as (server, folder):
        soak = Soak(server, folder, options.seed)
        try:
            for node in soak.nodes.values():
                await node.start()
            await soak.until_led()
            found = await soak_and_compare(soak, options)
        finally:
            for node in soak.nodes.values():
                await node.kill()
    return found


async def soak_and_compare(soak: Soak, options: argparse.Namespace) -> list[str]:
    async with dashboard(soak.dsn) as (process, url), pages(url, options.pages) as (page, counts):
        await asyncio.sleep(5)  # until all have their first snapshot, which the memory at the start has to include
        before = memory(soak, process)
        await soak.run(options.minutes * 60, options.pause)
        after = memory(soak, process)
        alive = await soak.end_with_a_dead_node()
        answers = await ask_all(soak, url)
        found = soak.problems + compare(soak, answers, alive)
        found += judge.compare_followed(page.roles, {role["lock"]: role for role in answers.page["roles"]})
    say(f"{sum(soak.faults.values())} faults: {dict(soak.faults)}")
    per_page = counts["bytes"] / max(1, options.pages - 1) / (options.minutes * 60)
    say(f"{options.pages} pages, opened {counts['opened'] + page.snapshots} times, {per_page:.0f} bytes/s to each")
    say_times(answers)
    say_memory(before, after)
    return found + (await ask_with_rows(soak, options.rows, alive) if options.rows else [])


def main(arguments: list[str] | None = None) -> int:
    """Soak, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two faults, about")
    parser.add_argument("--rows", type=int, default=0, help="fill the history to this, and ask again")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args(arguments)
    say(f"seed {options.seed}, {options.minutes:g} minutes, load {os.getloadavg()[0]:.1f}")
    found = asyncio.run(run(options))
    for each in found:
        say(f"DISAGREES: {each}")
    say("all answers agree with what was observed" if not found else f"{len(found)} disagreements")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
