"""Every solver against brute force on small random problems with all features mixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_problems import examples, problems

from solvers.bounds import throughput_bound_hz
from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate, score_key
from solvers.exhaustive import search_exhaustively
from solvers.limits import Limits
from solvers.mapping import Family, Status
from solvers.problem import Flow, Goal, Objective, Problem, Slot
from solvers.registry import solve

MANY = settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))


def periods(evaluation):
    return evaluation.frames_per_ns


@pytest.mark.parametrize("solver", ["lanes", "interval_dp"])
@MANY
@given(problem=problems(chain=True))
def test_chain_equals_brute_force(solver, problem):
    oracle = search_exhaustively(problem, False, 1 if solver == "interval_dp" else None)
    found = solve(problem, solver)
    if oracle.status is Status.INFEASIBLE:
        assert found.status is Status.INFEASIBLE
        assert found.reason
        return
    assert found.status is Status.OPTIMAL
    assert found.family in (Family.CONTIGUOUS, Family.ALL, Family.ORDER)
    assert periods(found.evaluation) == periods(oracle.evaluation)
    assert found.evaluation.n_cores == oracle.evaluation.n_cores


@MANY
@given(problem=problems(chain=True))
def test_chain_ties_go_to_lower_latency(problem):
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "lanes")
    if oracle.status is not Status.INFEASIBLE and not problem.stage_times:
        assert score_key(problem, found.evaluation)[:5] == score_key(problem, oracle.evaluation)[:5]


@MANY
@given(problem=problems(chain=False))
def test_branching_never_wrong(problem):
    """Over several orders: the brute force optimum where proved, feasible and not better elsewhere."""
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "lanes")
    if found.mapping is None:
        assert found.status in (Status.INFEASIBLE, Status.UNKNOWN)
        if found.status is Status.INFEASIBLE:
            assert oracle.status is Status.INFEASIBLE
        return
    assert oracle.evaluation is not None
    assert found.evaluation.feasible
    assert periods(found.evaluation) <= periods(oracle.evaluation)
    if found.status is Status.OPTIMAL and found.family is not Family.ORDER:
        assert periods(found.evaluation) == periods(oracle.evaluation)


@MANY
@given(problem=problems(chain=False, links="target"))
def test_branching_all_orders_equals_brute_force(problem):
    """Five layers have few orders: all are tried, so the contiguous optimum is found."""
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "lanes")
    if oracle.evaluation is not None and not problem.stage_times:
        assert periods(found.evaluation) == periods(oracle.evaluation)


@settings(MANY, max_examples=examples(100))
@given(problem=problems(max_layers=4))
def test_nothing_beats_the_bound_even_with_shared_units(problem):
    oracle = search_exhaustively(problem, True)
    if oracle.evaluation is not None:
        bound = throughput_bound_hz(problem)
        assert oracle.evaluation.throughput_hz <= bound * (1 + 1e-9)


@settings(MANY, max_examples=examples(100))
@given(problem=problems())
def test_deterministic_and_rescored(problem):
    first, second = (solve(problem, "lanes", Limits(seed=3)) for _ in range(2))
    assert (first.status, first.mapping, first.evaluation) == (
        second.status,
        second.mapping,
        second.evaluation,
    )
    if first.mapping is not None:
        assert evaluate(problem, first.mapping) == first.evaluation


@settings(MANY, max_examples=examples(100))
@given(problem=problems(chain=True))
def test_a_core_more_never_hurts(problem):
    before = solve(problem)
    more = replace(problem, cluster_sizes=(problem.cluster_sizes[0] + 1, *problem.cluster_sizes[1:]))
    after = solve(more)
    if before.evaluation is not None:
        assert after.evaluation is not None
        assert periods(after.evaluation) >= periods(before.evaluation)


@settings(MANY, max_examples=examples(100))
@given(problem=problems())
def test_infeasible_before_search_is_infeasible_by_brute_force(problem):
    from solvers.topology import contract

    try:
        contract(problem)
    except InfeasibleError:
        assert search_exhaustively(problem, True).status is Status.INFEASIBLE


@pytest.mark.slow
@settings(MANY, max_examples=examples(3000))
@given(problem=problems(links="target"))
def test_thousands_of_instances(problem):
    """Every feature mixed, chains and branching graphs: proved optima equal brute force."""
    oracle = search_exhaustively(problem, False)
    found = solve(problem, "ideal_dp")
    assert (found.evaluation is None) == (oracle.evaluation is None)
    if found.evaluation is not None:
        assert found.status is Status.OPTIMAL
        assert periods(found.evaluation) == periods(oracle.evaluation)


def test_brute_force_tries_every_order_of_turns():
    """Layers 0 and 1 take turns; layer 2 needs 1, so the frame is out sooner when 1 goes first."""
    supported = np.array([[True, False], [True, False], [False, True]])
    problem = Problem(
        np.ones((3, 2), np.int64), supported, (Slot(0, 1), Slot(1, 1)), (1, 1), (Flow(1, (2,), 0),),
        objective=Objective(Goal.LATENCY),
    )  # fmt: skip
    found = search_exhaustively(problem, True)
    assert found.evaluation is not None
    assert found.evaluation.latency_ns == 2
    contiguous = search_exhaustively(problem, False)
    assert contiguous.evaluation is not None
    assert contiguous.evaluation.latency_ns == 3
