"""The machine as a platform: its cores, the kernel libraries asked for, and a GPU where one is usable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from dse.detection import detect_platform
from dse.devices.accelerators import Accelerator, probe_gpu
from dse.platforms import Cluster, Kernels, Platform, Slot
from dse.profiling.tiny import tiny_model

GPU = "gpu"
Wanted = Literal["auto", "none", "any"]
WANTED: tuple[Wanted, ...] = get_args(Wanted)


def this_machine(kernels: Sequence[Kernels] = ("default",), accelerators: Wanted = "auto") -> Platform:
    """Describe this machine.

    Parameters
    ----------
    kernels
        Kernel libraries that make slots of their own.
    accelerators
        ``auto``: a GPU takes part where the runtime can use it; ``none``: it does not; ``any``: also
        one that is emulated in software.

    Raises
    ------
    PlatformError
        No core may be used.
    """
    return describe(kernels, accelerators)[0]


def describe(kernels: Sequence[Kernels], accelerators: Wanted) -> tuple[Platform, str]:
    """Describe this machine, and say why no GPU takes part (empty where one does, or none is wanted)."""
    platform = detect_platform()
    clusters = tuple(replace(cluster, kernels=tuple(kernels)) for cluster in platform.clusters)
    platform = replace(platform, clusters=clusters)
    if accelerators == "none":
        return platform, ""
    found = probe_gpu(tiny_model())
    platform = with_gpu(platform, found, software=accelerators == "any")
    return platform, "" if platform.accelerators else why_not(found)


def with_gpu(platform: Platform, found: Accelerator, *, software: bool = False) -> Platform:
    """Add what a probe found; one core of the slowest cluster is kept to drive it.

    Parameters
    ----------
    software
        Whether a GPU that is emulated takes part too.
    """
    if found.usable and (software or not found.software):
        first = platform.clusters[0]
        gpu = Cluster(
            GPU,
            (max(platform.cpu_cores) + 1,),
            kind="gpu",
            host=Slot(first.name, 1),
            device=found.device,
        )
        return replace(
            platform,
            clusters=(*platform.clusters, gpu),
            emulated=platform.emulated or found.software,
            notes=(*platform.notes, *_emulation(found)),
        )
    if found.device and not found.software:
        return replace(platform, notes=(*platform.notes, f"{found.device} is not used: {found.reason}"))
    return platform


def why_not(found: Accelerator) -> str:
    """Say why a GPU takes no part by itself; empty where it does."""
    if not found.usable:
        return found.reason
    if found.software:
        return f"{found.device} emulates a GPU on the cores (variants: {{accelerators: any}} takes it)"
    return ""


def _emulation(found: Accelerator) -> tuple[str, ...]:
    if not found.software:
        return ()
    return (f"the GPU is emulated on the cores by {found.device}: its times say nothing of a real one",)
