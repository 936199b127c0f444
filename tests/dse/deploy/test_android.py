"""The throughput check of Android bundles: the real adb client, a small daemon, a made-up benchmark_model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from adbd import Daemon
from linux_bundles import make_order, small_model

from dse.deploy.bundle import write_bundle
from dse.deploy.registry import TARGETS

BENCHMARK = """#!/bin/sh
# Prints what benchmark_model prints, with a time that tells the stage's threads.
for argument in "$@"; do
  case "$argument" in
    --graph=*) graph="${argument#--graph=}" ;;
    --use_xnnpack=*) echo "xnnpack ${argument#--use_xnnpack=}" ;;
  esac
done
[ -f "$graph" ] || { echo "ERROR: Failed to load $graph"; exit 1; }
echo "INFO: Inference timings in us: Init: 5685, First inference: 18535, Warmup (avg): 14462.3, Inference (avg): 2000"
"""


class Device:
    """A daemon, an adb server of its own, and what is needed to call the script."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.env = {**os.environ, "ANDROID_ADB_SERVER_PORT": str(port), "HOME": str(folder)}
        self.daemon = Daemon({"PATH": os.environ["PATH"]})
        self.serial = f"127.0.0.1:{self.daemon.port}"
        self.folder = folder / "device folder"
        self.benchmark = folder / "benchmark_model"
        self.benchmark.write_text(BENCHMARK)
        self.adb("connect", self.serial)

    def adb(self, *arguments: str) -> None:
        subprocess.run(["adb", *arguments], env=self.env, capture_output=True, timeout=60, check=True)

    def bench(self, bundle: Path, *arguments: object, code: int = 0) -> tuple[str, str]:
        command = [sys.executable, bundle / "bench.py", "--serial", self.serial]
        command += ["--device-folder", self.folder, "--benchmark-model", self.benchmark, *arguments]
        done = subprocess.run(
            [str(part) for part in command],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def device(tmp_path):
    if shutil.which("adb") is None:
        pytest.skip("needs adb")
    made = Device(tmp_path)
    yield made
    made.adb("kill-server")
    made.daemon.close()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, two_cores) -> Path:
    folder, (one, two) = tmp_path_factory.mktemp("android"), two_cores
    order = make_order(small_model(folder), [[(0.3, one), (0.7, two), (1.0, one)]])
    write_bundle(TARGETS["android"], order, folder / "bundle")
    return folder / "bundle"


def test_stages_are_pushed_pinned_and_timed(device, bundle, two_cores):
    out, _ = device.bench(bundle, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    masks = [f"{1 << two_cores[at]:x}" for at in (0, 1, 0)]
    assert [row["mask"] for row in rows[:3]] == masks
    assert all(row["ms"] == 2.0 for row in rows[:3])
    # Two stages take turns on the first core.
    assert rows[3]["hz"] == rows[4]["hz"] == pytest.approx(250)
    for path in sorted((bundle / "stages").iterdir()):
        assert (device.folder / "stages" / path.name).read_bytes() == path.read_bytes()
    runs = [command for command in device.daemon.commands if "taskset" in command]
    assert len(runs) == 3
    assert all(command.endswith("; echo rc=$?") for command in device.daemon.commands)
    assert all("--use_xnnpack=true" in command for command in runs)
    out, _ = device.bench(bundle)
    assert "all lanes: at most 250 frames/s" in out


def test_failures_on_the_device_are_seen_without_exit_codes(device, bundle):
    device.benchmark.write_text("#!/bin/sh\necho 'ERROR: no such delegate'\nexit 3\n")
    _, err = device.bench(bundle, code=1)
    assert "lane0.stage0: benchmark_model failed (exit code 3)" in err
    assert "no such delegate" in err
    _, err = device.bench(bundle, "--benchmark-model", "/nowhere/benchmark_model", code=1)
    assert "benchmark_model failed (exit code 127)" in err


def test_a_mask_that_is_not_applied_is_seen(device, bundle, tmp_path):
    """A taskset that accepts a mask and does nothing, as on some devices."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "taskset").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tools / "taskset").chmod(0o755)
    device.daemon._env["PATH"] = f"{tools}:{os.environ['PATH']}"
    _, err = device.bench(bundle, code=1)
    assert "wanted CPU mask" in err
    assert "the device gives" in err


def test_damage_on_the_way_and_before_it(device, bundle, tmp_path):
    device.daemon.damage = True
    _, err = device.bench(bundle, code=1)
    assert "arrived damaged on the device" in err
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    with (copy / "mapping.yaml").open("ab") as stream:
        stream.write(b" ")
    _, err = device.bench(copy, code=2)
    assert "mapping.yaml was changed" in err


def test_no_device_and_no_adb(device, bundle):
    _, err = device.bench(bundle, "--serial", "nobody", code=1)
    assert "nobody" in err
    _, err = device.bench(bundle, "--adb", "/nowhere/adb", code=2)
    assert "install adb" in err
