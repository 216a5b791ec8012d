"""Torture of any store by its URL: processes that are killed and frozen, and a judge that reads their claims.

The contract suite has no faults; this has. It knows nothing of the store but its URL, so that the author of a store can
use it. Faults of the store itself, such as the restart of its server, are functions that the caller passes in.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.testing._claim import make_claim_file, read_claims
from pgleaderlock.testing.torture._checker import Verdict, judge
from pgleaderlock.testing.torture._logs import Claim, Fault, Logs

_SETTINGS_VARIABLE = "PGLEADERLOCK_TORTURE"  # not an argument: a URL may hold a password
_FROZEN = (0.2, 1.6)
"""Leases for which a candidate is frozen: some find their lease expired afterwards, and some do not."""
_WEIGHTS = {"kill": 3.0, "freeze": 6.0}
_PAUSE_S = 0.3
"""About how long after a fault the next one comes."""
_LOOK_S = 0.05

_CANDIDATE = f"""
import asyncio, json, os, sys, threading
from pathlib import Path
from pgleaderlock import Election, FixedInterval, open_backend
from pgleaderlock._base.clock import suspend_aware_clock
from pgleaderlock.testing._claim import sample_forever
from pgleaderlock.testing.demo._node import be_busy

async def main(settings, path):
    lease_s = settings["lease_s"]
    backend = open_backend(settings["url"], lease_s=lease_s, **settings["options"])
    election = Election(backend, health_interval_s=lease_s / 3, retry_strategy=FixedInterval(lease_s / 3))
    def claimed():  # plus one, because the record of a claim has no room for a token of zero
        token = election.token
        return None if token is None else token + 1
    threading.Thread(target=sample_forever, args=(claimed, path, suspend_aware_clock), daemon=True).start()
    async with election:
        await be_busy()

asyncio.run(main(json.loads(os.environ.pop({_SETTINGS_VARIABLE!r})), Path(sys.argv[1])))
"""


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """The result of the torture of a store."""

    verdict: Verdict
    harm: Counter[str]
    """How often each fault was injected."""
    errors: str = ""
    """What the candidates wrote to their standard error last."""

    @property
    def terms(self) -> int:
        """How many terms were seen."""
        return len(self.verdict.terms)

    def problems(self) -> list[str]:
        """Return each split brain and each token that did not grow, one line each; or that no candidate ever led."""
        found = [
            f"TWO LEADERS AT ONCE: {each.first.node} and {each.second.node} both led for {each.lasted_s * 1000:.2f} ms"
            for each in self.verdict.overlaps
        ]
        found += [f"TOKEN REPEATED: two processes led with {token - 1}" for token in self.verdict.repeated_tokens]
        found += [f"TOKEN WENT BACK: {token - 1} came after a greater one" for token in self.verdict.backward_tokens]
        return found if self.terms else [*found, f"NO LEADER EVER, so nothing was tested: {self.errors}"]


@dataclass(slots=True)
class _Candidate:
    name: str
    folder: Path
    settings: str
    process: subprocess.Popen[bytes] | None = None
    frozen_until: float = 0.0
    files: list[Path] = field(default_factory=list)

    def start(self) -> None:
        path = self.folder / f"{self.name}.{len(self.files)}"
        make_claim_file(path)
        self.files.append(path)
        with (self.folder / "errors").open("ab") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", _CANDIDATE, str(path)],
                env={**os.environ, _SETTINGS_VARIABLE: self.settings},
                stderr=errors,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.frozen_until = 0.0

    def freeze(self, until: float) -> None:
        self._signal(signal.SIGSTOP)
        self.frozen_until = until

    def thaw_if_due(self) -> None:
        if self.frozen_until and clock() > self.frozen_until:
            self.frozen_until = 0.0
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)

    def claims(self) -> list[Claim]:
        return [
            Claim(self.name, process, token, began_at, seen_at)
            for process, path in enumerate(self.files)
            for began_at, seen_at, token in read_claims(path)
        ]


def torture_store(
    url: str,
    *,
    seconds: float = 30.0,
    seed: int = 0,
    candidates: int = 5,
    lease_s: float = 1.5,
    options: Mapping[str, Any] | None = None,
    harm: Mapping[str, Callable[[], object]] | None = None,
    first_leader_s: float = 60.0,
) -> StoreVerdict:
    """Let processes elect a leader on this store while they are killed (-9) and frozen; return what their claims show.

    ``options`` are those of the backend. ``harm`` are faults of the store itself, by name: each is called now and then,
    and returns when the fault is over or goes on by itself. The faults begin once a candidate leads, after
    ``first_leader_s`` at the latest, and go on for so many seconds. The seed decides the order of the faults, and
    nothing else: the processes and their times are real.
    """
    draw, faults = random.Random(seed), dict(harm or {})  # noqa: S311 - to be repeatable is the point
    settings = json.dumps({"url": url, "lease_s": lease_s, "options": dict(options or {})})
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="pgleaderlock-torture-") as name:
        folder = Path(name)
        crowd = [_Candidate(f"c{number}", folder, settings) for number in range(1, candidates + 1)]
        try:
            for candidate in crowd:
                candidate.start()
            _await_first_leader(crowd, clock() + first_leader_s)
            logs = Logs(clock(), clock() + seconds, lease_s, [each.name for each in crowd])
            while clock() < logs.ended_at:
                time.sleep(draw.expovariate(1 / _PAUSE_S))
                for candidate in crowd:
                    candidate.thaw_if_due()
                kinds = [*_WEIGHTS, *faults]
                kind = draw.choices(kinds, [_WEIGHTS.get(each, 1.0) for each in kinds])[0]
                _inject(kind, draw.choice(crowd), faults, draw.uniform(*_FROZEN) * lease_s, logs)
                counts[kind] += 1
        finally:
            for candidate in crowd:
                candidate.kill()
        logs.claims = [claim for candidate in crowd for claim in candidate.claims()]
        errors = (folder / "errors").read_text(encoding="utf-8", errors="replace")[-2000:]
    return StoreVerdict(judge(logs), counts, errors)


def _await_first_leader(crowd: list[_Candidate], deadline: float) -> None:
    while clock() < deadline and not any(candidate.claims() for candidate in crowd):
        time.sleep(_LOOK_S)


def _inject(
    kind: str, candidate: _Candidate, faults: Mapping[str, Callable[[], object]], lasts_s: float, logs: Logs
) -> None:
    began_at = clock()
    if kind in faults:
        faults[kind]()
        logs.faults.append(Fault(kind, began_at, clock()))
    elif kind == "kill":
        candidate.kill()
        candidate.start()
        logs.faults.append(Fault(kind, began_at, began_at, candidate.name, len(candidate.files) - 2))
    elif not candidate.frozen_until:
        candidate.freeze(began_at + lasts_s)
        logs.faults.append(Fault(kind, began_at, began_at + lasts_s, candidate.name))
