"""Goals and limits besides throughput, against brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems
from test_baselines import big_little

from solvers import offers
from solvers.evaluate import score_key
from solvers.exhaustive import search_exhaustively
from solvers.limits import Limits
from solvers.mapping import Status
from solvers.problem import Constant, Goal, Objective
from solvers.registry import solve

MANY = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def compare(problem):
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "lanes")
    if oracle.evaluation is None:
        assert found.status is Status.INFEASIBLE
        assert "limit" in found.reason
        return
    assert found.status is Status.OPTIMAL, found.reason
    assert score_key(problem, found.evaluation)[:4] == score_key(problem, oracle.evaluation)[:4]


@MANY
@given(problem=problems(max_layers=4, chain=True, memory=True))
def test_memory_limits(problem):
    compare(problem)


@MANY
@given(problem=problems(max_layers=4, chain=True), floor=st.sampled_from([None, 2e7, 1e8, 3e8]))
def test_latency_with_a_floor(problem, floor):
    compare(replace(problem, objective=Objective(Goal.LATENCY, min_throughput_hz=floor)))


@MANY
@given(problem=problems(max_layers=4, chain=True), ceiling=st.sampled_from([5, 20, 60]))
def test_throughput_under_a_latency_ceiling(problem, ceiling):
    compare(replace(problem, objective=Objective(max_latency_ns=ceiling)))


@settings(MANY, max_examples=examples(25))
@given(problem=problems(max_layers=3, chain=True), data=st.data())
def test_energy_and_power(problem, data):
    power = tuple(data.draw(st.integers(1, 30)) * 10_000 for _ in problem.slots)
    goal = data.draw(st.sampled_from([Goal.ENERGY, Goal.THROUGHPUT]))
    problem = replace(
        problem,
        active_power_mw=power,
        idle_power_mw=data.draw(st.sampled_from([0, 50_000])),
        max_power_mw=data.draw(st.sampled_from([None, 120_000, 400_000])),
        objective=Objective(goal, min_throughput_hz=data.draw(st.sampled_from([None, 1e8]))),
    )
    compare(problem)


@MANY
@given(problem=problems(max_layers=4, memory=True), goal=st.sampled_from([Goal.LATENCY, Goal.THROUGHPUT]))
def test_branching_is_feasible_and_not_better_than_brute_force(problem, goal):
    problem = replace(problem, objective=Objective(goal))
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "lanes")
    if found.evaluation is None:
        assert found.status is Status.UNKNOWN or oracle.evaluation is None
        return
    assert found.evaluation.feasible
    assert oracle.evaluation is not None
    if found.status is not Status.OPTIMAL:
        assert score_key(problem, found.evaluation) >= score_key(problem, oracle.evaluation)[:3]


@pytest.mark.parametrize("goal", list(Goal))
def test_every_goal_on_a_real_size(goal):
    problem = big_little(30, active_power_mw=(1000, 1900, 2700, 3400, 200, 390, 570, 740), idle_power_mw=100)
    problem = replace(problem, objective=Objective(goal, min_throughput_hz=200.0))
    found = solve(problem, limits=Limits(time_s=2.0))
    assert found.evaluation is not None
    assert found.evaluation.feasible


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"objective": Objective(max_latency_ns=1000)}, "latency: a frame takes at least"),
        ({"objective": Objective(min_throughput_hz=1e9)}, "throughput floor: demand 1e+09 frames/s"),
        (
            {"total_memory_limit_bytes": 10, "constants": (Constant(11, (0,)),)},
            "memory: the whole model demands 2011 bytes, however it is cut; limit 10 bytes",
        ),
    ],
)
def test_impossible_limits_are_named_at_once(extra, text):
    found = solve(big_little(8, **extra))
    assert found.status is Status.INFEASIBLE
    assert text in found.reason


@settings(MANY, max_examples=examples(60))
@given(problem=problems(max_layers=4, memory=True), ceiling=st.sampled_from([5, 15, 40]))
def test_refusals_before_the_search_are_right(problem, ceiling):
    problem = replace(problem, objective=Objective(max_latency_ns=ceiling, min_throughput_hz=1e8))
    found = solve(problem, "lanes")
    if found.status is Status.INFEASIBLE:
        assert search_exhaustively(problem, False).mapping is None


@MANY
@given(
    problem=problems(max_layers=4, chain=True),
    floor=st.sampled_from([None, 2e7, 1e8, 3e8]),
    ceiling=st.sampled_from([None, 20, 60]),
    goal=st.sampled_from([Goal.LATENCY, Goal.THROUGHPUT]),
)
def test_the_way_of_many_layers(problem, floor, ceiling, goal):
    """What is done for models of many blocks, on small ones: feasible, and right where it says so."""
    problem = replace(problem, objective=Objective(goal, floor, ceiling))
    oracle = search_exhaustively(problem, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offers, "FEW_BLOCKS", 0)
        found = solve(problem, "lanes")
    if found.evaluation is None:
        assert found.status is Status.UNKNOWN or oracle.evaluation is None
        return
    keys = [score_key(problem, evaluation)[:4] for evaluation in (found.evaluation, oracle.evaluation)]
    assert keys[0] >= keys[1]
    if found.status is Status.OPTIMAL or (goal is Goal.LATENCY and floor is None and ceiling is None):
        assert keys[0] == keys[1]


def test_latency_of_many_layers_is_that_of_the_quickest_lane():
    problem = big_little(150)
    free = solve(replace(problem, objective=Objective(Goal.LATENCY)), "lanes")
    assert free.status is Status.OPTIMAL
    best_hz = solve(problem, "lanes").evaluation.throughput_hz
    last = 0
    for share in (0.1, 0.3, 0.5, 0.9):
        wanted = Objective(Goal.LATENCY, min_throughput_hz=share * best_hz)
        found = solve(replace(problem, objective=wanted), "lanes")
        assert found.evaluation.throughput_hz >= share * best_hz
        assert found.evaluation.latency_ns >= max(free.evaluation.latency_ns, last)
        last = found.evaluation.latency_ns
