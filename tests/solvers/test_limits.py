"""Searches that are watched, stopped and interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from test_baselines import big_little

from solvers.alternatives import alternatives
from solvers.baselines import searched_baselines
from solvers.errors import ProblemError
from solvers.evaluate import evaluate, score_key
from solvers.limits import Limits, available_cores
from solvers.mapping import Status
from solvers.problem import Goal, Objective
from solvers.registry import SOLVERS, solve
from solvers.what_if import what_if

SEARCHES = sorted(SOLVERS.keys() - {"exhaustive", "black_box"})


def branching(n_layers=24, seed=3):
    """Layers that prefer one cluster or the other: no bound is met, CP-SAT would go on for long."""
    rng = np.random.default_rng(seed)
    problem = big_little(n_layers, max_lanes=1)
    return replace(
        problem, cost_ns=(problem.cost_ns * rng.uniform(0.3, 3, problem.cost_ns.shape)).astype(int)
    )


def test_workers_are_the_affinity_mask():
    assert Limits().workers == available_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("wrong", [{"time_s": -1}, {"gap": -0.1}, {"workers": 0}, {"time_s": float("nan")}])
def test_limits_that_make_no_sense(wrong):
    with pytest.raises(ProblemError, match=f"Limits.{next(iter(wrong))}"):
        Limits(**wrong)


@pytest.mark.parametrize("solver", SEARCHES)
@pytest.mark.parametrize("goal", list(Goal))
def test_progress_only_gets_better(solver, goal):
    problem = replace(
        branching(8), objective=Objective(goal), active_power_mw=(1000, 1900, 2700, 3400, 200, 390, 570, 740)
    )
    states = []
    solution = solve(problem, solver, Limits(time_s=1.0, progress=states.append))
    assert {state.solver for state in states} == {solver}
    assert [state.elapsed_s for state in states] == sorted(state.elapsed_s for state in states)
    bounds = [state.bound_hz for state in states]
    assert bounds == sorted(bounds, reverse=True)
    found = [state for state in states if state.mapping is not None]
    for state in found:
        assert evaluate(problem, state.mapping) == state.evaluation
        assert state.evaluation.feasible
        assert state.gap == pytest.approx(state.bound_hz / state.evaluation.throughput_hz - 1)
    keys = [score_key(problem, state.evaluation) for state in found]
    assert keys == sorted(keys, reverse=True)
    assert found[-1].evaluation == solution.evaluation


def interrupt_at_first_incumbent(state):
    if state.mapping is not None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("solver", SEARCHES)
def test_ctrl_c_returns_the_incumbent(solver):
    problem = branching()
    seen = []

    def progress(state):
        seen.append(state)
        interrupt_at_first_incumbent(state)

    limits = Limits(progress=progress, stop=threading.Event())
    solution = solve(problem, solver, limits)
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE
    assert "interrupted" in solution.reason
    assert solution.mapping == seen[-1].mapping
    assert solution.evaluation == evaluate(problem, solution.mapping)
    assert limits.stop.is_set()


def test_what_needs_no_search_is_better_than_nothing():
    problem = branching()
    stop = threading.Event()
    stop.set()
    for solver in SEARCHES:
        solution = solve(problem, solver, Limits(stop=stop))
        assert solution.interrupted
        assert solution.evaluation.feasible


def test_native_search_ends_at_once():
    """CP-SAT runs in native code, where Python sees no Ctrl-C."""
    problem = branching(60)
    begun = threading.Event()
    thread = threading.Thread(
        target=lambda: (begun.wait(30), time.sleep(0.5), os.kill(os.getpid(), signal.SIGINT)), daemon=True
    )
    thread.start()
    start = time.monotonic()
    solution = solve(problem, "assignment", Limits(time_s=300, progress=lambda _: begun.set()))
    assert time.monotonic() - start < 150
    assert solution.interrupted
    assert solution.evaluation.feasible


def test_time_that_is_up_keeps_the_incumbent():
    problem = replace(branching(80), objective=Objective(Goal.LATENCY, min_throughput_hz=5.0))
    solution = solve(problem, "portfolio", Limits(time_s=0.0))
    assert solution.mapping is not None
    assert not solution.interrupted


@pytest.mark.slow
def test_a_gap_that_is_small_enough_ends_the_search():
    problem = branching(60)
    exact, rough = (solve(problem, "portfolio", Limits(time_s=4, gap=gap)) for gap in (0.0, 1.0))
    assert rough.gap <= 1.0
    assert rough.wall_ns < exact.wall_ns
    assert rough.evaluation.throughput_hz <= exact.evaluation.throughput_hz


def test_whoever_searches_several_times_ends_too():
    problem = branching(12)
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        searched_baselines(problem, Limits(stop=stop))
    with pytest.raises(KeyboardInterrupt):
        alternatives(problem, 4, Limits(stop=stop))
    base = solve(problem)
    answered = what_if(problem, limits=Limits(stop=stop), base=base)
    assert answered.interrupted
    assert not answered.complete
    assert {gain.layer for gain in answered.layers} == set(range(12))
