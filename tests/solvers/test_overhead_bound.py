"""The bound that counts invocations: never below the optimum, and tight where the relaxation is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from solvers.bounds import throughput_bound_hz
from solvers.errors import InfeasibleError
from solvers.exhaustive import search_exhaustively
from solvers.overhead_bound import overhead_bound_hz
from solvers.problem import Problem, Slot, StageTime
from solvers.registry import solve
from solvers.topology import contract
from solvers.under_load import rate_bound_hz


@settings(max_examples=examples(200), deadline=None)
@given(problem=problems(max_layers=4), data=st.data())
def test_nothing_beats_it(problem, data):
    overhead = np.array([data.draw(st.sampled_from([0, 1, 10, 60])) for _ in problem.slots])
    problem = replace(problem, overhead_ns=overhead)
    oracle = search_exhaustively(problem, True)
    if oracle.evaluation is None:
        return
    assert oracle.evaluation.throughput_hz <= rate_bound_hz(problem) * (1 + 1e-9)


def gpu(**changes) -> Problem:
    """A core, and an accelerator whose layers cost next to nothing but whose invocations cost much."""
    cost = np.array([[100, 2]] * 10) * 1000
    return replace(
        Problem(
            cost, np.ones((10, 2), bool), (Slot(0, 1), Slot(1, 1)), (1, 1),
            overhead_ns=np.array([0, 1_000_000]),
        ),
        **changes,
    )  # fmt: skip


@pytest.mark.parametrize("measured", [False, True])
def test_an_accelerator_with_slow_invocations_is_not_overrated(measured):
    times = (StageTime(frozenset(range(10)), 1, 1_020_000),) if measured else ()
    problem = gpu(stage_times=times)
    blocks = contract(problem)
    assert throughput_bound_hz(problem) > 10_000
    # A core does 1,000 frames a second, the accelerator 980.
    best = solve(problem).evaluation
    assert best is not None
    assert best.throughput_hz <= overhead_bound_hz(problem, blocks) * (1 + 1e-9)
    assert overhead_bound_hz(problem, blocks) < 1.05 * (1000 + 1e6 / 1020)


@pytest.mark.parametrize("layer_ns", [2_000, 20_000, 200_000])
def test_layers_that_cost_more_alone_do_not_hide_the_overhead(layer_ns):
    # Timed one by one they cost more than within the whole model, which takes 1.02 ms in all.
    cost = np.array([[100_000, layer_ns]] * 10)
    problem = gpu(cost_ns=cost, stage_times=(StageTime(frozenset(range(10)), 1, 1_020_000),))
    best = solve(problem).evaluation
    assert best is not None
    bound = overhead_bound_hz(problem, contract(problem))
    assert best.throughput_hz <= bound * (1 + 1e-9)
    assert bound < 1.05 * (1000 + 1e6 / 1020)


def test_small_overheads_are_left_to_the_relaxation():
    problem = gpu(overhead_ns=np.array([100, 100]))
    assert overhead_bound_hz(problem, contract(problem)) == float("inf")


def test_what_can_not_run_is_told():
    problem = gpu(supported=np.zeros((10, 2), bool))
    with pytest.raises(InfeasibleError):
        rate_bound_hz(problem)
