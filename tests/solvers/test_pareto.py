"""Pareto fronts against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.errors import ProblemError
from solvers.evaluate import evaluate
from solvers.exhaustive import every_lane
from solvers.mapping import Mapping
from solvers.pareto import Axis, coordinates, dominates, front_of, pareto_front
from solvers.problem import Constant, Flow, Problem, Slot

POINTS = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 5)] * width), max_size=30)
)


@settings(max_examples=200)
@given(points=POINTS)
def test_the_front_is_what_nothing_dominates(points):
    front = pareto_front(points)
    undominated = {p for p in points if not any(dominates(q, p) for q in points)}
    assert {points[n] for n in front} == undominated
    assert len(front) == len(undominated)  # each once
    assert list(front) == sorted(front)
    assert all(points.index(points[n]) == n for n in front)


@given(points=POINTS)
def test_everything_off_the_front_is_beaten_or_doubled_by_the_front(points):
    front = [points[n] for n in pareto_front(points)]
    for point in points:
        assert any(all(a <= b for a, b in zip(best, point, strict=True)) for best in front)
    assert [front[n] for n in pareto_front(front)] == front


def problem(**extra):
    return Problem(
        np.array([[40, 25], [30, 18]]),
        np.ones((2, 2), bool),
        (Slot(0, 1), Slot(0, 2)),
        (3,),
        (Flow(None, (0,), 10), Flow(0, (1,), 10)),
        constants=(Constant(100, (0,)), Constant(50, (1,))),
        **extra,
    )


def test_the_front_of_all_lanes_of_a_problem():
    powered = problem(active_power_mw=(10, 30), idle_power_mw=1)
    lanes = [Mapping((lane,)) for lane in every_lane(powered, shared_units=False)]
    scored = [evaluate(powered, mapping) for mapping in lanes]
    assert any(not evaluation.feasible for evaluation in scored)  # 2 + 2 cores of 3
    front = front_of(scored, list(Axis))
    assert all(scored[n].feasible for n in front)
    for axis in Axis:  # the best of each alone is on it
        best = min(coordinates(evaluation, [axis]) for evaluation in scored if evaluation.feasible)
        assert min(coordinates(scored[n], [axis]) for n in front) == best
    assert len(front_of(scored, [Axis.LATENCY])) == 1
    one = coordinates(scored[front[0]], [Axis.CORES, Axis.MEMORY])
    assert one == (scored[front[0]].n_cores, sum(scored[front[0]].memory_bytes))


def test_energy_that_is_not_known_is_refused():
    lane = next(iter(every_lane(problem(), shared_units=False)))
    evaluation = evaluate(problem(), Mapping((lane,)))
    with pytest.raises(ProblemError, match="active_power_mw"):
        coordinates(evaluation, [Axis.ENERGY])
