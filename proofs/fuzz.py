"""A long run of the fuzz tests: ``make fuzz ARGS="--minutes 10 -k files"``.

Rounds of all of ``tests/testing/test_fuzz_*.py``, each with another seed and many times the examples of ``make test``,
until the time is up or one of them fails. The seed that is printed repeats its round exactly; Hypothesis prints the
example.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=3600")
_WARNING = ("-W", "ignore::hypothesis.errors.HypothesisWarning")  # of a long example: it would hide what was found


def say(line: str) -> None:
    """At once: a long run is watched."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_round(seed: int, factor: int, chosen: str, ran: Counter[str]) -> bool:
    """Run everything once. True when nothing was found."""
    files = sorted(map(str, (_ROOT / "tests").rglob("test_fuzz_*.py")))
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.json")
        said = {"PGLEADERLOCK_FUZZ_FACTOR": str(factor), "PGLEADERLOCK_FUZZ_COUNTS": str(counts)}
        words = [*_PYTEST, *_WARNING, f"--hypothesis-seed={seed}", "-k", chosen, *files]
        code = subprocess.run(words, env={**os.environ, **said}, cwd=_ROOT, check=False).returncode
        ran.update(json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {})
    return code == 0


def main() -> int:
    """Run, and exit with 1 when something was found."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--factor", type=int, default=20, help="times as many examples in a round as in make test")
    parser.add_argument("--seed", type=int, help="of the first round, to repeat it")
    parser.add_argument("-k", dest="chosen", default="", help="only tests whose file or name has this in it")
    options = parser.parse_args()
    end, seed, ran = time.monotonic() + 60 * options.minutes, options.seed, Counter[str]()
    while time.monotonic() < end:
        seed = secrets.randbits(32) if seed is None else seed
        say(f"--seed {seed}")
        if not run_round(seed, options.factor, options.chosen, ran):
            say(f"something was found, or could not be run: --seed {seed} --factor {options.factor} repeats it")
            return 1
        seed = None
    for name, examples in sorted(ran.items()):
        say(f"{examples:9} {name}")
    say(f"{sum(ran.values()):9} examples, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
