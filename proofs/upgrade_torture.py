"""A rolling upgrade under attack: candidates of an older version and of this one in one election, on a real server.

    python -m proofs.upgrade_torture --seconds 60
    python -m proofs.upgrade_torture --old-commit v0.1.0

The older version is taken from the history of this repository (``git archive``), by default the last commit of 0.1.0.
Candidates are killed and started again, as either version; frozen; asked to step down; and lose one of their sessions.
Three things are judged:

- **two leaders at once**: as ``proofs/torture.py`` does, by the intervals in which each process claimed to lead;
- **tokens**: each term has a greater one than all terms that began before it;
- **starvation**: when the attacks are over, the leader of the moment steps down again and again. Every candidate has to
  lead within :data:`_TERMS_EACH` terms for each candidate that there is. A candidate that was only unlucky would be
  found here once in many thousand runs; one that never gets a turn is always found.

Exit code 1 names what was wrong; 2 means that the older version is not to be had from this clone.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psycopg

from pgleaderlock.postgres._activity import lock_columns
from pgleaderlock.testing._claim import make_claim_file
from pgleaderlock.testing.embedded import Server
from proofs.torture import _NAME_HOLDER, KEY, LEASE_S, Member, Torture
from tests.conftest import free_port

__all__ = ["HistoryMissing", "Upgrade", "extract", "find_old_commit", "wrong_tokens"]

_ROOT = Path(__file__).parents[1]
_PROGRAM = Path(__file__).with_name("succession_members.py")
_VERSION_FILE = "src/pgleaderlock/_version.py"  # where it was in 0.1.0
_OLD_VERSION = "0.1.0"
_MEMBERS = 6
_TERMS_EACH = 20
_TERM_PATIENCE_S = 30.0
_RETRY_S = 0.5
_CALM_S = 2 * _RETRY_S  # a candidate that stepped down rests for one delay: all take part in each election
_DEEDS = {"kill": 4, "freeze": 4, "step down": 6, "lock": 3, "witness": 2, "ambush": 2}


class HistoryMissing(Exception):  # noqa: N818 - it is no error of this program
    """The older version is not in this clone."""


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise HistoryMissing(f"git cannot be run: {error}") from error
    if done.returncode:
        raise HistoryMissing(
            f"git {' '.join(words)}: {done.stderr.strip()}. "
            "A shallow clone has no history: git fetch --unshallow --tags"
        )
    return done.stdout.strip()


def find_old_commit() -> str:
    """Return the tag of 0.1.0, or else the parent of the commit that took this version out of its file."""
    if tags := _git("tag", "--list", f"v{_OLD_VERSION}"):
        return tags
    found = _git("log", "-1", "--format=%H", f'-S"{_OLD_VERSION}"', "--diff-filter=M", "--", _VERSION_FILE)
    if not found:
        raise HistoryMissing(
            f"there is neither a tag v{_OLD_VERSION} nor a commit that changed it in {_VERSION_FILE}. A shallow clone "
            "has no history: git fetch --unshallow --tags; or name a commit with --old-commit"
        )
    return f"{found}^"


def extract(commit: str, folder: Path) -> Path:
    """Write the sources of this commit into a folder, and return what PYTHONPATH has to be for them."""
    commit = _git("rev-parse", "--verify", f"{commit}^{{commit}}")
    archive = folder / "old.tar"
    _git("archive", "--output", str(archive), commit, "src")
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder / "src"


@dataclass
class MixedMember(Member):
    """One candidate after the other in one place, of the one version or the other."""

    version: str = "new"
    old_source: Path = Path()

    def start(self) -> None:
        path = self.folder / f"{self.name}-{len(self.files)}-{self.version}"
        make_claim_file(path)
        self.files.append(path)
        source = self.old_source if self.version == "old" else _ROOT / "src"
        order = {"name": self.name, "dsn": self.arguments[0], "key": str(KEY), "path": str(path)}
        times = {"retry_s": _RETRY_S, "lease_s": LEASE_S}
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), json.dumps({**order, **times})],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(source)},
        )

    def kill(self) -> None:
        super().kill()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


class Upgrade(Torture):
    """The torture of ``proofs/torture.py`` with candidates of two versions, and more step-downs."""

    def __init__(self, dsn: str, folder: Path, old_source: Path, seed: int) -> None:
        super().__init__(dsn, folder, "fast", seed, members=0)
        self._mixed = [
            MixedMember(folder, [dsn], f"m{number}", version=["old", "new"][number % 2], old_source=old_source)
            for number in range(_MEMBERS)
        ]
        self.members = list(self._mixed)
        self.led: Counter[str] = Counter()
        self.starved: list[str] = []

    def run(self, seconds: float) -> None:
        """Attack for so long; then let each candidate have its turn."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            try:
                for member in self.members:
                    member.start()
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(self._rng.expovariate(1 / 0.3))
                    self._thaw()
                    self._harm(connection)
                for member in self.members:
                    member.signal(signal.SIGCONT)
                self.starved = self._give_turns(connection)
            finally:
                for member in self.members:
                    member.kill()

    def _choose_deed(self) -> str:
        return self._rng.choices(list(_DEEDS), list(_DEEDS.values()))[0]

    def _do(self, deed: str, connection: psycopg.Connection) -> bool:
        if deed == "kill":
            self._replace(self._rng.choice(self._mixed))
            return True
        if deed == "step down":
            leader = self._leader(connection)
            if leader is None or leader.frozen_until:
                return False
            leader.signal(signal.SIGUSR1)
            return True
        return super()._do(deed, connection)

    def _replace(self, member: MixedMember) -> None:
        """Kill it, and start a candidate of either version in its place; two of each are left at least."""
        member.kill()
        others = Counter(each.version for each in self._mixed if each is not member)
        few = [version for version in ("old", "new") if others[version] < 2]
        member.version = few[0] if few else self._rng.choice(["old", "new"])
        member.start()

    def _leader(self, connection: psycopg.Connection) -> MixedMember | None:
        row = connection.execute(_NAME_HOLDER, lock_columns(KEY)).fetchone()
        pid = int(row[0].rpartition(":")[2].split()[0]) if row else 0
        return next((each for each in self._mixed if each.process and each.process.pid == pid), None)

    def _give_turns(self, connection: psycopg.Connection) -> list[str]:
        """Have leader after leader step down, until each candidate has led. Return those that never did."""
        waiting = {f"{each.name} ({each.version})" for each in self._mixed}
        everyone = set(waiting)
        former: MixedMember | None = None
        for _ in range(_TERMS_EACH * len(everyone)):
            leader = self._await_leader(connection, former)
            name = f"{leader.name} ({leader.version})"
            self.led[name] += 1
            waiting.discard(name)
            if not waiting:
                break
            time.sleep(_CALM_S)
            leader.signal(signal.SIGUSR1)
            former = leader
        return sorted(waiting)

    def _await_leader(self, connection: psycopg.Connection, former: MixedMember | None) -> MixedMember:
        """Return the next leader. The former one may lead again, if it was alone in the queue."""
        deadline = time.monotonic() + _TERM_PATIENCE_S
        again = time.monotonic() + LEASE_S
        while time.monotonic() < deadline:
            leader = self._leader(connection)
            if leader is not None and (leader is not former or time.monotonic() > again):
                return leader
            time.sleep(0.005)
        raise TimeoutError(f"no leader within {_TERM_PATIENCE_S:g} s, though nothing was done to any candidate")

    def versions_that_led(self) -> Counter[str]:
        """Return how many terms candidates of each version had."""
        led: Counter[str] = Counter()
        for member in self.members:
            for number, path in enumerate(member.files):
                tokens = {claim.token for claim in member.intervals() if claim.process == number}
                led[path.name.rpartition("-")[2]] += len(tokens)
        return led


def wrong_tokens(group: Torture) -> list[tuple[int, int]]:
    """Return each pair of terms, by their tokens, of which the later one has not the greater token."""
    began: dict[tuple[str, int, int], float] = {}
    for claim in sorted((each for member in group.members for each in member.intervals()), key=lambda c: c.began_at):
        began.setdefault((claim.node, claim.process, claim.token), claim.began_at)
    tokens = [token for _, _, token in began]
    return [(before, after) for before, after in pairwise(tokens) if after <= before]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def attack(old_commit: str, seconds: float, seed: int) -> list[str]:
    """Run it on a server of its own, and return what was wrong."""
    with tempfile.TemporaryDirectory(prefix="pgll-upgrade-") as folder:
        Path(folder).chmod(0o755)
        old_source = extract(old_commit, Path(folder))
        server = Server(Path(folder) / "server", tcp_port=free_port())
        server.start()
        try:
            group = Upgrade(server.dsn, Path(folder), old_source, seed)
            group.run(seconds)
            overlaps, backwards = group.overlaps(), wrong_tokens(group)
        finally:
            server.stop("immediate")
        led = group.versions_that_led()
        _say(f"seed {seed}, older version {old_commit}: terms {dict(led)}, harm {group.harm}")
        _say(f"  two leaders at once: {len(overlaps)}; tokens that did not grow: {len(backwards)}")
        _say(f"  turns at the end: {dict(group.led)}; without one: {group.starved or 'no candidate'}")
        wrong = [f"two leaders at once for {each.lasted_s * 1e3:.2f} ms" for each in overlaps]
        wrong += [f"token {after} came after {before}" for before, after in backwards]
        wrong += [f"{name} never led" for name in group.starved]
        wrong += [f"no candidate of the {version} version ever led" for version in ("old", "new") if not led[version]]
        return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--old-commit", help="default: the last commit of 0.1.0")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    try:
        wrong = attack(options.old_commit or find_old_commit(), options.seconds, options.seed)
    except HistoryMissing as missing:
        sys.stderr.write(f"the older version is not to be had: {missing}\n")
        sys.exit(2)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
