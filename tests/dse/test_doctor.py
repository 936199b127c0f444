from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dse import doctor
from dse.conditions import Conditions
from dse.devices.accelerators import Accelerator
from dse.doctor import check_gpu
from dse.errors import DeviceError

CALM = Conditions({}, {}, {}, {}, 0.0, 8 << 30, None, None)


def test_this_machine_is_examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFLITE_DSE_CACHE", str(tmp_path / "cache"))
    found = {check.name: check for check in doctor.examine()}
    assert found["runtime"].status == "ok", found["runtime"]
    assert found["affinity"].status == "ok"
    assert found["cache"].found == str(tmp_path / "cache")
    assert {"system", "cores", "C interface", "governor", "temperature", "steal time", "load"} <= set(found)
    assert {"memory", "CPU quota"} <= set(found)
    assert all(check.advice for check in found.values() if check.status != "ok")
    assert list((tmp_path / "cache").iterdir()) == []


def test_missing_runtime_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise DeviceError("the runtime is not installed: pip install ai-edge-litert")

    monkeypatch.setattr(doctor, "runtime_version", missing)
    (check,) = doctor.check_runtime()
    assert (check.status, "pip install" in check.advice) == ("fail", True)


def test_a_check_that_breaks_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(doctor, "check_steal", broken)
    found = doctor.examine()
    assert any("no such luck" in check.found for check in found)
    assert found[-1].name == "cache"


def test_affinity_that_is_not_kept() -> None:
    check = doctor.check_affinity({"0": [0], "1": [0, 1], "2": [2]}, [0, 1, 2, 3])
    assert (check.status, check.found) == ("fail", "not kept on cores 1,3")


def test_governor() -> None:
    slow = dataclasses.replace(CALM, governor={0: "powersave", 1: "performance"})
    assert doctor.check_governor(slow).status == "warn"
    assert doctor.check_governor(dataclasses.replace(CALM, governor={0: "performance"})).status == "ok"
    assert doctor.check_governor(CALM).status == "ok"


def test_temperature() -> None:
    hot = dataclasses.replace(CALM, temperature_millicelsius={"gpu": 50_000, "cpu": 91_000})
    check = doctor.check_temperature(hot)
    assert (check.status, "91 degrees" in check.found) == ("warn", True)


def test_load_and_memory() -> None:
    assert doctor.check_load(dataclasses.replace(CALM, load_1min=1000.0)).status == "warn"
    assert doctor.check_load(CALM).status == "ok"
    assert doctor.check_memory(dataclasses.replace(CALM, available_bytes=1 << 20)).status == "warn"
    assert doctor.check_memory(CALM).status == "ok"


def test_quota() -> None:
    assert doctor.check_quota(None, 4).status == "ok"
    assert doctor.check_quota(1.5, 4).status == "warn"
    assert doctor.check_quota(8.0, 4).status == "ok"


def test_cache_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert doctor.check_cache(tmp_path / "file").status == "fail"


@pytest.mark.parametrize(
    ("found", "status", "text"),
    [
        (Accelerator(True, "NVIDIA H200"), "ok", "NVIDIA H200"),
        (Accelerator(True, "SwiftShader", software=True), "ok", "emulates"),
        (Accelerator(False, reason="this machine has no GPU device node"), "ok", "no GPU device node"),
        (Accelerator(False, "Mali-G72", reason="no answer"), "warn", "Mali-G72: no answer"),
    ],
)
def test_what_is_said_of_a_gpu(found: Accelerator, status: str, text: str) -> None:
    check = check_gpu(found)
    assert check.status == status
    assert text in check.found
    assert bool(check.advice) == (status == "warn")
