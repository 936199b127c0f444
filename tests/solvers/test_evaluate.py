"""The evaluator against figures worked out by hand, and each violation by a mapping that breaks it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from solvers.errors import MappingError, ProblemError
from solvers.evaluate import evaluate, score_key, stage_memory_bytes
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Constant, Flow, Goal, Objective, Pin, Problem, Slot, StageTime

BIG, BIG2, LITTLE = 0, 1, 2


def diamond(**extra):
    """0 -> (1, 2) -> 3; slots 1 big, 2 big, 1 LITTLE; big hands over in 5 ns + 1 ns a byte."""
    defaults = {
        "cost_ns": np.array([[10, 6, 30], [20, 12, 60], [30, 18, 50], [40, 22, 90]]),
        "supported": np.ones((4, 3), bool),
        "slots": (Slot(0, 1), Slot(0, 2), Slot(1, 1)),
        "cluster_sizes": (3, 1),
        "flows": (
            Flow(None, (0,), 100),
            Flow(0, (1, 2), 7),
            Flow(1, (3,), 11),
            Flow(2, (3,), 13),
            Flow(3, (), 2, is_output=True),
        ),
        "setup_ns": np.array([[5, 8], [3, 4]]),
        "bandwidth_bytes_per_s": np.array([[1e9, np.inf], [0.5e9, np.inf]]),
        "overhead_ns": np.array([1, 2, 3]),
    }
    return Problem(**(defaults | extra))


def mapping(*lanes):
    return Mapping(tuple(Lane(tuple(Stage(*stage) for stage in lane)) for lane in lanes))


PIPELINE = mapping([((0, 1), BIG2, 0), ((2,), LITTLE, 1), ((3,), BIG, 2)])


def test_pipeline_by_hand():
    (lane,) = evaluate(diamond(), PIPELINE).lanes
    first, second, third = lane.stages
    assert (first.compute_ns, first.receive_ns, first.busy_ns) == (6 + 12 + 2, 0, 20)
    assert (second.compute_ns, second.receive_ns) == (50 + 3, 8)  # big -> LITTLE: set-up only
    assert third.receive_ns == (5 + 11) + (3 + 26)  # from big at 1 B/ns, from LITTLE at 0.5 B/ns
    assert third.busy_ns == 41 + 45
    assert (lane.period_ns, lane.bottleneck) == (86, 2)
    assert lane.latency_ns == 20 + 61 + 86


def test_overlap_takes_the_larger():
    (lane,) = evaluate(diamond(overlap=True), PIPELINE).lanes
    assert [stage.busy_ns for stage in lane.stages] == [20, 53, 45]


def test_parallel_branches_do_not_add_to_latency():
    lanes = mapping([((0,), BIG, 0), ((1,), BIG, 1), ((2,), BIG, 2), ((3,), LITTLE, 3)])
    (lane,) = evaluate(diamond(), lanes).lanes
    busy = [stage.busy_ns for stage in lane.stages]
    assert lane.latency_ns == busy[0] + max(busy[1], busy[2]) + busy[3] < sum(busy)


def test_shared_unit_adds_up_and_takes_turns():
    shared = mapping([((0,), BIG, 0), ((1,), BIG, 1), ((2,), BIG, 1), ((3,), LITTLE, 2)])
    evaluation = evaluate(diamond(), shared)
    (lane,) = evaluation.lanes
    busy = [stage.busy_ns for stage in lane.stages]
    assert evaluation.feasible
    assert evaluation.cores_used == (2, 1)
    assert lane.period_ns == max(busy[1] + busy[2], busy[3])
    assert lane.latency_ns == sum(busy)


def test_measured_stage_wins_and_holds_the_overhead():
    problem = diamond(stage_times=(StageTime(frozenset({0, 1}), BIG2, 17),))
    assert evaluate(problem, PIPELINE).lanes[0].stages[0].compute_ns == 17


def test_lanes_add_rates_and_weigh_latency():
    two = mapping([((0, 1, 2, 3), BIG2, 0)], [((0, 1, 2, 3), LITTLE, 1)])
    evaluation = evaluate(diamond(), two)
    assert [lane.period_ns for lane in evaluation.lanes] == [60, 233]
    assert evaluation.frames_per_ns == Fraction(1, 60) + Fraction(1, 233)
    assert evaluation.latency_ns == 233
    assert evaluation.mean_latency_ns == pytest.approx(2 / (1 / 60 + 1 / 233))


def test_energy_by_hand():
    problem = diamond(active_power_mw=(1000, 2000, 100), idle_power_mw=300)
    two = mapping([((0, 1, 2, 3), BIG2, 0)], [((0, 1, 2, 3), LITTLE, 1)])
    total = Fraction(1, 60) + Fraction(1, 233)
    share = Fraction(1, 60) / total
    wanted = share * 60 * 2000 + (1 - share) * 233 * 100 + 300 / total
    assert evaluate(problem, two).energy_nj == round(wanted / 1000)


def test_memory_by_hand():
    problem = diamond(constants=(Constant(1000, (0, 2)), Constant(500, (1,))), queue_depth=3)
    # stage {0, 1}: both constants; at 0 input 100 + tensor 7, at 1 tensors 7 + 11; 3 x 100 waiting
    assert stage_memory_bytes(problem, (0, 1)) == 1500 + 107 + 300
    assert stage_memory_bytes(problem, (3,)) == (11 + 13 + 2) + 3 * (11 + 13)
    assert evaluate(problem, PIPELINE).memory_bytes == (1907 + 98, 1000 + 20 + 21)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(memory=True), data=st.data())
def test_memory_equals_a_step_by_step_simulation(problem, data):
    layers = sorted(data.draw(st.sets(st.integers(0, problem.n_layers - 1), min_size=1)))
    inside = set(layers)
    peak = 0
    for now in layers:
        live = 0
        for flow in problem.flows:
            made = flow.producer in inside
            uses = [user for user in flow.consumers if user in inside]
            born = now >= flow.producer if made else bool(uses)
            escapes = made and (flow.is_output or set(flow.consumers) - inside)
            needed = escapes or any(user >= now for user in uses) or flow.producer == now
            live += flow.n_bytes if born and needed else 0
        peak = max(peak, live)
    weights = sum(c.n_bytes for c in problem.constants if inside & set(c.users))
    entering = sum(f.n_bytes for f in problem.flows if f.producer not in inside and inside & set(f.consumers))
    assert stage_memory_bytes(problem, layers) == weights + peak + problem.queue_depth * entering


WHOLE = mapping([((0, 1, 2, 3), BIG, 0)])
TWO_WHOLE = mapping([((0, 1, 2, 3), BIG, 0)], [((0, 1, 2, 3), BIG, 1)])


@pytest.mark.parametrize(
    ("extra", "plan", "constraint"),
    [
        ({}, mapping([((0, 1), BIG, 0), ((3,), BIG, 1)]), "coverage"),
        ({}, mapping([((0, 1, 2, 3), BIG, 0), ((3,), BIG, 1)]), "coverage"),
        ({}, mapping([((0, 3), BIG, 0), ((1, 2), BIG, 1)]), "stage order"),
        ({}, mapping([((1, 2, 3), BIG, 0), ((0,), BIG, 1)]), "stage order"),
        ({"groups": ((1, 3),)}, PIPELINE, "group"),
        (
            {"supported": np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]], bool)},
            PIPELINE,
            "unsupported",
        ),
        ({}, mapping([((0, 1), BIG2, 0), ((2, 3), BIG2, 1)]), "cores"),
        ({}, mapping([((0, 1), BIG2, 0), ((2, 3), BIG, 0)]), "unit"),
        ({}, mapping([((0, 1, 2, 3), BIG, 0)], [((0, 1, 2, 3), BIG, 0)]), "unit"),
        ({"pins": (Pin((0,), (LITTLE,)),)}, WHOLE, "pin"),
        ({"pins": (Pin((0, 2), (BIG2,)),)}, PIPELINE, "pin"),
        ({"pins": (Pin((0,), (BIG,)), Pin((3,), (BIG,)))}, WHOLE, "pin"),
        (
            {"pins": (Pin((0,), (BIG,)), Pin((3,), (BIG,)))},
            mapping([((0,), BIG, 0), ((1, 2), BIG, 1), ((3,), BIG, 0)]),
            "pin",
        ),
        ({"stateful": True}, TWO_WHOLE, "streams"),
        ({"max_lanes": 1}, TWO_WHOLE, "max_lanes"),
        ({"max_stages": 2}, PIPELINE, "max_stages"),
        ({"memory_limits_bytes": (None, 20)}, PIPELINE, "memory"),
        ({"total_memory_limit_bytes": 100}, PIPELINE, "total memory"),
        ({"active_power_mw": (10, 20, 30), "max_power_mw": 5}, PIPELINE, "power"),
        ({"objective": Objective(max_latency_ns=166)}, PIPELINE, "latency"),
        ({"objective": Objective(min_throughput_hz=1e9 / 85)}, PIPELINE, "throughput"),
    ],
)
def test_each_broken_constraint_is_listed(extra, plan, constraint):
    evaluation = evaluate(diamond(**extra), plan)
    assert {violation.constraint for violation in evaluation.violations} == {constraint}
    first = evaluation.violations[0]
    assert first.unit
    assert first.demand != first.limit


def test_limits_that_are_just_kept():
    exact = Objective(max_latency_ns=167, min_throughput_hz=1e9 / 87)
    assert evaluate(diamond(objective=exact, max_stages=3, max_lanes=1), PIPELINE).feasible


@pytest.mark.parametrize(
    "plan",
    [
        Mapping(()),
        Mapping((Lane(()),)),
        mapping([((), BIG, 0)]),
        mapping([((0, 4), BIG, 0)]),
        mapping([((-1, 0), BIG, 0)]),
        mapping([((1, 0), BIG, 0)]),
        mapping([((0,), 3, 0)]),
    ],
)
def test_nonsense_is_refused(plan):
    with pytest.raises(MappingError):
        evaluate(diamond(), plan)


@pytest.mark.parametrize(
    "extra",
    [
        {"cost_ns": np.zeros((4, 2))},
        {"supported": np.ones((3, 3), bool)},
        {"cost_ns": np.full((4, 3), -1)},
        {"slots": (Slot(0, 1), Slot(0, 4), Slot(1, 1))},
        {"slots": (Slot(0, 1), Slot(0, 2), Slot(2, 1))},
        {"flows": (Flow(2, (1,), 1),)},
        {"flows": (Flow(9, (), 1),)},
        {"setup_ns": np.zeros((3, 3))},
        {"bandwidth_bytes_per_s": np.zeros((2, 2))},
        {"overhead_ns": np.array([1])},
        {"groups": ((0, 4),)},
        {"pins": (Pin((0,), ()),)},
        {"pins": (Pin((0,), (3,)),)},
        {"memory_limits_bytes": (1,)},
        {"max_power_mw": 1},
        {"active_power_mw": (1,)},
        {"n_streams": 0},
        {"objective": Objective(Goal.ENERGY)},
    ],
)
def test_contradicting_problems_are_refused(extra):
    with pytest.raises(ProblemError):
        diamond(**extra)


def test_ties_go_to_fewer_cores_then_latency_then_stages():
    problem = diamond()
    base = evaluate(problem, PIPELINE)
    more_cores = replace(base, cores_used=(4, 1))
    slower = replace(base, lanes=(replace(base.lanes[0], latency_ns=200),))
    better = replace(base, lanes=(replace(base.lanes[0], period_ns=85),))
    order = [score_key(problem, e) for e in (better, base, slower, more_cores)]
    assert order == sorted(order)
    assert len(set(order)) == 4


def test_load_counts_as_soon_as_other_cores_work():
    problem = diamond(loaded_cost_ns=np.array([[15, 9, 30], [30, 12, 70], [33, 20, 55], [44, 30, 95]]))
    whole = mapping([((0, 1, 2, 3), BIG, 0)])
    assert evaluate(problem, whole).lanes[0].period_ns == 10 + 20 + 30 + 40 + 1
    turns = mapping([((0, 1), BIG, 0), ((2, 3), BIG, 0)])  # one unit: no other core works
    assert [s.compute_ns for s in evaluate(problem, turns).lanes[0].stages] == [31, 71]
    first = evaluate(problem, PIPELINE).lanes[0].stages
    assert [s.compute_ns for s in first] == [9 + 12 + 2, 55 + 3, 44 + 1]
    copies = mapping([((0, 1, 2, 3), BIG, 0)], [((0, 1, 2, 3), BIG, 1)])  # of the same cluster
    assert [lane.period_ns for lane in evaluate(problem, copies).lanes] == [15 + 30 + 33 + 44 + 1] * 2
    measured = replace(problem, stage_times=(StageTime(frozenset({0, 1}), BIG2, 18),))
    assert evaluate(measured, PIPELINE).lanes[0].stages[0].compute_ns == 18


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(40, False), (60, True)], (40, 60)),
        ([(60, True), (40, False)], (40, 60)),
        ([(99, True), (60, True), (40, False)], (40, 60)),  # the later one counts
        ([(60, False), (40, True)], (40, 40)),  # load makes nothing faster
        ([(50, None)], (50, 50)),
        # In one condition only: as the sums of layers and overhead, 31 alone and 46 under load.
        ([(62, False)], (62, 92)),
        ([(92, True)], (62, 92)),
    ],
)
def test_a_measured_stage_holds_in_the_condition_in_which_it_was_measured(times, expected):
    stages = tuple(StageTime(frozenset({0, 1}), BIG, time, loaded) for time, loaded in times)
    loaded = np.array([[15, 9, 30], [30, 12, 70], [33, 20, 55], [44, 30, 95]])
    problem = diamond(loaded_cost_ns=loaded, stage_times=stages)
    alone = mapping([((0, 1), BIG, 0), ((2, 3), BIG, 0)])
    beside = mapping([((0, 1), BIG, 0), ((2, 3), BIG, 1)])
    found = tuple(evaluate(problem, m).lanes[0].stages[0].compute_ns for m in (alone, beside))
    assert found == expected
    for condition, got in zip((problem.isolated, problem.under_load), found):
        assert not condition.load_matters
        assert condition.measured_ns == {(frozenset({0, 1}), BIG): got}
    # Without layer costs under load, only stages that are known in both conditions differ.
    plain = diamond(stage_times=stages)
    assert plain.load_matters == (len({loaded for _, loaded in times}) > 1 and expected[0] < expected[1])
    assert evaluate(plain, beside).lanes[0].stages[0].compute_ns == (
        times[0][0] if len(times) == 1 else expected[1]
    )


def test_load_makes_nothing_faster():
    with pytest.raises(ProblemError, match="layer 1 on slot 2 is 59, expected at least cost_ns"):
        diamond(loaded_cost_ns=np.array([[10, 6, 30], [20, 12, 59], [30, 18, 50], [40, 22, 90]]))
    with pytest.raises(ProblemError, match="shape"):
        diamond(loaded_cost_ns=np.ones((4, 2)))
