"""Search by trial in experiments: in the evaluator, in the simulator, by any function; resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dse import explore
from dse.config import load_experiment
from dse.errors import ConfigError, DeviceError, InputError
from dse.measuring import Trial
from dse.pipeline import measure
from dse.planning import find_plans
from dse.progress import SilentProgress
from dse.trials import Trials, trials_of
from solvers.evaluate import evaluate
from solvers.limits import Limits

pytest.importorskip("optuna")

BOARD = """
model: {zoo: squeezenet, parameters: {size: 64}}
platform:
  name: two plus two
  clusters:
    - {name: LITTLE, cores: 0-1, macs_per_s: 7.2e9, bytes_per_s: 4e9}
    - {name: big, cores: 2-3, macs_per_s: 18.9e9, bytes_per_s: 8e9}
search: {solver: black_box, trials: 30}
cache_dir: CACHE
"""


@pytest.fixture
def experiment(tmp_path):
    def load(*settings):
        path = tmp_path / "x.yaml"
        path.write_text(BOARD.replace("CACHE", str(tmp_path / "cache")))
        return load_experiment(path, list(settings))

    return load


def trials_kept(experiment) -> int:
    """Number of trials that were told to the journal."""
    (journal,) = Path(experiment.cache_dir).glob("trials-*.log")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return sum(line["op_code"] == 6 and line.get("state") == 1 for line in lines)


@pytest.mark.parametrize("objective", ["predicted", "simulated"])
def test_an_experiment_tries_mappings(experiment, objective):
    wanted = experiment(f"search.objective={objective}")
    result = explore.search(wanted)
    assert result.proof.solver == "black_box"
    assert result.proof.status == "feasible"
    assert result.best.feasible
    assert result.best.predicted.throughput_hz <= result.proof.bound_hz * (1 + 1e-9)
    assert trials_kept(wanted) == 30
    again = explore.search(wanted)
    assert [plan.mapping for plan in again.plans] == [plan.mapping for plan in result.plans]
    assert trials_kept(wanted) == 30, "a search that is done is not made again"
    exact = explore.search(experiment("search.solver=lanes"))
    assert result.best.predicted.throughput_hz >= 0.99 * exact.best.predicted.throughput_hz


def test_any_function_can_be_the_objective(experiment, tmp_path):
    """For example one that runs mappings; here it counts cores."""
    wanted = experiment()
    subject = explore.load(wanted, tmp_path)
    costs = explore.find_costs(subject, SilentProgress())
    planner, _, _ = explore.search_plans(subject, costs, SilentProgress())
    scored = []

    def objective(problem):
        def cores(mapping):
            scored.append(mapping)
            return evaluate(problem, mapping).n_cores

        return cores

    trials = Trials("cores", objective, ("minimize",), n_trials=20)
    proof, plans = find_plans(replace(planner, trials=trials), "black_box", Limits(time_s=60), 2)
    assert proof.solver == "black_box"
    assert len(scored) == len(set(scored)) <= 20
    best = next(plan for plan in plans if len(plan.mapping.cores) == 1)
    assert best.feasible


def test_unknown_objectives_are_refused(experiment):
    with pytest.raises(ConfigError, match="predicted"):
        experiment("search.objective=guessed")


def test_running_needs_a_machine_to_run_on(experiment):
    with pytest.raises(InputError, match="use 'dse run' on the machine"):
        explore.search(experiment("search.objective=measured"))


HERE = """
model: {zoo: squeezenet, parameters: {size: 64}}
profile: {budget_s: 2}
search: {solver: black_box, objective: measured, trials: 6, time_s: 120, candidates: 1}
measure: {repeats: 1, seconds: 0.1, rounds: 2, spin_us: 50}
"""


@pytest.mark.slow
def test_the_hardware_drives_the_search(tmp_path, monkeypatch):
    path = tmp_path / "here.yaml"
    path.write_text(HERE + f"output: {tmp_path / 'runs'}\ncache_dir: {tmp_path / 'cache'}\n")
    wanted = load_experiment(path)
    spun = []

    class Spied(measure.Pipeline):
        def __init__(self, *arguments, spin_us, **options):
            spun.append(spin_us)
            super().__init__(*arguments, spin_us=spin_us, **options)

    monkeypatch.setattr(measure, "Pipeline", Spied)
    result = explore.run(wanted)
    assert set(spun) == {50}
    assert len(spun) > trials_kept(wanted), "trials and plans"
    assert result.proof.solver == "black_box"
    log = (result.run_dir / "log.txt").read_text()
    # A mapping that comes up again is not run again; the second round finds all trials made.
    assert 3 <= log.count("frames/s, ") <= 6
    kept = json.loads((result.run_dir / "plans.json").read_text())["trials"]
    assert [plan["name"] for plan in kept] == [f"trial {n}" for n in range(1, log.count("frames/s, ") + 1)]
    for plan in kept:
        assert plan["predicted"]["throughput_hz"] > 0
        assert plan["measured"]["throughput_hz"] > 0
        assert plan["error"] == pytest.approx(
            plan["predicted"]["throughput_hz"] / plan["measured"]["throughput_hz"] - 1, abs=1e-3
        )
        assert plan["mapping"][0][0]["cores"]
    assert trials_kept(wanted) == 6
    assert result.best.measured is not None
    # A fault of one mapping is a failed trial, not the end of the search.
    scorer = Trial.scorer

    def fails_at_times(self, planner):
        score, count = scorer(self, planner), iter(range(100))

        def sometimes(mapping):
            if next(count) % 2:
                raise DeviceError("out of luck")
            return score(mapping)

        return sometimes

    monkeypatch.setattr(Trial, "scorer", fails_at_times)
    again = explore.run(load_experiment(path, ["seed=1", "search.trials=4"]))
    assert again.best.measured is not None


def test_energy_can_not_be_run_for(experiment):
    with pytest.raises(InputError, match="energy is not measured"):
        trials_of(
            experiment("search.objective=measured", "search.goal=energy"),
            SimpleNamespace(),
            (),
            Path(),
            lambda problem: lambda mapping: 0.0,
        )
