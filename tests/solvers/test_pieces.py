"""Plans whose stages take turns, under every goal and limit: the model, and the search against brute force."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from threading import Event

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_problems import all_features, examples, problems
from test_baselines import big_little

from solvers import pieces
from solvers.errors import InfeasibleError
from solvers.evaluate import evaluate, score_key
from solvers.exhaustive import search_exhaustively
from solvers.lane_model import LaneModel, Room
from solvers.limits import NO_GAP, Limits
from solvers.mapping import Family, Lane, Mapping, Stage, Status
from solvers.pieces import JOINED, improve_pieces
from solvers.problem import Constant, Flow, Goal, Objective, Problem, Slot
from solvers.registry import solve
from solvers.topology import contract, orders
from solvers.violations import home_of

MANY = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
LIMITS = Limits(time_s=20.0, workers=1)


@st.composite
def lanes_along_orders(draw):
    """A problem of single layers, an order, and a lane cut along it whose units may hold several pieces."""
    problem = draw(problems(max_layers=5, memory=True))
    problem = replace(
        problem,
        groups=(),
        pins=(),
        stage_times=(),
        overlap=False,
        memory_limits_bytes=None,
        total_memory_limit_bytes=None,
        max_stages=None,
        free_within_unit=draw(st.booleans()),
        active_power_mw=tuple(draw(st.integers(1, 30)) for _ in problem.slots),
    )
    try:
        blocks = contract(problem)
    except InfeasibleError:
        assume(False)
    order = draw(st.sampled_from(list(orders(blocks, 6, draw(st.integers(0, 9))))))
    units = tuple(range(len(problem.slots)))
    stages = []
    for place, block in enumerate(order):
        layer = blocks.members[block][0]
        allowed = [u for u in units if blocks.allowed[block, u]]
        unit = draw(st.sampled_from(allowed))
        if place and stages[-1].unit == unit and draw(st.booleans()):
            stages[-1] = Stage(tuple(sorted((*stages[-1].layers, layer))), unit, unit)
        else:
            stages.append(Stage((layer,), unit, unit))
    lane = Lane(tuple(stages))
    assume(evaluate(problem, Mapping((lane,))).feasible)
    return blocks, order, units, lane


def fixed(blocks, order, units, lane, room):
    """The least objective that the model gives this very lane, None where it refuses it."""
    model = LaneModel(blocks, order, units, room)
    home = {layer: number for number, stage in enumerate(lane.stages) for layer in stage.layers}
    before = None
    for place, block in enumerate(order):
        number = home[blocks.members[block][0]]
        for unit, choice in model._x[place].items():
            model._model.add(choice == (unit == lane.stages[number].unit))
        model._model.add(model._cut[place] == (number != before))
        before = number
    found = model.solve(20.0, LIMITS, None)
    assert found.best is None or found.best == lane
    return None if found.best is None else round(found.bound)


@MANY
@given(case=lanes_along_orders())
def test_the_model_is_what_the_evaluator_says(case):
    blocks, order, _, lane = case
    problem = blocks.problem
    evaluation = evaluate(problem, Mapping((lane,)))
    scored = evaluation.lanes[0]
    energy = sum(
        numbers.busy_ns * problem.active_power_mw[stage.slot]
        for stage, numbers in zip(lane.stages, scored.stages)
    )
    n = len(problem.cluster_sizes)
    room = Room(Goal.THROUGHPUT, problem.cluster_sizes, (None,) * n)
    assert fixed(*case, room) == scored.period_ns
    latency = fixed(*case, replace(room, goal=Goal.LATENCY))
    assert latency == scored.latency_ns
    assert fixed(*case, replace(room, goal=Goal.ENERGY, period_price_mw=3)) == energy + 3 * scored.period_ns
    power = Fraction(energy, scored.period_ns)
    limits = [
        {"max_latency_ns": scored.latency_ns},
        {"max_period_ns": scored.period_ns},
        {"max_power_mw": power},
    ]
    beyond = [
        {"max_latency_ns": scored.latency_ns - 1},
        {"max_period_ns": scored.period_ns - 1},
        {"max_power_mw": power - Fraction(1, 10**6)},
    ]
    if all(a < b for a, b in pairwise(order) if home_of(lane)[a] == home_of(lane)[b]):
        # What lives in a stage depends on the order of its layers, which is ascending.
        limits += [
            {"total_memory_bytes": sum(evaluation.memory_bytes)},
            {"memory_bytes": evaluation.memory_bytes},
        ]
        if any(evaluation.memory_bytes):
            beyond.append({"total_memory_bytes": sum(evaluation.memory_bytes) - 1})
    for limit in limits:
        assert fixed(*case, replace(room, **limit)) == scored.period_ns, limit
    for limit in beyond:
        assert fixed(*case, replace(room, **limit)) is None, limit


def value_of(problem, evaluation):
    """What is made best, and whether it is at all, smaller is better."""
    return score_key(problem, evaluation)[:3]


@settings(MANY, max_examples=examples(40))
@given(problem=all_features(chain=True))
def test_one_lane_of_a_chain_is_solved_and_proved(problem):
    """The model is exact there: the best of all mappings, whatever the goal and the limits."""
    problem = replace(
        problem, max_lanes=1, stage_times=(), overlap=False, loaded_cost_ns=None, max_power_mw=None
    )
    oracle = search_exhaustively(problem, True)
    limits = Limits(time_s=60.0)
    try:
        found = improve_pieces(problem, solve(problem, "lanes", limits), limits)
    except InfeasibleError:
        assert oracle.evaluation is None
        return
    if oracle.evaluation is None:
        assert found.mapping is None
        return
    assert value_of(problem, found.evaluation) == value_of(problem, oracle.evaluation)
    assert found.gap <= NO_GAP


@settings(MANY, max_examples=examples(60))
@given(problem=all_features(), joined=st.sampled_from([JOINED, (1, 2)]))
def test_between_contiguous_and_brute_force_for_every_goal(problem, joined):
    """Also where neighbours are joined first, as in models of many layers."""
    limits = Limits(time_s=60.0)
    oracle = search_exhaustively(problem, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "JOINED", joined)
        found, contiguous = solve(problem, "portfolio", limits), solve(problem, "lanes", limits)
    if found.evaluation is None:
        assert contiguous.evaluation is None
        return
    best = oracle.evaluation
    assert value_of(problem, found.evaluation) >= value_of(problem, best)
    if contiguous.evaluation is not None:
        assert value_of(problem, found.evaluation) <= value_of(problem, contiguous.evaluation)
    for solution in (found, contiguous):
        assert solution.bound_latency_ns is None or best.latency_ns >= solution.bound_latency_ns
        assert solution.bound_energy_nj is None or best.energy_nj >= solution.bound_energy_nj


@pytest.mark.parametrize(
    ("extra", "n_stages", "latency_ns"),
    [
        ({"objective": Objective(Goal.LATENCY)}, 3, 1_900_000),
        ({"objective": Objective(Goal.ENERGY)}, 3, 1_900_000),
        ({"objective": Objective(max_latency_ns=2_700_000), "max_lanes": 1}, 3, 1_900_000),
        ({"objective": Objective(Goal.LATENCY), "max_stages": 2}, 2, 5_450_000),
        ({"objective": Objective(Goal.LATENCY), "memory_limits_bytes": (None, 700)}, 3, 3_700_000),
    ],
)
def test_an_accelerator_works_before_and_after_what_it_refuses(extra, n_stages, latency_ns):
    """Contiguous plans have to stay off an accelerator once they left it."""
    cost = np.array([[1_000_000, 100_000]] * 9)
    supported = np.ones((9, 2), bool)
    supported[4, 1] = False
    problem = Problem(
        cost,
        supported,
        (Slot(0, 1), Slot(1, 1)),
        (1, 1),
        tuple(Flow(i, (i + 1,), 10) for i in range(8)),
        tuple(Constant(100, (layer,)) for layer in range(9)),
        setup_ns=np.full((2, 2), 50_000),
        active_power_mw=(1000, 1000),
        **extra,
    )
    found, contiguous = solve(problem), solve(problem, "lanes")
    assert len(found.mapping.lanes[0].stages) == n_stages
    assert (found.status, found.family, found.gap) == (Status.OPTIMAL, Family.ALL, 0)
    assert found.evaluation.latency_ns == latency_ns
    if n_stages == 3:
        assert contiguous.mapping is None or contiguous.evaluation.latency_ns > latency_ns


def test_a_stopped_search_answers_the_best_until_then():
    problem = big_little(
        60, overhead_ns=np.full(8, 5000), objective=Objective(Goal.LATENCY, min_throughput_hz=100.0)
    )
    stop, told = Event(), []

    def progress(state):
        if state.evaluation is not None:
            told.append(state.evaluation.latency_ns)
        if len(told) > 2:
            stop.set()

    found = solve(problem, limits=Limits(time_s=60.0, stop=stop, progress=progress))
    assert found.interrupted
    assert found.evaluation.feasible
    assert found.evaluation.latency_ns == min(told)
    assert found.evaluation.latency_ns >= found.bound_latency_ns
