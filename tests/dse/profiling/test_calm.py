from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dse.conditions import Conditions, CoreTimes
from dse.platforms import Slot
from dse.profiling import calm
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


@pytest.mark.parametrize(
    ("best", "times", "calm"),
    [(None, (100, 105), True), (None, (100, 150), False), (60, (100, 100), False), (95, (100, 100), True)],
)
def test_slower_cores_are_noticed(
    worker: SlotWorker, monkeypatch: pytest.MonkeyPatch, best: int | None, times: tuple[int, int], calm: bool
) -> None:
    given = iter(times)
    monkeypatch.setattr(worker, "yardstick_ns", lambda: next(given))
    monkeypatch.setattr("dse.profiling.calm._waited_ns", lambda _: 0)
    watch = CalmWatch(worker, best)
    assert ("of its speed" in watch.disturbance()) == (not calm)
    assert watch.yardstick_ns == min(best or 1000, *times)


def test_the_yardstick_is_measured_in_the_slots_process(worker: SlotWorker) -> None:
    assert worker.yardstick_ns() > 0


def watch(
    monkeypatch: pytest.MonkeyPatch, *, waited_s: float, busy_s: float, own_s: float, took_s: float
) -> str:
    """Let a second pass in which the kernel counts this much."""
    times = iter([100.0, 100.0 + took_s])
    waited = iter([5, 5 + round(waited_s * 1e9)])
    own = iter([3.0, 3.0 + own_s])
    ticks = os.sysconf("SC_CLK_TCK")
    snapshots = iter(
        [
            calm_conditions(CoreTimes(0, 0, 0)),
            calm_conditions(CoreTimes(round(busy_s * ticks), round((took_s - busy_s) * ticks), 0)),
        ]
    )
    monkeypatch.setattr(calm.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(calm.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(calm, "_waited_ns", lambda _: next(waited))
    monkeypatch.setattr(calm, "_cpu_seconds", lambda _: next(own))
    monkeypatch.setattr(calm.conditions, "snapshot", lambda _: next(snapshots))
    found = calm.CalmWatch(SimpleNamespace(pid=1, cores=(0,), yardstick_ns=lambda: 10)).disturbance()  # type: ignore[arg-type]
    monkeypatch.undo()
    return found


def calm_conditions(times: CoreTimes) -> Conditions:
    return Conditions({}, {}, {}, {0: times}, None, None, None, None)


def test_only_the_work_and_the_waiting_of_others_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(monkeypatch, waited_s=0.0, busy_s=0.9, own_s=0.9, took_s=1.0) == ""
    assert watch(monkeypatch, waited_s=0.04, busy_s=0.9, own_s=0.85, took_s=1.0) == ""
    assert "waited" in watch(monkeypatch, waited_s=0.06, busy_s=0.9, own_s=0.9, took_s=1.0)
    assert "other programs" in watch(monkeypatch, waited_s=0.0, busy_s=0.9, own_s=0.5, took_s=1.0)
    # Hundredths of a second tell nothing of so short a time.
    assert watch(monkeypatch, waited_s=0.0, busy_s=0.1, own_s=0.0, took_s=0.1) == ""


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
