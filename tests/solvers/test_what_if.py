"""What-if against searches of every changed problem, and figures by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_problems import all_features, examples, problems

from solvers.changes import cheaper_layer
from solvers.errors import InfeasibleError, ProblemError
from solvers.evaluate import evaluate
from solvers.knapsack import Knapsack, LaneType
from solvers.limits import Limits
from solvers.mapping import Family, Lane, Mapping, Solution, Stage, Status
from solvers.mixes import Mixes
from solvers.problem import Constant, Flow, Goal, Objective, Problem, Slot, StageTime
from solvers.quick_bounds import RateBounds
from solvers.registry import solve
from solvers.topology import contract
from solvers.under_load import rate_bound_hz
from solvers.what_if import Known, Questions, Resource, cheaper, what_if


def chain(cost_ns, **extra):
    n = len(cost_ns)
    flows = (Flow(None, (0,), 1), *(Flow(a, (a + 1,), 1) for a in range(n - 1)))
    defaults = {"slots": (Slot(0, 1),), "cluster_sizes": (2,), "flows": flows}
    cost = np.array(cost_ns)
    return Problem(cost, np.ones(cost.shape, bool), **(defaults | extra))


def merit(problem, evaluation):
    goal = problem.objective.goal
    if goal is Goal.THROUGHPUT:
        return float(evaluation.frames_per_ns)
    return 1 / (evaluation.latency_ns if goal is Goal.LATENCY else evaluation.energy_nj)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_layers=4, memory=True), goal=st.sampled_from([Goal.THROUGHPUT, Goal.LATENCY]))
def test_every_gain_is_that_of_a_search_of_the_changed_problem(problem, goal):
    problem = replace(problem, objective=Objective(goal))
    base = solve(problem, "exhaustive")
    assume(base.mapping is not None)
    found = what_if(problem, "exhaustive", questions=Questions(reductions=(0.5, 1.0)))
    assert found.complete
    assert found.base.mapping == base.mapping
    assert sorted(gain.layer for gain in found.layers) == list(range(problem.n_layers))
    for gain in found.layers:
        for step in gain.steps:
            changed = cheaper(problem, gain.layer, gain.slots, step.change)
            check(base, problem, changed, step)
    for gain in found.resources:
        for step in gain.steps:
            check(base, problem, more(problem, gain, step.change), step)
    for gains in (found.layers, found.resources):
        assert [gain.gain for gain in gains] == sorted((gain.gain for gain in gains), reverse=True)


def more(problem, gain, change):
    if gain.resource is Resource.CORE:
        sizes = list(problem.cluster_sizes)
        sizes[gain.cluster] += change
        return replace(problem, cluster_sizes=tuple(sizes))
    scaled = lambda limit: None if change == float("inf") else int(limit * change)  # noqa: E731
    if gain.cluster is None:
        return replace(problem, total_memory_limit_bytes=scaled(problem.total_memory_limit_bytes))
    limits = list(problem.memory_limits_bytes)
    limits[gain.cluster] = scaled(limits[gain.cluster])
    return replace(problem, memory_limits_bytes=tuple(limits))


def check(base, problem, changed, step):
    best = solve(changed, "exhaustive").evaluation
    evaluation = evaluate(changed, step.mapping)
    assert evaluation.feasible
    if any(not lane.period_ns for lane in best.lanes) or not best.latency_ns:
        return  # costs nothing at all any more
    wanted = merit(changed, best) / merit(problem, base.evaluation) - 1
    assert step.gain == pytest.approx(wanted, abs=1e-8)
    assert step.gain == pytest.approx(
        merit(changed, evaluation) / merit(problem, base.evaluation) - 1, abs=1e-8
    )
    assert 0 <= step.same_mapping <= step.gain
    if step.at_most is not None:
        assert step.gain <= step.at_most + 1e-8


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_layers=6))
def test_larger_changes_gain_more_and_runs_repeat(problem):
    assume(solve(problem).mapping is not None)
    seen = []
    found = what_if(problem, progress=lambda done, total: seen.append((done, total)))
    assert found == replace(what_if(problem), base=found.base)
    assert seen == [(n, len(seen)) for n in range(1, len(seen) + 1)]
    for gain in (*found.layers, *found.resources):
        gains = [step.gain for step in gain.steps]
        assert gains == sorted(gains)
        assert [step.change for step in gain.steps] == sorted(step.change for step in gain.steps)


def asked_slowly(problem, base, gain, solver):
    """Best gain of every step of a layer when each changed problem is solved from scratch."""
    known, found = [base.mapping], []
    for step in reversed(gain.steps):
        changed = cheaper(problem, gain.layer, gain.slots, step.change)
        answer = solve(changed, solver).mapping
        known += [] if answer is None else [answer]
        scored = [evaluate(changed, mapping) for mapping in known]
        found.append(max((worth(changed, score) for score in scored if score.feasible), default=0))
    return [max(0, best / worth(problem, base.evaluation) - 1) for best in reversed(found)]


def worth(problem, evaluation):
    goal = problem.objective.goal
    costs = {Goal.LATENCY: evaluation.latency_ns, Goal.ENERGY: evaluation.energy_nj}
    if goal is Goal.THROUGHPUT:
        return (
            float("inf")
            if not all(lane.period_ns for lane in evaluation.lanes)
            else merit(problem, evaluation)
        )
    return 1 / costs[goal] if costs[goal] else float("inf")


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    problem=st.one_of(
        problems(7, chain=True),
        problems(5),
        problems(5, links="pairs"),
        problems(4, memory=True),
        all_features(4),
    ),
    solver=st.sampled_from(["lanes", "lanes", "interval_dp"]),
)
def test_gains_without_a_search_are_those_of_searches_from_scratch(problem, solver):
    base = solve(problem, solver)
    assume(base.mapping is not None)
    # Where the base is not the optimum, gains are over the best that is found without a change.
    assume(base.status is Status.OPTIMAL and base.family in (Family.CONTIGUOUS, Family.ALL))
    found = what_if(problem, solver, base=base)
    assert found.complete
    for gain in found.layers:
        for step, slow in zip(gain.steps, asked_slowly(problem, base, gain, solver)):
            if step.known in (Known.EXACT, Known.PROVED):
                assert step.gain == slow or step.gain == pytest.approx(slow, abs=1e-9)
                assert step.gap == 0
            else:
                assert (
                    step.gain >= slow - 1e-9 or step.gap is None or slow <= (1 + step.gain) * (1 + step.gap)
                )
            assert step.at_most is None or slow <= step.at_most + 1e-9 * (1 + step.at_most)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=all_features(5), share=st.sampled_from([0.1, 0.5, 1.0]), data=st.data())
def test_quick_bounds_hold_and_are_nearly_as_good_as_fresh_ones(problem, share, data):
    layer = data.draw(st.integers(0, problem.n_layers - 1))
    try:
        blocks = contract(replace(problem, colocated=()))
    except InfeasibleError:
        return
    change = cheaper_layer(problem, layer, range(len(problem.slots)), share)
    quick = RateBounds(problem, blocks).with_less(layer, change.saved_ns, change.alone_saved_ns)
    fresh = rate_bound_hz(change.problem)
    if quick is None:
        assert any(layer in stage.layers for stage in problem.stage_times)
        return
    answer = solve(change.problem, "lanes")
    if answer.evaluation is not None:
        assert quick >= answer.evaluation.throughput_hz * (1 - 1e-9)
    assert quick >= fresh * (1 - 1e-6) or quick >= answer.bound_hz * (1 - 1e-6)
    if share < 1 and not problem.overhead.any():
        assert quick <= fresh * 1.2


def big_and_little(n, seed=1, **extra):
    rng = np.random.default_rng(seed)
    slots = tuple(Slot(cluster, threads) for cluster in range(2) for threads in range(1, 5))
    base = rng.lognormal(0, 1, n) * 1e6
    slower = [np.ones(n), rng.uniform(1.5, 4, n)]
    cost = np.stack([base * slower[s.cluster] / s.threads ** rng.uniform(0.6, 0.95, n) for s in slots], 1)
    return Problem(cost.astype(int), np.ones(cost.shape, bool), slots, (4, 4), **extra)


def test_long_chains_need_no_search():
    flows = tuple(Flow(a, (a + 1,), 100_000) for a in range(59))
    links = {
        "setup_ns": [[5_000, 20_000], [30_000, 5_000]],
        "bandwidth_bytes_per_s": [[8e9, 2e9], [2e9, 8e9]],
    }
    problem = big_and_little(60, flows=flows, **links)
    found = what_if(problem)
    assert found.n_searches == 0
    assert {step.known for gain in found.layers for step in gain.steps} == {Known.EXACT}
    assert {step.gap for gain in found.resources for step in gain.steps} == {0}
    for gain in (found.layers[0], found.layers[20]):
        for step, slow in zip(gain.steps, asked_slowly(problem, found.base, gain, "lanes")):
            assert step.gain == pytest.approx(slow, abs=1e-9)


def test_graphs_of_many_ideals_are_answered_along_the_orders_of_the_search():
    n, length = 36, 12  # three chains side by side
    flows = tuple(Flow(a, (a + 1,), 1) for a in range(n) if (a + 1) % length)
    problem = big_and_little(n, flows=flows, max_lanes=1)
    base = solve(problem, "lanes")
    found = what_if(problem, base=base, questions=Questions((0.5,), layers=(4, 30), resources=False))
    assert found.n_searches == 0
    for gain in found.layers:
        (step,), (slow,) = gain.steps, asked_slowly(problem, base, gain, "lanes")
        assert step.known is Known.SEARCHED
        assert step.gap > 0
        assert step.gain >= slow - 1e-9
        assert step.gain <= step.at_most


@settings(max_examples=examples(60), deadline=None)
@given(
    sizes=st.sampled_from([(3,), (2, 2), (3, 1), (1, 2, 1)]),
    max_lanes=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 10**6),
)
def test_mixes_are_those_of_the_knapsack(sizes, max_lanes, seed):
    rng = np.random.default_rng(seed)
    mixes = Mixes(sizes, max_lanes)
    shape = tuple(size + 1 for size in sizes)
    rates = rng.choice([0.0, 0.2, 0.5, 1.0, 1.7], shape)
    rates.flat[0] = 0
    for axis in range(len(sizes)):  # at most so many cores
        rates = np.maximum.accumulate(rates, axis=axis)
    rates = rates.ravel()
    types = [LaneType(use, float(rate), 0) for use, rate in zip(mixes.cores, rates) if rate > 0]
    best, lanes = mixes.best(rates)
    assert best == pytest.approx(Knapsack(sizes, types, max_lanes).best_rate)
    assert sum(rates[lane] for lane in lanes) == pytest.approx(best)
    used = np.sum([mixes.cores[lane] for lane in lanes], axis=0) if lanes else np.zeros(len(sizes))
    assert (used <= sizes).all()
    assert max_lanes is None or len(lanes) <= max_lanes


def test_what_stays_in_the_way_is_not_the_worth_of_a_layer():
    # Two stages of 60: neither layer gains anything on its own, and that is exact.
    found = what_if(chain([[60], [60]], max_lanes=1))
    assert [gain.gain for gain in found.layers] == [0, 0]
    assert {step.known for gain in found.layers for step in gain.steps} <= {Known.PROVED, Known.EXACT}


def test_luck_of_a_search_is_no_gain():
    # The base is poor: what a search finds without any change is not credited to a layer.
    problem = chain([[60], [30], [50], [20]], max_lanes=1)
    lane = Lane((Stage((0, 1, 2), 0, 0), Stage((3,), 0, 1)))
    poor = Mapping((lane,))
    base = Solution("by hand", Status.FEASIBLE, Family.ALL, poor, evaluate(problem, poor), None)
    good = what_if(problem)
    found = what_if(problem, base=base)
    assert found.base is base
    gains = {gain.layer: [step.gain for step in gain.steps] for gain in found.layers}
    assert gains == {gain.layer: pytest.approx([step.gain for step in gain.steps]) for gain in good.layers}


def test_workloads_are_made_even_again():
    # Units hold pieces that are not neighbours: 10 + 30 | 20 + 20.  What the 20 saves, others can use.
    problem = chain([[10], [20], [30], [20], [5]], max_lanes=1)
    stages = (Stage((0,), 0, 0), Stage((1,), 0, 1), Stage((2,), 0, 0), Stage((3, 4), 0, 1))
    mapping = Mapping((Lane(stages),))
    base = Solution("by hand", Status.FEASIBLE, Family.ALL, mapping, evaluate(problem, mapping), None)
    found = what_if(problem, base=base, questions=Questions(resources=False))
    free = {gain.layer: gain.steps[-1] for gain in found.layers}
    assert free[1].gain > free[1].same_mapping
    assert free[1].gain == pytest.approx(45 / 35 - 1)
    assert all(evaluate(problem, step.mapping).feasible for step in free.values())


def test_the_bottleneck_is_worth_most_and_is_searched_again():
    # One lane on two cores: 60 | 30 + 50 is best.  Without the 50, 60 | 30; the 30 could also move.
    problem = chain([[60], [30], [50]], max_lanes=1)
    found = what_if(problem)
    assert found.base.evaluation.lanes[0].period_ns == 80
    gains = {gain.layer: gain.steps[-1] for gain in found.layers}
    assert gains[2].gain == pytest.approx(80 / 60 - 1)
    assert gains[1].gain == pytest.approx(80 / 60 - 1)
    # As it is nothing is gained (30 + 50 still sets the period), but 30 moves over to layer 0.
    assert gains[0].same_mapping == 0
    assert gains[0].gain == pytest.approx(80 / 50 - 1)
    assert [gain.layer for gain in found.layers] == [0, 2, 1]  # of half of layer 2 more is left than of 1
    (core,) = found.resources
    assert (core.resource, core.cluster, core.gain) == (Resource.CORE, 0, pytest.approx(80 / 60 - 1))
    assert evaluate(replace(problem, cluster_sizes=(3,)), core.steps[0].mapping).feasible


def test_layers_that_can_not_matter_need_no_search():
    # Copies on identical cores reach the bound whatever gets cheaper.
    found = what_if(chain([[60], [30], [50]]), questions=Questions(resources=False))
    assert found.n_searches == 0
    assert {step.known for gain in found.layers for step in gain.steps} == {Known.PROVED}
    assert found.layers[0].gain == pytest.approx(140 / 80 - 1)
    # A single lane with a layer as large as the others together: they are not worth a thing.
    found = what_if(chain([[10], [100], [10], [10]], max_lanes=1, cluster_sizes=(3,)))
    gains = {gain.layer: gain for gain in found.layers}
    assert gains[1].gain > 0
    for layer in (0, 2, 3):
        assert gains[layer].gain == 0
        assert {step.known for step in gains[layer].steps} == {Known.PROVED}


def test_memory_that_binds_is_worth_something():
    problem = chain(
        [[60], [40]],
        constants=(Constant(1000, (0,)), Constant(1000, (1,))),
        memory_limits_bytes=(3000,),
        total_memory_limit_bytes=10**6,
    )
    found = what_if(problem, questions=Questions(layers=()))
    gains = {(gain.resource, gain.cluster): gain for gain in found.resources}
    # Two copies need 4000 bytes and a little: 1.1 times 3000 are too few, 1.5 times are enough.
    own = gains[Resource.MEMORY, 0]
    assert [step.change for step in own.steps] == [1.1, 1.5, float("inf")]
    assert [step.gain for step in own.steps] == [0, pytest.approx(0.2), pytest.approx(0.2)]
    assert gains[Resource.MEMORY, None].gain == 0
    assert found.layers == ()


def test_measured_stages_get_cheaper_with_their_layers():
    problem = chain([[60], [40]], stage_times=(StageTime(frozenset({0, 1}), 0, 90),))
    changed = cheaper(problem, 0, (0,), 0.5)
    assert changed.cost_ns.tolist() == [[30], [40]]
    assert changed.stage_times == (StageTime(frozenset({0, 1}), 0, 60),)
    assert problem.cost_ns.tolist() == [[60], [40]]


def test_energy_and_latency_gain_too():
    power = {"active_power_mw": (1000,), "idle_power_mw": 0}
    for goal in (Goal.LATENCY, Goal.ENERGY):
        problem = chain([[60000], [40000]], objective=Objective(goal), **power)
        found = what_if(problem, questions=Questions(reductions=(0.5,)))
        assert [gain.layer for gain in found.layers] == [0, 1]
        assert [gain.gain for gain in found.layers] == pytest.approx([100 / 70 - 1, 100 / 80 - 1])
        assert [gain.steps[0].at_most for gain in found.layers] == pytest.approx(
            [100 / 70 - 1, 100 / 80 - 1], rel=1e-4
        )
        assert found.n_searches <= 1  # one more core


def test_without_time_the_rest_is_marked():
    problem = chain([[60], [30], [50], [20]], max_lanes=1)
    base = solve(problem)
    found = what_if(problem, limits=Limits(time_s=0), base=base)
    assert not found.complete
    assert found.n_searches == 0
    assert Known.LEFT_OUT in {step.known for gain in found.layers for step in gain.steps}
    for gain in found.layers:
        assert all(step.gain >= step.same_mapping for step in gain.steps)


@pytest.mark.parametrize(("solver", "at"), [("lanes", 1), ("lanes", 4), ("exhaustive", 2), ("ideal_dp", 3)])
def test_an_interrupted_answer_says_something_of_every_layer(solver, at):
    problem = chain([[60], [30], [50], [20], [40]], max_lanes=1)
    base = solve(problem, solver)
    full = what_if(problem, solver, base=base)
    seen = []

    def ctrl_c(done, total):
        seen.append((done, total))
        if done == at:
            raise KeyboardInterrupt

    found = what_if(problem, solver, base=base, progress=ctrl_c)
    assert found.interrupted
    assert not found.complete
    assert found.n_searches <= full.n_searches
    assert Known.LEFT_OUT in {step.known for gain in found.layers for step in gain.steps}
    assert {gain.layer for gain in found.layers} == set(range(5))
    assert len(found.resources) == 1
    assert [done for done, _ in seen] == list(range(1, 7))
    best = {(gain.layer, step.change): step.gain for gain in full.layers for step in gain.steps}
    for gain in found.layers:
        for step in gain.steps:
            assert step.same_mapping <= step.gain <= best[gain.layer, step.change] + 1e-12
            assert step.known is Known.LEFT_OUT or step.gain == best[gain.layer, step.change]


def test_what_can_not_be_asked():
    with pytest.raises(ProblemError, match="there are 1"):
        what_if(chain([[5]]), questions=Questions(layers=(1,)))
    for wrong in (
        {"reductions": ()},
        {"reductions": (0.0,)},
        {"reductions": (1.5,)},
        {"memory_factors": (1.0,)},
    ):
        with pytest.raises(ProblemError):
            Questions(**wrong)
    problem = replace(chain([[5]]), supported=np.zeros((1, 1), bool))
    with pytest.raises(InfeasibleError, match="no mapping to start from"):
        what_if(problem)
