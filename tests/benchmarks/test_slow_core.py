"""The tool that makes cores slow really does, and says so everywhere."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.slow_core import emulated_platform, slow_cores
from dse.config import load_platform
from dse.errors import PlatformError
from dse.platforms import Cluster, Platform

CORES = sorted(os.sched_getaffinity(0))
FOUR = Platform("board", (Cluster("cpu", (0, 1, 2, 3), threads=(1, 2, 3, 4)),), origin="detected")


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
