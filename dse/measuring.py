"""Running the plans for real: outputs checked first, then all plans measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dse.config import Experiment
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.inputs import Frame
from dse.pipeline.measure import MeasureOptions, PlanMeasurement, measure_plans
from dse.pipeline.plan import PipelinePlan
from dse.progress import Progress
from dse.results import Measured, PlanResult, StageNumbers
from dse.staging import Stager
from dse.validation import check_outputs, moving_frames

N_FRAMES = 4


@dataclass
class Measurements:
    """What has been measured so far, kept also when the run is interrupted."""

    by_plan: dict[str, PlanMeasurement] = field(default_factory=dict)

    def keep(self, measurement: PlanMeasurement) -> None:
        """Remember the latest state of a plan's measurement."""
        self.by_plan[measurement.plan] = measurement

    @property
    def all(self) -> tuple[PlanMeasurement, ...]:
        """Every plan's measurement."""
        return tuple(self.by_plan.values())


def check_and_measure(
    file: ModelFile,
    graph: LayerGraph,
    stager: Stager,
    plans: Sequence[PlanResult],
    wanted: Sequence[PlanResult],
    experiment: Experiment,
    measurements: Measurements,
    progress: Progress,
) -> tuple[tuple[PlanResult, ...], str, tuple[str, ...]]:
    """Cut, check that split equals whole, and measure the wanted plans interleaved.

    Returns
    -------
    plans, check, warnings
        All plans, the wanted ones with their measurements; one line on the output check; warnings.

    Raises
    ------
    MismatchError
        A plan's stages do not give the whole model's outputs.
    DeviceError
        A plan could not be run; names the plan, lane and stage.
    """
    pipelines = {plan.name: stager.pipeline(plan) for plan in wanted}
    frames, moved = moving_frames(file.path, graph, next(iter(pipelines.values())), N_FRAMES, experiment.seed)
    warnings = (
        ()
        if moved
        else ("No input was found that moves the model's outputs: the check of outputs says little.",)
    )
    check = _check(file, list(pipelines.values()), frames, progress)
    options = MeasureOptions(
        repeats=experiment.measure.repeats,
        seconds=experiment.measure.seconds,
        seed=experiment.seed,
        extra_repeats=1,
        queue_depth=experiment.search.queue_depth,
    )
    found = measure_plans(list(pipelines.values()), frames, options, progress, measurements.keep)
    by_name = {measurement.plan: measurement for measurement in found}
    return (
        tuple(attach(plan, by_name[plan.name]) if plan.name in by_name else plan for plan in plans),
        check,
        warnings,
    )


def _check(
    file: ModelFile, pipelines: Sequence[PipelinePlan], frames: Sequence[Frame], progress: Progress
) -> str:
    """Check every distinct way of cutting once; return one line about the worst."""
    cut: dict[object, PipelinePlan] = {}
    for pipeline in pipelines:
        for lane in pipeline.lanes:
            if len(lane.stages) > 1:
                key = tuple((stage.model_path, stage.threads) for stage in lane.stages)
                cut.setdefault(key, replace(pipeline, lanes=(lane,)))
    if not cut:
        return ""
    lines = []
    with progress.task("checking outputs", len(cut)) as task:
        for pipeline in cut.values():
            check = check_outputs(file.path, pipeline, frames)
            lines.append((check.bit_equal, str(check)))
            task.advance(1, pipeline.name)
    worst = min(lines)[1]
    return f"{len(lines)} ways of cutting checked: {worst}"


def attach(plan: PlanResult, measurement: PlanMeasurement) -> PlanResult:
    """Add the figures of a measurement to a plan."""
    return replace(
        plan,
        measured=Measured(
            throughput_hz=measurement.throughput_hz,
            throughput_samples_hz=measurement.samples_hz,
            latency_ns=measurement.latency_ns.median,
            latency_p90_ns=measurement.latency_ns.p90,
            latency_p99_ns=measurement.latency_ns.p99,
            empty_latency_ns=measurement.empty_latency_ns.median,
            memory_bytes=measurement.memory_bytes,
            disturbed=measurement.disturbed,
            notes=measurement.notes,
        ),
        stages=tuple(
            StageNumbers(
                numbers.name,
                numbers.predicted_busy_ns,
                numbers.predicted_receive_ns,
                stage.busy_ns,
                stage.receive_ns,
                stage.wait_ns,
            )
            for numbers, stage in zip(plan.stages, measurement.stages, strict=True)
        ),
    )
