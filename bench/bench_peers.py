"""This project beside what people use instead: one harness, one machine, one run.

    make bench-peers                    a table on the terminal; about ten minutes
    make bench-peers ARGS=--write       and docs/explanation/comparison.md, its picture, and the figures themselves
    make bench-peers ARGS="--only kazoo --only postgresql"      some rows
    make bench-peers ARGS=--from-results                        the page anew from the figures of the last run

What takes milliseconds is measured alone, one after the other. What takes seconds, because a candidate waits for a
lease, is measured ten at a time: a few milliseconds of disturbance do not show there.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers import results
from peers.entries import Entry, all_entries
from peers.measuring import Bench, Figures
from peers.page import write_page
from peers.servers import Stores, running_stores
from peers.terminal import print_table

Step = Callable[[Entry, Figures], None]

_AT_ONCE = 10
_K8S = Path(__file__).parents[1] / "tools" / "k8s_server.py"


def main() -> None:
    options = _options()
    for each in (signal.SIGTERM, signal.SIGHUP):
        # So that what was started is stopped. No SystemExit: that is a silent candidate, and the run goes on.
        signal.signal(each, signal.default_int_handler)
    if options.from_results:
        write_page(results.load())
        return
    if "PGLEADERLOCK_K8S_SERVER" not in os.environ and _k8s_is_built():
        command = [sys.executable, str(_K8S), "run", "--", sys.executable, __file__, *sys.argv[1:]]
        sys.exit(subprocess.run(command, check=False).returncode)
    logging.getLogger("pgleaderlock").setLevel(logging.ERROR)
    load = os.getloadavg()[0]
    entries = [entry for entry in all_entries() if not options.only or any(word in entry.row for word in options.only)]
    with tempfile.TemporaryDirectory(prefix="pgll-peers-") as folder:
        Path(folder).chmod(0o755)
        wanted = {entry.store for entry in entries} if options.only else None
        with running_stores(Path(folder), only=None if wanted is None else sorted(wanted)) as stores:
            found = measure(stores, entries, options.rounds, options.freezes)
    run = results.Run.of_today(found, stores.versions, load)
    print_table(entries, run)
    if options.write:
        results.save(run)
        write_page(results.load())  # whose figures are rounded, as a test reads them


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page in docs/ too")
    parser.add_argument("--from-results", action="store_true", help="measure nothing: write the page anew")
    parser.add_argument("--only", action="append", help="only rows with this in their name; again for more")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--freezes", type=int, default=2)
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("a page with some rows would say that there are no others: --write goes without --only")
    return options


def _k8s_is_built() -> bool:
    sys.path.append(str(_K8S.parent))
    from k8s_server import is_built  # noqa: PLC0415

    return is_built()


def _k8s_version() -> str:
    sys.path.append(str(_K8S.parent))
    from k8s_server import SERVER  # noqa: PLC0415

    said = subprocess.run([SERVER, "--version"], capture_output=True, text=True, check=False).stdout
    return said.split()[-1].lstrip("v") if said else "unknown"


def measure(stores: Stores, entries: Sequence[Entry], rounds: int, freezes: int) -> dict[str, Figures]:
    """Return every row's figures; a row that could not be measured says why."""
    kubeconfig = os.environ.get("PGLEADERLOCK_K8S_SERVER")
    if kubeconfig:
        stores.programs["client-go"] = Path(os.environ["PGLEADERLOCK_K8S_PEER"])
        stores.versions["Kubernetes"] = _k8s_version()
    bench = Bench(stores, Path(kubeconfig) if kubeconfig else None)
    figures = {entry.row: Figures(missing=bench.missing(entry)) for entry in entries}
    here = [entry for entry in entries if not figures[entry.row].missing]

    def attempt(what: str, entry: Entry, step: Step) -> None:
        print(f"  {what}: {entry.row}", file=sys.stderr, flush=True)
        try:
            step(entry, figures[entry.row])
        except (SystemExit, Exception) as error:  # noqa: BLE001 - one row's trouble is not the others'
            figures[entry.row].missing = f"{what}: {type(error).__name__}: {error}"

    def graceful(entry: Entry, found: Figures) -> None:
        found.graceful_ms = bench.replacements_ms(entry, rounds, by_kill=False)

    def crash(entry: Entry, found: Figures) -> None:
        number = rounds if entry.dies_quickly else freezes
        found.crash_ms = bench.replacements_ms(entry, number, by_kill=True)

    def freeze(entry: Entry, found: Figures) -> None:
        found.freeze_ms, found.overlap_ms = bench.freezes(entry, freezes)

    for entry in here:
        attempt("graceful", entry, graceful)
    for entry in here:
        if entry.dies_quickly:
            attempt("kill -9", entry, crash)
    slow: list[tuple[str, Entry, Step]] = [("kill -9", entry, crash) for entry in here if not entry.dies_quickly]
    slow += [("freeze", entry, freeze) for entry in here]
    slow.sort(key=lambda task: -task[1].patience_s)  # the longest first, lest one be waited for at the end
    slow += [("idle", entry, bench.idle) for entry in here]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda task: attempt(*task), slow))
    return figures


if __name__ == "__main__":
    main()
