"""``dse export``: the mapping of a run, perhaps edited, as a bundle for a target."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dse.config import Experiment, load_experiment, load_platform
from dse.costing import read_costs
from dse.costs import CostTable
from dse.deploy.bundle import write_bundle
from dse.deploy.registry import find_target
from dse.deploy.support import supported_clusters
from dse.deploy.target import Deployment, Order
from dse.errors import InputError, PlatformError
from dse.explore import Subject, load, make_problem
from dse.mapping_check import check_mapping, check_model
from dse.mapping_file import read_mapping
from dse.placement import PlacedMapping
from dse.planning import predict
from dse.problems import unplace
from dse.progress import Progress, SilentProgress
from dse.record import mapping_json
from dse.results import Measured, PlanResult, StageNumbers
from dse.run_folder import clean_name

_MEASURED_IN = ("validation.json", "results.json")
"""Files of a run folder that hold measured plans, the latest first."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is exported.

    Parameters
    ----------
    run_dir
        Folder of a finished run.
    target
        Name of the target.
    mapping
        A ``mapping.yaml`` to export instead of the run's own.
    output
        Folder of the bundle; default: beside the run, with the target's name behind its own.
    force
        Replace a bundle that is there.
    """

    run_dir: Path
    target: str
    mapping: Path | None = None
    output: Path | None = None
    force: bool = False


def export(request: Request, progress: Progress | None = None) -> Deployment:
    """Make a bundle of a run.

    Raises
    ------
    InputError
        The folder is not a finished run, the mapping is not possible, the target refuses, or the
        output is there.
    MismatchError, DeviceError
        The stages do not give the whole model's outputs, or could not be run.
    """
    progress = progress or SilentProgress()
    target = find_target(request.target)
    folder = request.run_dir
    for name in ("config.yaml", "mapping.yaml", "platform.yaml", "costs.json"):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: not the folder of a finished run ({name} is missing)")
    experiment = load_experiment(folder / "config.yaml")
    content = read_mapping(request.mapping or folder / "mapping.yaml")
    name = clean_name(folder.resolve().name)
    output = request.output or folder.resolve().parent / f"{name}-{target.name}"
    with tempfile.TemporaryDirectory(prefix="dse-export-") as work, progress.task("exporting", 1) as task:
        subject = load(_elsewhere(experiment, folder), Path(work))
        check_model(content, subject.file)
        check_mapping(content.mapping, subject.graph, subject.platform)
        costs = read_costs(folder / "costs.json", subject.file)
        figures = _figures(subject, costs, content.mapping, folder)
        order = Order(
            name=name,
            file=subject.file,
            graph=subject.graph,
            platform=subject.platform,
            mapping=content.mapping,
            figures=figures,
            measured_on=_origin(subject, costs, figures),
            queue_depth=experiment.search.queue_depth,
            seed=experiment.seed,
            supported_by=supported_clusters(subject.platform, experiment.search.supported_by),
        )
        made = write_bundle(target, order, output, force=request.force)
        task.advance()
    return made


def _elsewhere(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment on the platform of the run, which need not be this machine."""
    return replace(
        experiment,
        platform=load_platform(folder / "platform.yaml"),
        measure=experiment.measure.model_copy(update={"enabled": False}),
    )


def _figures(subject: Subject, costs: CostTable, mapping: PlacedMapping, folder: Path) -> PlanResult | None:
    """Predict the mapping, and add what the run measured for exactly this one."""
    problem, slots, _ = make_problem(subject, costs)
    try:
        solved = unplace(mapping, subject.platform, slots)
    except PlatformError:
        # A slot without costs: it can run all the same.
        return None
    plan = predict(problem, "mapping", "candidate", solved, mapping)
    wanted = mapping_json(mapping)
    for name in _MEASURED_IN:
        for entry in _plans(folder / name):
            if entry.get("measured") and entry.get("mapping") == wanted:
                return _measured(plan, entry)
    return plan


def _plans(path: Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return [plan for plan in data["plans"] if isinstance(plan, dict)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: damaged ({type(error).__name__}: {error}); run or validate again"
        ) from None


def _measured(plan: PlanResult, entry: Mapping[str, Any]) -> PlanResult:
    real = dict(entry["measured"])
    try:
        measured = Measured(
            **{
                **real,
                "throughput_samples_hz": tuple(real["throughput_samples_hz"]),
                "notes": tuple(real["notes"]),
            }
        )
        stages = tuple(StageNumbers(**stage) for stage in entry["stages"])
    except (KeyError, TypeError) as error:
        raise InputError(f"a measured plan of the run is damaged ({error}); validate the run again") from None
    return replace(plan, measured=measured, stages=stages)


def _origin(subject: Subject, costs: CostTable, figures: PlanResult | None) -> str:
    platform = subject.platform
    emulated = " Its unlike cores are emulated." if platform.emulated else ""
    how = "measured layer times" if costs.measured else "layer times that are predicted, not measured"
    text = f"Predictions come from {how}."
    if figures is not None and figures.measured is not None:
        measure = subject.experiment.measure
        rounds = len(figures.measured.throughput_samples_hz)
        text = (
            f"Measured on `{platform.name}` as a real pipeline, the median of {rounds} rounds of "
            f"{measure.seconds:g} s in which all plans of the run took turns. {text}"
        )
        if figures.measured.disturbed:
            text += " Other programs disturbed the measurement."
    else:
        text += " This mapping itself was not measured: `dse validate --mapping` does that."
    return text + emulated
