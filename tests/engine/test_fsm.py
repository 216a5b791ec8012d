"""The transition table against the specification, claim by claim, and the rules that hold for every row.

``CLAIMS`` is written by hand from section 3.3 of the specification and from the design's decisions where that is
silent. It does not read ``fsm.ROWS``: two tables that were written apart and agree are worth more than one.
"""

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pgleaderlock.engine import fsm
from pgleaderlock.engine.fsm import ROWS, Input, Machine, Policy, Row, Transition, table_for
from pgleaderlock.errors import IllegalTransition
from pgleaderlock.models import EventKind, LockState


class Claim(NamedTuple):
    """One claim: in this state, on this input, under these conditions, this follows."""

    source: str
    input: str
    when: str
    to: str
    emits: str
    closes: bool = False

    def __str__(self) -> str:
        return f"{self.source} + {self.input} -> {self.to}" + (f" ({self.when})" if self.when else "")

    @property
    def pair(self) -> tuple[LockState, Input]:
        return LockState[self.source], input_called(self.input)

    def covers(self, policy: Policy, *, stopping: bool) -> bool:
        facts = {
            "auto": policy.auto_reacquire,
            "no auto": not policy.auto_reacquire,
            "grace": policy.grace,
            "no grace": not policy.grace,
            "stop asked": stopping,
            "no stop asked": not stopping,
        }
        return all(facts[word] for word in self.when.split(", ") if word)


def input_called(name: str) -> Input:
    """Find the input by the specification's spelling, such as ``HealthFailed``."""
    return next(found for found in Input if found.value.replace("_", "") == name.lower())


SPECIFIED = (
    # Section 3.3, in its order. "closes" is its "close connection", and is implied by STOPPED.
    Claim("STOPPED", "Start", "", "FOLLOWER", "on_state_change"),
    Claim("FOLLOWER", "AcquireAttempt", "", "ACQUIRING", "on_state_change"),
    Claim("FOLLOWER", "StopRequested", "", "STOPPED", "on_state_change on_stopped", closes=True),
    Claim("ACQUIRING", "AcquireSucceeded", "", "LEADER", "on_state_change on_acquired"),
    Claim("ACQUIRING", "AcquireFailed", "", "FOLLOWER", "on_state_change on_acquire_failed"),
    Claim("ACQUIRING", "DbError", "auto", "FOLLOWER", "on_state_change attempt_failed on_error", closes=True),
    Claim(
        "ACQUIRING", "DbError", "no auto", "STOPPED", "on_state_change attempt_failed on_error on_stopped", closes=True
    ),
    Claim("ACQUIRING", "StopRequested", "", "STOPPED", "on_state_change on_stopped", closes=True),
    Claim("LEADER", "HealthOk", "", "LEADER", ""),
    Claim("LEADER", "HealthFailed", "grace", "RECONNECTING", "on_state_change on_error"),
    Claim("LEADER", "HealthFailed", "no grace, auto", "FOLLOWER", "on_state_change on_lost on_error", closes=True),
    Claim(
        "LEADER",
        "HealthFailed",
        "no grace, no auto",
        "STOPPED",
        "on_state_change on_lost on_error on_stopped",
        closes=True,
    ),
    Claim("LEADER", "DbError", "grace", "RECONNECTING", "on_state_change on_error"),
    Claim("LEADER", "DbError", "no grace, auto", "FOLLOWER", "on_state_change on_lost on_error", closes=True),
    Claim(
        "LEADER", "DbError", "no grace, no auto", "STOPPED", "on_state_change on_lost on_error on_stopped", closes=True
    ),
    Claim("LEADER", "StopRequested", "", "RELEASING", "on_state_change"),
    Claim("LEADER", "ReleaseRequested", "", "RELEASING", "on_state_change"),
    # "No events emitted": the callbacks stay silent but for the change of state; "recovered" reaches the log alone.
    Claim("RECONNECTING", "ReacquireSucceeded", "", "LEADER", "on_state_change recovered"),
    Claim("RECONNECTING", "ReacquireFailed", "auto", "FOLLOWER", "on_state_change on_lost"),
    Claim("RECONNECTING", "ReacquireFailed", "no auto", "STOPPED", "on_state_change on_lost on_stopped", closes=True),
    Claim("RECONNECTING", "GraceExpired", "auto", "FOLLOWER", "on_state_change on_lost", closes=True),
    Claim("RECONNECTING", "GraceExpired", "no auto", "STOPPED", "on_state_change on_lost on_stopped", closes=True),
    Claim("RECONNECTING", "StopRequested", "", "STOPPED", "on_state_change on_stopped", closes=True),
    Claim("RELEASING", "ReleaseSucceeded", "auto, no stop asked", "FOLLOWER", "on_state_change on_released"),
    Claim("RELEASING", "ReleaseSucceeded", "no auto", "STOPPED", "on_state_change on_released on_stopped", closes=True),
    Claim(
        "RELEASING",
        "ReleaseSucceeded",
        "auto, stop asked",
        "STOPPED",
        "on_state_change on_released on_stopped",
        closes=True,
    ),
    Claim("RELEASING", "ReleaseFailed", "", "STOPPED", "on_state_change on_error on_stopped", closes=True),
    Claim("RELEASING", "DbError", "", "STOPPED", "on_state_change on_error on_stopped", closes=True),
)

DECIDED = (
    # Where the specification is silent: section 5 of the design.
    Claim("FOLLOWER", "DbError", "", "FOLLOWER", "on_error", closes=True),
    Claim("FOLLOWER", "ReleaseRequested", "", "FOLLOWER", ""),
    Claim("FOLLOWER", "RetriesExhausted", "", "STOPPED", "on_state_change on_error on_stopped", closes=True),
    Claim("RECONNECTING", "ReleaseRequested", "auto", "FOLLOWER", "on_state_change on_lost", closes=True),
    Claim("RECONNECTING", "ReleaseRequested", "no auto", "STOPPED", "on_state_change on_lost on_stopped", closes=True),
    Claim(
        "RECONNECTING", "RetriesExhausted", "", "STOPPED", "on_state_change on_lost on_error on_stopped", closes=True
    ),
    Claim("RELEASING", "StopRequested", "", "RELEASING", ""),
    Claim("RELEASING", "ReleaseRequested", "", "RELEASING", ""),
    Claim(
        "RELEASING", "ReleaseTimedOut", "auto, no stop asked", "FOLLOWER", "on_state_change on_released", closes=True
    ),
    Claim("RELEASING", "ReleaseTimedOut", "no auto", "STOPPED", "on_state_change on_released on_stopped", closes=True),
    Claim(
        "RELEASING",
        "ReleaseTimedOut",
        "auto, stop asked",
        "STOPPED",
        "on_state_change on_released on_stopped",
        closes=True,
    ),
    Claim("FOLLOWER", "Aborted", "", "STOPPED", "on_state_change on_error on_stopped", closes=True),
    Claim("ACQUIRING", "Aborted", "", "STOPPED", "on_state_change on_error on_stopped", closes=True),
    Claim("LEADER", "Aborted", "", "STOPPED", "on_state_change on_lost on_error on_stopped", closes=True),
    Claim("RECONNECTING", "Aborted", "", "STOPPED", "on_state_change on_lost on_error on_stopped", closes=True),
    Claim("RELEASING", "Aborted", "", "STOPPED", "on_state_change on_error on_stopped", closes=True),
)

CLAIMS = SPECIFIED + DECIDED

POLICIES = tuple(
    Policy(auto_reacquire=auto, grace=grace) for auto, grace in itertools.product([True, False], [True, False])
)
SITUATIONS = tuple(itertools.product(POLICIES, [False, True]))
PAIRS = tuple(itertools.product(LockState, Input))
ILLEGAL_PAIRS = tuple(pair for pair in PAIRS if pair not in {claim.pair for claim in CLAIMS})

# How a machine gets to each state by inputs alone. Without a stop asked for, and with one: a stop that was asked for
# is remembered in RELEASING only, because from everywhere else it leads to STOPPED at once.
_TO_LEADER = (Input.START, Input.ACQUIRE_ATTEMPT, Input.ACQUIRE_SUCCEEDED)
PATHS: tuple[tuple[LockState, bool, tuple[Input, ...]], ...] = (
    (LockState.STOPPED, False, ()),
    (LockState.STOPPED, False, (Input.START, Input.STOP_REQUESTED)),
    (LockState.FOLLOWER, False, (Input.START,)),
    (LockState.FOLLOWER, False, (Input.START, Input.STOP_REQUESTED, Input.START)),
    (LockState.ACQUIRING, False, (Input.START, Input.ACQUIRE_ATTEMPT)),
    (LockState.LEADER, False, _TO_LEADER),
    (LockState.LEADER, False, (*_TO_LEADER, Input.HEALTH_OK)),
    (LockState.RECONNECTING, False, (*_TO_LEADER, Input.HEALTH_FAILED)),
    (LockState.RECONNECTING, False, (*_TO_LEADER, Input.DB_ERROR)),
    (LockState.RELEASING, False, (*_TO_LEADER, Input.RELEASE_REQUESTED)),
    (LockState.RELEASING, True, (*_TO_LEADER, Input.STOP_REQUESTED)),
    (LockState.RELEASING, True, (*_TO_LEADER, Input.RELEASE_REQUESTED, Input.STOP_REQUESTED)),
)


def machines_in(state: LockState) -> Iterator[tuple[Machine, Policy, bool]]:
    """Make every machine that can be brought into this state, with what is known of it."""
    for policy, (reached, stopping, path) in itertools.product(POLICIES, PATHS):
        if reached is not state or (state is LockState.RECONNECTING and not policy.grace):
            continue
        machine = Machine(policy)
        for fact in path:
            machine.feed(fact)
        assert machine.state is state
        yield machine, policy, stopping


def summary(transition: Transition) -> tuple[str, str, bool]:
    return transition.to.name, " ".join(kind.value for kind in transition.emits), transition.closes


def pair_id(value: object) -> str | None:
    return value.name if isinstance(value, LockState | Input) else None


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_the_table_keeps_the_claim(claim: Claim) -> None:
    covered = [situation for situation in SITUATIONS if claim.covers(situation[0], stopping=situation[1])]
    assert covered
    for policy, stopping in covered:
        transition = table_for(policy, stopping=stopping)[claim.pair]
        assert (transition.source, transition.input) == claim.pair
        assert summary(transition) == (claim.to, claim.emits, claim.closes)


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_a_machine_brought_there_by_inputs_alone_keeps_the_claim(claim: Claim) -> None:
    state, fact = claim.pair
    seen = 0
    for machine, policy, asked_before in machines_in(state):
        if not claim.covers(policy, stopping=asked_before):
            continue
        transition = machine.feed(fact)
        assert summary(transition) == (claim.to, claim.emits, claim.closes)
        assert machine.state is LockState[claim.to]
        seen += 1
    assert seen


@pytest.mark.parametrize(("state", "fact"), PAIRS, ids=pair_id)
def test_exactly_one_claim_covers_a_pair_in_each_situation_or_none_does_in_any(state: LockState, fact: Input) -> None:
    """Guard the hand-written table itself: a gap in it would be taken for an illegal pair."""
    speakers = [
        sum(claim.pair == (state, fact) and claim.covers(policy, stopping=stopping) for claim in CLAIMS)
        for policy, stopping in SITUATIONS
    ]
    assert set(speakers) in ({0}, {1})


@pytest.mark.parametrize(("state", "fact"), ILLEGAL_PAIRS, ids=pair_id)
def test_a_pair_without_a_row_is_in_no_table(state: LockState, fact: Input) -> None:
    for policy, stopping in SITUATIONS:
        assert (state, fact) not in table_for(policy, stopping=stopping)


@pytest.mark.parametrize(("state", "fact"), ILLEGAL_PAIRS, ids=pair_id)
def test_an_illegal_input_raises_naming_both_and_changes_nothing(state: LockState, fact: Input) -> None:
    for machine, policy, stopping in machines_in(state):
        before = dict(vars(machine))
        with pytest.raises(IllegalTransition) as caught:
            machine.feed(fact)
        assert fact.value in str(caught.value)
        assert state.value in str(caught.value)
        assert vars(machine) == before
        # And it goes on as if it had never been asked: each legal input leads where it did before.
        for (source, legal), expected in table_for(policy, stopping=stopping).items():
            if source is state and legal is not Input.STOP_REQUESTED:
                untouched = Machine(policy)
                vars(untouched).update(before)
                vars(machine).update(before)
                with pytest.raises(IllegalTransition):
                    machine.feed(fact)
                assert machine.feed(legal) == untouched.feed(legal) == expected


def test_an_illegal_stop_is_not_remembered() -> None:
    """STOPPED has no row for a stop; one that was refused there must not end the next run's step-down."""
    machine = Machine(Policy(auto_reacquire=True))
    with pytest.raises(IllegalTransition):
        machine.feed(Input.STOP_REQUESTED)
    for fact in (*_TO_LEADER, Input.RELEASE_REQUESTED, Input.RELEASE_SUCCEEDED):
        machine.feed(fact)
    assert machine.state is LockState.FOLLOWER


def test_a_stop_of_the_last_run_is_forgotten_by_the_next() -> None:
    machine = Machine(Policy(auto_reacquire=True))
    for fact in (*_TO_LEADER, Input.STOP_REQUESTED):
        machine.feed(fact)
    assert machine.feed(Input.RELEASE_SUCCEEDED).to is LockState.STOPPED
    for fact in (*_TO_LEADER, Input.RELEASE_REQUESTED, Input.RELEASE_SUCCEEDED):
        machine.feed(fact)
    assert machine.state is LockState.FOLLOWER


def test_a_new_machine_is_stopped() -> None:
    assert Machine(Policy()).state is LockState.STOPPED


def test_the_default_policy_is_the_default_of_the_specified_constructor() -> None:
    assert Policy() == Policy(auto_reacquire=True, grace=False)


# --- Rules that hold for every row -----------------------------------------------------------------------------


def every_transition() -> Iterator[Transition]:
    for policy, stopping in SITUATIONS:
        yield from table_for(policy, stopping=stopping).values()


def test_change_of_state_is_reported_first_and_only_a_change_is() -> None:
    for transition in every_transition():
        told = [place for place, kind in enumerate(transition.emits) if kind is EventKind.STATE_CHANGE]
        assert told == ([0] if transition.to is not transition.source else []), transition


def test_entering_stopped_closes_the_session_and_says_so_last() -> None:
    for transition in every_transition():
        told = [place for place, kind in enumerate(transition.emits) if kind is EventKind.STOPPED]
        if transition.to is LockState.STOPPED:
            assert transition.closes, transition
            assert told == [len(transition.emits) - 1], transition
        else:
            assert told == [], transition


def test_no_transition_says_the_same_thing_twice() -> None:
    for transition in every_transition():
        assert len(set(transition.emits)) == len(transition.emits), transition


def test_nothing_that_leads_on_as_leader_closes_the_session_that_holds_the_lock() -> None:
    for transition in every_transition():
        if transition.to in {LockState.LEADER, LockState.RELEASING}:
            assert not transition.closes, transition


def test_no_pair_has_two_rows() -> None:
    pairs = [(row.source, row.input) for row in ROWS]
    assert len(set(pairs)) == len(pairs)


def test_every_input_has_a_row_somewhere() -> None:
    assert {row.input for row in ROWS} == set(Input)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("start", LockState, ids=lambda state: state.name)
def test_every_state_can_reach_stopped(start: LockState, policy: Policy) -> None:
    reached, frontier = set[LockState](), [start]
    while frontier:
        state = frontier.pop()
        for stopping in (False, True):
            for (source, _), transition in table_for(policy, stopping=stopping).items():
                if source is state and transition.to not in reached:
                    reached.add(transition.to)
                    frontier.append(transition.to)
    assert LockState.STOPPED in reached


@pytest.mark.parametrize("state", [s for s in LockState if s is not LockState.STOPPED], ids=lambda s: s.name)
def test_every_running_state_accepts_a_stop_request_and_can_be_aborted(state: LockState) -> None:
    for policy, stopping in SITUATIONS:
        table = table_for(policy, stopping=stopping)
        assert (state, Input.STOP_REQUESTED) in table
        assert table[state, Input.ABORTED].to is LockState.STOPPED


def test_a_table_cannot_be_changed() -> None:
    table = table_for(Policy())
    with pytest.raises(TypeError):
        cast("Any", table)[LockState.STOPPED, Input.HEALTH_OK] = None
    for record in (ROWS[0], next(iter(table.values())), Policy()):
        name = dataclasses.fields(record)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, None)


def test_a_row_that_names_no_events_and_no_closing_has_neither() -> None:
    row = Row(LockState.STOPPED, Input.START, LockState.FOLLOWER)
    assert row.emits == ()
    assert not row.closes


def test_the_module_imports_nothing_that_could_do_anything() -> None:
    """No clock, no loop, no logger, no random numbers: what goes in decides what comes out."""
    allowed = {
        "enum",
        "dataclasses",
        "functools",
        "types",
        "typing",
        "pgleaderlock.errors",
        "pgleaderlock.models",
    }
    tree = ast.parse(Path(fsm.__file__).read_text(encoding="utf-8"))
    imported = set[str | None]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides what it names"
            imported.add(node.module)
        elif isinstance(node, ast.Name):
            assert node.id not in {"__import__", "open", "print", "exec", "eval"}
    assert imported
    assert imported <= allowed


# --- Any sequence of inputs ------------------------------------------------------------------------------------

_HOLDING = {LockState.LEADER, LockState.RECONNECTING, LockState.RELEASING}
_LEGAL = frozenset(claim.pair for claim in CLAIMS)


class AnySequence(RuleBasedStateMachine):
    """Feeds inputs at random and keeps a book of terms, which must always add up."""

    machine: Machine
    policy: Policy

    def __init__(self) -> None:
        super().__init__()
        self.in_term = False
        self.stop_asked = False

    @initialize(policy=st.sampled_from(POLICIES))
    def configure(self, policy: Policy) -> None:
        self.policy = policy
        self.machine = Machine(policy)

    def legal_inputs(self) -> list[Input]:
        return [fact for fact in Input if (self.machine.state, fact) in _LEGAL]

    @rule(data=st.data())
    def feed_what_has_a_row(self, data: st.DataObject) -> None:
        before = self.machine.state
        fact = data.draw(st.sampled_from(self.legal_inputs()))
        transition = self.machine.feed(fact)
        self.stop_asked |= fact is Input.STOP_REQUESTED

        assert (transition.source, transition.input) == (before, fact)
        assert transition.to is self.machine.state
        self.hear(transition)
        if transition.to is LockState.STOPPED:
            self.stop_asked = False
        if transition.to is LockState.FOLLOWER and before not in {LockState.FOLLOWER, LockState.STOPPED}:
            # Back in the race only if that was configured, and never against a stop; being refused is no loss.
            assert not self.stop_asked
            assert self.policy.auto_reacquire or fact is Input.ACQUIRE_FAILED

    def hear(self, transition: Transition) -> None:
        for kind in transition.emits:
            match kind:
                case EventKind.ACQUIRED:
                    assert not self.in_term, "a term began within a term"
                    self.in_term = True
                case EventKind.RECOVERED:
                    assert self.in_term, "a term that was over came back"
                case EventKind.RELEASED:
                    assert self.in_term, "released without having led"
                    self.in_term = False
                case EventKind.LOST:
                    assert self.in_term, "lost without having led"
                    self.in_term = False
                case EventKind.ATTEMPT_FAILED:
                    assert not self.in_term, "an attempt within a term"
                case EventKind.STOPPED:
                    self.in_term = False
                case EventKind.STATE_CHANGE | EventKind.ACQUIRE_FAILED | EventKind.ERROR:
                    pass

    @precondition(lambda self: len(self.legal_inputs()) < len(Input))
    @rule(data=st.data())
    def feed_what_has_no_row(self, data: st.DataObject) -> None:
        before = dict(vars(self.machine))
        legal = self.legal_inputs()
        with pytest.raises(IllegalTransition):
            self.machine.feed(data.draw(st.sampled_from([fact for fact in Input if fact not in legal])))
        assert vars(self.machine) == before

    @invariant()
    def a_term_is_open_exactly_while_the_lock_is_or_may_be_ours(self) -> None:
        assert self.in_term is (self.machine.state in _HOLDING)

    @invariant()
    def reconnecting_is_for_those_with_a_grace_period(self) -> None:
        assert self.policy.grace or self.machine.state is not LockState.RECONNECTING

    @invariant()
    def a_stop_that_was_asked_for_leaves_only_the_release_to_wait_for(self) -> None:
        if self.stop_asked:
            assert self.machine.state is LockState.RELEASING


@pytest.mark.slow
def test_any_sequence_of_inputs_keeps_the_book_of_terms_in_order() -> None:
    run_state_machine_as_test(AnySequence, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


# --- What follows from a transition ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Consequence:
    """What the engine does about one transition: the columns of the table."""

    source: str
    fact: str
    ends_term: bool = False
    notifies_first: bool = False
    keeps_fence: bool = False
    keeps_call: bool = False
    hands_over: bool = False


CONSEQUENCES = (
    Consequence("ACQUIRING", "AcquireSucceeded", keeps_fence=True),
    Consequence("ACQUIRING", "DbError"),
    Consequence("LEADER", "HealthOk", keeps_fence=True, keeps_call=True),
    Consequence("LEADER", "HealthFailed", ends_term=True, notifies_first=True, keeps_fence=True),
    Consequence("LEADER", "DbError", ends_term=True, notifies_first=True, keeps_fence=True),
    Consequence("LEADER", "StopRequested", keeps_call=True),
    Consequence("LEADER", "ReleaseRequested", keeps_call=True),
    Consequence("LEADER", "Aborted", ends_term=True, notifies_first=True, keeps_fence=True),
    Consequence("RELEASING", "ReleaseSucceeded", ends_term=True, hands_over=True),
    Consequence("RELEASING", "ReleaseTimedOut", ends_term=True, hands_over=True),
    Consequence("RELEASING", "ReleaseFailed", ends_term=True),
    Consequence("RELEASING", "DbError", ends_term=True),
    Consequence("RECONNECTING", "GraceExpired", ends_term=True, notifies_first=True, keeps_fence=True),
    Consequence("RECONNECTING", "ReacquireSucceeded", keeps_fence=True),
    Consequence("RECONNECTING", "StopRequested", ends_term=True),
)


@pytest.mark.parametrize("claim", CONSEQUENCES, ids=lambda claim: f"{claim.source}-{claim.fact}")
def test_the_table_says_what_the_engine_does_about_a_transition(claim: Consequence):
    name = re.sub("(?<!^)(?=[A-Z])", "_", claim.fact).lower()
    made = table_for(Policy())[LockState[claim.source], Input(name)]
    columns = (made.ends_term, made.notifies_first, made.keeps_fence, made.keeps_call, made.hands_over)
    assert columns == (
        claim.ends_term,
        claim.notifies_first,
        claim.keeps_fence,
        claim.keeps_call,
        claim.hands_over,
    )


def test_a_leader_that_reconnects_keeps_its_fence_armed_and_its_term_open():
    made = table_for(Policy(grace=True))[LockState.LEADER, Input.DB_ERROR]
    assert made.keeps_fence
    assert not made.ends_term


def test_no_module_but_the_table_decides_by_the_state():
    """A comparison of the state elsewhere is a column that is missing here."""
    package = Path(fsm.__file__).parent
    pattern = re.compile(r"\.(?:state|to|source) (?:is|in|not in|==|!=) |is (?:not )?LockState")
    engine = [
        package / name for name in ("election.py", "leader_tasks.py", "_run.py", "_leader_task.py", "while_leader.py")
    ]
    assert [line for path in engine for line in path.read_text("utf-8").splitlines() if pattern.search(line)] == []


def test_listeners_ask_what_an_event_or_a_state_says_and_do_not_list_states():
    """At most three comparisons with a state outside the table and ``LockState``, the exhaustive model left out."""
    package = Path(fsm.__file__).parents[1]
    pattern = re.compile(r"(?:\bis|\bnot|==|!=|\bin|\bcase) [({]*LockState\b|[({]LockState\.\w+, LockState\.")
    elsewhere = [
        path
        for path in sorted(package.rglob("*.py"))
        if path.name not in ("fsm.py", "models.py") and "exhaustive" not in path.parts
    ]
    found = [line for path in elsewhere for line in path.read_text("utf-8").splitlines() if pattern.search(line)]
    assert len(found) <= 3, found


@pytest.mark.parametrize("policy", POLICIES)
def test_only_a_term_is_lost_and_only_outside_of_one_an_attempt_fails(policy: Policy):
    """So that no listener has to look at the states to distinguish them."""
    for made in table_for(policy).values():
        assert made.ends_term or EventKind.LOST not in made.emits
        assert made.source.is_following or EventKind.ATTEMPT_FAILED not in made.emits
        assert made.notifies_first is (EventKind.LOST in made.emits)
