"""The answer is the best measured plan, and the reason names what decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.answer import choose, describe, disagreements, explain
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Cluster, Platform
from dse.results import Measured, PlanResult, Predicted

ONE = Platform("one", (Cluster("cpu", (0, 1, 2, 3)),))
TWO = Platform("two", (Cluster("LITTLE", (0, 1)), Cluster("big", (2, 3))))


def measured(hz: float, samples: tuple[float, ...] | None = None, disturbed: bool = False) -> Measured:
    return Measured(hz, samples or (hz,), 1, 1, 1, round(1e9 / hz), 1 << 20, disturbed)


def plan(name, lanes, predicted, real=None, role="candidate", violations=(), memory=2 << 20) -> PlanResult:
    core = 0
    placed = []
    for lane in lanes:
        stages = []
        for number, (cluster, threads) in enumerate(lane):
            stages.append(
                PlacedStage(f"s{core}", (number,), cluster, threads, tuple(range(core, core + threads)))
            )
            core += threads
        placed.append(PlacedLane(tuple(stages)))
    mapping = PlacedMapping(tuple(placed))
    return PlanResult(name, role, mapping, Predicted(predicted, 1000, memory, None, violations), (), real)


WHOLE = [[("cpu", 2)]]
COPIES = [[("cpu", 1)], [("cpu", 1)]]
PIPELINE = [[("cpu", 1), ("cpu", 1)]]


def test_measurement_decides_over_prediction():
    plans = [
        plan("a", PIPELINE, 100, measured(50)),
        plan("b", COPIES, 90, measured(60)),
        plan("c", WHOLE, 200),
    ]
    assert choose(plans) == 1
    (note,) = disagreements(plans[:2], 1)[:1]
    assert "'a' was predicted best, 'b' measured 20.0% faster" in note


def test_plans_that_break_a_wish_are_never_the_answer():
    plans = [plan("a", WHOLE, 100, measured(100), violations=("pin",)), plan("b", COPIES, 50, measured(50))]
    assert choose(plans) == 1


def test_without_measurements_prediction_decides():
    assert choose([plan("a", WHOLE, 10), plan("b", COPIES, 20)]) == 1


def test_equal_plans_the_first_wins():
    assert choose([plan("a", WHOLE, 10), plan("b", COPIES, 10)]) == 0


@pytest.mark.parametrize(
    ("pipeline", "copies", "answer"),
    [
        ((103, 98, 106, 105), (101, 99, 102, 100), "copies"),
        ((103, 101.5, 106, 105), (101, 99, 104, 102), "copies"),
        ((103, 104.5, 106, 105), (101, 99, 102, 100), "pipeline"),
        # One repeat was disturbed.
        ((103, 104.5, 106, 105, 110, 107, 105, 60), (101, 99, 102, 100, 101, 101, 98, 102), "pipeline"),
        # Too few to tell: the best measured wins.
        ((103, 90), (101, 99), "pipeline"),
    ],
)
def test_a_baseline_is_preferred_to_a_plan_that_is_better_by_luck(pipeline, copies, answer):
    plans = [
        plan("pipeline", PIPELINE, 120, measured(103, pipeline)),
        plan("copies", COPIES, 90, measured(101, copies), role="baseline"),
        plan("whole", WHOLE, 90, measured(60, (60, 61, 62, 59)), role="baseline"),
    ]
    winner = choose(plans)
    assert plans[winner].name == answer
    reason = explain(plans, winner, ONE)
    told = (
        "'pipeline' measured 2.0% more, but its repeats do not tell it from this plan, which needs no search"
    )
    assert (told in reason) == (answer == "copies")
    assert not [note for note in disagreements(plans, winner) if note.startswith("Measurement disagrees")]


def test_other_searched_plans_are_not_preferred():
    same = (90, 106, 102, 103)
    plans = [plan("a", PIPELINE, 9, measured(103, same)), plan("b", PIPELINE, 9, measured(102, same))]
    assert choose(plans) == 0


def test_latency_is_another_goal():
    plans = [plan("a", WHOLE, 10, measured(10)), plan("b", COPIES, 10, measured(20))]
    assert choose(plans, "latency") == 1


@pytest.mark.parametrize(
    ("lanes", "text"),
    [
        (WHOLE, "The whole model on 2 cpu"),
        (COPIES, "2 copies of the whole model on 1 cpu each"),
        (
            [[("big", 2)], [("LITTLE", 1)], [("LITTLE", 1)]],
            "3 copies of the whole model (2 big | 2 x 1 LITTLE)",
        ),
        (PIPELINE, "A pipeline of 2 stages (1 cpu -> 1 cpu)"),
        ([*PIPELINE, *PIPELINE, [("cpu", 3)]], "3 lanes (2 x 1 cpu -> 1 cpu | 3 cpu)"),
    ],
)
def test_plans_are_described(lanes, text):
    assert describe(plan("x", lanes, 1)) == text


@pytest.mark.parametrize(
    ("plans", "platform", "cause"),
    [
        ([plan("a", COPIES, 10), plan("b", PIPELINE, 5)], ONE, "no hand-overs"),
        ([plan("a", WHOLE, 10)], ONE, "scales well with threads"),
        ([plan("a", [[("cpu", 1)]], 10)], ONE, "More cores would not help"),
        (
            [plan("a", PIPELINE, 10, memory=1 << 20), plan("b", COPIES, 9.9)],
            ONE,
            "come within 1.0%.*1 MiB less",
        ),
        ([plan("a", [[("LITTLE", 1), ("big", 1)]], 10), plan("b", COPIES, 5)], TWO, "prefer different cores"),
        ([plan("a", PIPELINE, 10), plan("b", WHOLE, 5)], ONE, "Copies are not possible"),
        ([plan("a", PIPELINE, 10), plan("b", COPIES, 5)], ONE, "fits its cores and caches"),
    ],
)
def test_the_cause_is_named(plans, platform, cause):
    import re

    assert re.search(cause, explain(plans, 0, platform))


def test_predictions_from_different_costs_are_not_compared():
    """Costs were predicted too high at first; the later plan was predicted with corrected ones."""
    first = replace(plan("a", COPIES, 50, measured(100)), round=2, corrected=Predicted(101, 1, 1, None))
    later = replace(plan("b", PIPELINE, 90, measured(60)), round=2, corrected=Predicted(62, 1, 1, None))
    assert not any("disagrees" in note for note in disagreements([first, later], 0))
    wrong = replace(later, corrected=Predicted(110, 1, 1, None))
    assert "'b' was predicted best, 'a' measured 66.7% faster" in disagreements([first, wrong], 0)[0]


def test_lanes_of_several_pieces_are_not_explained_as_copies():
    copies = plan("a", COPIES, 10)
    pieces = tuple(
        PlacedLane((*lane.stages, replace(lane.stages[0], name="more", layers=(9,))))
        for lane in copies.mapping.lanes
    )
    text = explain([replace(copies, mapping=PlacedMapping(pieces))], 0, ONE)
    assert "one after another on the same cores" in text
    assert "hand-overs" not in text


def test_gain_is_told_against_the_best_other_baseline():
    plans = [
        plan("a", PIPELINE, 100, measured(120)),
        plan("b", COPIES, 90, measured(100), "baseline"),
        plan("c", WHOLE, 90, measured(60), "baseline"),
    ]
    assert "120 frames/s (measured), +20.0% against 'b'" in explain(plans, 0, ONE)
    assert "pins allow" in explain(plans, 0, ONE, pinned=True)


def test_disturbed_and_far_off_plans_are_told():
    plans = [plan("a", WHOLE, 100, measured(50, disturbed=True))]
    notes = " ".join(disagreements(plans, 0))
    assert "Other work disturbed" in notes
    assert "off by more than 25 %" in notes
