"""Non-contiguous plans: loads kept move by move, and the solver against brute force."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import problems

from solvers.assignment import anneal
from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate
from solvers.exhaustive import search_exhaustively
from solvers.loads import Loads, elements, pieces
from solvers.mapping import Mapping, Status
from solvers.problem import Limits
from solvers.registry import solve

MANY = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


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
    except InfeasibleError:
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
    except InfeasibleError:
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


@settings(MANY, max_examples=40)
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


@settings(MANY, max_examples=30)
@given(problem=problems(max_layers=6), data=st.data())
def test_annealing_repeats_and_never_worsens(problem, data):
    try:
        loads = random_loads(problem, data)
    except InfeasibleError:
        return
    if not all(loads.allowed[e][u] for e, u in enumerate(loads.unit_of)):
        return
    start = list(loads.unit_of)
    before = max(loads.load)
    best = anneal(loads, 5.0, 7, 500)
    again = anneal(Loads(loads.parts, loads.slots, start), 5.0, 7, 500)
    assert best == again
    assert max(Loads(loads.parts, loads.slots, best).load) <= before
