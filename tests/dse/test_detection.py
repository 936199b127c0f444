from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.detection import (
    cpu_quota,
    detect_platform,
    format_core_list,
    parse_core_list,
    worthwhile_threads,
)
from dse.errors import PlatformError


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def fake_core(
    root: Path,
    number: int,
    *,
    capacity: int | None = None,
    khz: int | None = None,
    midr: int | None = None,
    l2: tuple[str, str] | None = None,
    l3: str | None = None,
    siblings: str | None = None,
) -> None:
    folder = root / f"cpu{number}"
    folder.mkdir(parents=True)
    if capacity is not None:
        write(folder / "cpu_capacity", capacity)
    if khz is not None:
        write(folder / "cpufreq/cpuinfo_max_freq", khz)
    if midr is not None:
        write(folder / "regs/identification/midr_el1", f"0x{midr:016x}")
    if l2 is not None:
        write(folder / "cache/index2/level", 2)
        write(folder / "cache/index2/type", "Unified")
        write(folder / "cache/index2/size", l2[0])
        write(folder / "cache/index2/shared_cpu_list", l2[1])
    if l3 is not None:
        write(folder / "cache/index3/level", 3)
        write(folder / "cache/index3/type", "Unified")
        write(folder / "cache/index3/shared_cpu_list", l3)
    if siblings is not None:
        write(folder / "topology/thread_siblings_list", siblings)


def shape(root: Path, n: int, **more: float) -> list[tuple[str, tuple[int, ...]]]:
    platform = detect_platform(root, allowed=range(n), **more)
    assert platform.origin == "detected"
    return [(cluster.name, cluster.core_ids) for cluster in platform.clusters]


def test_hikey970(tmp_path: Path) -> None:
    for i in range(4):
        fake_core(tmp_path, i, capacity=592, khz=1844000, midr=0x410FD034, l2=("512K", "0-3"))
    for i in range(4, 8):
        fake_core(tmp_path, i, capacity=1024, khz=2362000, midr=0x410FD091, l2=("2048K", "4-7"))
    assert shape(tmp_path, 8) == [("LITTLE", (0, 1, 2, 3)), ("big", (4, 5, 6, 7))]
    big = detect_platform(tmp_path, allowed=range(8)).cluster("big")
    assert (big.capacity, big.max_hz, big.thread_counts) == (1024, 2_362_000_000, (1, 2, 3, 4))


def test_rk3588_pairs_of_big_cores_are_one_cluster(tmp_path: Path) -> None:
    for i in range(4):
        fake_core(tmp_path, i, capacity=530, khz=1800000, midr=0x412FD050, l2=("128K", str(i)), l3="0-7")
    for i in range(4, 8):
        # The two pairs are binned differently by a few percent.
        khz = 2400000 if i < 6 else 2352000
        fake_core(tmp_path, i, capacity=1024, khz=khz, midr=0x414FD0B0, l2=("512K", str(i)), l3="0-7")
    assert shape(tmp_path, 8) == [("LITTLE", (0, 1, 2, 3)), ("big", (4, 5, 6, 7))]


def test_snapdragon_with_three_kinds(tmp_path: Path) -> None:
    for i in range(8):
        capacity, khz = (325, 1804800) if i < 4 else (871, 2419200) if i < 7 else (1024, 2841600)
        fake_core(tmp_path, i, capacity=capacity, khz=khz)
    assert shape(tmp_path, 8) == [("LITTLE", (0, 1, 2, 3)), ("big", (4, 5, 6)), ("prime", (7,))]


def test_two_identical_cores_with_private_l2(tmp_path: Path) -> None:
    for i in range(2):
        fake_core(tmp_path, i, capacity=1024, l2=("1024K", str(i)), l3="0-1", siblings=str(i))
    assert shape(tmp_path, 2) == [("cpu", (0, 1))]
    assert detect_platform(tmp_path, allowed=range(2)).notes == ()


def test_nothing_known_is_one_cluster(tmp_path: Path) -> None:
    assert shape(tmp_path / "nowhere", 6) == [("cpu", (0, 1, 2, 3, 4, 5))]
    assert detect_platform(tmp_path, allowed=range(6)).slots[-1].threads == 6


def test_hybrid_without_capacity_is_told_by_clock(tmp_path: Path) -> None:
    for i in range(4):
        fake_core(tmp_path, i, khz=5000000 if i < 2 else 3800000)
    assert shape(tmp_path, 4) == [("LITTLE", (2, 3)), ("big", (0, 1))]


def test_unlike_l2_without_any_speed_is_told_apart(tmp_path: Path) -> None:
    for i in range(2):
        fake_core(tmp_path, i, l2=("1280K", str(i)))
    for i in range(2, 6):
        fake_core(tmp_path, i, l2=("2048K", "2-5"))
    assert sorted(cores for _, cores in shape(tmp_path, 6)) == [(0, 1), (2, 3, 4, 5)]


def test_odd_cache_sharing_does_not_part_equal_cores(tmp_path: Path) -> None:
    for i, sharers in enumerate(("0-1", "0-1", "2")):
        fake_core(tmp_path, i, capacity=1024, khz=2000000, l2=("1024K", sharers))
    assert shape(tmp_path, 3) == [("cpu", (0, 1, 2))]


def test_hardware_threads_come_last_and_are_noted(tmp_path: Path) -> None:
    for i in range(4):
        fake_core(tmp_path, i, siblings=f"{i % 2},{i % 2 + 2}")
    assert shape(tmp_path, 4) == [("cpu", (0, 1, 2, 3))]
    for i in (1, 0):
        fake_core(tmp_path / "adjacent", i, siblings="0-1")
    for i in (2, 3):
        fake_core(tmp_path / "adjacent", i, siblings="2-3")
    assert shape(tmp_path / "adjacent", 4) == [("cpu", (0, 2, 1, 3))]
    assert any("0+1, 2+3" in note for note in detect_platform(tmp_path / "adjacent", allowed=range(4)).notes)


def test_only_allowed_cores_count(tmp_path: Path) -> None:
    for i in range(8):
        fake_core(tmp_path, i, capacity=400 if i < 4 else 1024)
    platform = detect_platform(tmp_path, allowed={1, 5, 6})
    assert [cluster.core_ids for cluster in platform.clusters] == [(1,), (5, 6)]
    with pytest.raises(PlatformError, match="at least one core"):
        detect_platform(tmp_path, allowed=())


def test_this_machine_is_its_affinity_mask() -> None:
    platform = detect_platform()
    cores = {core for cluster in platform.clusters for core in cluster.core_ids}
    assert cores <= os.sched_getaffinity(0)
    assert cores == os.sched_getaffinity(0) or platform.notes


def test_quota_limits_identical_cores_and_is_told(tmp_path: Path) -> None:
    assert shape(tmp_path, 8, quota_cores=2.5) == [("cpu", (0, 1, 2))]
    notes = detect_platform(tmp_path, allowed=range(8), quota_cores=2.5).notes
    assert any("2.5 of 8" in note for note in notes)
    for i in range(4):
        fake_core(tmp_path, i, capacity=400 if i < 2 else 1024)
    platform = detect_platform(tmp_path, allowed=range(4), quota_cores=1.0)
    assert platform.n_cores == 4
    assert platform.notes
    assert detect_platform(tmp_path, allowed=range(4), quota_cores=4.0).notes == ()


def test_cgroup_v2_takes_the_tightest_limit_of_the_path(tmp_path: Path) -> None:
    write(tmp_path / "self", "0::/slice/job")
    write(tmp_path / "slice/cpu.max", "150000 100000")
    write(tmp_path / "slice/job/cpu.max", "max 100000")
    assert cpu_quota(tmp_path, tmp_path / "self") == 1.5
    write(tmp_path / "slice/job/cpu.max", "50000 100000")
    assert cpu_quota(tmp_path, tmp_path / "self") == 0.5


def test_cgroup_v1_and_none(tmp_path: Path) -> None:
    write(tmp_path / "self", "3:cpu,cpuacct:/box\n2:memory:/box")
    write(tmp_path / "cpu,cpuacct/box/cpu.cfs_quota_us", "-1")
    assert cpu_quota(tmp_path, tmp_path / "self") is None
    write(tmp_path / "cpu,cpuacct/box/cpu.cfs_quota_us", "200000")
    write(tmp_path / "cpu,cpuacct/box/cpu.cfs_period_us", "50000")
    assert cpu_quota(tmp_path, tmp_path / "self") == 4.0
    assert cpu_quota(tmp_path, tmp_path / "missing") is None


@given(st.integers(1, 300))
def test_worthwhile_threads(n: int) -> None:
    found = worthwhile_threads(n)
    assert list(found) == sorted(set(found))
    assert found[0] == 1
    assert found[-1] == n
    assert set(range(1, min(n, 4) + 1)) <= set(found)
    assert all(t <= 4 or t == n or t & (t - 1) == 0 for t in found)


@given(st.sets(st.integers(0, 300)))
def test_core_lists_round_trip(numbers: set[int]) -> None:
    assert parse_core_list(format_core_list(numbers)) == tuple(sorted(numbers))


@pytest.mark.parametrize("text", ["a", "3-1", "-2", "0-", "1,x"])
def test_bad_core_lists(text: str) -> None:
    with pytest.raises(PlatformError, match="core numbers"):
        parse_core_list(text)
