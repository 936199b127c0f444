"""Annotations as a daemon sees them: a listener on an abstract socket decodes every message."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.errors import DeviceError, InputError
from dse.pipeline.measure import MeasureOptions, measure_plans
from dse.pipeline.streamline import Emitter, LaneShape, colour, counter, frame_messages, leb128, message
from dse.pipeline.supervise import Pipeline
from dse.progress import SilentProgress


class Reader:
    """Takes a message apart, independently of the writer."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def integer(self) -> int:
        value = shift = 0
        while True:
            byte = self._payload[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if byte & 0x40 else value

    def colour(self) -> bytes:
        found = self._payload[self._at : self._at + 4]
        assert found[3] == 0x1B
        self._at += 4
        return found

    def rest(self) -> str:
        return self._payload[self._at :].decode()


def split(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<BI", data, at)
        found.append((kind, data[at + 5 : at + 5 + size]))
        at += 5 + size
    assert at == len(data)
    return found


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_integers_are_signed_leb128_of_the_least_length(value):
    data = leb128(value)
    assert Reader(data).integer() == value
    assert len(data) == 1 or not -(1 << (7 * len(data) - 8)) <= value < 1 << (7 * len(data) - 8)


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (-1, "7f"), (63, "3f"), (64, "c000"), (-64, "40"), (-65, "bf7f"), (624485, "e58e26")],
)
def test_integers_as_published_examples_write_them(value, data):
    assert leb128(value).hex() == data


def test_a_message_has_type_length_and_payload():
    assert message(0x02, 5, colour(0x0A141E), "hi").hex() == "02" + "07000000" + "05" + "0a141e1b" + "6869"


def test_a_counter_says_what_it_is():
    ((kind, payload),) = split(counter(7, "pipeline", "throughput", "frames/s", 0x4477AA))
    assert kind == 0x08
    reader = Reader(payload)
    assert reader.integer() == 7
    flags = [reader.integer() for _ in range(11)]
    assert flags[9] == 0, "no activities"
    reader.colour()
    assert reader.rest().split("\0") == ["pipeline", "throughput", "frames/s", "pipeline: throughput"]


DIAMOND = LaneShape(3, "p", ("a", "b", "c"), ((), (0,), (0, 1)), ((0, 2), (1,)), ("cores 0", "cores 1"))


def test_jobs_of_a_frame_depend_on_each_other_as_the_stages_do():
    times = [[10, 11, 19, 20], [20, 21, 29, 30], [30, 31, 39, 40]]
    jobs = []
    for kind, payload in split(frame_messages(DIAMOND, 5, times, 1000)):
        if kind != 0x0C:
            continue
        reader = Reader(payload)
        view, job, track, start, duration = (reader.integer() for _ in range(5))
        reader.colour()
        primary = reader.integer()
        depends = [reader.integer() for _ in range(reader.integer())]
        jobs.append((view, job, track, start, duration, primary, depends, reader.rest()))
    assert jobs == [
        (3, 15, 0, 1010, 10, -1, [], "a, frame 5"),
        (3, 16, 1, 1020, 10, 15, [15], "b, frame 5"),
        (3, 17, 0, 1030, 10, 16, [15, 16], "c, frame 5"),
    ]


class Listener:
    """Stands in for the daemon: accepts connections and keeps what comes."""

    def __init__(self, *, reads: bool = True) -> None:
        self._reads = reads
        self.address = f"dse-test-{os.getpid()}-{id(self)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.address}")
        self._socket.listen()
        self.streams: list[bytes] = []
        self._readers: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._reads:
                self.streams.append(connection.recv(1))
                continue
            reader = threading.Thread(target=self._read, args=(connection,))
            reader.start()
            self._readers.append(reader)

    def _read(self, connection: socket.socket) -> None:
        data = b""
        while chunk := connection.recv(1 << 16):
            data += chunk
        connection.close()
        self.streams.append(data)

    def close(self) -> list[bytes]:
        for reader in self._readers:
            reader.join(10)
        # Closed alone, it would take one more connection: the one that accept is waiting for.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        return self.streams


def test_a_running_pipeline_annotates_every_frame_of_every_stage(tiny, cores):
    listener = Listener()
    plan = tiny.plan([tiny.whole((cores[0],))], [tiny.stage(n, (cores[1],)) for n in range(3)])
    with Pipeline(plan, tiny.frames(2), annotate=listener.address) as pipeline:
        pids = pipeline.pids
        runs = pipeline.run(n_frames=100)
    streams = listener.close()
    assert len(streams) == 2
    seen_pids = set()
    for data in streams:
        assert data.startswith(b"ANNOTATE 5\n")
        _tid, pid, flag = struct.unpack_from("<IIB", data, 11)
        seen_pids.add(pid)
        assert flag == 0
        messages = split(data[20:])
        lane = pids.index(pid)
        n_stages = len(plan.lanes[lane].stages)
        kinds = Counter(kind for kind, _ in messages)
        assert kinds[0x0C] == 100 * n_stages == kinds[0x02] == kinds[0x01]
        assert kinds[0x03] == n_stages
        assert (kinds[0x04], kinds[0x0D], kinds[0x08]) == (1, 1, 1)
        assert kinds[0x0B] == len(plan.lanes[lane].units)
        assert kinds[0x09] >= 1
        durations = []
        for kind, payload in messages:
            if kind == 0x0C:
                reader = Reader(payload)
                durations.append([reader.integer() for _ in range(5)][4])
        stamps = runs[lane].stamps
        assert durations == (stamps[:, :, 3] - stamps[:, :, 0]).ravel().tolist()
    assert seen_pids == set(pids)


@pytest.mark.parametrize("loop", ["native", "python"])
def test_frames_of_ones_own_are_annotated_and_stages_tell_their_networks(tiny, cores, loop):
    listener = Listener()
    first, second, third = (tiny.stage(n, (cores[n // 2],)) for n in range(3))
    stages = [
        replace(first, networks=("hand",)),
        replace(second, networks=("hand", "face")),
        replace(third, networks=("face",)),
    ]
    frames = tiny.frames(3) * 200
    with Pipeline(tiny.plan(stages, name="ours"), loop=loop, annotate=listener.address) as pipeline:
        for (got,), frame in zip(pipeline.map(frames), frames, strict=True):
            np.testing.assert_array_equal(got, tiny.expected(frame))
    (data,) = listener.close()
    messages = split(data[20:])
    labels = ("hand (stage 0)", "hand+face (stage 1)", "face (stage 2)")
    texts = {kind: [payload for k, payload in messages if k == kind] for kind in (0x03, 0x04, 0x0C)}
    assert [payload.endswith(label.encode()) for payload, label in zip(texts[0x03], labels)] == [True] * 3
    assert texts[0x04][0].endswith(b"lane 0 of ours")
    jobs = [label for frame in range(600) for label in (f"{name}, frame {frame}" for name in labels)]
    found = []
    for payload in texts[0x0C]:
        reader = Reader(payload)
        duration = [reader.integer() for _ in range(5)][4]
        assert 0 < duration < 10**9
        reader.colour()
        reader.integer()
        for _ in range(reader.integer()):
            reader.integer()
        found.append(reader.rest())
    assert found == jobs


def test_only_the_frames_that_are_still_known_are_annotated(tiny):
    """A stream keeps the times of its last frames; who looks on too rarely misses some."""
    listener = Listener()
    shape, asked = LaneShape(0, "p", ("a",), ((),), ((0,),), ("cores 0",)), []

    def times(frame):
        asked.append(frame)
        return [[1, 2, 3, 4]]

    with Emitter(shape, lambda: 1000, times, listener.address, 64):
        pass
    assert asked == list(range(1000 - 32, 1000))
    listener.close()


def test_a_daemon_that_stands_still_does_not_stop_the_run(tiny, cores, monkeypatch):
    listener = Listener(reads=False)
    plan = tiny.plan([tiny.stage(n, (cores[0],)) for n in range(3)])
    with Pipeline(plan, tiny.frames(1), annotate=listener.address) as pipeline:
        assert pipeline.run(n_frames=20_000)[0].n_frames == 20_000
    assert listener.streams == [b"A"]


def test_a_capture_that_ends_does_not_end_the_runs_after_it(tiny, cores):
    listener = Listener()
    plan = tiny.plan([tiny.stage(n, (cores[0],)) for n in range(3)])
    with Pipeline(plan, tiny.frames(1), annotate=listener.address) as pipeline:
        pipeline.run(n_frames=50)
        assert len(listener.close()) == 1
        assert pipeline.run(n_frames=50)[0].n_frames == 50
        assert len(list(pipeline.map(tiny.frames(5)))) == 5
    with (
        Pipeline(plan, tiny.frames(1), annotate=listener.address) as pipeline,
        pytest.raises(DeviceError, match="nobody listens"),
    ):
        pipeline.run(n_frames=50)


class Told(SilentProgress):
    """Keeps the lines that are said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


def test_plans_that_are_built_after_the_end_of_a_capture_are_measured_without_it(tiny, cores):
    listener, told = Listener(), Told()
    plans = [
        replace(tiny.plan([tiny.stage(n, (cores[0],)) for n in range(3)]), name=name) for name in ("a", "b")
    ]
    options = MeasureOptions(repeats=2, seconds=0.05, warmup_s=0.02, annotate=listener.address)
    found = measure_plans(plans, tiny.frames(1), options, told, keep=lambda _: listener.close())
    assert [len(one.repeats) for one in found] == [2, 2]
    assert len(listener.streams) > 0
    assert [line[:31] for line in told.lines] == ["no annotations from here on: St"]
    with pytest.raises(DeviceError, match="nobody listens"):
        measure_plans(plans, tiny.frames(1), options)


def test_recording_and_annotating_exclude_each_other(tiny):
    with pytest.raises(InputError, match="expected record or annotate, got both"):
        Pipeline(tiny.plan([tiny.whole((0,))]), record=5, annotate="x")


def test_nobody_listens(tiny, cores):
    plan = tiny.plan([tiny.whole((cores[0],))])
    with (
        Pipeline(plan, tiny.frames(1), annotate="dse-nobody") as pipeline,
        pytest.raises(DeviceError, match=r"nobody listens on the abstract socket 'dse-nobody'.*start gatord"),
    ):
        pipeline.run(n_frames=5)
