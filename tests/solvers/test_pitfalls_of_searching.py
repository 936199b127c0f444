"""Faults that users of other tools hit while searching, each with its own input."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.evaluate import evaluate
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Flow, Problem, Slot
from solvers.registry import SOLVERS, solve


def chain(cost_us: list[int], bandwidth: float = np.inf) -> Problem:
    """Layers in a row on two single cores that are clusters of their own; a fat tensor crosses in the middle."""
    cost = np.repeat(np.array(cost_us, np.int64)[:, None] * 1000, 2, axis=1)
    n = len(cost_us)
    sizes = [0, *(400_000 if at == 2 else 4_000 for at in range(1, n)), 0]
    flows = [Flow(None, (0,), 0)]
    flows += [Flow(at - 1, (at,), sizes[at]) for at in range(1, n)]
    flows.append(Flow(n - 1, (), 0, is_output=True))
    speed = np.full((2, 2), bandwidth)
    return Problem(
        cost,
        np.ones((n, 2), bool),
        (Slot(0, 1), Slot(1, 1)),
        (1, 1),
        flows=tuple(flows),
        bandwidth_bytes_per_s=speed,
        max_lanes=1,
    )


@pytest.mark.parametrize("solver", sorted(set(SOLVERS) - {"black_box"}))
def test_25_the_slowest_stage_counts_and_not_the_last(solver):
    """A tool accepted stages of 2.997 and 6.086 ms as balanced: it looked at the last one only."""
    problem = chain([2997, 2990, 3096])
    lopsided = Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 1, 1))),))
    scored = evaluate(problem, lopsided).lanes[0]
    assert (scored.period_ns, scored.bottleneck) == (6_086_000, 1)
    solution = solve(problem, solver)
    assert solution.mapping is not None
    assert evaluate(problem, solution.mapping).lanes[0].period_ns == 5_987_000


def test_26_a_wrong_bandwidth_moves_the_border_so_links_are_measured():
    """With hand-overs taken for free, the search cuts where a fat tensor crosses."""
    cost, bandwidth = [1000, 1000, 1000, 1000], 2e8
    guessed = solve(chain(cost), "interval_dp").mapping
    known = solve(chain(cost, bandwidth), "interval_dp").mapping
    assert guessed is not None
    assert known is not None
    assert [len(stage.layers) for stage in guessed.lanes[0].stages] == [2, 2]
    real = chain(cost, bandwidth)
    assert evaluate(real, guessed).lanes[0].period_ns == 4_000_000
    assert evaluate(real, known).lanes[0].period_ns == 3_000_000
