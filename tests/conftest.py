"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Shared machines stall now and then: how long an example takes says nothing about the product.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Before numpy is loaded: spinning threads of its matrix library slow everything on busy machines.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Under nohup hang-ups are ignored, in the background of a shell Ctrl-C is, and so they would be by every
# program that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Folder with the real models; tests that need it skip where it is not there."""
    wanted = os.environ.get("TFLITE_DSE_CORPUS")
    folder = Path(wanted) if wanted else ROOT.parent / "shared" / "corpus"
    if not (folder / "models").is_dir():
        pytest.skip(f"no model corpus at {folder} (set TFLITE_DSE_CORPUS)")
    return folder


SOFTWARE_GPU = Path("/usr/lib/chromium/vk_swiftshader_icd.json")


@pytest.fixture
def software_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Chromium's SwiftShader, which emulates a GPU, the only Vulkan driver."""
    if not SOFTWARE_GPU.is_file():
        pytest.skip(f"no SwiftShader at {SOFTWARE_GPU} (apt install chromium libvulkan1)")
    # Older Vulkan loaders know only the second name.
    monkeypatch.setenv("VK_DRIVER_FILES", str(SOFTWARE_GPU))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(SOFTWARE_GPU))


SMALL_BOARD = """
name: small board
clusters:
  - {name: LITTLE, cores: 0-1, macs_per_s: 2.0e9, bytes_per_s: 3.0e9}
  - {name: big, cores: 2-3, macs_per_s: 6.0e9, bytes_per_s: 6.0e9}
"""


@pytest.fixture(scope="session")
def small_board(tmp_path_factory) -> Path:
    """A described platform with two cores of two kinds each: quick to search for."""
    path = tmp_path_factory.mktemp("board") / "small_board.yaml"
    path.write_text(SMALL_BOARD)
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI nothing skips: what a test needs has to be there."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
