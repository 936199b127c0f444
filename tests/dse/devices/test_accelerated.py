from __future__ import annotations

import os
from pathlib import Path

from benchmarks.gpu_costs import fallback_told
from dse.platforms import Slot
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import Loaded, SlotWorker
from dse.profiling.tiny import tiny_model

LOG = """INFO: [compiled_model.cc:829] Flatbuffer model initialized directly from incoming litert model.
ERROR: Following operations are not supported by GPU delegate:
DENSIFY: Operation is not supported.
108 operations will run on the GPU, and the remaining 183 operations will run on the CPU.
ERROR: Following operations are not supported by GPU delegate:
CAST: another model
"""


def test_with_a_gpu_it_runs_and_without_one_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "tiny.tflite").write_bytes(tiny_model())
    core = min(os.sched_getaffinity(0))
    with SlotWorker(Slot("gpu", 1), [core], tmp_path / "log", ProfileOptions(kernels="gpu")) as worker:
        found = worker.load("tiny", tmp_path / "tiny.tflite")
        if isinstance(found, Loaded):
            samples, refused = worker.time([("tiny", 1, 3)])
            assert (len(samples["tiny"]), refused) == (3, {})
        else:
            assert "status" in found or "died" in found


def test_what_the_runtime_leaves_to_the_cpu() -> None:
    assert fallback_told(LOG) == [
        "DENSIFY: Operation is not supported.",
        "108 operations will run on the GPU, and the remaining 183 operations will run on the CPU.",
    ]
    assert fallback_told("") == []
