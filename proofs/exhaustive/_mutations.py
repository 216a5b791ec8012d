"""The protocol without one of its mechanisms, each in the smallest world in which the search finds the violation.

A mechanism whose absence is never found is either not modelled here, or not needed. So each rule is in this list, with
the violation that occurs without it; the tests check each entry, and ``--mutations`` prints the paths.
"""

from dataclasses import dataclass, replace

from proofs.exhaustive._rules import Rules, Scope

__all__ = ["MUTATIONS", "Mutation"]

_TWO_LEADERS = "two nodes claim to lead"
_OVERTAKEN = "after another has led with"
_NO_LEADER = "no node can come to lead"

_QUIET = Scope(lease_ticks=2, faults=0, step_downs=False, give_ups=False)
_LED = replace(_QUIET, begins_led=True)
_RESTART = replace(_LED, faults=1, kills=0, crashes=0)
_KILL = replace(_LED, faults=1, restarts=0, crashes=0)
_LOST_PLACE = replace(_LED, faults=1, kills=0, restarts=0, places=True, places_stay=True)
_TWO_KILLS = replace(_LED, faults=2, kills=2, restarts=0, crashes=0)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A missing mechanism, and the violation that the search must find then."""

    name: str
    """The rule that is off; ``takeover`` stands for the setting ``takeover="strict"``."""
    scope: Scope
    rules: Rules
    finds: str
    """Part of the text of the violation."""

    @property
    def needs_hope(self) -> bool:
        """Whether the violation is one that only a search with ``hope`` looks for."""
        return self.finds == _NO_LEADER


def _without(name: str, scope: Scope, finds: str = _TWO_LEADERS, *, witness: bool = True) -> Mutation:
    return Mutation(name, scope, replace(Rules(witness=witness), **{name: False}), finds)


MUTATIONS: tuple[Mutation, ...] = (
    _without("validity_by_clock", _LED),
    _without("trust_from_sending", _LED),
    _without("trust_ends_early", _LED),  # the nodes' clocks go 10 % slower than the server's
    _without("loss_is_final", _LED, "now it is back"),
    _without("late_grant_is_none", _QUIET, _OVERTAKEN),
    _without("witness", _KILL),
    _without("waits_for_witness", _KILL),
    _without("silence_is_no_end", replace(_KILL, give_ups=True)),
    _without("trust_needs_witness", replace(_TWO_KILLS, kills_apart=True)),
    _without("looks_at_sockets", replace(_TWO_KILLS, ends_are_heard=True)),
    _without("settle_after_restart", _RESTART),
    _without("settle_from_answer", replace(_RESTART, lease_ticks=3)),  # in two ticks nothing can be too early
    _without("close_on_doubt", _QUIET, "without knowing it"),
    # Without the witness lock the same violation is found in a tenth of the states.
    _without("new_token_on_recovery", replace(_LED, grace=True, step_downs=True), _OVERTAKEN, witness=False),
    _without("lock_answers_last", replace(_KILL, step_downs=True), _OVERTAKEN),
    _without("claim_comes_last", replace(_TWO_KILLS, takeover="strict", give_ups=True)),
    _without("place_is_no_condition", _LOST_PLACE, _NO_LEADER),
    Mutation("takeover", _TWO_KILLS, Rules(), _TWO_LEADERS),
)
"""Each rule off once, and ``takeover="fast"`` under faults that only ``"strict"`` survives."""
