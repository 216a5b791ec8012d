"""The comparison's arithmetic, its counting, and its duty to explain. No time is judged."""

import importlib
import math
import socket
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")


def module(name: str) -> ModuleType:
    return importlib.import_module(f"peers.{name}")


# --- Arithmetic ------------------------------------------------------------------------------------------------------

FREEZE = {"successor_at": 10.0, "thawed_at": 10.3, "watched_until": 13.3}


def test_acts_of_before_the_successor_led_are_no_overlap():
    assert module("arithmetic").overlap_ms([9.0, 9.99], **FREEZE) == 0


def test_a_leader_that_never_acted_again_did_not_overlap():
    assert module("arithmetic").overlap_ms([], **FREEZE) == 0


def test_overlap_is_from_the_thaw_to_the_last_act():
    assert module("arithmetic").overlap_ms([9.9, 10.31, 10.8], **FREEZE) == pytest.approx(500)


def test_leader_that_still_acts_at_the_end_of_the_observation_overlaps_without_end():
    assert module("arithmetic").overlap_ms([10.31, 13.2], **FREEZE) == math.inf


def test_an_act_read_before_the_thaw_is_no_negative_overlap():
    assert module("arithmetic").overlap_ms([10.2], **FREEZE) == 0


def test_percentiles_are_values_that_were_measured():
    percentile = module("arithmetic").percentile
    assert percentile([5, 1, 4, 2, 3], 0.9) == 5
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert percentile([7], 0.9) == 7


def test_a_median_of_times_that_never_came_never_comes():
    median = module("arithmetic").median
    assert median([math.inf]) == math.inf
    assert median([1.0, 2.0, math.inf]) == 2.0
    assert median([]) is None


def test_a_ratio_to_the_limit_is_of_finite_times_only():
    ratio = module("arithmetic").ratio
    assert ratio(6.0, 3.0) == 2.0
    assert ratio(math.inf, 3.0) is None
    assert ratio(6.0, None) is None
    assert ratio(6.0, 0.0) is None


# --- The duty to explain ---------------------------------------------------------------------------------------------


def two_rows(**peer):
    entries, measuring = module("entries"), module("measuring")
    ours = entries.Entry("postgresql://", "default", "postgres", 15.0, lambda *_: [], ours=True)
    theirs = replace(ours, name="theirs", ours=False)
    slow = {"graceful_ms": [100.0], "crash_ms": [math.inf], "freeze_ms": [30_000.0], "rss_mib": 90.0}
    figures = {
        ours.row: measuring.Figures(graceful_ms=[10.0], crash_ms=[20.0], freeze_ms=[15_000.0], rss_mib=40.0),
        theirs.row: measuring.Figures(**{**slow, **peer}),
    }
    return [ours, theirs], figures


def unexplained(rows, why=lambda peer, metric: None):
    return module("judging").unexplained(*rows, why)


def test_a_peer_that_is_behind_everywhere_needs_no_explanation():
    assert unexplained(two_rows()) == []


@pytest.mark.parametrize(
    ("peer", "column"),
    [
        ({"graceful_ms": [5.0]}, "graceful"),
        ({"graceful_ms": [10.5]}, "graceful"),  # a tie
        ({"crash_ms": [1.0]}, "crash"),
        ({"freeze_ms": [14_000.0]}, "freeze"),
        ({"rss_mib": 20.0}, "memory"),
    ],
)
def test_a_peer_ahead_of_ours_or_beside_it_must_be_explained(peer, column):
    rows = two_rows(**peer)
    assert unexplained(rows) == [f"theirs (default): {column}"]
    assert unexplained(rows, lambda name, metric: "the cause" if (name, metric) == ("theirs", column) else None) == []


def test_what_was_not_measured_is_neither_ahead_nor_behind():
    assert unexplained(two_rows(graceful_ms=[], rss_mib=None)) == []


def test_two_that_never_overlap_are_a_tie():
    measuring = module("measuring")
    clean, dirty = measuring.Figures(overlap_ms=[0.0]), measuring.Figures(overlap_ms=[0.0, 3.0])
    judge = module("judging").verdicts
    assert [(each.metric, each.is_tie) for each in judge(clean, clean)] == [("overlap", True)]
    assert judge(dirty, clean) == []


def test_a_page_with_an_unexplained_row_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    page, results = module("page"), module("results")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "why", lambda peer, metric: None)
    with pytest.raises(SystemExit, match="does not say why"):
        page.write_page(results.load())
    assert list(tmp_path.iterdir()) == []


# --- What is in the repository ---------------------------------------------------------------------------------------


def test_every_peer_says_what_it_does_on_a_freeze_and_whether_it_has_a_token():
    names = {entry.name for entry in module("entries").all_entries() if not entry.ours}
    assert names <= set(module("explanations").ABOUT)


def test_the_page_in_the_docs_is_made_of_the_figures_beside_it():
    page, run = module("page"), module("results").load()
    entries = module("entries").all_entries()
    assert list(run.figures) == [entry.row for entry in entries]
    assert module("judging").unexplained(entries, run.figures, module("explanations").why) == []
    again = "`make bench-peers ARGS=--from-results` writes it anew"
    assert page.PAGE.read_text(encoding="utf-8") == page.page(run), again
    assert page.PICTURE.read_text(encoding="utf-8") == module("plot").plot(entries, run), again


def test_figures_survive_their_file(tmp_path: Path):
    results, measuring = module("results"), module("measuring")
    figures = {"a row": measuring.Figures(crash_ms=[1.5, math.inf], overlap_ms=[0.0], missing="why")}
    run = results.Run("2026-01-02", "2 cores", 0.5, {"Redis": "7"}, figures)
    results.save(run, tmp_path / "file")
    assert results.load(tmp_path / "file") == run


def test_the_picture_is_well_formed_and_its_scale_logarithmic():
    plot, results = module("plot"), module("results")
    picture = ElementTree.fromstring(plot.plot(module("entries").all_entries(), results.load()))
    assert picture.tag.endswith("svg")
    assert plot.x_of(1000) - plot.x_of(100) == pytest.approx(plot.x_of(100) - plot.x_of(10))
    assert plot.x_of(math.inf) > plot.x_of(100_000)


# --- Counting and freezing -------------------------------------------------------------------------------------------


def test_a_relay_counts_turns_not_packets():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_answer_lines, args=(listener,), daemon=True).start()
        with module("relay").Relay(listener.getsockname()[1]) as relay:
            with socket.create_connection(("127.0.0.1", relay.port)) as client:
                answers = client.makefile("rb")
                for _ in range(3):
                    client.sendall(b"ask ")
                    client.sendall(b"once\n")
                    assert answers.readline() == b"ask once\n"
                assert relay.connections == 1
                answers.close()
            assert relay.requests == 3


def _answer_lines(listener: socket.socket) -> None:
    with listener.accept()[0] as connection, connection.makefile("rwb") as stream:
        for line in stream:
            stream.write(line)
            stream.flush()


@pytest.mark.proof
def test_a_frozen_leader_of_ours_is_replaced_and_acts_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    crews, entries = module("crew"), module("entries")
    monkeypatch.setattr(crews, "_WATCH_S", 0.3)
    monkeypatch.setattr(crews, "_OUT_OF_STEP_S", 0.0)
    place = entries.Place(0, str(tmp_path), "bench-peers", {}, act=True)
    command = entries._python("ours", "file://{folder}/lock", 1.5)
    make = crews.Crew(lambda number: command(place, number), leads="acquired", patience_s=30.0, says_waiting=True)
    make._number = 2
    with make as crew:
        first = crew._leader
        freeze = crew.freeze_leader(acts=True)
        assert math.isfinite(freeze.took_ms)
        assert freeze.overlap_ms == 0
        assert first.poll() is not None
    assert all(child.poll() is not None for child in crew._children)
