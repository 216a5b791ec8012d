"""``python -m proofs.exhaustive --nodes 2 --faults 2``: explore, and print the result.

Exit code 0: every state was visited, without a violation; 1: the path to a violation was printed; 3: ``--limit`` ended
the search.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from proofs.exhaustive import MUTATIONS, Explored, Rules, Scope, explore

__all__ = ["main"]

_RULES = tuple(rule.name for rule in dataclasses.fields(Rules))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proofs.exhaustive",
        description="Visit every interleaving of a few nodes, one server and a few faults, and look for a split brain.",
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--lease-ticks", type=int, default=3, help="the lease in ticks (default: 3)")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.9], help="the nodes' clock speeds; the server's is 1"
    )
    parser.add_argument("--takeover", choices=("fast", "strict"), default="fast")
    parser.add_argument("--term-row", action="store_true", help="as term_table=True (strict has it anyway)")
    parser.add_argument("--grace", action="store_true", help="leaders try to recover before they declare a loss")
    parser.add_argument("--faults", type=int, default=1, help="how many in all (default: 1)")
    parser.add_argument("--kills", type=int, help="how many of them kill a session (default: strict all, fast 1)")
    parser.add_argument("--kills-apart", action="store_true", help="sessions are lost a lease or more apart")
    parser.add_argument("--ends-are-heard", action="store_true", help="a session's end reaches its host at once")
    parser.add_argument("--restarts", type=int, help="how many of them are restarts of the server (default: all)")
    parser.add_argument("--crashes", type=int, help="how many of them are crashes of a node (default: all)")
    parser.add_argument("--no-step-downs", action="store_true", help="no leader is asked to step down")
    parser.add_argument("--no-give-ups", action="store_true", help="no node times out before it has to")
    parser.add_argument("--places", action="store_true", help="only the heir is queued for the lock")
    parser.add_argument("--places-stay", action="store_true", help="and the place of a node that is gone is never free")
    parser.add_argument("--begins-led", action="store_true", help="begin with a leader and a queued follower")
    parser.add_argument("--without", choices=_RULES, action="append", default=[], help="switch a rule off")
    parser.add_argument("--limit", type=int, help="stop after so many states")
    parser.add_argument("--hope", action="store_true", help="count the states from which no node can come to lead")
    parser.add_argument("--mutations", action="store_true", help="print only what happens without each rule")
    return parser


def _scope(given: argparse.Namespace) -> Scope:
    def bounded(number: int | None, default: int) -> int:
        return default if number is None else number

    all_kills = given.takeover == "strict" or given.kills_apart or given.ends_are_heard
    return Scope(
        nodes=given.nodes,
        lease_ticks=given.lease_ticks,
        rates=tuple(given.rates),
        takeover=given.takeover,
        term_row=given.term_row,
        grace=given.grace,
        faults=given.faults,
        kills=bounded(given.kills, given.faults if all_kills else 1),
        kills_apart=given.kills_apart,
        ends_are_heard=given.ends_are_heard,
        restarts=0 if given.ends_are_heard else bounded(given.restarts, given.faults),
        crashes=bounded(given.crashes, given.faults),
        step_downs=not given.no_step_downs,
        give_ups=not given.no_give_ups,
        places=given.places or given.places_stay,
        places_stay=given.places_stay,
        begins_led=given.begins_led,
    )


def _report(seen: Explored) -> str:
    lines = [
        f"states       {seen.states:>12,}",
        f"transitions  {seen.transitions:>12,}",
        f"depth        {seen.depth:>12,}",
        f"seconds      {seen.seconds:>12.1f}",
    ]
    if seen.hopeless is not None:
        lines.append(f"hopeless     {seen.hopeless:>12,}")
    lines += [f"\n{violation}" for violation in seen.violations]
    if not seen.violations:
        lines.append("nothing wrong" if seen.is_complete else "nothing wrong so far; the limit ended the search")
    return "\n".join(lines)


def _print_mutations() -> int:
    """Print the path of each mutation's violation; return 1 if one has none."""
    missed = 0
    for mutation in MUTATIONS:
        seen = explore(mutation.scope, mutation.rules, hope=mutation.needs_hope)
        missed += not seen.violations
        sys.stdout.write(f"--- without {mutation.name}\n{_report(seen)}\n\n")
    return 1 if missed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Explore as the arguments say, print the result, and return the exit code."""
    given = _parser().parse_args(argv)
    if given.mutations:
        return _print_mutations()
    seen = explore(_scope(given), Rules(**dict.fromkeys(given.without, False)), limit=given.limit, hope=given.hope)
    sys.stdout.write(_report(seen) + "\n")
    if seen.violations:
        return 1
    return 0 if seen.is_complete else 3


if __name__ == "__main__":
    sys.exit(main())
