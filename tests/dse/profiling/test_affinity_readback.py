"""Workers keep the mask of the thread that built them, and some machines do not keep masks at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dse.errors import AffinityError, DeviceError
from dse.platforms import Slot
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import Loaded, SlotWorker
from dse.profiling.tiny import tiny_model

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.parametrize("which", ["main thread", "runtime thread"])
def test_thread_that_left_its_core_is_an_error(which: str, tmp_path: Path, corpus: Path) -> None:
    model = corpus / "models" / "mediapipe__hand_landmark_lite.tflite"
    with SlotWorker(Slot("cpu", 2), CORES[:1], tmp_path / "log", ProfileOptions()) as worker:
        assert isinstance(worker.load("m", model), Loaded)
        worker.check_affinity()
        threads = sorted(int(path.name) for path in Path(f"/proc/{worker.pid}/task").iterdir())
        assert len(threads) > 2
        moved = threads[0] if which == "main thread" else threads[-1]
        os.sched_setaffinity(moved, CORES[1:2])
        with pytest.raises(AffinityError, match=f"thread {moved} .* may run on cores .{CORES[1]}."):
            worker.check_affinity()


def test_19_core_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):
        SlotWorker(Slot("cpu", 1), [4095], tmp_path / "log", ProfileOptions(timeout_s=20))


def test_19_mask_that_is_not_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A kernel that accepts a mask and narrows it silently.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nreal = os.sched_setaffinity\n"
        f"os.sched_setaffinity = lambda pid, cores: real(pid, {{{CORES[0]}}})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tiny.tflite").write_bytes(tiny_model())
    if len(CORES) < 2:
        pytest.skip("needs two cores")
    with pytest.raises(AffinityError, match="asked for cores"):
        SlotWorker(Slot("cpu", 2), CORES[:2], tmp_path / "log", ProfileOptions())
