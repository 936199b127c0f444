from __future__ import annotations

import dataclasses
from pathlib import Path

from dse.conditions import Conditions, CoreTimes, cpu_model, drift, machine, snapshot


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def fake(tmp_path: Path) -> Conditions:
    write(tmp_path / "cpu/cpu0/cpufreq/scaling_cur_freq", 1800000)
    write(tmp_path / "cpu/cpu0/cpufreq/scaling_governor", "schedutil")
    write(tmp_path / "proc/loadavg", "0.50 0.10 0.00 1/90 77")
    write(tmp_path / "proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   64 kB")
    stat = "cpu 1 2 3 4 5 6 7 8 0 0\ncpu0 10 1 2 100 5 1 1 7 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nctxt 5"
    write(tmp_path / "proc/stat", stat)
    for i, value in enumerate((41000, 43000)):
        write(tmp_path / f"thermal/thermal_zone{i}/type", "cpu-thermal")
        write(tmp_path / f"thermal/thermal_zone{i}/temp", value)
    return snapshot([0], cpu_root=tmp_path / "cpu", proc=tmp_path / "proc", thermal_root=tmp_path / "thermal")


def test_snapshot_reads_the_kernel(tmp_path: Path) -> None:
    assert fake(tmp_path) == Conditions(
        clock_hz={0: 1_800_000_000},
        governor={0: "schedutil"},
        temperature_millicelsius={"cpu-thermal": 43000},
        core_times={0: CoreTimes(busy=15, idle=105, steal=7)},
        load_1min=0.5,
        available_bytes=64 * 1024,
        quota_cores=None,
        n_throttled=None,
    )


def test_silent_kernel_gives_nothing(tmp_path: Path) -> None:
    found = snapshot([0, 1], cpu_root=tmp_path, proc=tmp_path, thermal_root=tmp_path)
    assert found == Conditions({}, {}, {}, {}, None, None, None, None)
    assert drift(found, found).warnings == ()


def test_nothing_moved_no_warning(tmp_path: Path) -> None:
    now = fake(tmp_path)
    assert drift(now, now, own_busy_s=0.0).warnings == ()


def test_21_everything_that_moves_is_told(tmp_path: Path) -> None:
    before = dataclasses.replace(fake(tmp_path), n_throttled=3)
    after = dataclasses.replace(
        before,
        clock_hz={0: 1_200_000_000},
        temperature_millicelsius={"cpu-thermal": 85000},
        core_times={0: CoreTimes(busy=65, idle=125, steal=37)},
        n_throttled=9,
    )
    found = drift(before, after, own_busy_s=0.1)
    assert found.steal_share == 0.3
    assert found.busy_share == 0.5
    text = "\n".join(found.warnings)
    for part in ("30% of the time to others", "other programs", "1800 to 1200 MHz", "43 to 85", "6 times"):
        assert part in text


def test_this_machine() -> None:
    first, second = snapshot(), snapshot()
    assert first.core_times.keys() == second.core_times.keys()
    assert 0 <= drift(first, second).steal_share <= 1
    assert first.to_json().keys() == second.to_json().keys()
    assert cpu_model()
    assert machine()["cpu"] == cpu_model()
