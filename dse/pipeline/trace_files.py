"""The two file forms of a trace: Perfetto's own, and the JSON of Chrome's tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.files import write_bytes, write_text
from dse.pipeline.trace import Slice, Trace, Track

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

_SEQUENCE = 1  # all packets come from one writer


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
    """Write Perfetto's own form: track descriptors and track events.

    References
    ----------
    Perfetto, "Synthetic track events" and "Writing TrackEvent protos in Python".
    """
    # Takes a moment to load, and most commands draw nothing.
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    n_lanes = len(trace.lanes)

    def describe(uuid: int) -> Any:
        descriptor = builder.add_packet().track_descriptor
        descriptor.uuid = uuid
        return descriptor

    def event(time_ns: int, uuid: int, kind: int) -> TrackEvent:
        packet = builder.add_packet()
        packet.timestamp = time_ns
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.track_uuid = uuid
        packet.track_event.type = kind
        return packet.track_event

    for lane, name in enumerate(trace.lanes):
        process = describe(lane + 1).process
        process.pid, process.process_name = lane + 1, name
    ends = {flow: steps[-1][1] for flow, steps in _flows(trace).items()}
    for number, track in enumerate(trace.tracks):
        uuid = n_lanes + 1 + number
        descriptor = describe(uuid)
        descriptor.name, descriptor.parent_uuid = track.name, track.lane + 1
        for time_ns, one in _nested(track):
            if one is None:
                event(time_ns, uuid, TrackEvent.TYPE_SLICE_END)
                continue
            begin = event(time_ns, uuid, TrackEvent.TYPE_SLICE_BEGIN)
            begin.name = one.name
            if one.frame is not None:
                note = begin.debug_annotations.add()
                note.name, note.int_value = "frame", one.frame
            if one.flow is not None:
                (begin.terminating_flow_ids if ends[one.flow] is one else begin.flow_ids).append(one.flow)
    for number, counter in enumerate(trace.counters):
        uuid = n_lanes + 1 + len(trace.tracks) + number
        descriptor = describe(uuid)
        descriptor.name, descriptor.parent_uuid = counter.name, counter.lane + 1
        descriptor.counter.unit_name = counter.unit
        for time_ns, value in counter.points:
            event(time_ns, uuid, TrackEvent.TYPE_COUNTER).double_counter_value = value
    write_bytes(path, builder.serialize())


def _nested(track: Track) -> Iterator[tuple[int, Slice | None]]:
    """Yield (time, slice that begins or None for an end) as a stack of nested slices needs them."""
    events: list[tuple[int, int, int, Slice | None]] = []
    for number, one in enumerate(track.slices):
        length = one.end_ns - one.begin_ns
        # At one time: ends before begins; of begins the longest first, of ends the shortest.
        if length > 0:
            events.append((one.end_ns, 0, length, None))
            events.append((one.begin_ns, 1, -length, one))
        elif one.flow is not None or number == 0:
            events.append((one.begin_ns, 2, 0, one))
            events.append((one.begin_ns, 3, 0, None))
    events.sort(key=lambda event: event[:3])
    for time_ns, _, _, begun in events:
        yield time_ns, begun


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
