"""What a hand-over between two clusters costs: measured on the queue that stages use, and fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse.devices.child import Child
from dse.platforms import Cluster, Link, Platform
from dse.profiling.stats import median
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
    worst_residual
        Largest relative distance of a point from the line.
    """

    link: Link
    wake_ns: int
    points: tuple[tuple[int, int], ...]
    worst_residual: float

    def to_json(self) -> dict[str, Any]:
        """Return the fit for the journal and for the conditions of a cost table."""
        return {
            "source": self.link.source,
            "target": self.link.target,
            "setup_ns": self.link.setup_ns,
            "bandwidth_bytes_per_s": self.link.bandwidth_bytes_per_s,
            "wake_ns": self.wake_ns,
            "points": [list(point) for point in self.points],
            "worst_residual": round(self.worst_residual, 4),
        }


def measure_links(platform: Platform, log_path: Path, timeout_s: float = 60.0) -> tuple[LinkFit, ...]:
    """Measure the hand-over between every ordered pair of CPU clusters, each with itself included.

    Raises
    ------
    ChildDiedError, ChildTimeoutError
        The measuring process did not finish.
    """
    clusters = [cluster for cluster in platform.clusters if cluster.kind == "cpu"]
    cores = sorted({core for cluster in clusters for core in cluster.core_ids})
    arguments = ["--cores", ",".join(map(str, cores))]
    fits = []
    with Child("dse.devices.worker", arguments, log_path=log_path, name="the link measurement") as child:
        for source in clusters:
            for target in clusters:
                producer, consumer = _ends(source, target)
                answer = child.request(
                    {"command": "link", "producer": producer, "consumer": consumer, "sizes": SIZES_BYTES},
                    timeout_s=timeout_s,
                    doing=f"measuring the hand-over from {source.name} to {target.name}",
                )
                points = [(int(n), median(samples)) for n, samples in answer["receive_ns"]]
                fits.append(fit_link(source.name, target.name, points, median(answer["wake_ns"])))
    return tuple(fits)


def fit_link(source: str, target: str, points: Sequence[tuple[int, int]], wake_ns: int) -> LinkFit:
    """Fit ``setup + bytes / bandwidth`` with the least sum of squared *relative* residuals.

    Parameters
    ----------
    source, target
        Cluster names.
    points
        Pairs (bytes, nanoseconds), at least two sizes.
    wake_ns
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
    slope = max(0.0, slope)
    worst = max(abs(setup + slope * n - t) / max(1, t) for n, t in points)
    return LinkFit(Link(source, target, round(setup), bandwidth), wake_ns, tuple(points), worst)


def links_from_json(data: Any) -> tuple[Link, ...]:
    """Return the links of fits that ``LinkFit.to_json`` wrote."""
    return tuple(Link(k["source"], k["target"], k["setup_ns"], k["bandwidth_bytes_per_s"]) for k in data)


def _ends(source: Cluster, target: Cluster) -> tuple[int, int]:
    if source.name == target.name:
        return source.core_ids[0], source.core_ids[-1]
    return source.core_ids[0], target.core_ids[0]
