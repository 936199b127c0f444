"""What stays of a run: the files of its folder (all documented in README, "The run folder")."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dse
from dse import yaml_io
from dse.config import Experiment, ModelPath, platform_data
from dse.costs import CostTable
from dse.elsewhere import elsewhere
from dse.files import write_json, write_text
from dse.graph import LayerGraph
from dse.mapping_file import MappingFile, stage_options, write_mapping
from dse.networks import plan_networks
from dse.past_run import LAYERS_NAME, layers_json
from dse.pipeline.measurement import PlanMeasurement, Repeat
from dse.pipeline.trace import trace_measurement
from dse.pipeline.trace_files import write_chrome_trace, write_perfetto_trace
from dse.placement import PlacedMapping
from dse.platforms import Platform
from dse.results import RESULTS_FORMAT, RESULTS_VERSION, PlanResult, RunResult
from dse.run_folder import JOURNAL_NAME

MOST_FRAMES = 1000
"""Of one lane in one repeat whose time stamps are kept: tiny models make ten thousands a second."""
_TRACES = {"perfetto": (write_perfetto_trace, ".pftrace"), "chrome": (write_chrome_trace, ".json")}


def write_inputs(folder: Path, experiment: Experiment, platform: Platform) -> None:
    """Write what was asked for: ``config.yaml`` (resolved) and ``platform.yaml``."""
    resolved = experiment.resolved()
    if isinstance(experiment.model, ModelPath):
        # The folder may be read from anywhere.
        resolved["model"] = str(experiment.model.path.resolve())
    write_text(folder / "config.yaml", yaml_io.dump(resolved))
    write_text(folder / "platform.yaml", yaml_io.dump(platform_data(platform)))


def write_measurements(folder: Path, measurements: tuple[PlanMeasurement, ...]) -> None:
    """Write ``measurements.json``: every repeat of every plan with its raw samples.

    Of a lane's frames in one repeat the last ``MOST_FRAMES``.  It stands for the journal, which goes.
    """
    write_json(
        folder / "measurements.json",
        {
            "format": "tflite-dse measurements",
            "version": 1,
            "plans": [measurement_json(measurement) for measurement in measurements],
        },
        indent=None,
    )
    (folder / JOURNAL_NAME).unlink(missing_ok=True)


def journal(folder: Path) -> Callable[[PlanMeasurement], None]:
    """Return a function that writes down the last repeat of a plan at once, for a run that is killed.

    One line of JSON each, without raw samples, in ``measurements.jsonl``.
    """

    def keep(measurement: PlanMeasurement) -> None:
        figures = _figures_json(measurement.repeats[-1])
        entry = {"plan": measurement.plan, "repeat": len(measurement.repeats) - 1, **figures}
        with (folder / JOURNAL_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    return keep


def write_traces(
    folder: Path,
    plan: str,
    measurements: tuple[PlanMeasurement, ...],
    forms: Sequence[str],
    stem: str = "trace",
) -> None:
    """Draw a plan while it was measured, for https://ui.perfetto.dev or Chrome's tracing.

    Parameters
    ----------
    folder, stem
        Written are ``stem.pftrace`` and ``stem.json`` in the folder.
    plan
        Name of the plan.
    forms
        ``perfetto``, ``chrome`` or both.
    """
    for measurement in measurements:
        if measurement.plan == plan and forms:
            trace = trace_measurement(measurement)
            for form in forms:
                write, suffix = _TRACES[form]
                write(folder / f"{stem}{suffix}", trace)


def measurement_json(measurement: PlanMeasurement) -> dict[str, Any]:
    """Return one plan's measurement with its raw time stamps."""
    return {
        "plan": measurement.plan,
        "throughput_hz": measurement.throughput_hz,
        "disturbed": measurement.disturbed,
        "memory_bytes": measurement.memory_bytes,
        "process_bytes": measurement.process_bytes,
        "engines": [list(lane) for lane in measurement.engines],
        "fallbacks": list(measurement.fallbacks),
        "empty_latency_ns": asdict(measurement.empty_latency_ns),
        "latency_ns": asdict(measurement.latency_ns),
        "empty": [asdict(lane) for lane in measurement.empty],
        "stages": [asdict(stage) for stage in measurement.stages],
        "threads": [
            [
                {"stage": t.stage, "tid": t.tid, "role": t.role, "wanted": list(t.wanted), "got": list(t.got)}
                for t in lane
            ]
            for lane in measurement.threads
        ],
        "repeats": [_repeat_json(repeat) for repeat in measurement.repeats],
    }


def _repeat_json(repeat: Repeat) -> dict[str, Any]:
    start_ns = _start_ns(repeat)
    return {
        **_figures_json(repeat),
        # Per lane, frame and stage: the time stamps of dse.pipeline.timeline, in ns from the start.
        "stamps_ns": [(run.stamps[-MOST_FRAMES:] - start_ns).tolist() for run in repeat.runs],
    }


def _figures_json(repeat: Repeat) -> dict[str, Any]:
    start_ns = _start_ns(repeat)
    return {
        "throughput_hz": repeat.throughput_hz,
        "window_ns": [end - start_ns for end in repeat.window_ns],
        "conditions": asdict(repeat.conditions),
        "disturbances": list(repeat.drift.warnings),
        "lanes": [asdict(lane) for lane in repeat.lanes],
        "counters": [asdict(run.counters) for run in repeat.runs],
        "n_frames": [run.n_frames for run in repeat.runs],
    }


def _start_ns(repeat: Repeat) -> int:
    return min(int(run.stamps.min()) for run in repeat.runs)


def mapping_json(mapping: PlacedMapping) -> list[list[dict[str, Any]]]:
    """Return lanes of stages as plain data."""
    return [
        [
            {
                "name": stage.name,
                "layers": stage.span,
                "cluster": stage.cluster,
                "threads": stage.threads,
                "cores": list(stage.cores),
                **stage_options(stage),
            }
            for stage in lane.stages
        ]
        for lane in mapping.lanes
    ]


def plan_json(plan: PlanResult) -> dict[str, Any]:
    """Return a plan with its evaluation and, when measured, its figures."""
    return {
        "name": plan.name,
        "role": plan.role,
        "mapping": mapping_json(plan.mapping),
        "predicted": asdict(plan.predicted),
        "measured": None if plan.measured is None else asdict(plan.measured),
        "error": plan.error,
        "corrected": None if plan.corrected is None else asdict(plan.corrected),
        "corrected_error": plan.corrected_error,
        "round": plan.round,
        "stages": [asdict(stage) for stage in plan.stages],
    }


def results_json(result: RunResult, status: str = "done") -> dict[str, Any]:
    """Return ``results.json`` (schema in README, "results.json")."""
    graph, best = result.graph, result.best
    return {
        "format": RESULTS_FORMAT,
        "version": RESULTS_VERSION,
        "status": status,
        "tool": {"name": "tflite-dse", "version": dse.__version__},
        "model": {
            "name": graph.name,
            "sha256": result.costs.model_hash,
            "n_layers": len(graph.layers),
            "macs": graph.macs,
            "weight_bytes": graph.weight_bytes,
        },
        "platform": {
            "name": result.platform.name,
            "origin": result.platform.origin,
            "emulated": result.platform.emulated,
            "n_cores": result.platform.n_cores,
        },
        "costs_measured": result.costs.measured,
        "proof": asdict(result.proof),
        "goal": result.goal,
        "winner": best.name,
        "reason": result.reason,
        "warnings": list(result.warnings),
        "elsewhere": [entry.to_json() for entry in elsewhere(result.costs)],
        "output_check": result.output_check,
        "rounds": [asdict(entry) for entry in result.rounds],
        **({} if result.speed is None else {"speed": asdict(result.speed)}),
        "plans": [
            {**plan_json(plan), **networks_json(result.graph, result.costs, plan)} for plan in result.plans
        ],
    }


def networks_json(graph: LayerGraph, costs: CostTable, plan: PlanResult) -> dict[str, Any]:
    """Return ``networks`` of a plan for a workload, nothing for a plain model."""
    view = plan_networks(graph, costs, plan)
    return {} if view is None else {"networks": {**asdict(view), "busy": round(view.busy, 4)}}


def write_result(
    folder: Path, result: RunResult, files: dict[str, str], trials: Sequence[PlanResult] = ()
) -> None:
    """Write ``costs.json``, ``layers.json``, ``plans.json``, ``mapping.yaml`` and ``results.json``."""
    write_json(folder / LAYERS_NAME, layers_json(result.graph))
    write_json(folder / "costs.json", result.costs.to_json())
    write_plans(folder, result, files, trials)
    write_json(folder / "results.json", results_json(result))


def write_plans(
    folder: Path, result: RunResult, files: dict[str, str], trials: Sequence[PlanResult] = ()
) -> None:
    """Write ``plans.json`` and ``mapping.yaml``.

    Parameters
    ----------
    files
        The answer's stage files by name.
    trials
        What a search by trial has run.
    """
    write_json(
        folder / "plans.json",
        {
            "format": "tflite-dse plans",
            "version": 1,
            "proof": asdict(result.proof),
            "plans": [plan_json(plan) for plan in result.plans],
            "trials": [plan_json(plan) for plan in trials],
        },
    )
    content = MappingFile.of(
        result.graph, result.costs.model_hash, result.platform.name, result.best.mapping, files
    )
    write_mapping(folder / "mapping.yaml", content)


def write_failure(folder: Path, graph: LayerGraph | None, status: str, message: str) -> None:
    """Write a ``results.json`` that says why there is no result."""
    write_json(
        folder / "results.json",
        {
            "format": RESULTS_FORMAT,
            "version": RESULTS_VERSION,
            "status": status,
            "tool": {"name": "tflite-dse", "version": dse.__version__},
            "model": None if graph is None else {"name": graph.name},
            "error": message,
        },
    )
