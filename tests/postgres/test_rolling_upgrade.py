"""Candidates of 0.1.0 and of this version exclude each other; and the proof of that finds what it is there for."""

import subprocess
from pathlib import Path

import pytest

from pgleaderlock.testing.torture import Claim
from proofs import upgrade_torture
from proofs.torture import Member, Torture
from proofs.upgrade_torture import HistoryMissing, attack, extract, find_old_commit, wrong_tokens
from tests.support.programs import HISTORY, needs


@needs(HISTORY)
@pytest.mark.slow
def test_old_and_new_candidates_never_lead_at_once_and_each_has_its_turn():
    assert attack(find_old_commit(), seconds=5.0, seed=1) == []


@needs(HISTORY)
def test_the_sources_of_the_old_version_are_those_before_the_succession(tmp_path: Path):
    source = extract(find_old_commit(), tmp_path)
    assert (source / "pgleaderlock" / "__init__.py").is_file()
    assert not list(source.rglob("succession.py"))


def test_error_about_a_shallow_clone_says_how_to_get_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "all there is"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True)
    monkeypatch.setattr(upgrade_torture, "_ROOT", tmp_path)
    with pytest.raises(HistoryMissing, match="git fetch --unshallow"):
        find_old_commit()
    with pytest.raises(HistoryMissing, match="git fetch --unshallow"):
        extract("v0.1.0", tmp_path)


class Witnessed(Member):
    """A member of which nothing but its claims is there."""

    def __init__(self, *claims: Claim) -> None:
        super().__init__(Path(), [], "")
        self._claims = list(claims)

    def intervals(self) -> list[Claim]:
        return self._claims


def test_a_token_that_does_not_grow_is_found(tmp_path: Path):
    group = Torture("", tmp_path, "fast", 1, members=0)
    group.members = [
        Witnessed(Claim("a", 0, 7, 1.0, 2.0), Claim("a", 0, 7, 2.5, 3.0), Claim("a", 0, 9, 6.0, 7.0)),
        Witnessed(Claim("b", 0, 8, 4.0, 5.0)),
    ]
    assert wrong_tokens(group) == []
    group.members.append(Witnessed(Claim("c", 0, 8, 8.0, 9.0)))
    assert wrong_tokens(group) == [(9, 8)]
