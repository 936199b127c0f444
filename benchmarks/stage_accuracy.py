"""How well stages are predicted: ``python -m benchmarks.stage_accuracy [MODEL...] --output FILE``.

For every model (eight of the zoo when none is given): how far the plain sum of the layers is from the
measured whole model, on every slot; and for every stage of the best plan and of the best pipeline, run
as in ``dse run``, how far three predictions are from the measured time: the plain sum of its layers,
the sum scaled to the whole model, and (measured again, after what a first measurement corrected) the
whole-stage correction.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dse import conditions
from dse.config import experiment_for_model
from dse.costs import CostTable
from dse.errors import DseError
from dse.explore import Subject, find_costs, load, search_plans
from dse.files import write_json
from dse.learning import learn
from dse.measuring import Measurements, Trial
from dse.planning import Planner
from dse.problems import unplace
from dse.progress import SilentProgress
from dse.results import PlanResult
from dse.staging import Stager
from dse.zoo import build_file
from solvers.evaluate import evaluate
from solvers.problem import Problem

EIGHT: dict[str, dict[str, int]] = {
    "mobilenet_v1": {},
    "mobilenet_v2": {},
    "mobilenet_v2_int8": {},
    "squeezenet": {},
    "googlenet": {},
    "resnet50": {},
    "bert_encoder": {"hidden": 256, "heads": 4, "layers": 4, "intermediate": 1024},
    "unet": {},
}
WAYS = ("plain", "scaled", "corrected")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per stage and the errors over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--budget-s", type=float, default=4.0, help="For the layers of a model.")
    parser.add_argument("--seconds", type=float, default=0.5, help="Of one repeat of one plan.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dse-accuracy-") as name:
        folder = Path(name)
        print(f"{'model: slot or stage':46} {'measured':>11} " + " ".join(f"{way:>9}" for way in WAYS))
        for path in options.models or build_eight(folder):
            settings = (
                f"profile.budget_s={options.budget_s}",
                f"measure.repeats={options.repeats}",
                f"measure.seconds={options.seconds}",
                f"cache_dir={folder}/cache",
            )
            try:
                study = study_model(path, settings, folder)
            except DseError as error:
                print(f"{path.stem}: {error}", flush=True)
                continue
            found.append(study)
            tell(study)
    result = {
        "machine": conditions.machine(),
        "sum_of_layers": summary([row["plain"] for study in found for row in study["wholes"]]),
        "stages": {way: summary([r[way] for study in found for r in study["stages"]]) for way in WAYS},
        "disturbed": sum(study["disturbed"] for study in found),
        "models": found,
    }
    print(f"plain sum of layers against the whole model: {result['sum_of_layers']}")
    for way, numbers in result["stages"].items():
        print(f"stages, {way}: {numbers}")
    if options.output is not None:
        write_json(options.output, result)


def build_eight(folder: Path) -> list[Path]:
    """Write the models of ``EIGHT``."""
    paths = [folder / f"{name}.tflite" for name in EIGHT]
    for path in paths:
        build_file(path.stem, path, EIGHT[path.stem])
    return paths


def study_model(path: Path, settings: Sequence[str], folder: Path) -> dict[str, Any]:
    """Profile a model, search, run the best plans twice, and compare."""
    progress = SilentProgress()
    work = folder / path.stem
    work.mkdir()
    subject = load(experiment_for_model(path, list(settings)), work)
    table = find_costs(subject, progress)
    planner, _, plans = search_plans(subject, table, progress)
    chosen = best_plans(plans)
    stager = Stager(subject.file, subject.graph, work / "stages")
    trial = Trial(subject.experiment, subject.file, subject.graph, stager, Measurements(), progress)
    first = trial.measure(chosen, 1)
    learned = learn(planner, [(plan.mapping, trial.measurement(plan)) for plan in first])
    second = trial.measure(chosen, 2)
    plain = dataclasses.replace(planner, problem=unscaled(planner.problem, subject, table))
    planners = dict(zip(WAYS, (plain, planner, learned), strict=True))
    return {
        "model": path.stem,
        "layers": len(subject.graph.layers),
        "wholes": [
            {"slot": str(slot), "measured_ns": whole.median_ns, "plain": 1 / factor - 1}
            for slot, whole, factor in zip(table.slots, table.whole, table.calibration, strict=True)
            if whole is not None and factor
        ],
        "stages": [row for plan in second for row in stage_rows(plan, planners)],
        "disturbed": sum(plan.measured.disturbed for plan in second if plan.measured),
    }


def best_plans(plans: Sequence[PlanResult]) -> list[PlanResult]:
    """Return the plan predicted best, and the one predicted best of those that cut the model."""
    feasible = [plan for plan in plans if plan.feasible]
    rate: Callable[[PlanResult], float] = lambda plan: plan.predicted.throughput_hz  # noqa: E731
    cut = [plan for plan in feasible if any(len(lane.stages) > 1 for lane in plan.mapping.lanes)]
    chosen = [max(feasible, key=rate)]
    if cut and (best := max(cut, key=rate)) is not chosen[0]:
        chosen.append(best)
    return chosen


def unscaled(problem: Problem, subject: Subject, table: CostTable) -> Problem:
    """Return the problem with the plain sum of layers: not scaled to the measured whole model."""
    factors = [
        table.calibration[table.slots.index(slot)] for slot in subject.platform.slots if slot in table.slots
    ]
    costs = np.rint(problem.cost_ns / np.array([factor or 1.0 for factor in factors])).astype(np.int64)
    return dataclasses.replace(problem, cost_ns=costs, stage_times=())


def stage_rows(plan: PlanResult, planners: dict[str, Planner]) -> list[dict[str, Any]]:
    """Return, per different stage of a plan, its measured time and the errors of the predictions."""
    predicted = {}
    for way, planner in planners.items():
        mapping = unplace(plan.mapping, planner.platform, planner.slots)
        scored = evaluate(planner.problem, mapping)
        predicted[way] = [stage.busy_ns for lane in scored.lanes for stage in lane.stages]
    return [
        {
            "stage": f"{plan.name}, {stage.name}",
            "measured_ns": stage.measured_busy_ns,
            "utilisation": stage.utilisation,
            **{way: predicted[way][number] / stage.measured_busy_ns - 1 for way in planners},
        }
        for number, stage in enumerate(plan.stages)
        if stage.measured_busy_ns
    ]


def summary(errors: Sequence[float]) -> dict[str, Any]:
    """Return median and largest absolute error, and over how many."""
    sizes = [abs(error) for error in errors]
    if not sizes:
        return {"n": 0}
    return {"n": len(sizes), "median": round(statistics.median(sizes), 4), "worst": round(max(sizes), 4)}


def tell(study: dict[str, Any]) -> None:
    """Print the lines of a model."""
    for row in (*study["wholes"], *study["stages"]):
        name = f"{study['model']}: {row.get('slot') or row['stage']}"
        cells = " ".join(f"{row[way]:>+9.1%}" if way in row else " " * 9 for way in WAYS)
        print(f"{name[:46]:46} {row['measured_ns'] / 1e6:>8.3f} ms {cells}", flush=True)


if __name__ == "__main__":
    main()
