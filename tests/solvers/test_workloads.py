"""Workloads of several networks: whole networks on slots, and the order of their layers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.baselines import Role, baselines
from solvers.bounds import throughput_bound_hz
from solvers.errors import ProblemError
from solvers.evaluate import evaluate, score_key
from solvers.interval_dp import IntervalTable, useful_slots
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage
from solvers.network_orders import network_orders, ordered, reordered
from solvers.order_costs import OrderCosts, exact_links
from solvers.problem import Flow, Goal, Objective, Problem, Slot
from solvers.registry import solve
from solvers.topology import contract
from solvers.whole_networks import in_turn, place_networks


def workload(sizes, clusters=(2, 1), seed=0, links=(), spread=0.6, **fields) -> Problem:
    """Chains of layers that prefer different clusters; ``links`` join the end of one to the start of another."""
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    base = rng.lognormal(11, 0.8, n)
    slots, columns = [], []
    for cluster, cores in enumerate(clusters):
        speed = rng.uniform(0.5, 2) * np.exp(rng.normal(0, spread, n))
        for threads in range(1, cores + 1):
            slots.append(Slot(cluster, threads))
            columns.append(base * speed * (0.2 + 0.8 / threads))
    flows = []
    for size, start in zip(sizes, starts):
        flows += [Flow(start + k, (start + k + 1,), int(rng.integers(1, 200_000))) for k in range(size - 1)]
    for a, b in links:
        flows.append(Flow(starts[a] + sizes[a] - 1, (starts[b],), 1000))
    k = len(clusters)
    return Problem(
        cost_ns=np.stack(columns, axis=1).astype(np.int64),
        supported=np.ones((n, len(slots)), np.bool_),
        slots=tuple(slots),
        cluster_sizes=clusters,
        flows=tuple(flows),
        overhead_ns=np.full(len(slots), 2000, np.int64),
        setup_ns=np.full((k, k), 3000, np.int64),
        bandwidth_bytes_per_s=np.full((k, k), 5e9),
        networks=tuple(tuple(range(s, s + size)) for s, size in zip(starts, sizes)),
        **fields,
    )


def every_placement(problem):
    """Brute force: every network on every slot, sharing a unit or not."""
    n = len(problem.networks)
    for chosen in itertools.product(range(len(problem.slots)), repeat=n):
        for units in itertools.product(range(n), repeat=n):
            if any(units[k] > max(units[:k], default=-1) + 1 for k in range(n)):
                continue
            slot_of = {}
            if any(slot_of.setdefault(unit, slot) != slot for unit, slot in zip(units, chosen)):
                continue
            use = sum(problem.cores[slot] for slot in slot_of.values())
            if (use <= np.array(problem.cluster_sizes)).all():
                stages = [Stage(*rest) for rest in zip(problem.networks, chosen, units)]
                yield Mapping((Lane(tuple(stages)),))


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    clusters=st.sampled_from([(1,), (2,), (2, 1), (1, 1, 1)]),
    goal=st.sampled_from([Goal.THROUGHPUT, Goal.LATENCY]),
    linked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whole_networks_are_placed_as_brute_force_places_them(sizes, clusters, goal, linked, seed):
    problem = workload(sizes, clusters, seed, [(0, 1)] if linked else [], objective=Objective(goal))
    found = place_networks(problem)
    best = min(score_key(problem, evaluate(problem, mapping)) for mapping in every_placement(problem))
    assert score_key(problem, evaluate(problem, found)) == best


def test_slots_that_can_not_run_a_network_are_left_out():
    problem = workload((2, 2), (1, 1))
    supported = np.array(problem.supported)
    supported[0, 0] = supported[3, 1] = False
    found = place_networks(replace(problem, supported=supported))
    assert [stage.slot for stage in found.lanes[0].stages] == [1, 0]
    supported[:] = False
    supported[:2, 0] = True
    assert place_networks(replace(problem, supported=supported)) is None


def test_many_networks_end_in_time():
    problem = workload((3,) * 12, (4, 4))
    found = evaluate(problem, place_networks(problem))
    assert found.feasible
    assert found.throughput_hz > 3 * evaluate(problem, in_turn(problem, 0)).throughput_hz


def test_networks_must_cover_all_layers():
    problem = workload((2, 2))
    with pytest.raises(ProblemError, match="each of the 4 layers once"):
        replace(problem, networks=((0, 1), (2,)))


def test_baselines_of_a_workload():
    problem = workload((3, 2, 2))
    plans = {plan.role: plan for plan in baselines(problem, ("big", "LITTLE"))}
    whole = max(
        (plan for plan in baselines(problem, ("big", "LITTLE")) if plan.role is Role.WHOLE),
        key=lambda plan: plan.evaluation.throughput_hz,
    )
    turn = plans[Role.IN_TURN]
    assert turn.name == whole.name.replace("whole", "in turn")
    # The same work in three interpreters instead of one: two more invocations a frame.
    assert turn.evaluation.lanes[0].period_ns == whole.evaluation.lanes[0].period_ns + 2 * 2000
    assert plans[Role.APART].name.startswith("apart, ")
    assert plans[Role.APART].evaluation.throughput_hz >= turn.evaluation.throughput_hz
    assert not {Role.IN_TURN, Role.APART} & {p.role for p in baselines(replace(problem, networks=()))}


def test_networks_that_run_at_the_same_time_are_quickest():
    """Along one order a lane's latency counts as a sum; only the graph of stages tells better."""
    problem = workload((4, 4), (2, 2), objective=Objective(Goal.LATENCY), spread=0.1)
    found = solve(problem, "lanes")
    assert found.evaluation.latency_ns <= evaluate(problem, place_networks(problem)).latency_ns
    plain = solve(replace(problem, networks=()), "lanes")
    assert found.evaluation.latency_ns < plain.evaluation.latency_ns


@pytest.mark.parametrize("seed", [0, 1])
def test_orders_of_networks_find_the_best_convex_plan(seed):
    """More ideals than are searched anyway, few enough to search them here as the oracle."""
    problem = workload((11, 9, 8), (2, 2), seed, max_lanes=1)
    best = solve(replace(problem, networks=()), "ideal_dp", Limits(time_s=60))
    found = solve(problem, "interval_dp", Limits(time_s=60))
    assert found.evaluation.frames_per_ns == best.evaluation.frames_per_ns
    assert found.evaluation.throughput_hz <= throughput_bound_hz(problem)


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    linked=st.booleans(),
    seed=st.integers(0, 100),
)
def test_orders_of_networks_are_topological(sizes, linked, seed):
    blocks = contract(workload(sizes, (2, 1), seed, [(0, 1)] if linked else []))
    orders = network_orders(blocks, Limits())
    assert len(set(orders)) == len(orders)
    for order in orders:
        assert sorted(order) == list(range(blocks.n_blocks))
        place = {block: n for n, block in enumerate(order)}
        assert all(place[a] < place[b] for a in range(blocks.n_blocks) for b in blocks.successors[a])


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(2, 8), min_size=2, max_size=3),
    linked=st.booleans(),
    seed=st.integers(0, 100),
)
def test_a_lane_stays_a_lane_of_the_orders_made_from_it(sizes, linked, seed):
    problem = workload(sizes, (2, 1), seed, [(0, 1)] if linked else [], max_lanes=1)
    blocks = contract(problem)
    lane = solve(problem, "interval_dp").mapping.lanes[0]
    known = evaluate(problem, Mapping((lane,))).lanes[0].period_ns
    for order in reordered(blocks, lane.stages, 3, seed):
        costs = OrderCosts(blocks, order, exact_links(blocks, order))
        table = IntervalTable(costs, useful_slots(blocks), Limits())
        assert int(table.periods().min()) <= known


def test_a_stage_that_parts_a_block_gives_no_order():
    problem = replace(workload((3, 3)), groups=((0, 1),))
    assert ordered(contract(problem), [(0,), (1, 2, 3, 4, 5)]) is None


def test_searches_of_workloads_repeat():
    problem = workload((10, 9, 8), (2, 2), 3)
    assert solve(problem, "lanes").mapping == solve(problem, "lanes").mapping
