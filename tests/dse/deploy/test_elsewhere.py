"""Linux bundles where the product is not: a new virtual environment, and another processor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import ai_edge_litert
import pytest
from linux_bundles import make_bundle, make_order, small_model

from dse.deploy.native import write_sources

# The runtime reads what the kernel tells about the processor, which is that of the host, and crashes on
# it.  So it sees plain numbers of cores instead (mounting needs root).
PLAIN_CPUS = (
    "mount -t tmpfs none /sys && mkdir -p /sys/devices/system/cpu && cd /sys/devices/system/cpu && "
    f'echo 0-{(os.cpu_count() or 1) - 1} | tee possible present >/dev/null && exec "$0" "$@"'
)
ROOT = Path(__file__).resolve().parents[3]


def call(*command: object, code: int = 0, **more) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, **more
    )
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done


@pytest.mark.slow
def test_a_new_environment_with_litert_and_numpy_only(chain, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    wanted = f"ai-edge-litert=={_version()}"
    call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wanted, "numpy")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    bundle = Path(shutil.copytree(chain, tmp_path / "shipped"))
    missing = call(python, "-c", "import dse", code=1, env=clean, cwd=tmp_path)
    assert "No module named 'dse'" in missing.stderr
    call(python, bundle / "run.py", "--verify", env=clean, cwd=tmp_path)
    done = call(python, bundle / "run.py", "--seconds", "0.5", "--json", env=clean, cwd=tmp_path)
    assert json.loads(done.stdout.splitlines()[-1])["hz"] > 0


@pytest.mark.slow
def test_an_installed_product_carries_the_sources(tmp_path):
    """As a wheel, which holds only what the packaging names."""
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "tests", "build", "*.egg-info", "runs"))
    call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    write_sources(tmp_path / "native")
    for path in (tmp_path / "native").iterdir():
        assert {f"dse/deploy/native/{path.name}", f"dse/pipeline/native/{path.name}"} & names, path.name
    for name in ("dse/deploy/linux/run.py", "dse/deploy/android/bench.py"):
        assert name in names


@pytest.fixture(scope="module")
def emulator() -> str:
    for program in ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc", "qemu-aarch64-static", "cmake"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    if os.geteuid() != 0:
        pytest.skip("needs root, to hide the host's processor")
    return "qemu-aarch64-static"


@pytest.mark.slow
def test_the_native_runner_on_aarch64(emulator, tmp_path):
    """Compiled for it, on the library of its wheel, emulated: outputs within the bundle's tolerances."""
    core = min(os.sched_getaffinity(0))
    bundle = make_bundle(tmp_path / "bundle", make_order(small_model(tmp_path), [[(0.5, core), (1.0, core)]]))
    compiler = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
    call(
        "cmake",
        "-S",
        bundle / "native",
        "-B",
        tmp_path / "build",
        *compiler,
        "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
    )
    call("cmake", "--build", tmp_path / "build")
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (17, 27, 28, 34)]
    call(
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"),
        *(f"--python-version={sys.version_info.major}.{sys.version_info.minor}", "--implementation=cp"),
        *(*platforms, "-d", tmp_path, f"ai-edge-litert=={_version()}"),
    )
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extract("ai_edge_litert/libLiteRt.so", tmp_path)
    library = tmp_path / "ai_edge_litert" / "libLiteRt.so"
    emulated = (emulator, "-L", "/usr/aarch64-linux-gnu", tmp_path / "build" / "run")
    run = ("unshare", "-m", "sh", "-c", PLAIN_CPUS, *emulated, "--bundle", bundle)
    done = call(*run, "--library", library, "--verify")
    assert done.stderr.count("equal: off by up to") == 1
    done = call(*run, "--library", library, "--seconds", "0.5", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["frames"] > 0


def _version() -> str:
    from importlib.metadata import version

    assert ai_edge_litert.__file__
    return version("ai-edge-litert")
