"""Running the plans for real: outputs checked first, then all plans measured side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dse.config import Experiment
from dse.deciding import Decision
from dse.errors import DeviceError, MismatchError
from dse.flatbuffer.reader import ModelFile
from dse.graph import LayerGraph
from dse.inputs import Frame
from dse.pipeline.measure import MeasureOptions, measure_plans
from dse.pipeline.measurement import PlanMeasurement
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.streamline import ADDRESS
from dse.pipeline.timeline import idle_gaps
from dse.planning import Planner
from dse.progress import Progress
from dse.reports.wording import shape
from dse.results import Gap, Measured, PlanResult
from dse.staging import Stager
from dse.units import format_hz, format_ns
from dse.validation import (
    OutputCheck,
    check_outputs,
    diagnose,
    kernels_of,
    moving_frames,
    needs_check,
    way_of_running,
)
from solvers.mapping import Mapping as SolverMapping

N_FRAMES = 4
EXTRA_REPEATS = 2
"""As many undisturbed repeats as are needed to do without the disturbed ones."""
_UNMOVED = "No input was found that moves the model's outputs: the check of outputs says little."


@dataclass
class Measurements:
    """What has been measured so far, kept also when the run is interrupted.

    ``journal`` is told of every repeat at once, for when the run is killed.
    """

    by_plan: dict[str, PlanMeasurement] = field(default_factory=dict)
    journal: Callable[[PlanMeasurement], None] = lambda _: None

    def keep(self, measurement: PlanMeasurement) -> None:
        """Remember the latest state of a plan's measurement."""
        self.by_plan[measurement.plan] = measurement
        self.journal(measurement)

    @property
    def all(self) -> tuple[PlanMeasurement, ...]:
        """Every plan's measurement."""
        return tuple(self.by_plan.values())


@dataclass
class Trial:
    """Runs plans of one experiment: cuts, checks outputs, measures.

    Parameters
    ----------
    experiment, file, graph
        What is run.
    stager
        Writes stage files.
    measurements
        Collects what was measured, also when the work is interrupted.
    progress
        Told about everything.
    yardstick_ns
        Of the cost table: tells whether cores are as fast now as when layers were measured.
    tried
        What a search by trial has run, see ``scorer``: with figures, or with what kept it from running.
    """

    experiment: Experiment
    file: ModelFile
    graph: LayerGraph
    stager: Stager
    measurements: Measurements
    progress: Progress
    yardstick_ns: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    tried: list[PlanResult] = field(default_factory=list)
    _frames: tuple[Frame, ...] = ()
    _checked: dict[object, OutputCheck] = field(default_factory=dict)
    _refused: dict[object, str] = field(default_factory=dict)

    def measure(self, plans: Sequence[PlanResult], number: int = 1) -> tuple[PlanResult, ...]:
        """Measure plans side by side; returns them with their figures, in the same order.

        Parameters
        ----------
        number
            Of the round.

        A plan with other kernels than the usual, or with an accelerator, that can not be run or gives
        other outputs comes back without figures, and with that as a violation.

        Raises
        ------
        MismatchError
            A plan's stages do not give the whole model's outputs.
        DeviceError
            A plan could not be run; names the plan, lane and stage.
        """
        pipelines = {plan.name: self.stager.pipeline(plan) for plan in plans}
        self._find_frames(pipelines[plans[0].name])
        refused = self._check(list(pipelines.values()))
        settings = self.experiment.measure
        options = replace(
            self._options,
            repeats=settings.repeats,
            seed=self.experiment.seed + number - 1,
            extra_repeats=EXTRA_REPEATS,
            annotate=ADDRESS if settings.annotate else "",
        )
        sound = [pipeline for name, pipeline in pipelines.items() if name not in refused]
        keep, decide = self.measurements.keep, self._decision(plans)
        found = measure_plans(sound, self._frames, options, self.progress, keep, decide)
        figures = {measurement.plan: measurement for measurement in found}
        return tuple(
            replace(attach(plan, figures[plan.name], self.graph, self.yardstick_ns), round=number)
            if plan.name in figures
            else refuse(plan, refused[plan.name])
            for plan in plans
        )

    def _decision(self, plans: Sequence[PlanResult]) -> Decision | None:
        """Return who decides on further repeats: what is repeated is throughput."""
        settings = self.experiment.measure
        if settings.precision is None or self.experiment.search.goal != "throughput":
            return None
        rivals = frozenset(plan.name for plan in plans if plan.feasible)
        return Decision(rivals, settings.precision, settings.max_repeats or 2 * settings.repeats)

    def scorer(self, planner: Planner) -> Callable[[SolverMapping], float]:
        """Return an objective for a search by trial: runs a mapping once, outputs checked.

        It gives frames per second, or with the goal ``latency`` the nanoseconds of a frame alone.  What was
        run is added to ``tried``.

        Raises
        ------
        MismatchError, DeviceError
            The mapping can not be run, or does not give the model's outputs.
        """

        def run(plan: PlanResult) -> PlanResult:
            pipeline = self.stager.pipeline(plan)
            self._find_frames(pipeline)
            if refused := self._check([pipeline]):
                raise MismatchError(refused[pipeline.name])
            options = replace(self._options, repeats=1, extra_repeats=1)
            (found,) = measure_plans([pipeline], self._frames, options)
            return attach(plan, found, self.graph, self.yardstick_ns)

        def score(mapping: SolverMapping) -> float:
            plan = planner.plan(f"trial {len(self.tried) + 1}", "candidate", mapping)
            try:
                done = run(plan)
            except (MismatchError, DeviceError) as error:
                self.tried.append(refuse(plan, str(error).splitlines()[0]))
                raise
            self.tried.append(done)
            assert done.measured is not None  # noqa: S101 - what ran has figures
            rate, alone_ns = done.measured.throughput_hz, done.measured.empty_latency_ns
            told = f"{format_hz(rate)} frames/s, {format_ns(alone_ns)}"
            self.progress.log(f"{plan.name}: {told}: {shape(plan.mapping, spans=self.graph)}")
            return float(alone_ns) if self.experiment.search.goal == "latency" else rate

        return score

    def measurement(self, plan: PlanResult) -> PlanMeasurement:
        """Return the latest measurement of a plan."""
        return self.measurements.by_plan[plan.name]

    @property
    def check_text(self) -> str:
        """One line on the worst comparison of split and whole; empty when nothing was cut."""
        if not self._checked:
            return ""
        worst = min(self._checked.values(), key=lambda check: (check.bit_equal, str(check)))
        return f"{len(self._checked)} way{'s' if len(self._checked) > 1 else ''} of cutting checked: {worst}"

    @property
    def _options(self) -> MeasureOptions:
        """How plans and trials run; not how often."""
        settings, platform = self.experiment.measure, self.experiment.platform
        return MeasureOptions(
            seconds=settings.seconds,
            queue_depth=self.experiment.search.queue_depth,
            spin_us=settings.spin_us,
            alone=platform is None or not platform.emulated,
        )

    def _find_frames(self, pipeline: PipelinePlan) -> None:
        if not self._frames:
            seed = self.experiment.seed
            self._frames, moved = moving_frames(self.file.path, self.graph, pipeline, N_FRAMES, seed)
            if not moved:
                self.warnings = (*self.warnings, _UNMOVED)

    def _check(self, pipelines: Sequence[PipelinePlan]) -> dict[str, str]:
        """Check every way of running that was not checked before; return who is refused, and why."""
        new: dict[object, PipelinePlan] = {}
        for pipeline in pipelines:
            for lane in pipeline.lanes:
                way = way_of_running(lane)
                if needs_check(lane) and way not in self._checked and way not in self._refused:
                    new.setdefault(way, replace(pipeline, lanes=(lane,)))
        if new:
            with self.progress.task("checking outputs", len(new)) as task:
                for way, pipeline in new.items():
                    self._check_one(way, pipeline)
                    task.advance(1, pipeline.name)
        return {
            pipeline.name: self._refused[way]
            for pipeline in pipelines
            for lane in pipeline.lanes
            if (way := way_of_running(lane)) in self._refused
        }

    def _check_one(self, way: object, pipeline: PipelinePlan) -> None:
        try:
            self._checked[way] = check_outputs(self.file.path, pipeline, self._frames)
        except (MismatchError, DeviceError) as error:
            if kernels_of(pipeline.lanes[0]) == {"default"}:
                raise
            # Other kernels and accelerators are a wish, not a must: the other plans go on.
            self._refused[way] = str(error).splitlines()[0]
            self.warnings = (*self.warnings, f"A way to run is left out: {self._refused[way]}")


def refuse(plan: PlanResult, reason: str) -> PlanResult:
    """Return a plan that was not measured because it can not be run as it should."""
    violations = (*plan.predicted.violations, f"outputs: {reason}")
    return replace(plan, predicted=replace(plan.predicted, violations=violations))


def attach(
    plan: PlanResult,
    measurement: PlanMeasurement,
    graph: LayerGraph,
    yardstick_ns: Mapping[str, int] | None = None,
) -> PlanResult:
    """Add the figures of a measurement to a plan, and why they differ from the prediction."""
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
            fallbacks=measurement.fallbacks,
            diagnosis=diagnose(plan, measurement, graph, yardstick_ns),
            gaps=_gaps(measurement),
        ),
        stages=tuple(
            replace(
                numbers,
                measured_busy_ns=stage.busy_ns,
                measured_compute_ns=stage.compute_ns,
                measured_receive_ns=stage.receive_ns,
                measured_send_ns=stage.send_ns,
                measured_wait_ns=stage.wait_ns,
                utilisation=round(stage.utilisation, 4),
                measured_interval_ns=stage.busy_interval_ns,
            )
            for numbers, stage in zip(plan.stages, measurement.stages, strict=True)
        ),
    )


def _gaps(measurement: PlanMeasurement) -> tuple[Gap, ...]:
    """Return the idle times of every lane's cores in the last repeat that counts."""
    found = []
    for lane, run in zip(measurement.layout.lanes, measurement.counted[-1].runs, strict=True):
        for gap in idle_gaps(run.stamps, lane.units):
            after, before = lane.stages[gap.after].name, lane.stages[gap.before].name
            found.append(Gap(after, before, round(gap.n_per_frame, 4), gap.median_ns, round(gap.share, 5)))
    return tuple(sorted(found, key=lambda gap: -gap.share))
