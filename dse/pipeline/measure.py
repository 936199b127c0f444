"""Several plans measured side by side, so that a drift of the machine meets them all.

Repeats are interleaved in shuffled order.  Throughput is sustained: warm-up excluded, taken from the
times at which frames leave the lanes.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dse.conditions import drift, snapshot
from dse.errors import DeviceError
from dse.pipeline.clocks import ClockWatch
from dse.pipeline.engine import Array
from dse.pipeline.measurement import PlanMeasurement, Repeat
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.processes import process_stat
from dse.pipeline.streamline import check_daemon
from dse.pipeline.supervise import Pipeline
from dse.pipeline.timeline import LaneTimes
from dse.progress import Progress, SilentProgress

_RESIDENT_SHARE = 0.5
_MIN_FRAMES = 6
_ATTEMPTS = 3
_WARM_NS, _MOST_WARM = 20_000_000, 200


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure.

    Parameters
    ----------
    repeats
        Runs of each plan.
    seconds
        Measuring window of a run; made longer for plans that are slow.
    warmup_s
        Time before the window.
    empty_frames
        Single frames for the latency of an empty lane.
    extra_repeats
        At most so many further runs of a plan whose repeats were disturbed (steal time, foreign work,
        clock, heat, quota), until undisturbed ones can decide.
    seed
        Of the order of the runs.
    queue_depth
        Frames that may wait in front of a stage.
    engine
        How stages run, see ``Pipeline``.
    spin_us
        How long a stage with nothing to do keeps looking, see ``Pipeline``.
    annotate
        Socket of a Streamline daemon, see ``Pipeline``.
    alone
        Whether CPU time of other programs disturbs a repeat.  Not where slow cores are emulated: what
        makes them slow is another program.
    """

    repeats: int = 3
    seconds: float = 1.0
    warmup_s: float = 0.3
    empty_frames: int = 5
    extra_repeats: int = 0
    seed: int = 0
    queue_depth: int = 2
    engine: str = "auto"
    spin_us: int = 0
    annotate: str = ""
    alone: bool = True


def measure_plans(
    plans: Sequence[PipelinePlan],
    frames: Sequence[Sequence[Array]],
    options: MeasureOptions | None = None,
    progress: Progress | None = None,
    keep: Callable[[PlanMeasurement], None] | None = None,
    undecided: Callable[[Sequence[PlanMeasurement]], Collection[str]] | None = None,
) -> tuple[PlanMeasurement, ...]:
    """Measure plans as real pipelines, interleaved.

    Parameters
    ----------
    plans
        With unique names.
    frames
        Prepared frames for the model.
    options
        How.
    progress
        Told about every run.
    keep
        Called after every run with what is known of its plan so far, so that an interruption
        loses nothing that was measured.
    undecided
        Asked after the repeats, and again after each further one: names of the plans that have to be
        repeated once more.

    Returns
    -------
    tuple of PlanMeasurement
        In the order of ``plans``.

    Raises
    ------
    DseError
        A plan can not be built, or a lane died, stalled or failed; names the plan.
    """
    options = options or MeasureOptions()
    progress = progress or SilentProgress()
    names = [plan.name for plan in plans]
    if len(set(names)) != len(names):
        raise DeviceError(f"plans to be measured need different names, got {names}")
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    found: dict[str, PlanMeasurement] = {}

    def once(plan: PipelinePlan) -> None:
        found[plan.name] = _measure_once(residents, plan, found.get(plan.name), options)
        if keep is not None:
            keep(found[plan.name])

    with _Residents(options, frames, progress) as residents:
        with progress.task("measuring plans", len(plans) * options.repeats) as task:
            for _ in range(options.repeats):
                for plan in order.sample(list(plans), len(plans)):
                    once(plan)
                    task.advance(1, f"{plan.name}: {found[plan.name].samples_hz[-1]:.1f} frames/s")
            for _ in range(options.extra_repeats):
                for plan in order.sample(list(plans), len(plans)):
                    if found[plan.name].disturbed:
                        note = found[plan.name].notes[-1]
                        progress.log(f"{plan.name} was disturbed ({note}): measuring it again")
                        once(plan)
        while undecided and (again := undecided([found[name] for name in names])):
            with progress.task("measuring the best plans again", len(again)) as task:
                for plan in order.sample([plan for plan in plans if plan.name in again], len(again)):
                    once(plan)
                    task.advance(1, f"{plan.name}: {found[plan.name].samples_hz[-1]:.1f} frames/s")
    return tuple(found[name] for name in names)


class _Residents:
    """The pipelines that stay resident between repeats, as far as memory allows."""

    def __init__(
        self, options: MeasureOptions, frames: Sequence[Sequence[Array]], progress: Progress
    ) -> None:
        self._options = options
        self._progress = progress
        self._annotate = options.annotate
        self._frames = frames
        self._resident: dict[str, Pipeline] = {}
        self._n_built = 0
        self._stack = ExitStack()
        self._budget = int(_available_bytes() * _RESIDENT_SHARE)

    def __enter__(self) -> _Residents:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def borrow(self, plan: PipelinePlan, stack: ExitStack) -> Pipeline:
        """Return the plan's pipeline, built if need be; ``stack`` ends it if it does not stay."""
        if plan.name in self._resident:
            return self._resident[plan.name]
        self._check_daemon()
        pipeline = Pipeline(
            plan,
            self._frames,
            queue_depth=self._options.queue_depth,
            engine=self._options.engine,
            spin_us=self._options.spin_us,
            annotate=self._annotate,
        )
        self._n_built += 1
        pipeline.__enter__()
        stack.callback(pipeline.close)
        size = sum(lane.peak_rss_bytes for lane in pipeline.memory)
        if size <= self._budget:
            stack.pop_all()
            self._budget -= size
            self._resident[plan.name] = pipeline
            self._stack.callback(pipeline.close)
        return pipeline

    def _check_daemon(self) -> None:
        """Go on without annotations where a capture has ended; that there was none at all is a mistake."""
        if not self._annotate or not self._n_built:
            return
        try:
            check_daemon(self._annotate)
        except DeviceError as error:
            self._annotate = ""
            self._progress.log(f"no annotations from here on: {error}")


def _measure_once(
    residents: _Residents, plan: PipelinePlan, before: PlanMeasurement | None, options: MeasureOptions
) -> PlanMeasurement:
    with ExitStack() as stack:
        pipeline = residents.borrow(plan, stack)
        empty = before.empty if before else _empty_lanes(pipeline, options)
        # A frame spends at most its empty-lane latency in the slowest stage.
        longest_s = max(lane.latency_ns.median for lane in empty) / 1e9
        warmup_s = max(options.warmup_s, 2 * longest_s)
        seconds = max(options.seconds, _MIN_FRAMES * longest_s)
        repeat = _repeat(pipeline, seconds, warmup_s, alone=options.alone)
        memory = [run.memory for run in repeat.runs]
        done = PlanMeasurement(
            plan.name,
            plan,
            (repeat,),
            empty,
            sum(lane.peak_rss_bytes - lane.empty_rss_bytes for lane in memory),
            sum(lane.peak_rss_bytes for lane in memory),
            pipeline.engines,
            pipeline.fallbacks,
            tuple(run.threads for run in repeat.runs),
        )
    return done if before is None else replace(done, repeats=(*before.repeats, repeat))


def _repeat(
    pipeline: Pipeline, seconds: float, warmup_s: float, *, alone: bool, attempts: int = _ATTEMPTS
) -> Repeat:
    cores = pipeline.plan.cores
    before, own = snapshot(cores), _cpu_seconds(pipeline.pids)
    with ClockWatch(cores, (warmup_s, warmup_s + seconds / 2, warmup_s + 0.9 * seconds)) as watch:
        runs = pipeline.run(seconds=warmup_s + seconds)
    after = replace(snapshot(cores), clock_hz=watch.last)
    before = replace(before, clock_hz=watch.first)
    own_busy_s = _cpu_seconds(pipeline.pids) - own
    change = drift(before, after, own_busy_s=own_busy_s if alone else None)
    begin = min(int(run.stamps[0, :, 0].min()) for run in runs)
    window = (begin + int(warmup_s * 1e9), begin + int((warmup_s + seconds) * 1e9))
    try:
        return Repeat(pipeline.times(runs, window), after, change, window, runs)
    except DeviceError:
        # Hardly a frame left a lane: slower than in the empty lane, or kept from the cores.
        if attempts <= 1:
            raise
        return _repeat(pipeline, 4 * seconds, warmup_s, alone=alone, attempts=attempts - 1)


def _empty_lanes(pipeline: Pipeline, options: MeasureOptions) -> tuple[LaneTimes, ...]:
    """One frame at a time, one lane after the other; of equal lanes only the first is run."""
    known: dict[object, LaneTimes] = {}
    found = []
    for number, lane in enumerate(pipeline.plan.lanes):
        kind = (
            tuple((s.model_path, s.cluster, s.threads, s.kernels) for s in lane.stages),
            lane.units,
        )
        if kind not in known:
            known[kind] = _empty_lane(pipeline, number, options)
        stages = tuple(
            replace(times, name=stage.name) for times, stage in zip(known[kind].stages, lane.stages)
        )
        found.append(replace(known[kind], stages=stages))
    return tuple(found)


def _empty_lane(pipeline: Pipeline, lane: int, options: MeasureOptions) -> LaneTimes:
    """Frames alone in a lane, after some more that warm it up: the first ones of a small model are cold."""
    (cold,) = pipeline.run(n_frames=2, in_flight=1, one_lane=lane)
    one_ns = int(cold.stamps.max() - cold.stamps.min()) // 2
    n_warm = min(_MOST_WARM, _WARM_NS // max(1, one_ns))
    n_frames = n_warm + max(2, options.empty_frames)
    (run,) = pipeline.run(n_frames=n_frames, in_flight=1, one_lane=lane)
    return pipeline.lane_figures(lane, replace(run, stamps=run.stamps[n_warm:]))


def _available_bytes() -> int:
    """Return the memory that may still be used, by the machine and by the control group."""
    found = [snapshot(()).available_bytes or 0]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    # No control group of version 2, or "max": the machine's memory counts.
    with contextlib.suppress(OSError, ValueError):
        found.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(found)


def _cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time that processes have used."""
    ticks = 0
    for pid in pids:
        ticks += sum(int(field) for field in process_stat(pid)[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")
