"""Real pipelines of tiny models: order, loss, affinity, and every way to die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dse.errors import (
    AffinityError,
    ChildDiedError,
    ChildTimeoutError,
    DeviceError,
    InputError,
    PlatformError,
    RuntimeRefusedError,
)
from dse.flatbuffer import records
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.inputs import make_frames
from dse.pipeline import processes
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan, whole_model_plan
from dse.pipeline.processes import LaneProcesses
from dse.pipeline.shared import _FAST
from dse.pipeline.supervise import Pipeline

N_FRAMES = 997  # prime: a ring that is off by one can not line up with it


def check(tiny, outputs, frames) -> None:
    for number, (got,) in enumerate(outputs):
        np.testing.assert_array_equal(
            got, tiny.expected(frames[number % len(frames)]), err_msg=f"frame {number}"
        )


@pytest.mark.parametrize("engine", ["compiled", "interpreter"])
@pytest.mark.parametrize("places", [(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 1)])
def test_frames_keep_their_order_and_none_is_lost(tiny, cores, places, engine):
    frames = tiny.frames(N_FRAMES)
    with Pipeline(tiny.chain(*(cores[place] for place in places)), frames, engine=engine) as pipeline:
        assert pipeline.engines == ((engine,) * 3,)
        (outputs,) = pipeline.collect(4000)
    assert len(outputs) == 4000
    check(tiny, outputs, frames)


def test_two_lanes_run_in_parallel_and_agree(tiny, cores):
    frames = tiny.frames(5)
    plan = tiny.plan([tiny.whole((cores[0],))], [tiny.stage(n, (cores[1],)) for n in range(3)])
    with Pipeline(plan, frames) as pipeline:
        for outputs in pipeline.collect(50):
            assert len(outputs) == 50
            check(tiny, outputs, frames)
        runs = pipeline.run(seconds=0.4)
        spans = [(run.stamps[:, :, 0].min(), run.stamps[:, :, 3].max()) for run in runs]
        assert max(begin for begin, _ in spans) < min(end for _, end in spans), "lanes did not overlap"
        for lane in pipeline.times(runs):
            assert lane.throughput_hz > 0


def test_time_stamps_tell_a_consistent_story(tiny, cores):
    with Pipeline(tiny.chain(cores[0], cores[1], cores[0]), tiny.frames(3)) as pipeline:
        (run,) = pipeline.run(n_frames=500)
    stamps = run.stamps
    assert stamps.shape == (500, 3, 4)
    assert (np.diff(stamps, axis=2) >= 0).all(), "receive, compute, send follow each other"
    assert (np.diff(stamps[:, :, 0], axis=0) > 0).all(), "a stage takes frames in order"
    assert (stamps[:, 1, 0] >= stamps[:, 0, 2]).all(), "stage 1 starts after stage 0 has computed"
    assert (stamps[:, 2, 0] >= stamps[:, 1, 2]).all()
    shared = np.sort(stamps[:, [0, 2]].reshape(-1, 4)[:, [0, 3]], axis=0)
    assert (shared[1:, 0] >= shared[:-1, 1]).all(), "stages on one set of cores take turns"


def test_one_frame_in_flight_means_one(tiny, cores):
    with Pipeline(tiny.chain(cores[0], cores[1], cores[0]), tiny.frames(3)) as pipeline:
        (run,) = pipeline.run(n_frames=40, in_flight=1)
    assert (run.stamps[1:, 0, 0] >= run.stamps[:-1, 2, 2]).all()


def test_back_pressure_bounds_the_frames_inside(tiny, cores):
    depth = 2
    with Pipeline(tiny.chain(cores[0], cores[1], cores[1]), tiny.frames(3), queue_depth=depth) as pipeline:
        (run,) = pipeline.run(n_frames=800)
    entered, left = run.stamps[:, 0, 0], run.stamps[:, 2, 3]
    inside = np.arange(800) - np.searchsorted(np.sort(left), entered)
    # Two hops, each with its queue and the frames being written and read; skip tensors wait longer.
    assert inside.max() <= 2 * (depth + 2) + 3


def test_every_thread_of_the_runtime_has_its_mask(tiny, cores):
    plan = tiny.plan([tiny.whole(cores)])
    with Pipeline(plan, tiny.frames(2)) as pipeline:
        (records,) = pipeline.threads
        assert {record.role for record in records} == {"stage", "runtime"}
        assert all(record.got == cores for record in records)
        pipeline.run(n_frames=50)
        assert pipeline.check_affinity()[0] == records


def test_a_thread_that_is_moved_after_building_is_noticed(tiny, cores):
    with Pipeline(tiny.plan([tiny.whole((cores[1],))]), tiny.frames(2)) as pipeline:
        os.sched_setaffinity(pipeline.threads[0][0].tid, {cores[0]})
        with pytest.raises(AffinityError, match=rf"whole: .*on cores {cores[0]}, wanted {cores[1]}"):
            pipeline.run(n_frames=5)


def test_killing_a_lane_ends_everything_and_tells_what_was_lost(tiny, cores):
    plan = tiny.plan([tiny.whole((cores[0],))], [tiny.whole((cores[1],))], name="two copies")
    with Pipeline(plan, tiny.frames(2)) as pipeline:
        pids = pipeline.pids
        threading.Timer(0.5, os.kill, (pids[1], signal.SIGKILL)).start()
        begin = time.monotonic()
        with pytest.raises(ChildDiedError) as caught:
            pipeline.run(seconds=60)
        assert time.monotonic() - begin < 30, "it did not wait for the end of the run"
        message = str(caught.value)
        assert "lane 1 of plan 'two copies'" in message
        assert "SIGKILL" in message
        assert "Frames delivered before that: lane 0: " in message
        with pytest.raises(DeviceError, match="not running"):
            pipeline.run(n_frames=1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_killing_an_idle_lane_is_noticed_by_the_next_request(tiny, cores):
    plan = tiny.plan([tiny.whole((cores[0],))], [tiny.whole((cores[1],))])
    with Pipeline(plan, tiny.frames(2)) as pipeline:
        os.kill(pipeline.pids[0], signal.SIGKILL)
        with pytest.raises(ChildDiedError, match="lane 0"):
            pipeline.run(seconds=30, one_lane=1)


def test_a_lane_that_stands_still_is_ended(tiny, cores):
    with Pipeline(tiny.chain(cores[0], cores[1], cores[0]), tiny.frames(2), stall_s=0.5) as pipeline:
        threading.Timer(0.3, os.kill, (pipeline.pids[0], signal.SIGSTOP)).start()
        with pytest.raises(ChildTimeoutError, match=r"nothing moved for 0\.5 s while measuring"):
            pipeline.run(seconds=60)


def test_ctrl_c_leaves_nothing(tiny, cores):
    # The fixture looks for processes and files that are left.
    with (
        pytest.raises(KeyboardInterrupt),
        Pipeline(tiny.plan([tiny.whole((cores[0],))]), tiny.frames(2)) as pipeline,
    ):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        pipeline.run(seconds=60)


def test_a_file_that_is_no_model_is_refused_by_name(tiny, cores):
    stage = tiny.whole((cores[0],))
    stage.model_path.write_bytes(b"not a model at all, but long enough to be looked at")
    with pytest.raises(RuntimeRefusedError, match=r"lane 0 of plan 'tiny': whole: the runtime refused"):
        Pipeline(tiny.plan([stage]), tiny.frames(1)).__enter__()


def _with_output(plan: PipelinePlan, wrong: Port) -> PipelinePlan:
    stage = replace(plan.lanes[0].stages[0], outputs=(wrong,))
    return replace(plan, lanes=(replace(plan.lanes[0], stages=(stage,)),), outputs=(wrong,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int32"}, "has type float32 in the file, but the plan hands over int32"),
        ({"shape": (2, 4)}, r"has shape \(1, 8\) in the file, but the plan hands over \(2, 4\)"),
        ({"n_bytes": 400}, r"float32\(1, 8\) takes 32 bytes, but the plan hands over 400"),
        ({"name": "z"}, "is called 'y' in the file, 'z' in the plan"),
        ({"dtype": "string"}, "type string can not be handed"),
    ],
)
def test_a_port_that_does_not_fit_its_file_is_refused_at_set_up(tiny, cores, change, message):
    plan = _with_output(tiny.plan([tiny.whole((cores[0],))]), replace(tiny.y, **change))
    with pytest.raises(InputError, match=message):
        Pipeline(plan, tiny.frames(1)).__enter__()


def test_a_frame_of_the_wrong_shape_is_refused(tiny, cores):
    frames = [(np.zeros((1, 3), np.float32),)]
    with pytest.raises(
        InputError, match=r"frame 0 has float32\(1, 3\) for input 'x', expected an array float32\(1, 8\)"
    ):
        Pipeline(tiny.plan([tiny.whole((cores[0],))]), frames).__enter__()


def test_cores_that_this_process_may_not_use_are_refused(tiny):
    missing = max(os.sched_getaffinity(0)) + 1000
    with pytest.raises(PlatformError, match=str(missing)):
        Pipeline(tiny.plan([tiny.whole((missing,))]), tiny.frames(1)).__enter__()


def test_a_stage_that_fails_on_a_frame_ends_the_run_and_is_named(tmp_path, cores):
    """GATHER refuses an index outside its table: the second frame has one."""
    path = tmp_path / "gather.tflite"
    table = np.arange(20, dtype=np.float32).reshape(5, 4)
    tensors = (
        records.Tensor((5, 4), 0, 1, "table", has_rank=True),
        records.Tensor((1,), 2, 0, "ids", has_rank=True),
        records.Tensor((1, 4), 0, 0, "rows", has_rank=True),
    )
    gather = records.Operator(0, (0, 1), (2,), builtin_options=records.Options("GatherOptions", {}))
    model = records.Model(
        (records.SubGraph(tensors, (1,), (2,), (gather,), "main"),),
        (records.OperatorCode(36),),
        (records.Buffer(), records.Buffer(table.tobytes())),
    )
    path.write_bytes(encode(model))
    ids, rows = Port(1, "ids", "int32", (1,), 4), Port(2, "rows", "float32", (1, 4), 16)
    stage = StagePlan("lookup", path, "cpu", (cores[0],), 1, (ids,), (rows,))
    plan = PipelinePlan("lookups", (LanePlan((stage,)),), (ids,), (rows,))
    frames = [(np.array([value], np.int32),) for value in (3, 2, 99)]
    with Pipeline(plan, frames) as pipeline:
        (outputs,) = pipeline.collect(2)
        np.testing.assert_array_equal([row for (row,) in outputs], table[[3, 2]][:, None])
        with pytest.raises(
            DeviceError, match=r"lane 0 of plan 'lookups': lookup failed on frame 2: .*[Gg]ather"
        ):
            pipeline.run(n_frames=100)


def test_a_stage_that_the_c_api_refuses_runs_in_the_interpreter(corpus, cores):
    """Variable tensors (the state of an LSTM) are not supported by the C API."""
    graph = build_graph(read_model(corpus / "models" / "y_lstm_fused.tflite"))
    plan = whole_model_plan("lstm", graph, corpus / "models" / "y_lstm_fused.tflite", "cpu", [(cores[0],)])
    frames = make_frames(graph, 3, 0)
    with Pipeline(plan, frames) as pipeline:
        assert pipeline.engines == (("interpreter",),)
        (why,) = pipeline.fallbacks
        assert why.startswith("whole model runs in the interpreter: ")
        assert "LiteRtCreateModelFromFile of the runtime failed" in why
        assert len(pipeline.collect(3)[0]) == 3
    with pytest.raises(RuntimeRefusedError, match=r"plan 'lstm'.*the runtime failed"):
        Pipeline(plan, frames, engine="compiled").__enter__()


def test_both_engines_give_the_same_outputs(tiny, cores):
    frames = tiny.frames(7)
    plan = tiny.chain(cores[0], cores[1], cores[0])
    with Pipeline(plan, frames) as pipeline:
        assert pipeline.engines == (("compiled",) * 3,)
        (compiled,) = pipeline.collect(40)
    with Pipeline(plan, frames, engine="interpreter") as pipeline:
        (interpreted,) = pipeline.collect(40)
    np.testing.assert_array_equal(compiled, interpreted)
    check(tiny, compiled, frames)


PARENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Tiny
from dse.pipeline import processes
from dse.pipeline.processes import LaneProcesses
from dse.pipeline.shared import _FAST
from dse.pipeline.supervise import Pipeline

tiny = Tiny(Path(sys.argv[2]))
plan = tiny.plan([tiny.whole((int(sys.argv[3]),))], [tiny.whole((int(sys.argv[4]),))])
with Pipeline(plan, tiny.frames(2)) as pipeline:
    print(*pipeline.pids, pipeline.folder(), flush=True)
    {work}
"""


@pytest.mark.parametrize(
    "work", ["pipeline.run(seconds=60)", "[0 for _ in pipeline.map(iter(lambda: tiny.frames(1)[0], 0))]"]
)
def test_lanes_end_and_clean_up_when_their_parent_is_killed(tiny, cores, tmp_path, work):
    here = str(Path(__file__).parent)
    script = PARENT.replace("{work}", work)
    parent = subprocess.Popen(
        [sys.executable, "-c", script, here, str(tmp_path), *map(str, cores)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    *pids, folder = parent.stdout.readline().split()
    time.sleep(0.3)
    shared = list(_FAST.glob("dse-slots-*"))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        left = [
            pid
            for pid in pids
            if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        if not left and not Path(folder).exists():
            break
        time.sleep(0.1)
    assert not left
    assert not Path(folder).exists()
    assert not any(path.exists() for path in shared)


def test_a_lane_that_stops_while_it_builds_is_noticed(tiny, cores, monkeypatch):
    monkeypatch.setattr(processes, "STALL_S", 0.5)
    pipeline = Pipeline(
        tiny.plan([tiny.whole((cores[0],))], [tiny.whole((cores[1],))]), tiny.frames(1), stall_s=0.5
    )
    real = LaneProcesses.ask

    def ask(self, requests, *rest):
        os.kill(self.pids[1], signal.SIGSTOP)
        return real(self, requests, *rest)

    monkeypatch.setattr(LaneProcesses, "ask", ask)
    with pytest.raises(ChildTimeoutError, match=r"lane 1 .*did nothing for 0\.5 s while building"):
        pipeline.__enter__()


@pytest.mark.parametrize(
    ("number", "retried"), [(signal.SIGSEGV, True), (signal.SIGBUS, True), (signal.SIGKILL, False)]
)
def test_a_crash_of_the_compiled_engine_leads_to_the_interpreter_but_a_kill_does_not(
    tiny, cores, monkeypatch, number, retried
):
    real = LaneProcesses.ask

    def ask(self, requests, *rest):
        (request,) = requests.values()
        if request.get("engine") == "auto":
            os.kill(self.pids[0], number)
        return real(self, requests, *rest)

    monkeypatch.setattr(LaneProcesses, "ask", ask)
    pipeline = Pipeline(tiny.plan([tiny.whole((cores[0],))]), tiny.frames(4))
    if not retried:
        with pytest.raises(ChildDiedError, match="SIGKILL"):
            pipeline.__enter__()
        return
    with pipeline:
        assert pipeline.engines == (("interpreter",),)
        assert "all stages run in the interpreter: lane 0" in pipeline.fallbacks[0]
        check(tiny, pipeline.collect(8)[0], tiny.frames(4))


@pytest.mark.parametrize("engine", ["auto", "interpreter"])
def test_an_input_that_is_an_output_too_comes_through(tmp_path, tiny, stage_writer, cores, engine):
    path = stage_writer(tmp_path / "through.tflite", ["x"], [(0, ("x", 1.0), "y")], ["x", "y"])
    y = replace(tiny.y, tensor=1)
    stage = StagePlan("through", path, "cpu", (cores[0],), 1, (tiny.x,), (tiny.x, y))
    plan = PipelinePlan("through", (LanePlan((stage,)),), (tiny.x,), (tiny.x, y))
    frames = tiny.frames(5)
    with Pipeline(plan, frames, engine=engine) as pipeline:
        (got,) = pipeline.collect(5)
        assert pipeline.engines == (("interpreter",),)
    for (x,), (through, plus) in zip(frames, got, strict=True):
        np.testing.assert_array_equal(through, x)
        np.testing.assert_array_equal(plus, x + 1)
