from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dse.platforms import Slot
from dse.profiling.cache import Record
from dse.profiling.calm import CalmWatch, precise_enough
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker

CORE = max(os.sched_getaffinity(0))


@pytest.fixture
def worker(corpus: Path, tmp_path: Path) -> Iterator[SlotWorker]:
    with SlotWorker(Slot("cpu", 1), [CORE], tmp_path / "log", ProfileOptions()) as found:
        found.load("m", corpus / "models" / "mediapipe__hand_landmark_lite.tflite")
        yield found


def test_competitor_on_the_same_core_is_noticed(worker: SlotWorker) -> None:
    code = f"import os; os.sched_setaffinity(0, [{CORE}]); print('x', flush=True)\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for rival in rivals:
            assert rival.stdout is not None
            rival.stdout.readline()
        watch = CalmWatch(worker)
        worker.time([("m", 0, 30)])
        assert "waited for their cores" in watch.disturbance()
    finally:
        for rival in rivals:
            rival.kill()
            rival.communicate()


def test_own_work_is_no_disturbance(worker: SlotWorker) -> None:
    # Other tests may run beside this one: one calm second within many is enough.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        watch = CalmWatch(worker)
        worker.time([("m", 0, 5)])
        if watch.disturbance() == "":
            return
    pytest.skip("this machine is never calm")


def record(*calm: bool) -> Record:
    return Record([(100,) if quiet else (300,) for quiet in calm], list(calm))


def test_enough_calm_visits() -> None:
    options = ProfileOptions(min_rounds=6)
    assert precise_enough(record(*[True] * 6), options)
    assert not precise_enough(record(*[True] * 5), options)
    assert precise_enough(record(*[True] * 6, *[False] * 9), options)
    assert not precise_enough(record(*[True] * 5, *[False] * 9), options)


def test_patience_ends() -> None:
    options = ProfileOptions(min_rounds=6)
    assert not precise_enough(record(*[False] * 17), options)
    assert precise_enough(record(*[False] * 18), options)
