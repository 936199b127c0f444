"""What a hand-over between two clusters costs: measured in a lane of two stages, and fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse.costs import link_from_json, link_json
from dse.devices.child import Child
from dse.files import write_bytes
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan
from dse.platforms import Cluster, Link, Platform
from dse.profiling.stats import median
from dse.profiling.tiny import doubling_model
from dse.units import NS_PER_S

SIZES_BYTES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22)


@dataclass(frozen=True, slots=True)
class LinkFit:
    """A straight line through hand-over times.

    Parameters
    ----------
    link
        The fitted cost.
    wake_ns
        Median time to wake a sleeping receiver; only a stage that waits pays it.
    points
        Pairs (bytes, median nanoseconds).
    take_ns
        Per point, how much of it is taking the tensor; the rest is reading it from another cache.
    """

    link: Link
    wake_ns: int
    points: tuple[tuple[int, int], ...]
    take_ns: tuple[int, ...] = ()

    @property
    def residuals(self) -> tuple[float, ...]:
        """Per point, (line - point) / point."""
        bandwidth = self.link.bandwidth_bytes_per_s
        slope = NS_PER_S / bandwidth if bandwidth else 0.0
        return tuple((self.link.setup_ns + slope * n - t) / max(1, t) for n, t in self.points)

    @property
    def worst_residual(self) -> float:
        """Largest relative distance of a point from the line."""
        return max(map(abs, self.residuals))

    def to_json(self) -> dict[str, Any]:
        """Return the fit for the journal and for the conditions of a cost table."""
        return {
            **link_json(self.link),
            "wake_ns": self.wake_ns,
            "points": [list(point) for point in self.points],
            "take_ns": list(self.take_ns),
            "residuals": [round(value, 4) for value in self.residuals],
        }


def measure_links(platform: Platform, folder: Path, timeout_s: float = 60.0) -> tuple[LinkFit, ...]:
    """Measure the hand-over between every ordered pair of CPU clusters, each with itself included.

    Stages of one lane are threads of one process, so that is the only way there is.

    Parameters
    ----------
    platform
        This machine.
    folder
        For the models of the two stages and a log file.
    timeout_s
        Per pair of clusters.

    Raises
    ------
    ChildDiedError, ChildTimeoutError, RuntimeRefusedError
        The measuring process did not finish.
    """
    clusters = [cluster for cluster in platform.clusters if cluster.kind == "cpu"]
    paths = {n_bytes: folder / f"double{n_bytes}.tflite" for n_bytes in SIZES_BYTES}
    for n_bytes, path in paths.items():
        write_bytes(path, doubling_model(n_bytes // 4))
    fits = []
    with Child("dse.pipeline.handover", log_path=folder / "links.log", name="the link measurement") as child:
        for source in clusters:
            for target in clusters:
                producer, consumer = _ends(source, target)
                pairs = [
                    [
                        hop_plan(path, n_bytes // 4, (core, consumer)).to_json()
                        for core in (producer, consumer)
                    ]
                    for n_bytes, path in paths.items()
                ]
                answer = child.request(
                    {"command": "measure", "pairs": pairs, "engine": "auto"},
                    timeout_s=timeout_s,
                    doing=f"measuring the hand-over from {source.name} to {target.name}",
                )
                fits.append(_fit(source.name, target.name, answer))
    return tuple(fits)


def hop_plan(path: Path, n_floats: int, cores: tuple[int, int]) -> PipelinePlan:
    """Return two stages of ``doubling_model``, joined by a tensor, on two cores (or on one)."""
    ports = [Port(number, "", "float32", (1, n_floats), 4 * n_floats) for number in range(3)]
    stages = tuple(
        StagePlan(f"stage {n}", path, "cpu", (core,), 1, (ports[n],), (ports[n + 1],))
        for n, core in enumerate(cores)
    )
    return PipelinePlan("hop", (LanePlan(stages),), (ports[0],), (ports[2],))


def _fit(source: str, target: str, answer: dict[str, Any]) -> LinkFit:
    """Fit the sum of taking a tensor and of reading it from the other core's caches.

    Stages that do nothing but hand over fight for the interpreter's lock at every frame, as stages
    with work to do rarely do: what the smallest tensor's computing takes longer is that, and no reading.
    """
    take_ns = [max(0, median(samples)) for samples in answer["take_ns"]]
    smallest = median(answer["read_ns"][0])
    read_ns = [max(0, median(samples) - smallest) for samples in answer["read_ns"]]
    points = [(n, take + read) for n, take, read in zip(SIZES_BYTES, take_ns, read_ns, strict=True)]
    return fit_link(source, target, points, max(0, median(answer["wake_ns"])), take_ns)


def fit_link(
    source: str,
    target: str,
    points: Sequence[tuple[int, int]],
    wake_ns: int,
    take_ns: Sequence[int] = (),
) -> LinkFit:
    """Fit ``setup + bytes / bandwidth`` with the least sum of squared *relative* residuals.

    Parameters
    ----------
    source, target
        Cluster names.
    points
        Pairs (bytes, nanoseconds), at least two sizes.
    wake_ns, take_ns
        Passed on.
    """
    # Minimise sum of ((a + b n - t) / t)^2: weighted linear least squares in closed form.
    weights = [1.0 / max(1, t) ** 2 for _, t in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    joint = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, points, strict=True))
    slope = joint / spread if spread else 0.0
    setup = mean_t - slope * mean_n
    if setup < 0:  # noise at the small end: through the origin instead
        setup = 0.0
        squares = sum(w * n * n for w, (n, _) in zip(weights, points, strict=True))
        slope = sum(w * n * t for w, (n, t) in zip(weights, points, strict=True)) / squares
    bandwidth = round(NS_PER_S / slope) if slope > 0 else None
    return LinkFit(Link(source, target, round(setup), bandwidth), wake_ns, tuple(points), tuple(take_ns))


def links_from_json(data: Any) -> tuple[Link, ...]:
    """Return the links of fits that ``LinkFit.to_json`` wrote."""
    return tuple(link_from_json(entry) for entry in data)


def _ends(source: Cluster, target: Cluster) -> tuple[int, int]:
    if source.name == target.name:
        return source.core_ids[0], source.core_ids[-1]
    return source.core_ids[0], target.core_ids[0]
