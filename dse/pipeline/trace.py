"""A run as a picture over time: events for trace viewers.

One track per lane and set of cores with slices for every stage and frame (receive, compute, send
inside, wait between), arrows that follow each frame, and counters for the frames inside a lane and
its throughput.  ``write_chrome_trace`` and ``write_perfetto_trace`` give the two file forms.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dse.files import write_bytes, write_text
from dse.pipeline.measure import PlanMeasurement
from dse.pipeline.plan import PipelinePlan, entering_stages, final_stages
from dse.pipeline.protobuf import Message
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


def build_trace(plan: PipelinePlan, runs: Sequence[LaneRun], max_frames: int = MAX_FRAMES) -> Trace:
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
    start = min(int(run.stamps[:, :, 0].min()) for run in runs)
    tracks: list[Track] = []
    counters: list[Counter] = []
    for number, (lane, run) in enumerate(zip(plan.lanes, runs, strict=True)):
        stamps = run.stamps[:max_frames] - start
        for members in lane.units:
            cores = ",".join(str(core) for core in lane.stages[members[0]].cores)
            slices = _slices(stamps, members, [stage.name for stage in lane.stages], number)
            cluster = lane.stages[members[0]].cluster
            tracks.append(Track(number, f"{cluster} cores {cores}", slices))
        entered = stamps[:, entering_stages(lane), 0].min(axis=1)
        left = stamps[:, final_stages(lane, plan.outputs), 3].max(axis=1)
        counters.append(Counter(number, "frames inside", "frames", _inside(entered, left)))
        counters.append(Counter(number, "throughput", "frames/s", _rate(left)))
    names = tuple(f"lane {number} of {plan.name}" for number in range(len(plan.lanes)))
    return Trace(plan.name, names, tuple(tracks), tuple(counters))


def trace_measurement(measurement: PlanMeasurement, max_frames: int = MAX_FRAMES) -> Trace:
    """Draw the last repeat of a measurement that counts."""
    return build_trace(measurement.layout, measurement.counted[-1].runs, max_frames)


def write_chrome_trace(path: Path, trace: Trace) -> None:
    """Write the JSON form that Chrome's tracing and Perfetto's UI open."""
    events: list[dict[str, Any]] = []
    for lane, name in enumerate(trace.lanes):
        events.append({"ph": "M", "name": "process_name", "pid": lane, "args": {"name": name}})
    for tid, track in enumerate(trace.tracks):
        place = {"pid": track.lane, "tid": tid}
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": track.name}})
        for one in track.slices:
            event = {"ph": "X", "name": one.name, **place, "ts": one.begin_ns / 1000}
            event["dur"] = (one.end_ns - one.begin_ns) / 1000
            if one.frame is not None:
                event["args"] = {"frame": one.frame}
            events.append(event)
    for flow, steps in _flows(trace).items():
        for at, (tid, one) in enumerate(steps):
            kind = "s" if at == 0 else "f" if at == len(steps) - 1 else "t"
            lane = trace.tracks[tid].lane
            arrow = {"ph": kind, "name": "frame", "cat": "frame", "id": flow, "pid": lane, "tid": tid}
            events.append({**arrow, "ts": one.begin_ns / 1000, **({"bp": "e"} if kind == "f" else {})})
    for counter in trace.counters:
        for time_ns, value in counter.points:
            at_time = {"ph": "C", "name": counter.name, "pid": counter.lane, "ts": time_ns / 1000}
            events.append({**at_time, "args": {counter.unit: value}})
    write_text(path, json.dumps({"displayTimeUnit": "ns", "traceEvents": events}) + "\n")


def write_perfetto_trace(path: Path, trace: Trace) -> None:
    """Write Perfetto's own form (a protobuf ``Trace`` of track descriptors and track events).

    References
    ----------
    Perfetto, "Synthetic track events"; field numbers from its public trace_packet.proto,
    track_event.proto and track_descriptor.proto.
    """
    packets: list[Message] = []
    n_lanes = len(trace.lanes)
    for lane, name in enumerate(trace.lanes):
        process = Message().integer(1, lane + 1).text(6, name)
        packets.append(Message().message(60, Message().integer(1, lane + 1).message(3, process)))
    ends = {flow: steps[-1][1] for flow, steps in _flows(trace).items()}
    for number, track in enumerate(trace.tracks):
        uuid = n_lanes + 1 + number
        descriptor = Message().integer(1, uuid).text(2, track.name).integer(5, track.lane + 1)
        packets.append(Message().message(60, descriptor))
        packets += _track_packets(uuid, track, ends)
    for number, counter in enumerate(trace.counters):
        uuid = n_lanes + 1 + len(trace.tracks) + number
        kind = Message().text(6, counter.unit)
        descriptor = Message().integer(1, uuid).text(2, counter.name).integer(5, counter.lane + 1)
        packets.append(Message().message(60, descriptor.message(8, kind)))
        for time_ns, value in counter.points:
            event = Message().integer(9, 4).integer(11, uuid).double(44, value)
            packets.append(Message().integer(8, time_ns).message(11, event))
    whole = Message()
    for packet in packets:
        whole.message(1, packet.integer(10, 1))
    write_bytes(path, bytes(whole))


def _track_packets(uuid: int, track: Track, ends: dict[int, Slice]) -> list[Message]:
    """Begin and end events in the order in which a stack of nested slices needs them."""
    events: list[tuple[int, int, int, Message]] = []
    for depth_hint, one in enumerate(track.slices):
        begin = Message().integer(9, 1).integer(11, uuid).text(23, one.name)
        if one.frame is not None:
            begin.message(4, Message().text(10, "frame").integer(4, one.frame))
        if one.flow is not None:
            begin.fixed64(48 if ends[one.flow] is one else 47, one.flow)
        length = one.end_ns - one.begin_ns
        # At one time: ends before begins; of begins the longest first, of ends the shortest.
        if length > 0:
            events.append((one.end_ns, 0, length, Message().integer(9, 2).integer(11, uuid)))
            events.append((one.begin_ns, 1, -length, begin))
        elif one.flow is not None or depth_hint == 0:
            events.append((one.begin_ns, 2, 0, begin))
            events.append((one.begin_ns, 3, 0, Message().integer(9, 2).integer(11, uuid)))
    events.sort(key=lambda event: event[:3])
    return [Message().integer(8, time).message(11, event) for time, _, _, event in events]


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


def _flows(trace: Trace) -> dict[int, list[tuple[int, Slice]]]:
    """The slices of each frame with their tracks, in order of time."""
    found: dict[int, list[tuple[int, Slice]]] = {}
    for number, track in enumerate(trace.tracks):
        for one in track.slices:
            if one.flow is not None:
                found.setdefault(one.flow, []).append((number, one))
    for steps in found.values():
        steps.sort(key=lambda step: step[1].begin_ns)
    return found


def _inside(entered: Stamps, left: Stamps) -> tuple[tuple[int, float], ...]:
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
