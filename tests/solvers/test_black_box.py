"""The search by trial: what it suggests, exact budgets, resuming, and that it finds what is there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_problems import problems

from solvers.black_box import BlackBoxOptions, search_black_box, solve_black_box
from solvers.errors import InfeasibleError, MappingError, MissingSolverExtraError, ProblemError
from solvers.evaluate import evaluate
from solvers.exhaustive import every_lane
from solvers.limits import Limits
from solvers.mapping import Lane, Mapping, Stage, Status
from solvers.objectives import simulated
from solvers.pareto import dominates
from solvers.problem import Flow, Goal, Objective, Problem, Slot
from solvers.registry import solve
from solvers.suggestions import MappingSpace, Table, canonical

optuna = pytest.importorskip("optuna")
RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def small(**extra):
    cost = np.array([[9, 5, 20], [14, 8, 30], [6, 4, 7], [20, 11, 50], [5, 3, 9]])
    flows = (Flow(None, (0,), 1), *(Flow(a, (a + 1,), 1) for a in range(4)))
    slots = (Slot(0, 1), Slot(0, 2), Slot(1, 1))
    return Problem(cost, np.ones(cost.shape, bool), slots, (2, 2), flows, **extra)


def rate(problem):
    return lambda mapping: float(evaluate(problem, mapping).frames_per_ns)


class Dice:
    """A chooser that answers at random."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def integer(self, name, low, high):
        return int(self.rng.integers(low, high + 1))

    def category(self, name, n):
        return int(self.rng.integers(n))

    def share(self, name):
        return float(self.rng.random())


@RELAXED
@given(problem=problems(max_layers=6, memory=True), seed=st.integers(0, 10**6))
def test_every_suggestion_is_feasible_and_repeats(problem, seed):
    try:
        space = MappingSpace(problem, Limits())
    except InfeasibleError:
        assume(False)
    mappings = [space.suggest(Dice(seed + n)).mapping for n in range(20)]
    assert all(evaluate(problem, mapping).feasible for mapping in mappings)
    assert mappings == [space.suggest(Dice(seed + n)).mapping for n in range(20)]


@RELAXED
@given(problem=problems(max_layers=4), data=st.data())
def test_choices_of_a_lane_mean_that_lane(problem, data):
    try:
        space = MappingSpace(problem, Limits())
    except InfeasibleError:
        assume(False)
    lanes = [Mapping((lane,)) for lane in every_lane(problem, shared_units=False)]
    lanes = [mapping for mapping in lanes if evaluate(problem, mapping).feasible]
    assume(lanes)
    wanted = data.draw(st.sampled_from(lanes))
    suggestion = space.suggest(Table(space.choices(wanted)))
    blocks = [{space.blocks.of_layer[n] for n in stage.layers} for stage in wanted.lanes[0].stages]
    ends = np.cumsum([len(part) for part in blocks])
    contiguous = any(
        all(set(order[end - len(part) : end]) == part for end, part in zip(ends, blocks, strict=True))
        for order in space.orders
    )
    assume(contiguous)  # a few random orders need not hold every lane of a branching graph
    assert canonical(suggestion.mapping) == canonical(wanted)
    assert not suggestion.repaired


def test_copies_and_turns_can_be_said():
    problem = small()
    space = MappingSpace(problem, Limits())
    whole = (0, 1, 2, 3, 4)
    for wanted in (
        Mapping(tuple(Lane((Stage(whole, slot, unit),)) for unit, slot in enumerate((0, 0, 2, 2)))),
        Mapping((Lane((Stage((0,), 0, 0), Stage((1, 2), 2, 1), Stage((3, 4), 0, 0))),)),
    ):
        suggestion = space.suggest(Table(space.choices(wanted)))
        assert canonical(suggestion.mapping) == canonical(wanted)
        assert not suggestion.repaired


def test_what_does_not_fit_is_repaired():
    supported = np.ones((5, 3), bool)
    supported[2, :2] = False  # layer 2 runs on LITTLE only
    supported[3, 2] = False  # and layer 3 does not
    problem = replace(small(), supported=supported)
    space = MappingSpace(problem, Limits())
    suggestion = space.suggest(Table({"lane0.copies": 9}))
    assert suggestion.repaired
    assert [stage.layers for stage in suggestion.mapping.lanes[0].stages] == [(0, 1, 2), (3, 4)] or len(
        suggestion.mapping.lanes[0].stages
    ) > 1
    assert evaluate(problem, suggestion.mapping).feasible


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_same_seed_same_trials_and_the_best_is_good(sampler):
    problem = small()
    options = BlackBoxOptions(sampler, n_trials=40, seed=3)
    result = search_black_box(problem, rate(problem), options)
    assert len(result.tried) == 40
    assert result == search_black_box(problem, rate(problem), options)
    other = search_black_box(problem, rate(problem), replace(options, seed=4))
    assert [tried.mapping for tried in other.tried] != [tried.mapping for tried in result.tried]
    assert result.best.values[0] == max(tried.values[0] for tried in result.tried)
    assert all(rate(problem)(tried.mapping) == tried.values[0] for tried in result.tried)
    best = float(solve(problem).evaluation.frames_per_ns)
    assert 0.8 * best <= result.best.values[0] <= best * 1.25  # turns may beat contiguous plans


def test_front_of_two_objectives():
    problem = small()

    def both(mapping):
        evaluation = evaluate(problem, mapping)
        return float(evaluation.frames_per_ns), evaluation.latency_ns

    entered = []
    options = BlackBoxOptions("nsga2", n_trials=80, directions=("maximize", "minimize"))
    result = search_black_box(problem, both, options, entered.append)
    points = [(-tried.values[0], tried.values[1]) for tried in result.tried]
    front = [(-tried.values[0], tried.values[1]) for tried in result.front]
    assert len(front) > 1
    assert not any(dominates(point, best) for point in points for best in front)
    assert {tried.trial for tried in result.front} <= {tried.trial for tried in entered}


@pytest.mark.parametrize("n_trials", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_budgets_are_exact_with_workers_and_when_resumed(tmp_path, n_trials):
    problem = small()
    calls = []
    lock = threading.Lock()

    def slow(mapping):
        with lock:
            calls.append(mapping)
        time.sleep(0.001)
        return rate(problem)(mapping)

    options = BlackBoxOptions("random", n_trials=n_trials, workers=4, storage=tmp_path / "trials.log")
    first = search_black_box(problem, slow, options)
    assert len(first.tried) == n_trials
    n_calls = len(calls)
    assert search_black_box(problem, slow, options).tried == first.tried  # adds none
    assert len(calls) == n_calls
    more = search_black_box(problem, slow, replace(options, n_trials=n_trials + 9, workers=3))
    assert len(more.tried) == n_trials + 9
    assert more.tried[:n_trials] == first.tried


WORKER = """
import sys, time, pathlib
sys.path[:0] = ["tests/solvers", "."]
from test_black_box import small, rate
from solvers.black_box import BlackBoxOptions, search_black_box
problem = small()
def slow(mapping):
    time.sleep(0.005)
    return rate(problem)(mapping)
search_black_box(problem, slow, BlackBoxOptions("random", n_trials=30, workers=2, storage=pathlib.Path(sys.argv[1])))
"""


def test_budgets_are_exact_over_processes(tmp_path):
    storage = tmp_path / "trials.log"
    children = [subprocess.Popen([sys.executable, "-c", WORKER, str(storage)]) for _ in range(2)]
    assert [child.wait(120) for child in children] == [0, 0]
    result = search_black_box(small(), rate(small()), BlackBoxOptions("random", n_trials=30, storage=storage))
    assert len(result.tried) == 30


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_an_interrupted_search_goes_on_as_if_it_had_not_been(tmp_path, sampler):
    problem = small()
    options = BlackBoxOptions(sampler, n_trials=22, seed=1)
    whole = search_black_box(problem, rate(problem), options)
    calls = []

    def interrupted(mapping):
        calls.append(mapping)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return rate(problem)(mapping)

    options = replace(options, storage=tmp_path / "b.log")
    with pytest.raises(KeyboardInterrupt):
        search_black_box(problem, interrupted, options)
    resumed = search_black_box(problem, rate(problem), options)
    assert [(t.mapping, t.values) for t in resumed.tried] == [(t.mapping, t.values) for t in whole.tried]
    assert resumed.n_failed == 0


def test_trials_of_a_process_that_died_are_made_up_for(tmp_path):
    storage = tmp_path / "trials.log"
    killed = WORKER.replace("time.sleep(0.005)", "time.sleep(60)")
    child = subprocess.Popen([sys.executable, "-c", killed, str(storage)])
    backend = optuna.storages.journal.JournalFileBackend
    for _ in range(600):
        time.sleep(0.1)
        if storage.exists() and '"mapping"' in storage.read_text():
            break
    child.kill()
    child.wait()
    result = search_black_box(small(), rate(small()), BlackBoxOptions("random", n_trials=10, storage=storage))
    assert len(result.tried) == 10
    study = optuna.load_study(
        study_name="mappings", storage=optuna.storages.JournalStorage(backend(str(storage)))
    )
    assert study.user_attrs["abandoned"]
    # Parameters are stored with every trial that was not given.
    assert all("types" in trial.params for trial in study.trials if trial.values)


def test_warm_starts_are_tried_first_and_exactly():
    problem = small()
    best = solve(problem).mapping
    shared = Mapping((Lane((Stage((0, 4), 0, 0),)), Lane(())))
    options = BlackBoxOptions(n_trials=5, warm_start=(best,))
    result = search_black_box(problem, rate(problem), options)
    assert result.tried[0].mapping == canonical(best)
    assert result.best.values[0] >= rate(problem)(best)
    with pytest.raises(MappingError):
        search_black_box(problem, rate(problem), replace(options, warm_start=(shared,)))
    two = Mapping((Lane((Stage((0, 1, 2, 3), 0, 0),)),))
    with pytest.raises(MappingError, match="coverage"):
        search_black_box(problem, rate(problem), replace(options, warm_start=(two,)))


def test_errors_of_the_objective():
    problem = small()
    calls = []

    def flaky(mapping):
        calls.append(mapping)
        if len(calls) % 3 == 0:
            raise OSError("the device went away")
        return rate(problem)(mapping)

    with pytest.raises(OSError, match="went away"):
        search_black_box(problem, flaky, BlackBoxOptions("random", n_trials=20))
    calls.clear()
    result = search_black_box(problem, flaky, BlackBoxOptions("random", n_trials=20, catch=(OSError,)))
    assert result.n_failed > 0
    assert len(result.tried) + result.n_failed == 20
    for wrong in (float("nan"), (1.0, 2.0), "fast", None):
        with pytest.raises(ProblemError, match="the objective returned"):
            search_black_box(problem, lambda _, wrong=wrong: wrong, BlackBoxOptions(n_trials=3))


def test_a_storage_belongs_to_one_search(tmp_path):
    problem = small()
    options = BlackBoxOptions("random", n_trials=3, storage=tmp_path / "trials.log")
    search_black_box(problem, rate(problem), options)
    with pytest.raises(ProblemError, match="holds another search"):
        search_black_box(problem, rate(problem), replace(options, directions=("minimize",)))
    with pytest.raises(ProblemError, match="holds another search"):
        search_black_box(replace(problem, cluster_sizes=(2, 1)), rate(problem), options)


def test_time_limits_start_no_more_trials():
    problem = small()
    result = search_black_box(problem, rate(problem), BlackBoxOptions(n_trials=10**6, time_s=0))
    assert len(result.tried) == 1


@pytest.mark.parametrize("goal", list(Goal))
def test_as_a_solver(goal):
    power = {"active_power_mw": (100, 220, 20), "idle_power_mw": 5}
    problem = small(objective=Objective(goal), **power)
    solution = solve(problem, "black_box", Limits(seed=5))
    assert solution.evaluation == evaluate(problem, solution.mapping)
    assert solution.evaluation.feasible
    if goal is Goal.LATENCY:
        assert solution.mapping == solve_black_box(problem, Limits(seed=5)).mapping


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_layers=3))
def test_the_solver_keeps_the_rules_of_all_solvers(problem):
    first, second = (solve(problem, "black_box", Limits(time_s=600)) for _ in range(2))
    assert (first.status, first.mapping) == (second.status, second.mapping)
    if first.mapping is None:
        assert first.status is Status.INFEASIBLE
        assert first.reason
        return
    assert first.evaluation.feasible
    assert first.evaluation.throughput_hz <= first.bound_hz * (1 + 1e-9)
    oracle = solve(problem, "exhaustive")
    assert first.evaluation.frames_per_ns <= oracle.evaluation.frames_per_ns


def test_the_simulator_as_the_objective():
    problem = small()
    options = BlackBoxOptions("random", n_trials=8, directions=("maximize", "minimize"))
    result = search_black_box(problem, simulated(problem), options)
    for tried in result.tried:
        assert tried.values[0] == pytest.approx(evaluate(problem, tried.mapping).throughput_hz, rel=0.01)


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingSolverExtraError, match=r"tflite-dse\[search\]"):
        solve_black_box(small(), Limits())


@pytest.mark.parametrize(
    "extra",
    [{"sampler": "magic"}, {"n_trials": 0}, {"workers": 0}, {"directions": ()}, {"directions": ("up",)}],
)
def test_bad_options_are_refused(extra):
    with pytest.raises(ProblemError):
        BlackBoxOptions(**extra)


def test_a_problem_without_a_mapping():
    problem = replace(small(), supported=np.zeros((5, 3), bool))
    with pytest.raises(InfeasibleError):
        solve_black_box(problem, Limits())
