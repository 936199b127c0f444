"""Goals and limits besides throughput, against brute force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import examples, problems

from solvers.evaluate import score_key
from solvers.exhaustive import search_exhaustively
from solvers.mapping import Status
from solvers.problem import Goal, Objective
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
    from test_baselines import big_little

    problem = big_little(30, active_power_mw=(1000, 1900, 2700, 3400, 200, 390, 570, 740), idle_power_mw=100)
    problem = replace(problem, objective=Objective(goal, min_throughput_hz=200.0))
    found = solve(problem)
    assert found.evaluation is not None
    assert found.evaluation.feasible
