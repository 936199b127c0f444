"""What it costs to hand tensors to an accelerator and back: measured on a stage that runs there.

A stage that only doubles its input receives and hands out as every stage on the accelerator does:
through shared memory, from and to a process of its own.  What receiving takes by size is the way there; by
how much computing grows with the size is the way back, since the accelerator's outputs are there
when they have been read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from dse.errors import RuntimeRefusedError
from dse.files import write_bytes
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan
from dse.pipeline.supervise import Pipeline
from dse.platforms import Cluster, Link, Platform
from dse.profiling.links import LinkFit, fit_link
from dse.profiling.tiny import doubling_model

SIZES_BYTES = (1 << 12, 1 << 16, 1 << 19, 1 << 22)
N_FRAMES = 30
N_SKIPPED = 5


def measure_accelerator_links(platform: Platform, folder: Path) -> tuple[LinkFit, ...]:
    """Measure the hand-over between the cores and every accelerator, and from it to itself.

    Parameters
    ----------
    platform
        The machine.
    folder
        For models.

    Returns
    -------
    tuple of LinkFit
        For each accelerator and CPU cluster: the way there, paid by the stage on the accelerator, and
        the way back, which that stage pays too; and the way there from itself.  Nothing for one that
        does not run: its layers are refused, with the reason.

    Raises
    ------
    DeviceError
        The process of an accelerator died or hung.
    """
    fits: list[LinkFit] = []
    for accelerator in platform.accelerators:
        try:
            there, back = _measure(platform, accelerator, folder)
        except RuntimeRefusedError:
            continue
        for cluster in platform.clusters:
            if cluster.is_accelerator and cluster is not accelerator:
                continue
            fits.append(replace(there, link=replace(there.link, source=cluster.name)))
            if not cluster.is_accelerator:
                fits.append(replace(back, link=replace(back.link, target=cluster.name)))
    return tuple(fits)


def _measure(platform: Platform, accelerator: Cluster, folder: Path) -> tuple[LinkFit, LinkFit]:
    taking: list[tuple[int, int]] = []
    computing: list[tuple[int, int]] = []
    for n_bytes in SIZES_BYTES:
        path = folder / f"double{n_bytes}.tflite"
        write_bytes(path, doubling_model(n_bytes // 4))
        with Pipeline(_plan(platform, accelerator, path, n_bytes // 4), loop="python") as pipeline:
            stamps = pipeline.run(n_frames=N_FRAMES)[0].stamps[N_SKIPPED:, 0]
        taking.append((n_bytes, _median(stamps[:, 1] - stamps[:, 0])))
        computing.append((n_bytes, _median(stamps[:, 2] - stamps[:, 1])))
    return fit_link("", accelerator.name, taking, 0), _way_back(accelerator.name, computing)


def _way_back(name: str, computing: Sequence[tuple[int, int]]) -> LinkFit:
    """Fit the growth of computing with the size: what the smallest takes is the invocation's."""
    smallest = computing[0][1]
    points = tuple((n, max(0, time - smallest)) for n, time in computing)
    slope = max(0.0, float(np.polyfit([n for n, _ in points], [time for _, time in points], 1)[0]))
    bandwidth = round(1e9 / slope) if slope > 0 else None
    return LinkFit(Link(name, "", 0, bandwidth, sender_pays=True), 0, points)


def _plan(platform: Platform, accelerator: Cluster, path: Path, n_floats: int) -> PipelinePlan:
    ports = [Port(number, "", "float32", (1, n_floats), 4 * n_floats) for number in range(2)]
    host = accelerator.host
    cores = () if host is None else platform.cluster(host.cluster).core_ids[: host.threads]
    stage = StagePlan(
        "doubling", path, accelerator.name, cores, 1, (ports[0],), (ports[1],), device=accelerator.kind
    )
    return PipelinePlan(f"hop to {accelerator.name}", (LanePlan((stage,)),), (ports[0],), (ports[1],))


def _median(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    return int(median(values.tolist()))
