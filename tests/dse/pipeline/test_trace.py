"""Traces of runs: the events themselves, and both file forms read back by other means."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from dse.pipeline.counters import Counters
from dse.pipeline.supervise import LaneMemory, LaneRun, Pipeline
from dse.pipeline.trace import build_trace
from dse.pipeline.trace_files import write_chrome_trace, write_perfetto_trace


def run_of(stamps: np.ndarray) -> LaneRun:
    return LaneRun(stamps, (), LaneMemory(1, 1), Counters(2, 1, 1, 0, 0, 0, 0, None, None, None, ""))


@pytest.fixture
def by_hand(tiny):
    """Two frames through three stages; stages 0 and 2 share cores; starts at 1000."""
    plan = tiny.chain(0, 1, 0)
    first = np.array([[0, 2, 10, 11], [12, 13, 33, 33], [40, 40, 45, 45]])
    second = np.array([[11, 13, 21, 22], [33, 34, 54, 54], [54, 54, 59, 60]])
    return plan, [run_of(np.stack([first, second]).astype(np.int64) + 1000)]


def test_tracks_show_what_the_cores_did(by_hand):
    trace = build_trace(*by_hand)
    shared, middle = trace.tracks
    assert (shared.name, middle.name) == ("cpu cores 0", "cpu cores 1")
    outer = [(s.name, s.begin_ns, s.end_ns, s.frame) for s in shared.slices if s.frame is not None]
    assert outer == [
        ("stage 0", 0, 11, 0),
        ("stage 0", 11, 22, 1),
        ("stage 2", 40, 45, 0),
        ("stage 2", 54, 60, 1),
    ]
    waits = [(s.begin_ns, s.end_ns) for s in shared.slices if s.name == "wait"]
    assert waits == [(22, 40), (45, 54)]


def test_counters_follow_the_frames(by_hand):
    inside, second, third, rate = build_trace(*by_hand).counters
    # At one time who comes counts before who goes: frame 0 leaves stage 0 at 11, enters stage 1 at 12.
    assert second.name == "waiting for stage 1"
    assert second.points == ((11, 1.0), (12, 0.0), (22, 1.0), (33, 0.0))
    assert third.name == "waiting for stage 2"
    assert third.points == ((33, 1.0), (40, 0.0), (54, 1.0), (54, 0.0))
    assert inside.points == ((0, 1.0), (11, 2.0), (45, 1.0), (60, 0.0))
    assert rate.points == ((60, pytest.approx(1e9 / 15)),)


def test_only_the_first_frames_are_drawn_when_there_are_many(by_hand):
    plan, runs = by_hand
    trace = build_trace(plan, runs, max_frames=1)
    assert {s.frame for track in trace.tracks for s in track.slices} == {None, 0}


def test_chrome_form(by_hand, tmp_path):
    path = tmp_path / "trace.json"
    write_chrome_trace(path, build_trace(*by_hand))
    events = json.loads(path.read_text())["traceEvents"]
    arrows = [(e["ph"], e["id"], e["tid"], e["ts"]) for e in events if e["ph"] in "stf"]
    assert arrows == [
        ("s", 1, 0, 0.0),
        ("t", 1, 1, 0.012),
        ("f", 1, 0, 0.04),
        ("s", 2, 0, 0.011),
        ("t", 2, 1, 0.033),
        ("f", 2, 0, 0.054),
    ]
    assert sum(e["ph"] == "X" for e in events) == 6 * 4 + 2
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} == {
        "lane 0 of three stages",
        "cpu cores 0",
        "cpu cores 1",
    }


def test_perfetto_form_nests_and_balances(by_hand, tmp_path):
    path = tmp_path / "trace.pftrace"
    write_perfetto_trace(path, build_trace(*by_hand))
    read = perfetto_trace_pb2.Trace.FromString(path.read_bytes())
    stacks: dict[int, list[str]] = {}
    seen = []
    last = 0
    for packet in read.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            stack = stacks.setdefault(event.track_uuid, [])
            stack.append(event.name)
            seen.append("/".join(stack))
        elif event.type == event.TYPE_SLICE_END:
            stacks[event.track_uuid].pop()
        if event.type != event.TYPE_COUNTER:
            last = packet.timestamp
    assert not any(stacks.values()), "every slice that begins also ends"
    assert last == 54, "the last event of the last track"
    assert seen.count("stage 0/compute") == 2
    assert seen.count("stage 1/receive") == 2
    assert seen.count("wait") == 2
    assert not any("/stage" in path or "wait/" in path for path in seen)


def test_a_real_run_can_be_drawn(tiny, cores, tmp_path):
    plan = tiny.plan([tiny.whole((cores[0],))], [tiny.stage(n, (cores[1],)) for n in range(3)])
    with Pipeline(plan, tiny.frames(2)) as pipeline:
        trace = build_trace(plan, pipeline.run(n_frames=50))
    write_chrome_trace(tmp_path / "trace.json", trace)
    write_perfetto_trace(tmp_path / "trace.pftrace", trace)
    for track in trace.tracks:
        outer = [s for s in track.slices if s.frame is not None or s.name == "wait"]
        assert all(a.end_ns <= b.begin_ns for a, b in itertools.pairwise(outer)), (
            "work on one set of cores never overlaps"
        )
    assert [track.lane for track in trace.tracks] == [0, 1]
