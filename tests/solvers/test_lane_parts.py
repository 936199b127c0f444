"""Topology, bound and knapsack, each against a plain oracle."""

from __future__ import annotations

from itertools import combinations_with_replacement

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp
from random_problems import examples, problems

from solvers.bounds import bound_costs, period_bound_ns, relaxation
from solvers.errors import CapError, InfeasibleError, ProblemError
from solvers.evaluate import stage_compute_ns
from solvers.interval_dp import IntervalTable, useful_slots
from solvers.knapsack import Knapsack, LaneType
from solvers.limits import Limits
from solvers.order_costs import Links, OrderCosts
from solvers.problem import Flow, Problem, Slot, StageTime
from solvers.registry import solve
from solvers.topology import contract, orders

QUICK = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(problem=problems(), seed=st.integers(0, 3))
def test_orders_are_topological_and_hold_every_block_once(problem, seed):
    try:
        blocks = contract(problem)
    except InfeasibleError:
        return
    found = list(orders(blocks, 20, seed))
    assert found == list(orders(blocks, 20, seed))
    assert len(set(found)) == len(found)
    for order in found:
        assert sorted(order) == list(range(blocks.n_blocks))
        place = {block: number for number, block in enumerate(order)}
        assert all(place[a] < place[b] for a, bs in enumerate(blocks.successors) for b in bs)


@QUICK
@given(problem=problems())
def test_blocks_are_convex_partition_and_keep_sets_together(problem):
    try:
        blocks = contract(problem)
    except InfeasibleError:
        return
    assert sorted(layer for layers in blocks.members for layer in layers) == list(range(problem.n_layers))
    graph = nx.DiGraph([(blocks.of_layer[a], blocks.of_layer[b]) for a, b in problem.edges])
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    assert nx.is_directed_acyclic_graph(graph)
    for together in (*problem.groups, *(pin.layers for pin in problem.pins)):
        assert len({blocks.of_layer[layer] for layer in together}) == 1


@QUICK
@given(problem=problems(features=False))
def test_bound_equals_a_general_solver_of_linear_programmes(problem):
    cost = problem.cost_ns.astype(float)
    lp = pywraplp.Solver.CreateSolver("GLOP")
    period = lp.NumVar(0, lp.infinity(), "P")
    x = [[lp.NumVar(0, 1, "") for _ in problem.slots] for _ in range(problem.n_layers)]
    for row in x:
        lp.Add(sum(row) == 1)
    for cluster, size in enumerate(problem.cluster_sizes):
        load = [
            int(problem.cores[r, cluster]) * cost[layer, r] * x[layer][r]
            for layer in range(problem.n_layers)
            for r in range(len(problem.slots))
        ]
        lp.Add(sum(load) <= size * period)
    lp.Minimize(period)
    assert lp.Solve() == pywraplp.Solver.OPTIMAL
    mine, _ = relaxation(cost, problem.cores, np.array(problem.cluster_sizes))
    assert mine <= period.solution_value() * (1 + 1e-9)
    assert mine >= period.solution_value() * (1 - 1e-6)
    assert period_bound_ns(contract(problem)) > 0


@QUICK
@given(problem=problems(), data=st.data())
def test_bound_costs_are_below_every_stage(problem, data):
    try:
        blocks = contract(problem)
    except InfeasibleError:
        return
    cost = bound_costs(blocks)
    members = sorted(data.draw(st.sets(st.integers(0, blocks.n_blocks - 1), min_size=1)))
    layers = sorted(layer for block in members for layer in blocks.members[block])
    for slot in range(len(problem.slots)):
        if blocks.allowed[members, slot].all():
            assert cost[members, slot].sum() <= stage_compute_ns(problem, layers, slot) * (1 + 1e-12)


@QUICK
@given(
    sizes=st.sampled_from([(3,), (2, 2), (4, 1)]),
    rates=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(1, 30)), max_size=4),
    cap=st.sampled_from([None, 1, 2]),
)
def test_knapsack_equals_enumeration(sizes, rates, cap):
    types = [
        LaneType((a, b)[: len(sizes)], 1 / period, a + b)
        for a, b, period in rates
        if sum((a, b)[: len(sizes)]) > 0
    ]
    knapsack = Knapsack(sizes, types, cap)
    best = 0.0
    for n_lanes in range(1, (cap or sum(sizes)) + 1):
        for mix in combinations_with_replacement(types, n_lanes):
            if all(sum(lane.use[c] for lane in mix) <= size for c, size in enumerate(sizes)):
                best = max(best, sum(lane.rate for lane in mix))
    assert knapsack.best_rate == pytest.approx(best)
    chosen = [types[number] for number in knapsack.lanes()]
    assert sum(lane.rate for lane in chosen) == pytest.approx(best)
    assert all(sum(lane.use[c] for lane in chosen) <= size for c, size in enumerate(sizes))


def chain(n, sizes, seed=0):
    rng = np.random.default_rng(seed)
    slots = tuple(Slot(c, t) for c, size in enumerate(sizes) for t in range(1, size + 1))
    base = rng.integers(1000, 100_000, n)
    cost = np.stack(
        [base * (1 + s.cluster) * rng.uniform(0.8, 1.2, n) / s.threads**0.7 for s in slots], 1
    ).astype(np.int64)
    flows = tuple(Flow(i, (i + 1,), 10) for i in range(n - 1))
    return Problem(cost, np.ones(cost.shape, bool), slots, sizes, flows)


def test_memory_cap_names_itself():
    with pytest.raises(CapError, match=r"Limits\.memory_bytes"):
        solve(chain(50, (2,)), "lanes", Limits(memory_bytes=1000))


def test_single_lane_never_beats_the_mix():
    problem = chain(40, (4, 4))
    mix, single = solve(problem, "lanes"), solve(problem, "interval_dp")
    assert mix.evaluation.frames_per_ns >= single.evaluation.frames_per_ns
    assert single.mapping is not None
    assert len(single.mapping.lanes) == 1


def test_sixteen_identical_cores_use_copies():
    """One-core copies waste nothing when threads do not scale perfectly."""
    solution = solve(chain(30, (16,)), "lanes")
    assert len(solution.mapping.lanes) == 16
    assert solution.gap < 0.05


def test_unknown_solver_is_named():
    with pytest.raises(ProblemError, match="'nope'"):
        solve(chain(3, (1,)), "nope")


def test_dominated_slots_are_dropped():
    problem = chain(5, (3,))
    slower = problem.cost_ns.copy()
    slower[:, 2] = slower[:, 1]  # three cores no faster than two
    worse = Problem(slower, problem.supported, problem.slots, problem.cluster_sizes, problem.flows)
    assert useful_slots(contract(worse)) == (0, 1)


def test_periods_fall_with_cores():
    blocks = contract(chain(20, (3, 2)))
    table = IntervalTable(OrderCosts(blocks, tuple(range(20)), Links.TARGET), useful_slots(blocks), Limits())
    periods = table.periods()
    best = np.minimum.accumulate(np.minimum.accumulate(periods, 0), 1)
    assert (np.diff(best, axis=0) <= 0).all()
    assert (np.diff(best, axis=1) <= 0).all()


def test_a_slot_with_slower_measured_stages_dominates_no_other():
    """Regression: one core measured at 3 ns for the whole model hid two cores at 1 ns."""
    problem = Problem(
        np.array([[1, 1]]),
        np.ones((1, 2), bool),
        (Slot(0, 1), Slot(0, 2)),
        (2,),
        stage_times=(StageTime(frozenset({0}), 0, 3),),
    )
    assert solve(problem).evaluation.lanes[0].period_ns == 1
