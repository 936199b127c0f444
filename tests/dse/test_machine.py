"""This machine as a platform, with what else makes slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from dse.config import platform_data
from dse.config.loading import load_platform
from dse.detection import detect_platform
from dse.devices.accelerators import Accelerator
from dse.machine import this_machine, with_gpu
from dse.platforms import Slot
from dse.yaml_io import dump

REAL = Accelerator(True, "NVIDIA H200")
SOFTWARE = Accelerator(True, "SwiftShader Device", software=True)


def test_a_usable_gpu_becomes_a_cluster_with_a_host_core(tmp_path: Path) -> None:
    here = detect_platform()
    platform = with_gpu(here, REAL)
    (gpu,) = platform.accelerators
    assert Slot("gpu", 1) in platform.slots
    assert gpu.host == Slot(here.clusters[0].name, 1)
    assert gpu.core_ids[0] not in platform.cpu_cores
    assert not platform.emulated
    path = tmp_path / "board.yaml"
    path.write_text(dump(platform_data(platform)))
    assert load_platform(path).clusters == platform.clusters


def test_an_emulated_gpu_takes_part_only_when_asked_for_and_is_labelled() -> None:
    here = detect_platform()
    assert with_gpu(here, SOFTWARE) == here
    asked = with_gpu(here, SOFTWARE, software=True)
    assert asked.emulated
    assert any("SwiftShader" in note for note in asked.notes)


def test_a_gpu_that_does_not_work_is_told() -> None:
    here = detect_platform()
    found = with_gpu(here, Accelerator(False, "Mali-G72", reason="it crashed"))
    assert found.clusters == here.clusters
    assert found.notes[-1] == "Mali-G72 is not used: it crashed"


@pytest.mark.usefixtures("software_gpu")
def test_the_machine_with_everything() -> None:
    platform = this_machine(("default", "builtin"), "any")
    first = platform.clusters[0].name
    assert {Slot(first, 1), Slot(first, 1, "builtin"), Slot("gpu", 1)} <= set(platform.slots)
    assert not this_machine(accelerators="auto").accelerators
