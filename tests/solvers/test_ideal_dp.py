"""The programme over ideals against brute force and against plain enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_problems import examples, problems

from solvers.errors import CapError, InfeasibleError
from solvers.exhaustive import search_exhaustively
from solvers.ideals import as_bits, enumerate_ideals, sums_over
from solvers.mapping import Family, Status
from solvers.problem import Problem, Slot
from solvers.registry import solve
from solvers.topology import contract

MANY = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


@MANY
@given(problem=problems(chain=False))
def test_equals_brute_force_over_all_contiguous_plans(problem):
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "ideal_dp")
    if oracle.evaluation is None:
        assert found.evaluation is None
        return
    assert found.evaluation is not None
    assert found.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns
    if found.status is Status.OPTIMAL:
        assert found.family is not Family.ORDER
        assert found.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns


@MANY
@given(problem=problems(chain=False, links="target", free=True))
def test_free_layers_follow_neighbours_without_loss(problem):
    problem = replace(problem, setup_ns=None, send_setup_ns=None)
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "ideal_dp")
    if oracle.evaluation is not None and all(lane.period_ns for lane in oracle.evaluation.lanes):
        assert found.status is Status.OPTIMAL
        assert found.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns


@MANY
@given(problem=problems(chain=False, links="target"))
def test_always_proved_where_links_depend_on_the_receiver(problem):
    found = solve(problem, "ideal_dp")
    assert found.status in (Status.OPTIMAL, Status.INFEASIBLE)


@settings(MANY, max_examples=examples(100))
@given(problem=problems(chain=False))
def test_ideals_are_all_closed_sets(problem):
    try:
        blocks = contract(problem)
    except InfeasibleError:
        return
    n = blocks.n_blocks
    closed = {
        sum(1 << b for b, member in enumerate(bits) if member)
        for bits in product([0, 1], repeat=n)
        if all(bits[a] >= bits[b] for a in range(n) for b in blocks.successors[a])
    }
    found = enumerate_ideals(blocks, 10_000)
    assert len(found) == len(closed)
    assert set(found) == closed
    assert [mask.bit_count() for mask in found] == sorted(mask.bit_count() for mask in found)


def test_cap_is_named():
    free = Problem(np.ones((20, 1), np.int64), np.ones((20, 1), bool), (Slot(0, 1),), (1,))
    with pytest.raises(CapError, match="cap on ideals"):
        solve(free, "ideal_dp")


def test_sums_over_many_words():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 10**12, (150, 2))
    masks = [int(mask) for mask in rng.integers(0, 2**62, 5)]
    masks = [mask | (mask << 80) for mask in masks]
    wanted = [
        [sum(int(values[b, c]) for b in range(150) if mask >> b & 1) for c in range(2)] for mask in masks
    ]
    assert sums_over(as_bits([m & (2**150 - 1) for m in masks], 150), values).tolist() == wanted
