"""The tool that makes cores slow really does, and says so everywhere."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.slow_core import emulated_platform, slow_cores
from dse import explore
from dse.config import load_experiment, load_platform, platform_data
from dse.costing import time_shared
from dse.detection import detect_platform
from dse.errors import PlatformError
from dse.files import write_text
from dse.platforms import Cluster, Platform, Slot
from dse.profiling.measured import cache_key
from dse.profiling.options import ProfileOptions
from dse.yaml_io import dump

CORES = sorted(os.sched_getaffinity(0))
FOUR = Platform("board", (Cluster("cpu", (0, 1, 2, 3), threads=(1, 2, 3, 4)),), origin="detected")


HALF_AND_HALF = """
model: {{zoo: mobilenet_v2, parameters: {{size: 96}}}}
platform: {platform}
profile: {{budget_s: 8, refresh: true}}
cache_dir: {cache}
measure: {{enabled: true}}
"""


def real_time_threads() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return True


needs_real_time = pytest.mark.skipif(
    not real_time_threads(), reason="real-time threads are not allowed here (root is needed)"
)


def test_slow_and_fast_cores_become_two_clusters() -> None:
    platform = emulated_platform(FOUR, (1, 3), 0.4)
    assert [(c.name, c.core_ids, c.capacity) for c in platform.clusters] == [
        ("LITTLE", (1, 3), 410),
        ("big", (0, 2), 1024),
    ]
    assert platform.emulated
    assert "0.40 of their speed" in platform.notes[-1]
    other_ratio = emulated_platform(FOUR, (1, 3), 0.5)
    assert platform.fingerprint != other_ratio.fingerprint, "their measurements may not be mixed up"


@pytest.mark.parametrize("cpus", [(0, 1, 2, 3), (7,)])
def test_cores_that_can_not_be_slow(cpus: tuple[int, ...]) -> None:
    with pytest.raises(PlatformError, match="some, not all"):
        emulated_platform(FOUR, cpus, 0.4)
    unlike = dataclasses.replace(FOUR, clusters=(*FOUR.clusters, Cluster("big", (8,))))
    with pytest.raises(PlatformError, match="unlike cores already"):
        emulated_platform(unlike, cpus, 0.4)


@pytest.mark.slow
@needs_real_time
def test_more_taken_away_is_slower() -> None:
    with slow_cores([CORES[-1]], 0.3) as less:
        pass
    with slow_cores([CORES[-1]], 0.8) as more:
        pass
    assert 0 < more < less < 1


@needs_real_time
@pytest.mark.skipif(len(CORES) < 2, reason="one core can not be unlike")
def test_the_platform_file_says_that_it_is_emulated(tmp_path: Path) -> None:
    path = tmp_path / "emulated.yaml"
    words = ["--cpu", str(CORES[-1]), "--platform", str(path), "--", sys.executable, "-c", "exit(7)"]
    done = subprocess.run([sys.executable, "-m", "benchmarks.slow_core", *words], check=False, timeout=60)
    assert done.returncode == 7, "the command's own"
    platform = load_platform(path)
    assert platform.emulated
    assert "emulated" in platform.notes[-1]
    assert 0 < (platform.cluster("LITTLE").capacity or 0) < 1024


def test_only_the_slowed_clusters_of_an_emulated_platform_are_time_shared() -> None:
    slowed = emulated_platform(FOUR, (1, 3), 0.4)
    assert time_shared(slowed) == {"LITTLE"}
    assert time_shared(dataclasses.replace(slowed, emulated=False)) == frozenset()
    assert time_shared(FOUR) == frozenset()
    options = ProfileOptions(time_shared=time_shared(slowed))
    assert options.typical(Slot("LITTLE", 1))([1, 1, 1, 9]) == 3
    assert options.typical(Slot("big", 1))([1, 1, 1, 9]) == 1
    keys = {cache_key("0", slowed, options).file_name, cache_key("0", slowed, ProfileOptions()).file_name}
    assert len(keys) == 2, "means and medians may not be mixed up"


@needs_real_time
@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="one core can not be unlike")
def test_layers_are_slowed_down_as_much_as_the_core(tmp_path: Path) -> None:
    """The emulation takes 0.6 of every millisecond: the median of a layer of 20 us knows nothing of it."""
    path, platform = tmp_path / "x.yaml", tmp_path / "emulated.yaml"
    with slow_cores([CORES[-1]], 0.6) as ratio:
        unlike = emulated_platform(detect_platform(), [CORES[-1]], ratio)
        write_text(platform, dump(platform_data(unlike)))
        path.write_text(HALF_AND_HALF.format(platform=platform, cache=tmp_path / "cache"))
        _, table = explore.profile(load_experiment(path))
    little = next(column for column, slot in enumerate(table.slots) if slot.cluster == "LITTLE")
    big = next(column for column, slot in enumerate(table.slots) if slot == Slot("big", 1))
    pairs = [
        (row[big].median_ns, row[little].median_ns)
        for row in table.costs
        if row[big].median_ns and row[little].median_ns
    ]
    # Layers ordered by their time: each third is slower by about as much as the core.
    pairs.sort()
    thirds = [pairs[len(pairs) * k // 3 : len(pairs) * (k + 1) // 3] for k in range(3)]
    factors = [sum(b for _, b in third) / sum(a for a, _ in third) for third in thirds]
    assert all(0.6 / ratio < factor < 1.7 / ratio for factor in factors), (factors, 1 / ratio)
