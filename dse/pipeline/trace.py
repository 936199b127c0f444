"""A run as a picture over time: events for trace viewers.

One track per lane and set of cores with slices for every stage and frame (receive, compute, send
inside, wait between), arrows that follow each frame, and counters for the frames inside a lane, those
that wait in front of each stage, and the throughput.  ``trace_files`` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dse.pipeline.measurement import PlanMeasurement
from dse.pipeline.plan import PipelinePlan, entering_stages, final_stages
from dse.pipeline.supervise import LaneRun
from dse.pipeline.timeline import Stamps

PARTS = ("receive", "compute", "send")
MAX_FRAMES = 2000
_RATE_WINDOW = 10  # frames over which the throughput counter is averaged


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that takes time on a track; slices of a track nest or follow each other.

    ``flow`` joins the slices of one frame by arrows.
    """

    name: str
    begin_ns: int
    end_ns: int
    flow: int | None = None
    frame: int | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """A set of cores of a lane."""

    lane: int
    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """A number over time: pairs of time in nanoseconds and value."""

    lane: int
    name: str
    unit: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Trace:
    """All of it; times in nanoseconds from the first event."""

    name: str
    lanes: tuple[str, ...]
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...]


def build_trace(
    plan: PipelinePlan,
    runs: Sequence[LaneRun],
    max_frames: int = MAX_FRAMES,
) -> Trace:
    """Turn the time stamps of a run into events; pure.

    Parameters
    ----------
    plan
        That was run.
    runs
        One per lane.
    max_frames
        Only the first frames of each lane are drawn.
    """
    # A lane may have got no frame of a short stream.
    start = min((int(run.stamps[:, :, 0].min()) for run in runs if len(run.stamps)), default=0)
    tracks: list[Track] = []
    counters: list[Counter] = []
    for number, (lane, run) in enumerate(zip(plan.lanes, runs, strict=True)):
        stamps = run.stamps[:max_frames] - start
        for members in lane.units:
            names = [stage.label for stage in lane.stages]
            slices = _slices(stamps, members, names, number)
            tracks.append(Track(number, lane.stages[members[0]].place, slices))
        entered = stamps[:, entering_stages(lane), 0].min(axis=1)
        left = stamps[:, final_stages(lane, plan.outputs), 3].max(axis=1)
        counters.append(Counter(number, "frames inside", "frames", _inside(entered, left)))
        for index, stage in enumerate(lane.stages):
            before = [source for source in lane.sources(index) if source is not None]
            if before:
                come = stamps[:, before, 3].max(axis=1)
                waiting = _inside(come, stamps[:, index, 0])
                counters.append(Counter(number, f"waiting for {stage.label}", "frames", waiting))
        counters.append(Counter(number, "throughput", "frames/s", _rate(left)))
    lanes = tuple(f"lane {number} of {plan.name}" for number in range(len(plan.lanes)))
    return Trace(plan.name, lanes, tuple(tracks), tuple(counters))


def trace_measurement(measurement: PlanMeasurement, max_frames: int = MAX_FRAMES) -> Trace:
    """Draw the last repeat of a measurement that counts."""
    return build_trace(measurement.layout, measurement.counted[-1].runs, max_frames)


def _slices(stamps: Stamps, members: Sequence[int], names: Sequence[str], lane: int) -> tuple[Slice, ...]:
    """All work of one set of cores, in order of time."""
    found: list[Slice] = []
    work = sorted(
        (int(stamps[frame, stage, 0]), frame, stage) for frame in range(len(stamps)) for stage in members
    )
    before: int | None = None
    for begin, frame, stage in work:
        times = [int(value) for value in stamps[frame, stage]]
        if before is not None and begin > before:
            found.append(Slice("wait", before, begin))
        flow = (lane << 32) + frame + 1
        found.append(Slice(names[stage], begin, times[3], flow, frame))
        found += [Slice(part, times[k], times[k + 1]) for k, part in enumerate(PARTS)]
        before = times[3]
    return tuple(found)


def _inside(entered: Stamps, left: Stamps) -> tuple[tuple[int, float], ...]:
    """Number of frames that have entered and not yet left, whenever it changes."""
    times = np.concatenate([entered, left])
    steps = np.concatenate([np.ones(len(entered)), -np.ones(len(left))])
    order = np.argsort(times, kind="stable")
    return tuple(zip(times[order].tolist(), np.cumsum(steps[order]).tolist()))


def _rate(left: Stamps) -> tuple[tuple[int, float], ...]:
    """Throughput at each frame that leaves, over the last few."""
    left = np.sort(left)
    n = min(_RATE_WINDOW, len(left) - 1)
    if n < 1:
        return ()
    spans = np.maximum(1, left[n:] - left[:-n])
    return tuple(zip(left[n:].tolist(), (n * 1e9 / spans).tolist()))
