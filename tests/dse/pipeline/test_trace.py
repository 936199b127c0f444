"""Traces of runs: the events themselves, and both file forms read back by other means."""

from __future__ import annotations

import itertools
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.pipeline.protobuf import Message
from dse.pipeline.supervise import LaneMemory, LaneRun, Pipeline
from dse.pipeline.trace import build_trace, write_chrome_trace, write_perfetto_trace


def run_of(stamps: np.ndarray) -> LaneRun:
    return LaneRun(stamps, (), LaneMemory(1, 1, 1))


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
    inside, rate = build_trace(*by_hand).counters
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


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """Decode one level of the wire format, independently of the writer."""
    found: list[tuple[int, int | bytes]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        elif key & 7 == 1:
            found.append((key >> 3, data[at : at + 8]))
            at += 8
        else:
            assert key & 7 == 2
            size = varint()
            found.append((key >> 3, data[at : at + size]))
            at += size
    assert at == len(data)
    return found


@given(st.integers(1, 1 << 20), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(allow_nan=False), st.text())
def test_fields_are_written_as_the_wire_format_says(field, number, real, text):
    data = bytes(
        Message()
        .integer(field, number)
        .double(field, real)
        .text(field, text)
        .fixed64(field, abs(number) >> 1)
    )
    decoded = fields(data)
    assert [key for key, _ in decoded] == [field] * 4
    assert decoded[0][1] == number % (1 << 64)
    assert struct.unpack("<d", decoded[1][1])[0] == real
    assert decoded[2][1] == text.encode()
    assert struct.unpack("<Q", decoded[3][1])[0] == abs(number) >> 1


def test_perfetto_form_nests_and_balances(by_hand, tmp_path):
    path = tmp_path / "trace.pftrace"
    trace = build_trace(*by_hand)
    write_perfetto_trace(path, trace)
    stacks: dict[int, list[str]] = {}
    seen = []
    last = 0
    for key, packet in fields(path.read_bytes()):
        assert key == 1
        content = dict(fields(packet))
        assert content[10] == 1
        if 11 not in content:
            continue
        event = dict(fields(content[11]))
        if event[9] == 1:
            stack = stacks.setdefault(event[11], [])
            stack.append(event[23].decode())
            seen.append("/".join(stack))
        elif event[9] == 2:
            stacks[event[11]].pop()
        if event[9] in (1, 2):
            last = content[8]
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
