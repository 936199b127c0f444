"""Baselines and alternatives: always there, named, and never better than the answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_problems import examples, problems

from solvers.alternatives import alternatives, signature
from solvers.baselines import Role, baselines
from solvers.evaluate import evaluate, score_key
from solvers.exhaustive import search_exhaustively
from solvers.mapping import Status
from solvers.problem import Flow, Pin, Problem, Slot
from solvers.registry import solve

SOME = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def big_little(n_layers=8, seed=1, **extra):
    rng = np.random.default_rng(seed)
    slots = tuple(Slot(cluster, threads) for cluster in range(2) for threads in range(1, 5))
    base = rng.integers(100_000, 1_000_000, n_layers)
    cost = np.stack(
        [base * (1 + 1.5 * s.cluster) * rng.uniform(0.8, 1.2, n_layers) / s.threads**0.8 for s in slots], 1
    ).astype(np.int64)
    flows = tuple(Flow(i, (i + 1,), 1000) for i in range(n_layers - 1))
    return Problem(cost, np.ones(cost.shape, bool), slots, (4, 4), flows, **extra)


@SOME
@given(problem=problems())
def test_answer_is_never_worse_than_a_feasible_baseline(problem):
    answer = solve(problem)
    if answer.status is Status.INFEASIBLE:
        return
    for plan in baselines(problem):
        assert plan.evaluation == evaluate(problem, plan.mapping)
        if plan.evaluation.feasible:
            assert answer.evaluation is not None
            assert score_key(problem, answer.evaluation)[:4] <= score_key(problem, plan.evaluation)[:4]


def test_every_role_is_there():
    plans = baselines(big_little(), ("big", "LITTLE"))
    names = [plan.name for plan in plans]
    assert names[:8] == [f"whole, {n} {c}" for c in ("big", "LITTLE") for n in range(1, 5)]
    assert names[8] == "copies, 4 x 1 big + 4 x 1 LITTLE"
    assert [plan.role for plan in plans[9:]] == [Role.PIPELINE, Role.MIX]


def test_copies_stay_within_streams():
    plans = baselines(big_little(stateful=True, n_streams=3), ("big", "LITTLE"))
    copies = next(plan for plan in plans if plan.role is Role.COPIES)
    assert copies.name == "copies, 3 x 1 big"
    assert "5 copies left out" in copies.note
    assert copies.evaluation.feasible


def test_pinned_problem_keeps_infeasible_baselines_with_their_violations():
    plans = baselines(big_little(pins=(Pin((0, 1), (2,)), Pin((2,), (0,)), Pin(tuple(range(3, 8)), (7,)))))
    whole = plans[0]
    assert {violation.constraint for violation in whole.evaluation.violations} == {"pin"}
    best = plans[-1]
    assert best.evaluation.feasible
    (lane,) = best.mapping.lanes
    assert [(stage.layers, stage.slot) for stage in lane.stages] == [
        ((0, 1), 2),
        ((2,), 0),
        (tuple(range(3, 8)), 7),
    ]
    assert best.evaluation.cores_used == (4, 4)


def test_encoder_layer_i_on_core_i():
    pins = tuple(Pin((i,), (4,)) for i in range(4))
    best = solve(big_little(n_layers=4, pins=pins))
    assert best.mapping is not None
    (lane,) = best.mapping.lanes
    assert [stage.layers for stage in lane.stages] == [(0,), (1,), (2,), (3,)]
    assert len({stage.unit for stage in lane.stages}) == 4
    assert best.evaluation.cores_used == (0, 4)


@SOME
@given(problem=problems())
def test_alternatives_are_feasible_different_and_begin_with_the_answer(problem):
    answer = solve(problem)
    if answer.mapping is None:
        return
    found = alternatives(problem, 5)
    assert found[0] == answer.mapping
    assert len(set(found)) == len(found)
    assert all(evaluate(problem, mapping).feasible for mapping in found)


def test_alternatives_differ_in_structure_and_come_best_first():
    problem = big_little(12)
    found = alternatives(problem, 8)
    assert len({signature(mapping) for mapping in found}) == 8
    keys = [score_key(problem, evaluate(problem, mapping)) for mapping in found]
    assert keys == sorted(keys)


def test_second_alternative_is_the_best_other_structure():
    problem = big_little(4)
    small = Problem(
        problem.cost_ns[:, [0, 1, 4]],
        problem.supported[:, [0, 1, 4]],
        (Slot(0, 1), Slot(0, 2), Slot(1, 1)),
        (2, 1),
        problem.flows,
    )
    first, second = alternatives(small, 2)
    best = search_exhaustively(small, shared_units=False)
    assert evaluate(small, first).frames_per_ns == best.evaluation.frames_per_ns
    assert evaluate(small, second).throughput_hz > 0.5 * evaluate(small, first).throughput_hz


@pytest.mark.parametrize(
    ("pins", "text"),
    [
        ((Pin((0,), (3,)), Pin((1,), (1,))), "cores of cluster 0, limit 4"),
        ((Pin((0,), (0,)), Pin((0, 1), (1,))), "2 pins"),
        ((Pin((0, 2), (0,)), Pin((1,), (1,))), "limit 1"),
    ],
)
def test_contradicting_pins_are_named(pins, text):
    solution = solve(big_little(pins=pins))
    assert solution.status is Status.INFEASIBLE
    assert text in solution.reason
