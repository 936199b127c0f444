"""One suite that every solver of the registry passes, on problems with all features mixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import all_features, examples

from solvers.errors import CapError, UnsupportedProblemError
from solvers.evaluate import evaluate, score_key
from solvers.exhaustive import search_exhaustively
from solvers.limits import Limits
from solvers.mapping import Family, Status
from solvers.problem import Flow, Goal, Pin, Problem, Slot
from solvers.registry import SOLVERS, solve

# The search by trial has a suite of its own: its trials are dear, and what it finds in 2 s depends on the load.
NAMES = sorted(SOLVERS.keys() - {"black_box"})
RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def check(name, problem):
    """Feasible, re-scored equal, deterministic, within the bound, and what is proved is true."""
    limits = Limits(time_s=100.0, seed=5)  # time plays no part
    try:
        first, second = solve(problem, name, limits), solve(problem, name, limits)
    except (CapError, UnsupportedProblemError) as refusal:
        assert str(refusal)
        return
    assert (first.status, first.mapping, first.bound_hz) == (second.status, second.mapping, second.bound_hz)
    assert not first.interrupted
    most_lanes = 1 if name == "interval_dp" else None
    oracle = search_exhaustively(problem, True, most_lanes)
    if first.mapping is None:
        assert first.status in (Status.INFEASIBLE, Status.UNKNOWN)
        assert first.reason
        if first.status is Status.INFEASIBLE:
            contiguous = search_exhaustively(problem, False, most_lanes)
            assert contiguous.mapping is None, first.reason
        return
    assert first.evaluation == evaluate(problem, first.mapping)
    assert first.evaluation.feasible
    assert most_lanes is None or len(first.mapping.lanes) == 1
    assert first.evaluation.throughput_hz <= first.bound_hz * (1 + 1e-9)
    assert oracle.evaluation is not None
    assert goal_of(problem, first) >= goal_of(problem, oracle)
    if problem.objective.goal is Goal.THROUGHPUT:
        assert oracle.evaluation.throughput_hz <= first.bound_hz * (1 + 1e-9) or most_lanes
    if first.bound_latency_ns is not None:
        assert oracle.evaluation.latency_ns >= first.bound_latency_ns
    if first.bound_energy_nj is not None:
        assert oracle.evaluation.energy_nj >= first.bound_energy_nj
    if first.status is not Status.OPTIMAL:
        return
    if first.family is Family.ALL:
        assert goal_of(problem, first) == goal_of(problem, oracle)
    elif first.family is Family.CONTIGUOUS:
        contiguous = search_exhaustively(problem, False, most_lanes)
        assert goal_of(problem, first) <= goal_of(problem, contiguous)


def goal_of(problem, solution):
    """What is made best, smaller is better, exactly."""
    return score_key(problem, solution.evaluation)[:3]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60), **RELAXED)
@given(problem=all_features())
def test_every_solver(name, problem):
    check(name, problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(1500), **RELAXED)
@given(problem=all_features())
def test_every_solver_on_thousands_of_instances(name, problem):
    check(name, problem)


@pytest.mark.parametrize("name", ["lanes", "ideal_dp", "exhaustive"])
@settings(max_examples=examples(60), **RELAXED)
@given(problem=all_features(chain=True), data=st.data())
def test_more_of_a_resource_never_hurts(name, problem, data):
    """Where the optimum is proved on both sides."""
    before = solve(problem, name)
    after = solve(more(problem, data), name)
    if before.status is Status.OPTIMAL and after.status is Status.OPTIMAL and before.family is after.family:
        assert goal_of(problem, after) <= goal_of(problem, before)
    if before.status is Status.OPTIMAL:
        assert after.status is not Status.INFEASIBLE


@pytest.mark.parametrize("last", [[False, True, True], [False, True, False]])
def test_pieces_keep_to_pins(last):
    """Rotated orders once ignored pins, and what no unit then could run was called infeasible."""
    problem = Problem(
        cost_ns=np.array([[1, 1, 1], [1, 1, 2], [1, 1, 1]]),
        supported=np.array([[False, True, True], [True, False, True], last]),
        slots=(Slot(0, 1), Slot(1, 1), Slot(2, 1, host_cluster=0, host_threads=1)),
        cluster_sizes=(1, 1, 1),
        flows=(Flow(None, (0,), 0), *(Flow(layer, (), 0, is_output=True) for layer in range(3))),
        free_within_unit=True,
        pins=(Pin((0,), (2,)),),
        stateful=True,
    )
    for name in NAMES:
        check(name, problem)


def more(problem, data):
    """The same problem with a core, memory, power, time or a lane more."""
    kinds = ["core"]
    for kind, given_here in (
        ("memory_limits_bytes", problem.memory_limits_bytes),
        ("total_memory_limit_bytes", problem.total_memory_limit_bytes),
        ("max_power_mw", problem.max_power_mw),
        ("max_lanes", problem.max_lanes),
        ("n_streams", problem.n_streams if problem.stateful else None),
        ("max_stages", problem.max_stages),
    ):
        if given_here is not None:
            kinds.append(kind)
    kind = data.draw(st.sampled_from(kinds))
    if kind == "core":
        cluster = data.draw(st.integers(0, len(problem.cluster_sizes) - 1))
        sizes = tuple(size + (c == cluster) for c, size in enumerate(problem.cluster_sizes))
        return replace(problem, cluster_sizes=sizes)
    if kind == "memory_limits_bytes":
        limits = tuple(None if limit is None else limit + 20 for limit in problem.memory_limits_bytes)
        return replace(problem, memory_limits_bytes=limits)
    return replace(problem, **{kind: getattr(problem, kind) + 1})
