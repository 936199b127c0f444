"""Many cores: states are counts of cores, so they stay few."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.coarse import MOST_WORK, coarsen, most_blocks, work_of_pass
from solvers.joining import work_of
from solvers.lanes import LanePool
from solvers.limits import Limits
from solvers.mapping import Status
from solvers.problem import Flow, Problem, Slot
from solvers.registry import solve
from solvers.topology import contract


def wide(n_layers, sizes, max_lanes=None):
    """A chain whose layers prefer one cluster or another by up to 20 %; every number of threads is a slot."""
    rng = np.random.default_rng(0)
    slots = tuple(Slot(c, threads) for c, size in enumerate(sizes) for threads in range(1, size + 1))
    base = rng.integers(10_000, 1_000_000, n_layers)
    taste = rng.uniform(0.8, 1.2, (n_layers, len(sizes)))
    cost = [base * (s.cluster + 1) * taste[:, s.cluster] / s.threads**0.8 for s in slots]
    flows = tuple(Flow(n, (n + 1,), 1000) for n in range(n_layers - 1))
    return Problem(
        np.stack(cost, axis=1).astype(np.int64),
        np.ones((n_layers, len(slots)), np.bool_),
        slots,
        sizes,
        flows,
        max_lanes=max_lanes,
    )


def test_identical_cores_are_counted_not_told_apart():
    """128 cores have 129 states, not 2^128; copies on single cores reach the bound."""
    problem = wide(60, (128,))
    pool = LanePool(contract(problem), Limits(), n_orders=1)
    assert pool.lower_ns.size == 129
    assert len(pool.frontier()) <= 128
    solution = solve(problem, "lanes")
    assert solution.status is Status.OPTIMAL
    assert solution.gap < 1e-9
    assert solution.evaluation.n_cores == 128


def test_one_lane_on_identical_cores():
    solution = solve(wide(60, (128,), max_lanes=1), "lanes")
    assert solution.status is Status.OPTIMAL
    assert solution.evaluation.n_cores <= 128


@pytest.mark.parametrize("max_lanes", [None, 1])
def test_three_clusters_of_sixteen(max_lanes):
    problem = wide(40, (16, 16, 16), max_lanes)
    assert LanePool(contract(problem), Limits(), n_orders=1).lower_ns.size == 17**3
    solution = solve(problem, "lanes")
    assert solution.status is Status.OPTIMAL
    assert solution.gap < (0.15 if max_lanes is None else 1.0)


def test_long_models_on_many_cores_are_joined_until_the_work_is_bounded():
    problem = wide(3000, (16, 16, 16))
    blocks = contract(problem)
    assert work_of_pass(problem, blocks.n_blocks) > 100 * MOST_WORK
    n_even = most_blocks(problem)
    joined = coarsen(blocks, work_of(blocks), set(), n_even)
    assert n_even - 5 <= joined.n_blocks <= n_even + 1
    assert work_of_pass(problem, joined.n_blocks) <= 1.05 * MOST_WORK
