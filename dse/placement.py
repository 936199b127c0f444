"""A mapping in the user's terms: which layers run on which cores of which cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dse.platforms import ClusterKind, Kernels, Slot


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage on concrete cores.

    Parameters
    ----------
    name
        Unique in the mapping, for example ``lane0.stage1``.
    layers
        Ascending layer indices.
    cluster, threads
        The slot.
    cores
        Core numbers in the kernel's counting; as many as threads.
    kernels
        The rest of the slot.
    device
        What kind of thing the cluster is.
    host_cores
        Of a stage on an accelerator: the cores that drive it.
    """

    name: str
    layers: tuple[int, ...]
    cluster: str
    threads: int
    cores: tuple[int, ...]
    kernels: Kernels = "default"
    device: ClusterKind = "cpu"
    host_cores: tuple[int, ...] = ()

    @property
    def slot(self) -> str:
        """For people, for example ``3 big``."""
        return str(Slot(self.cluster, self.threads, self.kernels))

    @property
    def cpu_cores(self) -> tuple[int, ...]:
        """The CPU cores that it occupies: its own, or those that drive its accelerator."""
        return self.cores if self.device == "cpu" else self.host_cores

    @property
    def span(self) -> str:
        """The layers for people, for example ``0-16`` or ``0-4,7``."""
        return span_text(self.layers)


@dataclass(frozen=True, slots=True)
class PlacedLane:
    """A complete copy of the model; stages in topological order."""

    stages: tuple[PlacedStage, ...]


@dataclass(frozen=True, slots=True)
class PlacedMapping:
    """Lanes on disjoint cores."""

    lanes: tuple[PlacedLane, ...]

    @property
    def stages(self) -> tuple[PlacedStage, ...]:
        """All stages, lane by lane."""
        return tuple(stage for lane in self.lanes for stage in lane.stages)

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores in use, ascending; those that drive accelerators too."""
        return tuple(sorted({core for stage in self.stages for core in (*stage.cores, *stage.host_cores)}))

    @property
    def signature(self) -> tuple[tuple[tuple[tuple[int, ...], str, int], ...], ...]:
        """What runs where, up to which of several identical cores; equal plans are measured once."""
        return tuple(sorted(_signature(lane) for lane in self.lanes))

    @property
    def takes_turns(self) -> bool:
        """Whether stages share cores: these work on different frames in turn."""
        return any(
            len({(stage.cluster, stage.cores) for stage in lane.stages}) < len(lane.stages)
            for lane in self.lanes
        )


def _signature(lane: PlacedLane) -> tuple[tuple[tuple[int, ...], str, int], ...]:
    """Layers, slot, and number of the set of cores of every stage."""
    units: dict[tuple[str, tuple[int, ...]], int] = {}
    return tuple(
        (stage.layers, stage.slot, units.setdefault((stage.cluster, stage.cores), len(units)))
        for stage in lane.stages
    )


def span_text(layers: Sequence[int]) -> str:
    """Write ascending layers shortly, for example ``0-16`` or ``0-4,7``."""
    parts: list[str] = []
    start = previous = layers[0]
    for layer in (*layers[1:], None):
        if layer is not None and layer == previous + 1:
            previous = layer
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        if layer is not None:
            start = previous = layer
    return ",".join(parts)
