"""The soak's judge sees each kind of disagreement, and none where there is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock.testing._claim import ClaimWriter
from proofs import soak_judge as judge
from proofs.soak_judge import Led, Process
from proofs.soak_pages import Page

SEEN_EVERY_S = 1.0
FIRST = Led("a", "n1", 11, 7, began_at=100.0, ended_after=109.0, ended_before=110.0)
KILLED = Led("a", "n2", 12, 8, began_at=112.0, ended_after=120.0, ended_before=120.1, is_killed=True)
LASTS = Led("a", "n3", 13, 9, began_at=125.0, ended_after=130.0, ended_before=None)
TERMS = [FIRST, KILLED, LASTS]


def shown(term: Led, **other: Any) -> dict[str, Any]:
    ended_at = term.ended_before
    return {
        "role": term.role,
        "node": term.node,
        "token": term.token,
        "began_at": term.began_at,
        "ended_at": ended_at,
    } | other


def history() -> list[dict[str, Any]]:
    return [{**shown(term), "event": "acquired", "missing": 0} for term in TERMS]


def audited(**other: Any) -> list[dict[str, Any]]:
    record = {"role": "a", "terms": 3, "overlaps": [], "since": 100.0, "until": 131.0, "leaderless_s": 7.0}
    return [record | other]


def test_answers_that_are_what_was_observed_agree():
    assert judge.compare_history(TERMS, history()) == []
    assert judge.compare_terms("page", TERMS, [shown(term) for term in TERMS], SEEN_EVERY_S) == []
    assert judge.compare_audit("audit", TERMS, audited(), ["a"], SEEN_EVERY_S) == []


@pytest.mark.parametrize(
    "lines",
    [
        history()[1:],
        [*history(), history()[0]],
        [*history(), {**history()[0], "token": 99}],
        [{**history()[0], "missing": 2}, *history()[1:]],
    ],
    ids=["a term less", "a beginning twice", "a term more", "missing events"],
)
def test_a_history_of_other_terms_disagrees(lines: list[dict[str, Any]]):
    assert len(judge.compare_history(TERMS, lines)) == 1


@pytest.mark.parametrize(
    "other",
    [{"began_at": 99.0}, {"ended_at": 108.0}, {"ended_at": 111.0}, {"ended_at": None}],
    ids=["began earlier", "ended earlier", "ended later", "goes on"],
)
def test_a_term_at_another_time_disagrees(other: dict[str, Any]):
    rest = [shown(term) for term in TERMS[1:]]
    assert len(judge.compare_terms("page", TERMS, [shown(FIRST, **other), *rest], SEEN_EVERY_S)) == 1


def test_of_a_killed_leader_the_registry_may_know_the_last_renewal_only():
    first, last = shown(FIRST), shown(LASTS)
    assert judge.compare_terms("page", TERMS, [first, shown(KILLED, ended_at=118.9), last], SEEN_EVERY_S) == []
    assert len(judge.compare_terms("page", TERMS, [first, shown(KILLED, ended_at=118.0), last], SEEN_EVERY_S)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"terms": 2},
        {"overlaps": [{}]},
        {"leaderless_s": 5.0},
        {"leaderless_s": 10.5},
        {"role": "b", "terms": 0, "leaderless_s": 31.0},
    ],
    ids=["terms", "overlaps", "led for longer", "leaderless for longer", "another role"],
)
def test_an_audit_with_other_figures_disagrees(other: dict[str, Any]):
    assert len(judge.compare_audit("audit", TERMS, audited(**other), ["a"], SEEN_EVERY_S)) == 1


def test_leaderless_time_is_counted_between_the_terms_and_before_the_first():
    least, most = judge.leaderless_bounds_s(TERMS, 99.0, 131.0, SEEN_EVERY_S)
    assert least <= 1.0 + 2.0 + 4.9 <= most
    assert most - least < 3.0, "bounds that allow everything show nothing"


def test_who_leads_and_who_is_alive_is_compared():
    stands = [{"node": "n2", "is_alive": False}, {"node": "n3", "is_alive": True}]
    status = {"role": "a", "leader": {"node": "n3", "token": 9}, "candidates": stands}
    alive = {"n2": False, "n3": True}
    assert judge.compare_standing("status", TERMS, [status], alive) == []
    for wrong in ({"leader": None}, {"leader": {"node": "n3", "token": 8}}, {"candidates": stands[1:]}):
        assert len(judge.compare_standing("status", TERMS, [status | wrong], alive)) == 1


def test_a_term_that_no_registry_could_write_is_left_out_and_no_other():
    short = replace(KILLED, ended_after=112.4, ended_before=112.5)
    assert judge.written([short], []) == []
    assert judge.written([short], history()) == [short], "the history has it"
    assert judge.written([KILLED], []) == [KILLED], "there was time enough to write it"
    assert judge.written([replace(short, is_killed=False)], []) != []


def write_process(folder: Path, node: str, samples: list[tuple[float, int]], events: list[dict[str, Any]]) -> Process:
    folder.mkdir()
    memory = bytearray(24 * 10)
    writer = ClaimWriter(memory)
    for at, token in samples:
        writer.note(at, token, at)
    (folder / "0").write_bytes(memory)
    (folder / "events").write_text("".join(json.dumps({"role": "a", "until": None} | each) + "\n" for each in events))
    return Process(node, 11, folder)


def test_terms_are_read_from_what_a_process_left_behind(tmp_path: Path):
    events = [
        {"event": "on_acquired", "token": 7, "at": 10.0},
        {"event": "on_lost", "token": 7, "at": 14.0, "until": 12.5},
        {"event": "on_acquired", "token": 9, "at": 20.0},
    ]
    process = write_process(tmp_path / "n1", "n1", [(10.001, 7), (10.005, 7), (20.001, 9)], events)
    frozen, lasts = judge.read_terms(process, ["a"], 1000.0)
    assert (frozen.token, frozen.began_at, frozen.ended_after, frozen.ended_before) == (7, 1010.0, 1010.005, 1012.5)
    assert (lasts.token, lasts.ended_before) == (9, None)
    _, killed = judge.read_terms(replace(process, killed_at=1021.0), ["a"], 1000.0)
    assert (killed.ended_after, killed.ended_before, killed.is_killed) == (1020.001, 1021.0, True)


def test_two_valid_tokens_at_once_are_found_in_the_samples(tmp_path: Path):
    one = write_process(tmp_path / "n1", "n1", [(10.0, 7), (10.005, 7)], [])
    two = write_process(tmp_path / "n2", "n2", [(10.004, 8), (10.009, 8)], [])
    assert judge.overlaps([one, two], ["a"]) == ["a: n1 and n2 led at once for 1.0 ms"]
    assert judge.overlaps([one], ["a"]) == []


def test_a_page_that_missed_a_change_differs_from_a_fresh_one():
    role = {
        "lock": "x",
        "role": "a",
        "leader": {"node": "n1", "renewed_at": 1.0},
        "terms": [{"began_at": 1.0}],
        "judged_at": 1,
    }
    page = Page("http://127.0.0.1:1/", roles={"x": role})
    fresh = {
        "x": role
        | {"leader": {"node": "n1", "renewed_at": 2.0}, "terms": [{"began_at": 1.0}, {"began_at": 2.0}], "judged_at": 2}
    }
    assert judge.compare_followed(page.roles, fresh) == ["open page: terms of a differ from a fresh page's"]
    page._update({"roles": [{"lock": "x", "terms_change": [0, 1, [{"began_at": 2.0}]]}], "gone": []})
    assert judge.compare_followed(page.roles, fresh) == []
    page._update({"roles": [], "gone": ["x"]})
    assert len(judge.compare_followed(page.roles, fresh)) == 1
