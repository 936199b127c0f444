"""Published heuristics give real plans, and never win."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from random_problems import examples, problems
from test_baselines import big_little

from solvers.evaluate import evaluate, score_key
from solvers.problem import Goal, Objective
from solvers.published import PUBLISHED, published_plans
from solvers.registry import solve


@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(chain=True, features=False))
def test_no_heuristic_beats_the_exact_answer(problem):
    answer = solve(problem)
    for plan in published_plans(problem):
        assert plan.evaluation == evaluate(problem, plan.mapping)
        assert plan.evaluation.feasible, plan.name
        assert score_key(problem, answer.evaluation) <= score_key(problem, plan.evaluation)


def test_all_apply_to_a_big_little_chain():
    problem = big_little(24)
    plans = published_plans(problem)
    assert [plan.name for plan in plans] == list(PUBLISHED)
    best = solve(problem).evaluation
    assert all(plan.evaluation.throughput_hz <= best.throughput_hz for plan in plans)
    by_name = {plan.name: plan.evaluation.throughput_hz for plan in plans}
    assert by_name["chain DP (PipeEdge)"] >= by_name["latency bisection (libcoral)"]
    assert by_name["chain DP (PipeEdge)"] >= by_name["block partition (torchgpipe)"]


def test_other_goals_do_not_change_what_a_paper_optimises():
    problem = big_little(12)
    rated = [plan.evaluation.throughput_hz for plan in published_plans(problem)]
    quick = published_plans(replace(problem, objective=Objective(Goal.LATENCY)))
    assert [plan.evaluation.throughput_hz for plan in quick][1:] == rated[1:]  # all but the best device
