"""Several plans measured side by side, so that a drift of the machine meets them all.

Repeats are interleaved in shuffled order.  Throughput is sustained: warm-up excluded, taken from the
times at which frames leave the lanes.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dse.conditions import CLOCK_MOVED, Conditions, Drift, drift, snapshot
from dse.errors import DeviceError
from dse.pipeline.affinity import ThreadRecord
from dse.pipeline.clocks import ClockWatch
from dse.pipeline.engine import Array
from dse.pipeline.plan import PipelinePlan
from dse.pipeline.processes import process_stat
from dse.pipeline.supervise import LaneRun, Pipeline
from dse.pipeline.timeline import LaneTimes, Percentiles
from dse.progress import Progress, SilentProgress

_RESIDENT_SHARE = 0.5
_MIN_FRAMES = 6
_ATTEMPTS = 3


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
    annotate
        Socket of a Streamline daemon, see ``Pipeline``.
    """

    repeats: int = 3
    seconds: float = 1.0
    warmup_s: float = 0.3
    empty_frames: int = 5
    extra_repeats: int = 0
    seed: int = 0
    queue_depth: int = 2
    engine: str = "auto"
    annotate: str = ""


@dataclass(frozen=True)
class Repeat:
    """One run of one plan: figures and raw time stamps per lane, and what the machine did besides."""

    lanes: tuple[LaneTimes, ...]
    conditions: Conditions
    drift: Drift
    window_ns: tuple[int, int]
    runs: tuple[LaneRun, ...]

    @property
    def disturbed(self) -> bool:
        """Whether the machine did something else besides, or changed."""
        return bool(self.drift.warnings)

    @property
    def throughput_hz(self) -> float:
        """Sum over the lanes."""
        return sum(lane.throughput_hz for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class StageMeasurement:
    """A stage over all repeats: medians over the repeats of the medians per frame.

    ``busy_interval_ns`` is the lowest and the highest of the repeats.
    """

    lane: int
    name: str
    receive_ns: int
    compute_ns: int
    send_ns: int
    wait_ns: int
    utilisation: float
    busy_interval_ns: tuple[int, int]

    @property
    def busy_ns(self) -> int:
        """Time per frame that the stage's cores are taken."""
        return self.receive_ns + self.compute_ns + self.send_ns


@dataclass(frozen=True, slots=True)
class StageRate:
    """What a stage takes of the time between two frames: medians over the repeats of means over the frames.

    Parameters
    ----------
    lane
        It is in.
    input_ns
        To get its inputs, where all of them are the model's; otherwise 0.
    compute_ns
        In the runtime.
    excess_ns
        Its share of the time between two frames in which its cores were not busy, where they are the
        busiest of the lane (waking, handing over, uneven neighbours); otherwise 0.
    """

    lane: int
    input_ns: float
    compute_ns: float
    excess_ns: float

    @property
    def own_ns(self) -> float:
        """All but the hand-overs between stages, for which links stand in a prediction."""
        return self.input_ns + self.compute_ns + self.excess_ns


@dataclass(frozen=True)
class PlanMeasurement:
    """A plan, measured.

    Parameters
    ----------
    plan
        Its name.
    layout
        What was run.
    repeats
        In the order taken; undisturbed ones decide where there are at least two, or half of all.
    empty
        Single frames in an otherwise idle pipeline, per lane.
    memory_bytes
        Sum over the lanes of the peak of what the model added to an empty process.
    process_bytes
        Sum over the lanes of the whole process's peak.
    engines
        How each stage of each lane ran: ``compiled`` or ``interpreter``.
    fallbacks
        Which stages run in the interpreter, and why.
    threads
        Masks read back from every thread after the last repeat, per lane.
    """

    plan: str
    layout: PipelinePlan
    repeats: tuple[Repeat, ...]
    empty: tuple[LaneTimes, ...]
    memory_bytes: int
    process_bytes: int
    engines: tuple[tuple[str, ...], ...]
    fallbacks: tuple[str, ...]
    threads: tuple[tuple[ThreadRecord, ...], ...]

    @property
    def counted(self) -> tuple[Repeat, ...]:
        """The repeats that decide."""
        calm = tuple(repeat for repeat in self.repeats if not repeat.disturbed)
        return calm if len(calm) >= 2 or 2 * len(calm) >= len(self.repeats) else self.repeats

    @property
    def disturbed(self) -> bool:
        """Whether too few repeats were calm, so that disturbed ones count, or those that count differ."""
        return any(repeat.disturbed for repeat in self.counted) or bool(self.drifted)

    @property
    def drifted(self) -> str:
        """The first core whose clock differed between the repeats that count, in words; empty for none."""
        found: dict[int, list[int]] = {}
        for repeat in self.counted:
            for core, hz in repeat.conditions.clock_hz.items():
                found.setdefault(core, []).append(hz)
        for core, hertz in found.items():
            low, high = min(hertz), max(hertz)
            if low < (1 - CLOCK_MOVED) * high:
                return (
                    f"between repeats the clock of core {core} was from {low / 1e6:.0f} to "
                    f"{high / 1e6:.0f} MHz"
                )
        return ""

    @property
    def samples_hz(self) -> tuple[float, ...]:
        """Throughput of every repeat, in the order taken."""
        return tuple(repeat.throughput_hz for repeat in self.repeats)

    @property
    def throughput_hz(self) -> float:
        """Median over the repeats that count."""
        return statistics.median(repeat.throughput_hz for repeat in self.counted)

    @property
    def spread_hz(self) -> tuple[float, float]:
        """Lowest and highest of the repeats that count."""
        values = [repeat.throughput_hz for repeat in self.counted]
        return min(values), max(values)

    @property
    def empty_latency_ns(self) -> Percentiles:
        """One frame in an empty lane: the worst lane."""
        return max((lane.latency_ns for lane in self.empty), key=lambda latency: latency.median)

    @property
    def latency_ns(self) -> Percentiles:
        """From source to sink in the running pipeline: the worst lane, medians over the repeats."""

        def worst(kind: str) -> int:
            slowest = [max(int(getattr(lane.latency_ns, kind)) for lane in r.lanes) for r in self.counted]
            return round(statistics.median(slowest))

        return Percentiles(worst("median"), worst("p90"), worst("p99"))

    @property
    def stages(self) -> tuple[StageMeasurement, ...]:
        """All stages of all lanes."""
        found = []
        for lane, times in enumerate(self.counted[0].lanes):
            for number, stage in enumerate(times.stages):
                same = [repeat.lanes[lane].stages[number] for repeat in self.counted]
                receive, compute, send, wait = (
                    round(statistics.median(getattr(one, f"{part}_ns") for one in same))
                    for part in ("receive", "compute", "send", "wait")
                )
                utilisation = statistics.median(one.utilisation for one in same)
                busy = [one.busy_ns for one in same]
                times_ns = receive, compute, send, wait
                found.append(
                    StageMeasurement(lane, stage.name, *times_ns, utilisation, (min(busy), max(busy)))
                )
        return tuple(found)

    @property
    def rates(self) -> tuple[StageRate, ...]:
        """What the stages of all lanes take of the time between two frames.

        Unlike the medians of ``stages`` these add up to the measured throughput.
        """
        found = []
        for number, lane in enumerate(self.layout.lanes):
            each = [_shares(repeat.lanes[number], lane.units) for repeat in self.counted]
            for stage in range(len(lane.stages)):
                receive, compute, excess = (
                    statistics.median(one[stage][n] for one in each) for n in range(3)
                )
                fed = any(source is not None for source in lane.sources(stage))
                found.append(StageRate(number, 0.0 if fed else receive, compute, excess))
        return tuple(found)

    @property
    def notes(self) -> tuple[str, ...]:
        """What disturbed which repeat."""
        found = [
            f"repeat {number}: {'; '.join(repeat.drift.warnings)}"
            for number, repeat in enumerate(self.repeats)
            if repeat.disturbed
        ]
        return (*found, self.drifted) if self.drifted else tuple(found)


def measure_plans(
    plans: Sequence[PipelinePlan],
    frames: Sequence[Sequence[Array]],
    options: MeasureOptions | None = None,
    progress: Progress | None = None,
    keep: Callable[[PlanMeasurement], None] | None = None,
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
    with (
        _Residents(options, frames) as residents,
        progress.task("measuring plans", len(plans) * options.repeats) as task,
    ):
        found: dict[str, PlanMeasurement] = {}
        for _ in range(options.repeats):
            for plan in order.sample(list(plans), len(plans)):
                found[plan.name] = _measure_once(residents, plan, found.get(plan.name), options)
                task.advance(1, f"{plan.name}: {found[plan.name].samples_hz[-1]:.1f} frames/s")
                if keep is not None:
                    keep(found[plan.name])
        for _ in range(options.extra_repeats):
            for plan in order.sample(list(plans), len(plans)):
                if found[plan.name].disturbed:
                    progress.log(
                        f"{plan.name} was disturbed ({found[plan.name].notes[-1]}): measuring it again"
                    )
                    found[plan.name] = _measure_once(residents, plan, found[plan.name], options)
                    if keep is not None:
                        keep(found[plan.name])
    return tuple(found[name] for name in names)


def _shares(times: LaneTimes, units: Sequence[Sequence[int]]) -> list[tuple[float, float, float]]:
    """Mean times of each stage to receive and compute, and its share of what the busiest cores wait."""
    busy = [stage.mean_busy_ns for stage in times.stages]
    busiest = max(units, key=lambda members: sum(busy[n] for n in members))
    longest = sum(busy[n] for n in busiest)
    rest = max(0.0, 1e9 / times.throughput_hz - longest)
    return [
        (
            stage.receive_sum_ns / max(1, len(stage.compute_samples_ns)),
            stage.mean_compute_ns,
            rest * busy[n] / longest if n in busiest and longest else 0.0,
        )
        for n, stage in enumerate(times.stages)
    ]


class _Residents:
    """The pipelines that stay resident between repeats, as far as memory allows."""

    def __init__(self, options: MeasureOptions, frames: Sequence[Sequence[Array]]) -> None:
        self._options = options
        self._frames = frames
        self._resident: dict[str, Pipeline] = {}
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
        pipeline = Pipeline(
            plan,
            self._frames,
            queue_depth=self._options.queue_depth,
            engine=self._options.engine,
            annotate=self._options.annotate,
        )
        pipeline.__enter__()
        stack.callback(pipeline.close)
        size = sum(lane.peak_rss_bytes for lane in pipeline.memory)
        if size <= self._budget:
            stack.pop_all()
            self._budget -= size
            self._resident[plan.name] = pipeline
            self._stack.callback(pipeline.close)
        return pipeline


def _measure_once(
    residents: _Residents, plan: PipelinePlan, before: PlanMeasurement | None, options: MeasureOptions
) -> PlanMeasurement:
    with ExitStack() as stack:
        pipeline = residents.borrow(plan, stack)
        empty = before.empty if before else _empty_lanes(pipeline, options)
        # A frame spends at most its empty-lane latency in the slowest stage.
        longest_s = max(lane.latency_ns.median for lane in empty) / 1e9
        warmup_s = max(options.warmup_s, 2 * longest_s)
        repeat = _repeat(pipeline, max(options.seconds, _MIN_FRAMES * longest_s), warmup_s)
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


def _repeat(pipeline: Pipeline, seconds: float, warmup_s: float, attempts: int = _ATTEMPTS) -> Repeat:
    cores = pipeline.plan.cores
    before, own = snapshot(cores), _cpu_seconds(pipeline.pids)
    with ClockWatch(cores, (warmup_s, warmup_s + seconds / 2, warmup_s + 0.9 * seconds)) as watch:
        runs = pipeline.run(seconds=warmup_s + seconds)
    after = replace(snapshot(cores), clock_hz=watch.last)
    before = replace(before, clock_hz=watch.first)
    change = drift(before, after, own_busy_s=_cpu_seconds(pipeline.pids) - own)
    begin = min(int(run.stamps[0, :, 0].min()) for run in runs)
    window = (begin + int(warmup_s * 1e9), begin + int((warmup_s + seconds) * 1e9))
    try:
        return Repeat(pipeline.times(runs, window), after, change, window, runs)
    except DeviceError:
        # Hardly a frame left a lane: slower than in the empty lane, or kept from the cores.
        if attempts <= 1:
            raise
        return _repeat(pipeline, 4 * seconds, warmup_s, attempts - 1)


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
            (run,) = pipeline.run(n_frames=max(2, options.empty_frames), in_flight=1, one_lane=number)
            known[kind] = pipeline.lane_figures(number, run)
        stages = tuple(
            replace(times, name=stage.name) for times, stage in zip(known[kind].stages, lane.stages)
        )
        found.append(replace(known[kind], stages=stages))
    return tuple(found)


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
