"""The exhaustive check: what it sees of the protocol, and what it finds when a mechanism is missing."""

import dataclasses

import pytest

from pgleaderlock import EventKind, LockState
from pgleaderlock.engine.fsm import ROWS, Input, Row, table_for
from pgleaderlock.errors import IllegalTransition
from proofs import exhaustive
from proofs.exhaustive import MUTATIONS, Mutation, Rules, Scope, explore
from proofs.exhaustive import _rules as rules_module
from proofs.exhaustive.__main__ import main

# Nothing here waits, so nothing can hang; but on a busy machine, with coverage, seconds of computing become many.
pytestmark = pytest.mark.timeout(300)

SMALL = Scope(lease_ticks=2, faults=0)
LED = dataclasses.replace(SMALL, begins_led=True, give_ups=False, step_downs=False)
ALONE = Scope(nodes=1, lease_ticks=2, faults=1)


def told(seen: exhaustive.Explored) -> str:
    (violation,) = seen.violations
    return str(violation)


@pytest.mark.proof
def test_no_interleaving_of_two_nodes_has_two_leaders_and_none_is_a_dead_end():
    seen = explore(SMALL, hope=True)
    assert seen.violations == ()
    assert seen.is_complete
    assert seen.hopeless == 0
    assert seen.states > 10_000
    assert seen.transitions > seen.states
    assert seen.depth > 20


@pytest.mark.proof
def test_no_interleaving_with_a_lost_session_has_two_leaders():
    seen = explore(dataclasses.replace(LED, faults=1, restarts=0, crashes=0))
    assert seen.violations == ()
    assert seen.is_complete


@pytest.mark.proof
def test_no_interleaving_with_both_sessions_lost_has_two_leaders_if_the_host_is_notified():
    scope = dataclasses.replace(LED, faults=2, kills=2, restarts=0, crashes=0, ends_are_heard=True, give_ups=False)
    seen = explore(scope)
    assert seen.violations == ()
    assert seen.is_complete


@pytest.mark.proof
def test_no_interleaving_with_an_heir_has_two_leaders_and_none_is_a_dead_end():
    seen = explore(dataclasses.replace(LED, places=True, faults=1, restarts=0, crashes=0), hope=True)
    assert seen.violations == ()
    assert seen.is_complete
    assert seen.hopeless == 0


@pytest.mark.proof
def test_a_place_whose_holder_is_gone_for_ever_keeps_no_node_from_leading():
    lost = dataclasses.replace(LED, places=True, places_stay=True, faults=1, kills=0, restarts=0)
    seen = explore(lost, hope=True)
    assert seen.violations == ()
    assert seen.hopeless == 0


def test_a_lock_session_that_does_not_answer_last_can_be_overtaken():
    """Two requests sent at once: the token's arrives, the try for the witness lock comes after a whole other term."""
    (mutation,) = (each for each in MUTATIONS if each.name == "lock_answers_last")
    steps = told(explore(mutation.scope, mutation.rules)).splitlines()
    order = [
        "tries for the witness lock. It draws token 2.",
        "FAULT: B's lock session is killed.",
        "A leads, with token 3.",
        "B's try for the witness lock reaches the server, and is granted.",
        "B leads, with token 2.",
    ]
    found = [next(number for number, step in enumerate(steps) if part in step) for part in order[:3]]
    found += [max(number for number, step in enumerate(steps) if part in step) for part in order[3:]]
    assert found == sorted(found)


def test_node_that_is_cut_off_does_not_learn_of_a_restart():
    with pytest.raises(ValueError, match="ends_are_heard needs restarts=0"):
        Scope(ends_are_heard=True)
    Scope(ends_are_heard=True, restarts=0)


@pytest.mark.parametrize("grace", [False, True])
def test_a_node_that_is_alone_always_comes_back_to_lead(grace: bool):
    seen = explore(dataclasses.replace(ALONE, grace=grace), hope=True)
    assert seen.violations == ()
    assert seen.hopeless == 0


# Many worlds are seen before these two are missed.
_SLOW_MUTATIONS = {"place_is_no_condition", "claim_comes_last"}


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.name in _SLOW_MUTATIONS else [])
        for each in MUTATIONS
    ],
)
def test_a_mechanism_that_is_missing_is_missed(mutation: Mutation):
    seen = explore(mutation.scope, mutation.rules, limit=100_000, hope=mutation.needs_hope)
    assert mutation.finds in told(seen)
    assert seen.is_complete is mutation.needs_hope  # a dead end is known only when every world was visited
    assert bool(seen.hopeless) is mutation.needs_hope


def test_every_rule_has_a_mutation():
    assert {mutation.name for mutation in MUTATIONS} >= _SLOW_MUTATIONS
    assert {mutation.name for mutation in MUTATIONS} == {*Rules.__dataclass_fields__, "takeover"}


def test_story_begins_at_the_start_and_keeps_the_names_of_the_nodes():
    seen = explore(Scope(faults=1, restarts=0, crashes=0, begins_led=True), Rules(witness=False))
    assert told(seen).splitlines() == [
        "  1. A leads, with token 1, and B is queued.",
        "  2. FAULT: A's lock session is killed.",
        "  3. B reads that it holds the lock, and begins its term. It draws token 2.",
        "  4. B reads that it holds the lock.",
        "  5. B leads, with token 2. (A and B claim to lead)",
        "     So two nodes claim to lead.",
    ]


@pytest.mark.parametrize(("rates", "is_safe"), [((0.9,), True), ((0.6,), False), ((1.0, 1 / 0.6), True)])
def test_clocks_may_differ_by_as_much_as_is_promised_and_no_more(rates: tuple[float, ...], is_safe: bool):
    """A fast clock shortens validity, which is safe; a slow one prolongs it."""
    seen = explore(dataclasses.replace(LED, rates=rates), limit=3_000)
    assert (seen.violations == ()) is is_safe


def with_rows(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    """Play by another table than the product's."""
    table = {(row.source, row.input): row for row in rows}
    real = table_for

    def changed(policy):
        return {pair: specialised for pair, specialised in real(policy).items() if pair in table} | {
            pair: dataclasses.replace(real(policy)[pair], closes=row.closes)
            for pair, row in table.items()
            if not isinstance(row.to, LockState) or row.to is not LockState.STOPPED
        }

    monkeypatch.setattr(rules_module, "table_for", changed)


def test_the_products_own_table_is_played_by_a_missing_row_ends_the_search(monkeypatch: pytest.MonkeyPatch):
    with_rows(monkeypatch, *(row for row in ROWS if row.input is not Input.HEALTH_OK))
    with pytest.raises(IllegalTransition, match="'health_ok' in state 'leader'"):
        explore(ALONE)


def test_the_products_own_table_is_played_by_a_row_that_does_not_close_is_found(monkeypatch: pytest.MonkeyPatch):
    """After a renewal that failed, the witness would be kept by a follower."""
    rows = [dataclasses.replace(row, closes=row.closes and EventKind.ERROR not in row.emits) for row in ROWS]
    with_rows(monkeypatch, *rows)
    assert "without knowing it" in told(explore(ALONE))


def test_checker_finds_a_loss_without_a_cause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("proofs.exhaustive._facts._named", lambda fact, cause: False)
    assert "So A lost its leadership by health_failed, and the engine names no cause." in told(explore(ALONE))


def test_places_that_stay_need_places():
    with pytest.raises(ValueError, match="places_stay needs places"):
        Scope(places_stay=True)


@pytest.mark.parametrize("nonsense", [{"nodes": 0}, {"lease_ticks": 0}, {"rates": ()}])
def test_a_scope_of_nothing_is_refused(nonsense):
    with pytest.raises(ValueError, match="a node, a tick and a rate"):
        Scope(**nonsense)


# --- The command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_what_it_saw(capsys: pytest.CaptureFixture[str]):
    words = "--nodes 1 --lease-ticks 2 --faults 1 --takeover strict --hope"
    assert main(words.split()) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == [
        *("states", "transitions", "depth", "seconds", "hopeless", "nothing")
    ]


def test_command_prints_the_story_of_what_it_found(capsys: pytest.CaptureFixture[str]):
    words = "--lease-ticks 2 --begins-led --no-give-ups --faults 1 --restarts 0 --without witness"
    assert main(words.split()) == 1
    assert "So two nodes claim to lead." in capsys.readouterr().out


def test_the_command_says_when_there_is_more_to_see(capsys: pytest.CaptureFixture[str]):
    assert main(["--limit", "100", "--no-step-downs"]) == 3
    assert "the limit ended the search" in capsys.readouterr().out


def test_command_prints_all_mutations(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    quickest = [mutation for mutation in MUTATIONS if mutation.name in ("witness", "close_on_doubt")]
    monkeypatch.setattr("proofs.exhaustive.__main__.MUTATIONS", quickest)
    assert main(["--mutations"]) == 0
    assert capsys.readouterr().out.count("--- without ") == 2
    sound = dataclasses.replace(quickest[0], scope=ALONE, rules=Rules())
    monkeypatch.setattr("proofs.exhaustive.__main__.MUTATIONS", [sound])
    assert main(["--mutations"]) == 1
