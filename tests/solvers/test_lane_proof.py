"""Sweeps over ideals, and the proof of the mix that rests on them, against pairs of ideals and brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from benchmarks.graph_files import read_pipedream
from solvers.errors import CapError, InfeasibleError, UnsupportedProblemError
from solvers.evaluate import evaluate
from solvers.exhaustive import search_exhaustively
from solvers.growth import Growth
from solvers.ideal_dp import IdealTable
from solvers.ideals import enumerate_ideals
from solvers.knapsack import Knapsack, LaneType
from solvers.lane_proof import LaneProof
from solvers.limits import Limits
from solvers.mapping import Family, Lane, Mapping, Stage, Status
from solvers.order_costs import NEVER
from solvers.problem import Flow, Problem, Slot
from solvers.reach import Reach
from solvers.registry import solve
from solvers.topology import contract

MANY = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


def periods_by_pairs(blocks):
    """Best periods on exactly so many cores, by the programme over pairs of ideals."""
    shape = tuple(size + 1 for size in blocks.problem.cluster_sizes)
    return IdealTable(blocks, np.full(shape, NEVER), Limits()).periods()


def grown(problem):
    """The levels of a problem that growth takes; other examples are left out."""
    try:
        blocks = contract(problem)
        return blocks, Growth(blocks, Limits())
    except (InfeasibleError, UnsupportedProblemError):
        assume(False)


@MANY
@given(problem=problems(6, chain=False), data=st.data())
def test_reach_equals_the_programme_over_pairs(problem, data):
    blocks, growth = grown(problem)
    assert growth.n_ideals == len(enumerate_ideals(blocks, 1000))
    wanted = periods_by_pairs(blocks)
    values = sorted({int(value) for value in wanted[wanted < NEVER]} | {0})
    period = data.draw(st.sampled_from(values)) + data.draw(st.integers(-1, 1))
    reach = Reach(growth, problem.cluster_sizes, period, Limits())
    assert (reach.final() == (wanted <= period)).all()
    for cores in np.argwhere(reach.final()):
        _check_lane(problem, blocks, growth, reach, tuple(int(n) for n in cores), period)


def _check_lane(problem, blocks, growth, reach, cores, period):
    stages = tuple(Stage(layers, slot, n) for n, (layers, slot) in enumerate(reach.lane(cores)))
    assert sum(problem.cores[stage.slot] for stage in stages).tolist() == list(cores)
    lane = evaluate(replace(problem, max_power_mw=None), Mapping((Lane(stages),))).lanes[0]
    same = (problem.setup == problem.setup[:1]).all() and (problem.bandwidth == problem.bandwidth[:1]).all()
    assert lane.period_ns <= period or not same


def _n_cores(problem, solution):
    slots = [stage.slot for lane in solution.mapping.lanes for stage in lane.stages]
    return problem.cores[slots].sum()


@MANY
@given(problem=problems(chain=False))
def test_many_ideals_equal_brute_force_over_all_contiguous_plans(problem):
    oracle = search_exhaustively(problem, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solvers.lanes.FEW_IDEALS", 0)
        found = solve(problem, "ideal_dp")
    if oracle.evaluation is None:
        assert found.evaluation is None
        return
    assert found.evaluation is not None
    assert found.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns
    same = (problem.setup == problem.setup[:1]).all() and (problem.bandwidth == problem.bandwidth[:1]).all()
    assert found.status is Status.OPTIMAL or not same
    if found.status is Status.OPTIMAL:
        assert found.family is not Family.ORDER
        assert found.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns
        assert _n_cores(problem, found) == _n_cores(problem, oracle)


@settings(MANY, max_examples=examples(100))
@given(problem=problems(6, chain=False, links="target"), gap=st.sampled_from([0.0, 0.1, 0.5]))
def test_lower_bounds_hold_and_the_mix_is_within_the_gap(problem, gap):
    blocks, growth = grown(replace(problem, overlap=False))
    wanted = periods_by_pairs(blocks)
    known = np.full(wanted.shape, NEVER)
    found = {}

    def offer(use, stages):
        lane = Lane(tuple(Stage(layers, slot, n) for n, (layers, slot) in enumerate(stages)))
        found[use] = evaluate(blocks.problem, Mapping((lane,))).lanes[0].period_ns
        return found[use]

    proof = LaneProof(growth, known, problem.lane_limit, Limits(gap=gap))
    proof.run(offer)
    assert (proof.lower_ns <= wanted).all()
    for cores, period in found.items():
        assert wanted[cores] <= period
    assert _best_rate(problem, proof.known_ns) * (1 + gap) >= _best_rate(problem, wanted) * (1 - 1e-9)


def _best_rate(problem, periods):
    types = [LaneType(tuple(use), 1 / periods[tuple(use)], 0) for use in np.argwhere(periods < NEVER)]
    return Knapsack(problem.cluster_sizes, types, problem.lane_limit).best_rate


def test_refuses_what_it_can_not_prove():
    flows = (Flow(0, (1,), 8),)
    problem = Problem(np.ones((2, 1), np.int64), np.ones((2, 1), bool), (Slot(0, 1),), (2,), flows)
    costly = replace(problem, setup_ns=np.ones((1, 1), np.int64), overlap=True)
    with pytest.raises(UnsupportedProblemError, match="overlaps"):
        Growth(contract(costly), Limits())
    Growth(contract(replace(costly, overlap=False)), Limits())


def test_caps_are_named():
    free = Problem(np.ones((12, 1), np.int64), np.ones((12, 1), bool), (Slot(0, 1),), (1,))
    with pytest.raises(CapError, match=r"more than 1000 ideals .* sets of \d+ of 12 blocks \(cap of 1000\)"):
        Growth(contract(free), Limits(), most_nodes=1000)
    with pytest.raises(CapError, match="100000 bytes of memory"):
        Growth(contract(free), Limits(memory_bytes=100_000))


@pytest.mark.parametrize("rate", [np.inf, 1e10])
def test_many_and_few_ideals_agree_on_a_profile(corpus, monkeypatch, rate):
    path = corpus / "cost-graphs" / "pipedream" / "resnet50.txt"
    problem = replace(read_pipedream(path, (2, 2), (1.0, 2.5)), bandwidth_bytes_per_s=np.full((2, 2), rate))
    few = solve(problem, "ideal_dp")
    monkeypatch.setattr("solvers.lanes.FEW_IDEALS", 100)
    many = solve(problem, "ideal_dp")
    assert few.status is many.status is Status.OPTIMAL
    assert few.evaluation.frames_per_ns == many.evaluation.frames_per_ns


def test_a_branching_profile_with_many_ideals_is_proved(corpus):
    path = corpus / "cost-graphs" / "pipedream" / "inception_v3.txt"
    problem = read_pipedream(path, (2, 2), (1.0, 2.5))
    found = solve(problem, "ideal_dp")
    assert (found.status, found.family) == (Status.OPTIMAL, Family.CONTIGUOUS)
    orders = solve(problem, "lanes")
    assert found.evaluation.frames_per_ns >= orders.evaluation.frames_per_ns
