"""Frames of one's own through real lanes: in order, whatever happens."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from dse.errors import ChildDiedError, ChildTimeoutError, DeviceError, InputError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.merge import merge_models
from dse.flatbuffer.reader import read_model
from dse.inputs import make_frames
from dse.pipeline.plan import whole_model_plan
from dse.pipeline.shared import _FAST
from dse.pipeline.supervise import Pipeline
from dse.pipeline.trace import build_trace
from dse.pipeline.watch import StallWatch
from dse.placement import PlacedLane, PlacedStage
from dse.staging import Stager
from dse.zoo.registry import build_file


@pytest.fixture
def lanes(tiny, cores):
    """Two lanes of different shape, so that they run at different rates."""
    return tiny.plan(
        [tiny.whole((cores[0],))], [tiny.stage(n, (cores[1],)) for n in range(3)], name="two unlike lanes"
    )


def numbered(tiny, n: int):
    ramp = np.arange(tiny.size, dtype=np.float32)[None, :]
    return ((ramp + number,) for number in range(n))


def check(tiny, outputs, n: int) -> None:
    count = 0
    for (got,), frame in itertools.zip_longest(outputs, numbered(tiny, n)):
        np.testing.assert_array_equal(got, tiny.expected(frame), err_msg=f"frame {count}")
        count += 1
    assert count == n


@pytest.mark.parametrize("n_frames", [0, 1, 2, 3000])
def test_outputs_come_in_the_order_of_the_frames(tiny, lanes, n_frames):
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        check(tiny, pipeline.map(numbered(tiny, n_frames)), n_frames)


def test_a_pipeline_can_stream_and_run_again_and_again(tiny, lanes):
    with Pipeline(lanes, tiny.frames(3)) as pipeline:
        for _ in range(3):
            check(tiny, pipeline.map(numbered(tiny, 100)), 100)
            assert all(run.n_frames == 50 for run in pipeline.run(n_frames=50))
            assert len(pipeline.collect(5)[1]) == 5


@pytest.mark.parametrize(("engine", "spin_us"), [("compiled", 0), ("interpreter", 0), ("compiled", 200)])
def test_both_engines_stream_asleep_or_spinning(tiny, lanes, engine, spin_us):
    with Pipeline(lanes, tiny.frames(1), engine=engine, spin_us=spin_us) as pipeline:
        check(tiny, pipeline.map(numbered(tiny, 300)), 300)


def test_leaving_a_stream_early_leaves_the_pipeline_usable(tiny, lanes):
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        stream = pipeline.map(numbered(tiny, 10**9))
        check(tiny, itertools.islice(stream, 20), 20)
        stream.close()
        check(tiny, pipeline.map(numbered(tiny, 50)), 50)


def test_a_source_that_raises_is_heard_and_the_pipeline_stays_usable(tiny, lanes):
    def faulty():
        yield from numbered(tiny, 7)
        raise OSError("camera unplugged")

    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        with pytest.raises(OSError, match="camera unplugged"):
            list(pipeline.map(faulty()))
        with pytest.raises(OSError, match="camera unplugged"):
            pipeline.stream(faulty(), lambda number, outputs: None)
        check(tiny, pipeline.map(numbered(tiny, 50)), 50)


def test_a_frame_that_does_not_fit_is_refused_and_the_pipeline_stays_usable(tiny, lanes):
    faults = [
        ((np.zeros((1, 8)),), r"has float64\(1, 8\) for input 'x', expected an array float32\(1, 8\)"),
        (([[0.0] * 8],), "has a list for input 'x', expected an array float32"),
        ((), "has 0 arrays, the model 1 inputs"),
        (8, "is of type int, expected a tuple of arrays"),
    ]
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        for bad, message in faults:
            with pytest.raises(InputError, match=f"frame 3 {message}"):
                list(pipeline.map([*numbered(tiny, 3), bad, *numbered(tiny, 1)]))
        for feed in (pipeline.map, lambda source: pipeline.stream(source, lambda number, outputs: None)):
            with pytest.raises(InputError, match="gave None as frame 1, expected a tuple of arrays"):
                list(feed([*numbered(tiny, 1), None, *numbered(tiny, 1)]))
        check(tiny, pipeline.map(numbered(tiny, 50)), 50)


def test_one_stream_at_a_time_and_it_is_not_disturbed_by_other_wishes(tiny, lanes):
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        stream = pipeline.map(numbered(tiny, 60))
        first = next(stream)
        for wish in (
            lambda: next(pipeline.map(numbered(tiny, 1))),
            lambda: pipeline.run(n_frames=3),
            pipeline.resident_bytes,
        ):
            with pytest.raises(DeviceError, match=r"a stream is under way; .* close\(\)"):
                wish()
        with pytest.raises(DeviceError, match="running already"):
            pipeline.__enter__()
        check(tiny, itertools.chain([first], stream), 60)
        assert pipeline.run(n_frames=3)[0].n_frames == 3
        stream = pipeline.map(numbered(tiny, 10**9))
        next(stream)
    with pytest.raises(DeviceError, match="closed in the middle of a stream"):
        list(stream)


def test_an_interrupted_stream_ends_the_lanes_at_once(tiny, lanes):
    """Ctrl-C while nothing comes: else the lanes would wait for frames for ever."""
    over = threading.Event()
    main = threading.main_thread().ident or 0

    def interrupt():
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        over.set()

    def camera():
        yield from numbered(tiny, 3)
        threading.Timer(0.1, interrupt).start()
        over.wait(60)

    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        with pytest.raises(KeyboardInterrupt):
            pipeline.stream(camera(), lambda number, outputs: None)
        assert pipeline.pids == ()
        with pytest.raises(DeviceError, match="not running"):
            list(pipeline.map(numbered(tiny, 1)))


@pytest.mark.parametrize(
    "setting", [{"queue_depth": 0}, {"record": -1}, {"spin_us": -1}, {"engine": "fast"}], ids=str
)
def test_impossible_settings_are_told_before_anything_starts(tiny, lanes, setting):
    with pytest.raises(InputError, match=f"{next(iter(setting))}|engine of auto, compiled, interpreter"):
        Pipeline(lanes, tiny.frames(1), **setting)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, "neither"),
        ({"n_frames": 0}, "n_frames=0"),
        ({"seconds": -1.0}, "seconds=-1.0"),
        ({"n_frames": 5, "in_flight": 0}, "n_frames=5, in_flight=0"),
    ],
)
def test_a_run_wants_an_end(tiny, lanes, asked, told):
    with pytest.raises(InputError, match=f"expected n_frames or seconds, above 0, got {told}"):
        Pipeline(lanes, tiny.frames(1)).run(**asked)


def test_slots_go_to_the_disk_where_the_memory_has_no_room(tiny, lanes, monkeypatch):
    """Memory that is not reserved would kill this process when it is first written to."""
    real, places = os.posix_fallocate, []

    def small(handle: int, offset: int, size: int) -> None:
        places.append(Path(f"/proc/self/fd/{handle}").readlink().parent)
        if places[-1] == _FAST:
            raise OSError(errno.ENOSPC, "no space")
        real(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", small)
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        check(tiny, pipeline.map(numbered(tiny, 100)), 100)
        assert set(places) == {_FAST, pipeline.folder()}
        assert not list(_FAST.glob(f"dse-slots-{pipeline.folder().name}-*"))


def test_without_room_for_slots_nothing_is_left_behind(tiny, lanes, monkeypatch):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        before = set(pipeline.folder().iterdir()), psutil.Process().num_fds()
        for _ in range(2):
            with monkeypatch.context() as patched:
                patched.setattr(os, "posix_fallocate", full)
                with pytest.raises(DeviceError, match="expected room for"):
                    next(pipeline.map(numbered(tiny, 1)))
        assert before == (set(pipeline.folder().iterdir()), psutil.Process().num_fds())
        check(tiny, pipeline.map(numbered(tiny, 20)), 20)


def test_a_source_that_blocks_does_not_hold_back_outputs(tiny, lanes):
    seen = []
    first_is_out = threading.Event()

    def camera():
        frames = numbered(tiny, 2)
        yield next(frames)
        assert first_is_out.wait(20), "the first frame's outputs must come while the source blocks"
        yield next(frames)

    def sink(number, outputs):
        seen.append((number, outputs[0]))
        first_is_out.set()

    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        assert pipeline.stream(camera(), sink) == 2
    assert [number for number, _ in seen] == [0, 1]
    check(tiny, [(values,) for _, values in seen], 2)


@pytest.mark.slow
def test_a_source_that_blocks_beyond_its_stream_leaves_nothing_when_it_goes_on(tiny, lanes):
    goes_on = threading.Event()

    def camera():
        yield from numbered(tiny, 2)
        goes_on.wait(60)
        yield from numbered(tiny, 2)

    def broken(number, outputs):
        raise OSError("disk full")

    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        before = psutil.Process().num_fds(), threading.active_count()
        with pytest.raises(OSError, match="disk full"):
            pipeline.stream(camera(), broken)
        goes_on.set()
        end = time.monotonic() + 10
        while (psutil.Process().num_fds(), threading.active_count()) != before:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_slow_consumer_is_no_stall(tiny, lanes):
    with Pipeline(lanes, tiny.frames(1), stall_s=0.3) as pipeline:
        for number, _ in enumerate(pipeline.map(numbered(tiny, 40))):
            if number in (0, 20):
                time.sleep(0.8)


def test_killing_a_lane_ends_the_stream_and_tells_what_was_delivered(tiny, lanes):
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        threading.Timer(0.4, os.kill, (pipeline.pids[1], signal.SIGKILL)).start()
        received = []
        with pytest.raises(ChildDiedError, match=r"lane 1 .*SIGKILL(.|\n)*Frames delivered before that"):
            received.extend(pipeline.map(numbered(tiny, 10**9)))
        with pytest.raises(DeviceError, match="not running"):
            list(pipeline.map(numbered(tiny, 1)))
    # What had come out by then was right (extend keeps nothing of a generator that raises).
    assert received == [] or np.array_equal(received[0][0], tiny.expected(next(numbered(tiny, 1))))


def test_a_lane_that_stands_still_ends_the_stream(tiny, lanes):
    with Pipeline(lanes, tiny.frames(1), stall_s=0.5) as pipeline:
        threading.Timer(0.3, os.kill, (pipeline.pids[0], signal.SIGSTOP)).start()
        with pytest.raises(ChildTimeoutError, match=r"lane 0.*nothing moved for"):
            for _ in pipeline.map(numbered(tiny, 10**9)):
                pass


def test_frames_of_a_model_with_state_are_not_dealt_to_copies(tiny, lanes):
    with (
        Pipeline(replace(lanes, stateful=True), tiny.frames(1)) as pipeline,
        pytest.raises(InputError, match="one stream needs one lane; the plan has 2"),
    ):
        pipeline.map(numbered(tiny, 1))


class Footprint:
    """Memory, files and threads of the lanes and of this process."""

    def __init__(self, pipeline: Pipeline) -> None:
        own = psutil.Process()
        self.lanes_bytes = pipeline.resident_bytes()
        self.own_bytes = own.memory_info().rss
        processes = [own, *map(psutil.Process, pipeline.pids)]
        self.handles = [(process.num_fds(), process.num_threads()) for process in processes]

    def assert_no_growth_since(self, before: Footprint) -> None:
        grown = [now - then for now, then in zip(self.lanes_bytes, before.lanes_bytes, strict=True)]
        assert max(grown) < 1 << 20, f"lanes grew by {grown} bytes"
        assert self.own_bytes - before.own_bytes < 1 << 20
        assert self.handles == before.handles


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "depth"), [("native", 2), ("python", 1)])
def test_ten_thousand_frames_without_growth(tiny, lanes, loop, depth):
    """Two unlike lanes, one of three stages; each frame is told by its number."""
    with Pipeline(lanes, tiny.frames(1), loop=loop, queue_depth=depth) as pipeline:
        check(tiny, pipeline.map(numbered(tiny, 2000)), 2000)
        before = Footprint(pipeline)
        check(tiny, pipeline.map(numbered(tiny, 10_000)), 10_000)
        Footprint(pipeline).assert_no_growth_since(before)


@pytest.mark.slow
def test_ten_thousand_frames_of_a_workload_without_growth(tmp_path, cores):
    """Two networks in four stages that take turns on two cores; what each gives is known before."""
    files = {}
    for name, kind, parameters in (
        ("eyes", "mobilenet_v1", {"size": 32, "width": 25, "classes": 8}),
        ("look", "unet", {"size": 16, "depth": 1, "base": 2}),
    ):
        build_file(kind, tmp_path / f"{name}.tflite", parameters)
        files[name] = read_model(tmp_path / f"{name}.tflite")
    path = tmp_path / "both.tflite"
    path.write_bytes(encode(merge_models(files).model))
    file, graph = read_model(path), build_graph(read_model(path))
    eyes, look = (network.layers for network in graph.networks)
    half, third = len(eyes) // 2, len(look) // 3
    spans = [(eyes[:half], 0), (look[:third], 1), (eyes[half:], 1), (look[third:], 0)]
    stages = [
        PlacedStage(f"s{n}", tuple(sorted(layers)), "cpu", 1, (cores[at],))
        for n, (layers, at) in enumerate(spans)
    ]
    plan = Stager(file, graph, tmp_path / "stages").lane_pipeline("both", PlacedLane(tuple(stages)))
    known = make_frames(graph, 40, 0)
    with Pipeline(whole_model_plan("whole", graph, path, "cpu", [(cores[0],)])) as alone:
        expected = list(alone.map(known))
    assert len({b"".join(array.tobytes() for array in outputs) for outputs in expected}) == 40
    order = [7 * number % 40 for number in range(10_000)]  # neighbours are never alike
    with Pipeline(plan) as pipeline:
        assert [stage.networks for stage in plan.lanes[0].stages] == [("eyes",), ("look",)] * 2

        def run(numbers):
            n_frames = 0
            for number, outputs in zip(numbers, pipeline.map(known[n] for n in numbers), strict=True):
                for ours, theirs in zip(outputs, expected[number], strict=True):
                    np.testing.assert_array_equal(ours, theirs, err_msg=f"frame {n_frames}")
                n_frames += 1
            return n_frames

        run(order[:500])
        before = Footprint(pipeline)
        assert run(order) == 10_000
        Footprint(pipeline).assert_no_growth_since(before)


def test_the_stall_watch_by_hand():
    now = [0.0]
    watch = StallWatch(2.0, lambda: now[0])
    assert not watch.stuck(0, (1, 1))
    now[0] = 1.9
    assert not watch.stuck(0, (1, 1))
    now[0] = 2.1
    assert watch.stuck(0, (1, 1))
    assert not watch.stuck(0, (1, 2)), "it moved"
    now[0] = 9.0
    watch.forget(0)
    assert not watch.stuck(0, (1, 2)), "nobody looked"


ORACLE = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter

interpreter = Interpreter(sys.argv[1])
interpreter.allocate_tensors()
(source,), (sink,) = interpreter.get_input_details(), interpreter.get_output_details()
found = []
for frame in np.load(sys.argv[2]):
    interpreter.set_tensor(source["index"], frame)
    interpreter.invoke()
    found.append(interpreter.get_tensor(sink["index"]).copy())
np.save(sys.argv[3], found)
"""


def fresh_outputs(model: Path, frames: list, folder: Path) -> np.ndarray:
    """Outputs of a model that has never run before, by the runtime alone."""
    np.save(folder / "in.npy", [values for (values,) in frames])
    arguments = [str(model), str(folder / "in.npy"), str(folder / "out.npy")]
    subprocess.run([sys.executable, "-c", ORACLE, *arguments], check=True, capture_output=True)
    return np.load(folder / "out.npy")


@pytest.mark.parametrize("name", ["y_lstm_fused", "pymicro_wakeword__alexa"])
def test_each_stream_of_a_model_with_state_is_as_if_it_were_alone(corpus, tmp_path, cores, name):
    """Variable tensors in one model, resource variables in the other."""
    model = corpus / "models" / f"{name}.tflite"
    graph = build_graph(read_model(model))
    plan = whole_model_plan("streams", graph, model, "cpu", [(core,) for core in cores])
    assert plan.stateful
    streams = [make_frames(graph, n, seed, style="held") for n, seed in ((100, 0), (70, 1))]
    expected = [fresh_outputs(model, list(frames), tmp_path) for frames in streams]
    with Pipeline(plan, streams[0][:20]) as pipeline:
        for _ in range(2):
            got: list[list[np.ndarray]] = [[], []]
            for stream, (values,) in pipeline.map_streams(streams):
                got[stream].append(values)
            for ours, theirs in zip(got, expected):
                np.testing.assert_array_equal(ours, theirs)
            pipeline.run(n_frames=15)
        for lane in pipeline.collect(20):
            np.testing.assert_array_equal([values for (values,) in lane], expected[0][:20])
        pipeline.check_affinity()


def test_streams_and_lanes_must_be_as_many(tiny, lanes):
    with (
        Pipeline(lanes, tiny.frames(1)) as pipeline,
        pytest.raises(InputError, match="3 streams for 2 lanes"),
    ):
        pipeline.map_streams([[], [], []])


def test_streams_end_and_can_be_left_one_by_one(tiny, lanes):
    with Pipeline(lanes, tiny.frames(1)) as pipeline:
        counts = [0, 0]
        for stream, (values,) in pipeline.map_streams([numbered(tiny, 5), numbered(tiny, 300)]):
            np.testing.assert_array_equal(values[0, 0], 5 * counts[stream] + 2)
            counts[stream] += 1
        assert counts == [5, 300]
        left = pipeline.map_streams([numbered(tiny, 10**9), numbered(tiny, 10**9)])
        assert len(list(itertools.islice(left, 20))) == 20
        left.close()
        check(tiny, pipeline.map(numbered(tiny, 20)), 20)


@pytest.mark.parametrize("loop", ["auto", "python"])
def test_a_stream_can_be_recorded_and_drawn(tiny, lanes, loop):
    with Pipeline(lanes, record=40, loop=loop) as pipeline:
        with pytest.raises(InputError, match="nothing was recorded"):
            pipeline.recorded()
        check(tiny, pipeline.map(numbered(tiny, 200)), 200)
        runs = pipeline.recorded()
        with pytest.raises(InputError, match="nothing was recorded"):
            pipeline.recorded()
    assert sum(run.counters.n_frames for run in runs) == 200
    for run, lane in zip(runs, lanes.lanes, strict=True):
        assert run.stamps.shape == (min(40, run.counters.n_frames), len(lane.stages), 4)
        assert (np.diff(run.stamps, axis=2) >= 0).all()
        assert (np.diff(run.stamps[:, 0, 0]) > 0).all()
    assert len(build_trace(lanes, runs).tracks) == 2


def test_a_stream_with_fewer_frames_than_lanes_can_be_drawn(tiny, lanes):
    with Pipeline(lanes, record=40) as pipeline:
        for n_frames in (1, 0):
            check(tiny, pipeline.map(numbered(tiny, n_frames)), n_frames)
            trace = build_trace(lanes, pipeline.recorded())
            frames = {one.frame for track in trace.tracks for one in track.slices if one.frame is not None}
            assert frames == set(range(n_frames))


def test_nothing_is_recorded_unasked(tiny, lanes):
    with Pipeline(lanes) as pipeline:
        check(tiny, pipeline.map(numbered(tiny, 5)), 5)
        with pytest.raises(InputError, match="expected Pipeline"):
            pipeline.recorded()
