"""``dse validate``: measure the mapping of an earlier run again, beside the baselines."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dse.config import Experiment, load_experiment
from dse.costing import read_costs
from dse.errors import InputError, PlatformError
from dse.explore import Subject, conclude, load, make_problem
from dse.files import write_json
from dse.learning import summarise
from dse.mapping_check import check_mapping, check_model
from dse.mapping_file import MappingFile, read_mapping
from dse.measuring import Measurements, Trial
from dse.planning import Planner, merge, predict, role_of
from dse.problems import unplace
from dse.progress import Progress, SilentProgress
from dse.record import results_json, write_traces
from dse.reports.html import write_report
from dse.results import GIVEN, PlanResult, Proof, RunResult, Speed
from dse.rounds import Outcome
from dse.speed import drifted, earlier_rates, speed_since
from dse.staging import Stager
from solvers.baselines import baselines
from solvers.under_load import rate_bound_hz

MAPPING_NAME = "mapping"


@dataclass(frozen=True, slots=True)
class Request:
    """What is validated.

    Parameters
    ----------
    run_dir
        Folder of an earlier run.
    mapping
        A ``mapping.yaml`` to validate instead of the run's own (for example an edited one).
    repeats, seconds, traces, annotate
        Instead of the run's own settings ``measure``, when given; no traces unless given.
    tries
        So often at most everything is measured, until the machine is as fast as it was in the run.
    """

    run_dir: Path
    mapping: Path | None = None
    repeats: int | None = None
    seconds: float | None = None
    traces: tuple[str, ...] = ()
    annotate: bool | None = None
    tries: int = 3


def validate(request: Request, progress: Progress | None = None) -> RunResult:
    """Check outputs and measure a mapping again; writes ``validation.json`` and ``validation.html``.

    Both go into the run folder, as do traces of the mapping (``validation_trace.pftrace`` and
    ``validation_trace.json``).

    Raises
    ------
    InputError
        The folder is not a finished run, or the mapping does not fit the model.
    MismatchError, DeviceError
        The stages do not give the whole model's outputs, or could not be run.
    """
    progress = progress or SilentProgress()
    folder = request.run_dir
    for name in ("config.yaml", "mapping.yaml", "costs.json"):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: not the folder of a finished run ({name} is missing)")
    experiment = _experiment(request)
    content = read_mapping(request.mapping or folder / "mapping.yaml")
    with tempfile.TemporaryDirectory(prefix="dse-validate-") as work:
        subject = load(experiment, Path(work))
        check_model(content, subject.file)
        result = _measure(subject, request, content, Path(work), progress)
    write_json(folder / "validation.json", results_json(result))
    write_report(folder / "validation.html", result)
    return replace(result, run_dir=folder)


def validated(result: RunResult) -> PlanResult:
    """Return the plan that was to be validated, of all those that were measured beside it."""
    return next(plan for plan in result.plans if plan.name.split(" = ")[0] == MAPPING_NAME)


def _experiment(request: Request) -> Experiment:
    experiment = load_experiment(request.run_dir / "config.yaml")
    measure = experiment.measure
    changes = {
        "repeats": request.repeats,
        "seconds": request.seconds,
        "traces": request.traces,
        "annotate": request.annotate,
    }
    measure = measure.model_copy(update={key: value for key, value in changes.items() if value is not None})
    return replace(experiment, measure=measure)


def _measure(
    subject: Subject, request: Request, content: MappingFile, work: Path, progress: Progress
) -> RunResult:
    folder = request.run_dir
    costs = read_costs(folder / "costs.json", subject.file)
    problem, slots, pins = make_problem(subject, costs)
    planner = Planner(problem, subject.platform, slots, pins, costs)
    _check_cores(content)
    check_mapping(content.mapping, subject.graph, subject.platform)
    mapping = unplace(content.mapping, subject.platform, slots)
    chosen = predict(problem, MAPPING_NAME, "candidate", mapping, content.mapping)
    plans: list[PlanResult] = [chosen]
    for known in baselines(problem, names=tuple(map(str, slots))):
        if role_of(known) == "baseline":
            plans.append(planner.plan(known.name, "baseline", known.mapping))
    merged = merge(plans, subject.experiment.search.goal)
    stager = Stager(subject.file, subject.graph, work / "stages")
    parts = subject.experiment, subject.file, subject.graph, stager
    trial = Trial(*parts, Measurements(), progress, costs.yardstick_ns)
    measured, speed = _measure_at_the_same_speed(trial, merged, chosen, request)
    name = next(plan.name for plan in measured if plan.mapping.signature == chosen.mapping.signature)
    write_traces(folder, name, trial.measurements.all, subject.experiment.measure.traces, "validation_trace")
    bound = rate_bound_hz(problem)
    found = chosen.predicted.throughput_hz
    proof = Proof("given mapping", "feasible", GIVEN, bound, None if not bound else bound / found - 1, 0)
    rounds = (summarise(1, measured, measured),)
    warnings = (*trial.warnings, *_speed_warnings(speed))
    outcome = Outcome(proof, measured, trial.check_text, warnings, rounds)
    return replace(conclude(subject, costs, outcome), speed=speed)


def _measure_at_the_same_speed(
    trial: Trial, plans: Sequence[PlanResult], chosen: PlanResult, request: Request
) -> tuple[tuple[PlanResult, ...], Speed | None]:
    """Measure until the machine is as fast as it was in the run; the last time counts."""
    before = earlier_rates(request.run_dir)
    n_tries = 0
    while True:
        measured = trial.measure(plans)
        n_tries += 1
        speed = speed_since(before, measured, chosen.mapping)
        if speed is None or not drifted(speed) or n_tries >= request.tries:
            return measured, speed and replace(speed, n_tries=n_tries)
        again = f"measuring again, {n_tries + 1} of {request.tries} times at most"
        trial.progress.log(f"{_speed_text(speed)} (judged by {speed.judge}): {again}")


def _speed_warnings(speed: Speed | None) -> tuple[str, ...]:
    if speed is None or not drifted(speed):
        return ()
    return (
        f"Drifted: {_speed_text(speed)} (judged by {speed.judge}, {speed.n_tries} times measured). "
        f"Predictions are for the speed in the run.",
    )


def _speed_text(speed: Speed) -> str:
    return f"the machine runs at {1 + speed.change:.0%} of its speed in the run"


def _check_cores(content: MappingFile) -> None:
    """Refuse cores that this process may not use."""
    available = os.sched_getaffinity(0)
    for stage in content.mapping.stages:
        lacking = sorted(set(stage.cpu_cores) - available)
        if lacking:
            raise PlatformError(
                f"mapping: {stage.name} wants cores {lacking}, but this process may only use "
                f"{sorted(available)} (affinity mask)"
            )
