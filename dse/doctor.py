"""What works on this machine and what does not, and what to do about it."""

from __future__ import annotations

import os
import platform as host
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dse import conditions
from dse.detection import cpu_quota, detect_platform, format_core_list
from dse.devices.accelerators import Accelerator, probe_gpu
from dse.devices.child import Child
from dse.errors import DseError
from dse.files import default_cache_folder
from dse.machine import why_not
from dse.profiling.measured import RUNTIME, runtime_version
from dse.profiling.tiny import tiny_model
from dse.units import format_bytes

Status = Literal["ok", "warn", "fail"]
STEAL_WINDOW_S = 0.5
LITTLE_MEMORY_BYTES = 1 << 30
CHILD_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Parameters
    ----------
    name
        What was looked at.
    status
        ``fail`` means that measuring does not work, ``warn`` that numbers may be doubtful.
    found
        What it is.
    advice
        What to do about it; empty when all is well.
    """

    name: str
    status: Status
    found: str
    advice: str = ""


def examine() -> tuple[Check, ...]:
    """Look at everything that the product needs; takes about two seconds.

    A check that breaks becomes a failed check, never an exception.
    """
    checks: tuple[Callable[[], list[Check]], ...] = (
        lambda: [check_system()],
        lambda: [check_cores()],
        check_runtime,
        lambda: [check_gpu(probe_gpu(tiny_model()))],
        lambda: [check_governor(conditions.snapshot())],
        lambda: [check_temperature(conditions.snapshot())],
        lambda: [check_steal()],
        lambda: [check_load(conditions.snapshot())],
        lambda: [check_memory(conditions.snapshot())],
        lambda: [check_quota(cpu_quota(), len(os.sched_getaffinity(0)))],
        lambda: [check_cache(default_cache_folder())],
    )
    found: list[Check] = []
    for check in checks:
        try:
            found.extend(check())
        except (DseError, OSError, ValueError) as error:
            found.append(
                Check("examination", "fail", f"{type(error).__name__}: {error}", "please report this")
            )
    return tuple(found)


def check_system() -> Check:
    """Python and the operating system."""
    found = f"Python {host.python_version()} on {host.system()} {host.release()}, {host.machine()}"
    if not sys.platform.startswith("linux"):
        return Check("system", "fail", found, "measuring needs Linux: search and prediction work elsewhere")
    return Check("system", "ok", found)


def check_cores() -> Check:
    """Clusters that were found."""
    platform = detect_platform()
    found = "; ".join(
        f"{cluster.name}: {cluster.n_cores} (cores {format_core_list(cluster.core_ids)})"
        for cluster in platform.clusters
    )
    if platform.notes:
        return Check("cores", "warn", found, "; ".join(platform.notes))
    return Check("cores", "ok", found)


def check_runtime() -> list[Check]:
    """Run a tiny model in a child process on every core, and look for the runtime's C interface."""
    try:
        version = runtime_version()
    except DseError as error:
        return [Check("runtime", "fail", "not installed", str(error))]
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="tflite-dse-doctor-") as name:
        model = Path(name) / "tiny.tflite"
        model.write_bytes(bytes(tiny_model()))
        log = Path(name) / "log"
        arguments = ["--cores", ",".join(map(str, cores))]
        try:
            with Child("dse.devices.worker", arguments, log_path=log, name="the runtime") as child:
                child.request({"command": "hello"}, timeout_s=CHILD_TIMEOUT_S)
                load = {"command": "load", "id": "tiny", "path": str(model), "threads": 1, "seed": 0}
                answer = child.request(load, timeout_s=CHILD_TIMEOUT_S)
                symbols = child.request({"command": "c_interface"}, timeout_s=CHILD_TIMEOUT_S)
                affinity = child.request({"command": "try_affinity"}, timeout_s=CHILD_TIMEOUT_S)
        except DseError as error:
            return [Check("runtime", "fail", f"{RUNTIME} {version}", f"it does not run: {error}")]
    return [
        Check("runtime", "ok", f"{RUNTIME} {version}, tiny model in {int(answer['second_ns']) / 1e3:.0f} us"),
        check_affinity(affinity["masks"], cores),
        _check_c_interface(symbols),
    ]


def check_affinity(masks: dict[str, list[int]], cores: list[int]) -> Check:
    """Whether a thread that was pinned to each core in turn really was there alone."""
    wrong = [core for core in cores if masks.get(str(core)) != [core]]
    if wrong:
        advice = "stages can not be pinned: look for a cpuset, a container limit or a vendor's scheduler"
        return Check("affinity", "fail", f"not kept on cores {format_core_list(wrong)}", advice)
    return Check("affinity", "ok", f"set and read back on cores {format_core_list(cores)}")


def check_gpu(found: Accelerator) -> Check:
    """Whether the runtime can run models on a GPU."""
    reason = why_not(found)
    if not reason:
        return Check("GPU", "ok", found.device or "usable")
    if found.usable or not found.device:
        return Check("GPU", "ok", f"none: {reason}")
    advice = (
        "slots on it are left out; the runtime needs Vulkan: its loader (libvulkan1) and the GPU's driver"
    )
    return Check("GPU", "warn", f"{found.device}: {reason}", advice)


def check_governor(now: conditions.Conditions) -> Check:
    """Frequency governor."""
    governors = sorted(set(now.governor.values()))
    if not governors:
        return Check("governor", "ok", "the kernel does not tell (usual in virtual machines)")
    if governors != ["performance"]:
        advice = "for steady numbers: cpupower frequency-set -g performance"
        return Check("governor", "warn", ", ".join(governors), advice)
    return Check("governor", "ok", "performance")


def check_temperature(now: conditions.Conditions) -> Check:
    """Thermal zones."""
    if not now.temperature_millicelsius:
        return Check("temperature", "ok", "the kernel does not tell (usual in virtual machines)")
    zone, value = max(now.temperature_millicelsius.items(), key=lambda item: item[1])
    found = f"{value / 1000:.0f} degrees Celsius ({zone})"
    if value >= conditions.HOT_MILLICELSIUS:
        return Check("temperature", "warn", found, "let it cool down: hot cores are slowed down")
    return Check("temperature", "ok", found)


def check_steal() -> Check:
    """Time that a hypervisor gives to others, over half a second of work."""
    before = conditions.snapshot()
    end = time.monotonic() + STEAL_WINDOW_S
    while time.monotonic() < end:
        pass  # stolen time only shows on a core that wants to work
    share = conditions.drift(before, conditions.snapshot()).steal_share
    if share > conditions.MUCH_STEAL:
        return Check(
            "steal time", "warn", f"{share:.1%}", "another guest uses these cores: measure at another time"
        )
    return Check("steal time", "ok", f"{share:.1%}")


def check_load(now: conditions.Conditions) -> Check:
    """Load average."""
    if now.load_1min is None:
        return Check("load", "ok", "the kernel does not tell")
    found = f"{now.load_1min:.2f} over the last minute"
    if now.load_1min > 0.5 * len(os.sched_getaffinity(0)):
        return Check(
            "load", "warn", found, "other programs compete for the cores: stop them before measuring"
        )
    return Check("load", "ok", found)


def check_memory(now: conditions.Conditions) -> Check:
    """Available memory."""
    if now.available_bytes is None:
        return Check("memory", "ok", "the kernel does not tell")
    found = f"{format_bytes(now.available_bytes)} available"
    if now.available_bytes < LITTLE_MEMORY_BYTES:
        return Check("memory", "warn", found, "large models may not fit once per slot")
    return Check("memory", "ok", found)


def check_quota(quota_cores: float | None, n_cores: int) -> Check:
    """CPU quota of the control group."""
    if quota_cores is None:
        return Check("CPU quota", "ok", "none")
    found = f"the time of {quota_cores:g} of {n_cores} cores"
    if quota_cores < n_cores:
        return Check(
            "CPU quota", "warn", found, "threads are stopped for part of every period: raise the limit"
        )
    return Check("CPU quota", "ok", found)


def check_cache(folder: Path) -> Check:
    """Whether measurements can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-"):
            pass
    except OSError as error:
        advice = "set TFLITE_DSE_CACHE to a writable folder"
        return Check("cache", "fail", f"{folder}: {error.strerror}", advice)
    return Check("cache", "ok", str(folder))


def _check_c_interface(answer: dict[str, Any]) -> Check:
    if answer["missing"]:
        found = f"{len(answer['missing'])} of its functions are missing, first {answer['missing'][0]}"
        return Check("C interface", "warn", found, "layers are timed one by one instead of inside the model")
    return Check("C interface", "ok", f"libLiteRt.so with all {answer['n_found']} functions")
