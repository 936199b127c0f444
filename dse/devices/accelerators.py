"""Accelerators of this machine: whether the runtime can use them, found out in a child process.

A driver may crash, hang or fall back to software, so nothing of it is ever loaded in this process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dse.devices.child import Child
from dse.errors import DseError
from dse.files import write_bytes

PROBE_TIMEOUT_S = 20.0
_NODES = ("dri/renderD*", "nvidia[0-9]*", "kgsl-3d0", "mali[0-9]*", "dxg")
_DRIVER_SETTINGS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
_ADAPTER = re.compile(r"Selected adapter: (?P<name>.*?), arch=.*adapterType=(?P<type>.*)")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What a probe found.

    Parameters
    ----------
    usable
        Whether the runtime ran a model on it.
    device
        What its driver calls it; empty when there is none.
    software
        Whether it is only emulated on the CPU.
    reason
        Why it can not be used, else empty.
    """

    usable: bool
    device: str = ""
    software: bool = False
    reason: str = ""


def child_environment() -> dict[str, str]:
    """Return the settings with which a process finds the runtime's accelerators.

    The runtime loads them by name, so its folder has to be on the loader's path when it starts.
    """
    found = importlib.util.find_spec("ai_edge_litert")
    if found is None or not found.submodule_search_locations:
        return {}
    parts = [found.submodule_search_locations[0], os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(filter(None, parts))}


def probe_gpu(
    tiny_model: bytes, timeout_s: float = PROBE_TIMEOUT_S, devices: Path = Path("/dev")
) -> Accelerator:
    """Try whether the runtime runs a model on a GPU.

    Parameters
    ----------
    tiny_model
        A .tflite file of next to nothing.
    timeout_s
        A driver that takes longer does not count.
    devices
        Folder of the device nodes: without one of a GPU, and without a driver named in the
        environment, nothing is started.
    """
    named = any(os.environ.get(setting) for setting in _DRIVER_SETTINGS)
    if not named and not any(True for pattern in _NODES for _ in devices.glob(pattern)):
        return Accelerator(False, reason="this machine has no GPU device node")
    with tempfile.TemporaryDirectory(prefix="tflite-dse-gpu-") as name:
        model, log = Path(name) / "tiny.tflite", Path(name) / "log"
        write_bytes(model, tiny_model)
        arguments = ["--cores", ",".join(map(str, sorted(os.sched_getaffinity(0))))]
        load = {"command": "load", "id": "tiny", "path": str(model), "threads": 1, "seed": 0}
        try:
            with Child(
                "dse.devices.worker", arguments, log_path=log, name="the GPU probe", env=child_environment()
            ) as child:
                answer = child.request({**load, "kernels": "gpu"}, timeout_s=timeout_s)
        except DseError as error:
            # The name of the temporary model says nothing.
            reason = str(error).splitlines()[0].rpartition(f"{model.name}: ")[2]
            return _named(log, Accelerator(False, reason=reason))
        if answer["fallback"]:
            reason = f"the runtime left the model to the CPU: {'; '.join(answer['fallback'])}"
            return _named(log, Accelerator(False, reason=reason))
        return _named(log, Accelerator(True))


def _named(log: Path, found: Accelerator) -> Accelerator:
    """Add what the runtime's log calls the device."""
    adapter = None
    for line in _lines(log):
        adapter = _ADAPTER.search(line) or adapter
    if adapter is None:
        return found
    software = adapter["type"].strip().startswith("CPU")
    return Accelerator(found.usable, adapter["name"].strip(), software, found.reason)


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()
    except OSError:
        return []
