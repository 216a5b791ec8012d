"""Simulate many seeds on all cores: ``python -m pgleaderlock.testing.simulation --seeds 500``.

Every store under every fault profile that its promise covers, with short, usual and long leases in turns. Prints the
figures; a failure prints its transcript and how to repeat it, and the exit code is 1. The seeds begin at 1, so that a
run can be repeated; another ``--first`` runs other seeds.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product

from pgleaderlock.testing.simulation.checks import SimulationFailed
from pgleaderlock.testing.simulation.fault_profiles import FAULT_PROFILES, INSIDE
from pgleaderlock.testing.simulation.simulation import Report, simulate
from pgleaderlock.testing.simulation.stores import STORES

__all__ = ["main"]

LEASES_S = (5.0, 15.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class _SimulationRun:
    seed: int
    store: str
    profile: str
    lease_s: float
    hours: float


@dataclass(slots=True)
class _Sum:
    """The figures of one store."""

    hours: float = 0.0
    terms: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, seen: Report | str) -> None:
        if isinstance(seen, str):
            self.failures.append(seen)
            return
        self.hours += seen.hours
        self.terms += seen.terms
        self.faults += seen.faults
        self.losses += seen.losses


def _run(job: _SimulationRun) -> tuple[_SimulationRun, Report | str]:
    try:
        return job, simulate(job.seed, profile=job.profile, store=job.store, hours=job.hours, lease_s=job.lease_s)
    except SimulationFailed as failure:
        return job, str(failure)


def _jobs(options: argparse.Namespace) -> Iterator[_SimulationRun]:
    """Yield all runs. Their hours depend on the lease, so that every seed lasts the same number of leases."""
    for seed, store, (place, profile) in product(_seeds(options), options.store, enumerate(options.profile)):
        lease_s = options.lease or LEASES_S[(seed + place) % len(LEASES_S)]  # each profile has each of them in turn
        yield _SimulationRun(seed, store, profile, lease_s, options.leases * lease_s / 3600)


def _seeds(options: argparse.Namespace) -> Iterable[int]:
    return range(options.first, options.first + options.seeds)


def _say(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _tell(sums: dict[str, _Sum], took_s: float) -> None:
    _say(f"{'store':18} {'hours':>8} {'faults':>8} {'terms':>8} {'losses':>8}  failed")
    total = _Sum()
    for store, seen in sums.items():
        lost = seen.losses.total()
        _say(
            f"{store:18} {seen.hours:8.1f} {seen.faults.total():8} {seen.terms:8} {lost:8}  {len(seen.failures) or '-'}"
        )
        total.hours += seen.hours
        total.terms += seen.terms
        total.faults += seen.faults
        total.losses += seen.losses
    _say(f"faults: {_listed(total.faults)}")
    _say(f"losses: {_listed(total.losses)}")
    failures = sum(len(seen.failures) for seen in sums.values())
    _say(
        f"{total.hours:,.0f} virtual hours in {took_s:.0f} s, {total.faults.total():,} faults, {total.terms:,} terms: "
        + (f"{failures} FAILED" if failures else "no split brain, and no other violation")
    )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common()) or "none"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pgleaderlock.testing.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="of each store in each profile (default 10)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--leases", type=float, default=120.0, help="how many leases each lasts (default 120)")
    parser.add_argument("--lease", type=float, help="seconds; by default 5, 15, 60 and 300 in turns")
    parser.add_argument("--store", nargs="+", choices=STORES, default=list(STORES), metavar="STORE")
    parser.add_argument("--profile", nargs="+", choices=FAULT_PROFILES, default=list(INSIDE), metavar="PROFILE")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--trace", action="store_true", help="print the transcript of the first seed, and end")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all simulations, and return the exit code."""
    options = _parser().parse_args(arguments)
    if options.trace:
        return _trace(next(_jobs(options)))
    began = time.monotonic()
    sums = {store: _Sum() for store in options.store}
    jobs = list(_jobs(options))
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job, seen in pool.map(_run, jobs, chunksize=4):
            sums[job.store].add(seen)
            if isinstance(seen, str):
                _say(f"{job.store}, {job.profile}: {seen}\n")
    _tell(sums, time.monotonic() - began)
    return 1 if any(seen.failures for seen in sums.values()) else 0


def _trace(job: _SimulationRun) -> int:
    try:
        report = simulate(
            job.seed, profile=job.profile, store=job.store, hours=job.hours, lease_s=job.lease_s, keep_transcript=True
        )
    except SimulationFailed as failure:
        _say(str(failure))
        return 1
    for line in report.transcript:
        _say(line)
    return 0
