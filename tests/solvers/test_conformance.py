"""One suite that every solver of the registry passes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from random_problems import examples, problems

from solvers.errors import CapError, UnsupportedProblemError
from solvers.evaluate import evaluate
from solvers.exhaustive import search_exhaustively
from solvers.limits import Limits
from solvers.mapping import Family, Status
from solvers.registry import SOLVERS, solve


# The search by trial has a suite of its own: its trials are dear, and what it finds in 2 s depends on the load.
@pytest.mark.parametrize("name", sorted(SOLVERS.keys() - {"black_box"}))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_layers=4))
def test_feasible_rescored_deterministic_and_within_bounds(name, problem):
    limits = Limits(time_s=2.0, seed=5)
    try:
        first, second = solve(problem, name, limits), solve(problem, name, limits)
    except (CapError, UnsupportedProblemError) as refusal:
        assert str(refusal)
        return
    assert (first.status, first.mapping) == (second.status, second.mapping)
    oracle = search_exhaustively(problem, True, 1 if name == "interval_dp" else None)
    if first.mapping is None:
        assert first.status in (Status.INFEASIBLE, Status.UNKNOWN)
        assert first.reason
        if first.status is Status.INFEASIBLE and first.family is Family.ALL and name == "exhaustive":
            assert oracle.mapping is None
        return
    assert first.evaluation == evaluate(problem, first.mapping)
    assert first.evaluation.feasible
    assert first.evaluation.throughput_hz <= first.bound_hz * (1 + 1e-9)
    assert oracle.evaluation is not None
    assert first.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns
    if first.status is Status.OPTIMAL and first.family is Family.ALL:
        assert first.evaluation.frames_per_ns == oracle.evaluation.frames_per_ns
