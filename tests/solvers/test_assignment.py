"""Non-contiguous plans: loads kept move by move, and the solver against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from benchmarks.cost_graphs import read
from benchmarks.scale import random_problem
from solvers.assignment import anneal, improve
from solvers.bounds import throughput_bound_hz
from solvers.errors import InfeasibleError, MappingError
from solvers.evaluate import evaluate
from solvers.exhaustive import search_exhaustively
from solvers.limits import Limits
from solvers.loads import Loads, elements, pieces
from solvers.mapping import Mapping, Status
from solvers.order_costs import NEVER, Links, exact_links
from solvers.problem import Flow, Pin, Problem, Slot
from solvers.registry import solve
from solvers.rotations import AnyOrderCosts, best_rotation
from solvers.rounding import round_prices
from solvers.topology import contract

MANY = settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))


def order_of(blocks):
    return tuple(range(blocks.n_blocks))


def random_loads(problem, data):
    parts = elements(problem)
    slots = tuple(data.draw(st.lists(st.integers(0, len(problem.slots) - 1), min_size=1, max_size=4)))
    assignment = [data.draw(st.integers(0, len(slots) - 1)) for _ in parts.members]
    return Loads(parts, slots, assignment)


@MANY
@given(problem=problems(max_layers=6), data=st.data())
def test_moves_keep_loads_right(problem, data):
    try:
        loads = random_loads(problem, data)
    except (InfeasibleError, MappingError):
        return
    for _ in range(6):
        element = data.draw(st.integers(0, len(loads.unit_of) - 1))
        target = data.draw(st.integers(0, len(loads.slots) - 1))
        if target == loads.unit_of[element]:
            continue
        change = loads.change(element, target)
        loads.move(element, target, change)
        fresh = Loads(loads.parts, loads.slots, loads.unit_of)
        assert loads.load == fresh.load
        assert loads.count == fresh.count


@MANY
@given(problem=problems(max_layers=6), data=st.data())
def test_loads_are_what_the_evaluator_says(problem, data):
    problem = replace(problem, free_within_unit=True, overhead_ns=None, stage_times=(), overlap=False)
    try:
        loads = random_loads(problem, data)
    except (InfeasibleError, MappingError):
        return
    unit_of_layer = {n: u for layers, u in zip(loads.parts.members, loads.unit_of) for n in layers}
    lane = pieces(problem, unit_of_layer, loads.slots)
    evaluation = evaluate(problem, Mapping((lane,)))
    assert not {v.constraint for v in evaluation.violations} & {"coverage", "stage order", "group"}
    busy = dict.fromkeys(range(len(loads.slots)), 0)
    for stage, numbers in zip(lane.stages, evaluation.lanes[0].stages):
        busy[stage.unit] += numbers.busy_ns
    # the evaluator leaves unsupported costs in; compare where all is allowed
    if all(loads.allowed[e][u] for e, u in enumerate(loads.unit_of)) and not problem.pins:
        assert [busy[u] for u in range(len(loads.slots))] == loads.load


@settings(MANY, max_examples=examples(40))
@given(problem=problems(max_layers=4), free=st.booleans())
def test_between_contiguous_and_brute_force(problem, free):
    problem = replace(problem, free_within_unit=free)
    found = solve(problem, "assignment", Limits(time_s=0.6))
    contiguous = solve(problem, "lanes")
    oracle = search_exhaustively(problem, True)
    if found.evaluation is None:
        assert contiguous.evaluation is None
        return
    assert contiguous.evaluation.frames_per_ns <= found.evaluation.frames_per_ns
    assert found.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns
    if found.status is Status.OPTIMAL:
        assert found.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns


@settings(MANY, max_examples=examples(30))
@given(problem=problems(max_layers=6), data=st.data())
def test_annealing_repeats_and_never_worsens(problem, data):
    try:
        loads = random_loads(problem, data)
    except (InfeasibleError, MappingError):
        return
    if not all(loads.allowed[e][u] for e, u in enumerate(loads.unit_of)):
        return
    start = list(loads.unit_of)
    before = max(loads.load)
    best = anneal(loads, 5.0, 7, 500)
    again = anneal(Loads(loads.parts, loads.slots, start), 5.0, 7, 500)
    assert best == again
    assert max(Loads(loads.parts, loads.slots, best).load) <= before


@MANY
@given(problem=problems(max_layers=6), data=st.data())
def test_any_order_costs_are_the_loads(problem, data):
    problem = replace(problem, overlap=False, pins=(), stage_times=())
    try:
        parts = elements(problem)
        blocks = contract(problem)
    except (InfeasibleError, MappingError):
        return
    order = tuple(data.draw(st.permutations(range(len(parts.members)))))
    slot = data.draw(st.integers(0, len(problem.slots) - 1))
    other = len(problem.slots) - 1
    for end, busy in AnyOrderCosts(parts, blocks, order).columns():
        start = data.draw(st.integers(0, end - 1))
        if busy[start, 0, slot] == NEVER:
            continue
        try:
            loads = Loads(
                parts, (slot, other), [0 if e in order[start:end] else 1 for e in range(len(order))]
            )
        except (InfeasibleError, MappingError):
            continue
        if (
            problem.slots[slot].cluster == problem.slots[other].cluster
            or exact_links(blocks, order_of(blocks)) is Links.TARGET
        ):
            cheap = busy[start, 0, slot]
            assert cheap <= loads.load[0]
            if exact_links(blocks, order_of(blocks)) is Links.TARGET:
                assert cheap == loads.load[0]


@settings(MANY, max_examples=examples(60))
@given(problem=problems(max_layers=5))
def test_rotations_are_plans(problem):
    problem = replace(
        problem, free_within_unit=True, max_lanes=1, overlap=False, pins=(), stage_times=(), max_stages=None
    )
    try:
        parts = elements(problem)
        found = best_rotation(parts, Limits(), 8)
    except (InfeasibleError, MappingError):
        return
    if found is None:
        return
    slots, unit_of, period = found
    assert max(Loads(parts, slots, unit_of).load) >= period
    used = problem.cores[list(slots)].sum(axis=0)
    assert (used <= problem.cluster_sizes).all()


def test_rotation_joins_first_and_last_layer():
    """A large tensor skips from layer 0 to the last: one unit takes both ends."""
    cost = np.full((6, 1), 10)
    flows = (*(Flow(i, (i + 1,), 1) for i in range(5)), Flow(0, (5,), 100))
    skip = Problem(
        cost,
        np.ones((6, 1), bool),
        (Slot(0, 1),),
        (3,),
        flows,
        bandwidth_bytes_per_s=np.array([[1e9]]),
        free_within_unit=True,
        max_lanes=1,
    )
    solution = solve(skip, "assignment", Limits(time_s=2))
    assert solution.status is Status.OPTIMAL
    assert solution.evaluation.lanes[0].period_ns == 21
    home = {layer: stage.unit for stage in solution.mapping.lanes[0].stages for layer in stage.layers}
    assert home[0] == home[5]


def test_no_time_left_is_no_error(corpus):
    """The steps before the bound may take more than the time there is."""
    path = corpus / "cost-graphs" / "dnn-partitioning" / "Layer_bert24_inference.json"
    problem = read(path).problem
    first = solve(problem, "interval_dp")
    found = improve(problem, first, Limits(time_s=0.0))
    assert found.evaluation.feasible
    assert found.evaluation.throughput_hz >= first.evaluation.throughput_hz


def test_prices_reach_the_bound_on_many_layers():
    """2,000 layers that prefer one cluster or the other: contiguous plans lose, pieces do not."""
    problem = random_problem(2000, 0.2)
    pieces_of = evaluate(problem, Mapping((round_prices(problem, Limits()),)))
    assert pieces_of.feasible
    assert throughput_bound_hz(problem) / pieces_of.throughput_hz < 1.02


def test_long_models_are_joined_first():
    problem = random_problem(3000, 0.0)
    solution = solve(problem, "lanes")
    assert solution.gap < 0.02
    assert solution.evaluation.feasible


@pytest.mark.parametrize("slot", [0, 1])
def test_pins_on_several_cores_have_no_unit_of_one_core(slot):
    """Rounding makes units of one core each; layers that are pinned to more fit on none of them."""
    problem = Problem(
        cost_ns=np.array([[100, 60], [100, 60], [100, 60]]),
        supported=np.ones((3, 2), np.bool_),
        slots=(Slot(0, 1), Slot(0, 2)),
        cluster_sizes=(3,),
        flows=(Flow(0, (1,), 10), Flow(1, (2,), 10)),
        pins=(Pin((0, 1), (slot,)),),
    )
    found = solve(problem, "portfolio", Limits(time_s=2))
    assert found.evaluation.feasible
    assert all(
        stage.slot == slot for lane in found.mapping.lanes for stage in lane.stages if 0 in stage.layers
    )
