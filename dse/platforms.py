"""Chips with unlike cores: clusters, links, and the slots that a stage can run on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

ClusterKind = Literal["cpu", "gpu", "npu"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A way to run a stage: some cores of one cluster."""

    cluster: str
    threads: int

    def __str__(self) -> str:
        return f"{self.threads} {self.cluster}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Identical cores that share a clock and a cache.

    Parameters
    ----------
    name
        Unique on the platform, for example ``big``.
    core_ids
        Numbers of the cores in the kernel's counting.
    kind
        Accelerators are clusters of one.
    capacity
        Relative speed as the kernel tells it (1024 is the fastest core), when known.
    max_hz
        Highest clock, when known.
    threads
        Thread counts that are worth a slot; empty means all of 1..n.
    macs_per_s, bytes_per_s
        Peak of *one* core for predictions without hardware, when described.
    active_power_mw, idle_power_mw
        Power of one busy core, and of the whole idle cluster, when described.
    memory_bytes
        Memory of the cluster's own, when it has one.
    """

    name: str
    core_ids: tuple[int, ...]
    kind: ClusterKind = "cpu"
    capacity: int | None = None
    max_hz: int | None = None
    threads: tuple[int, ...] = ()
    macs_per_s: int | None = None
    bytes_per_s: int | None = None
    active_power_mw: int | None = None
    idle_power_mw: int | None = None
    memory_bytes: int | None = None

    @property
    def n_cores(self) -> int:
        """Number of cores."""
        return len(self.core_ids)

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Thread counts of the cluster's slots, ascending."""
        return self.threads or tuple(range(1, self.n_cores + 1))


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of handing a tensor from a stage on one cluster to a stage on another (or the same).

    ``bandwidth_bytes_per_s`` of None means that only ``setup_ns`` is paid.
    """

    source: str
    target: str
    setup_ns: int
    bandwidth_bytes_per_s: int | None


@dataclass(frozen=True, slots=True)
class Platform:
    """A machine or board.

    Parameters
    ----------
    name
        For people.
    clusters
        With unique names and disjoint cores.
    links
        Pairs that are not listed cost nothing.
    overlap
        Whether receiving overlaps with computing (formulation: busy = max instead of sum).
    memory_bytes
        Memory of the whole platform, when limited.
    origin
        ``detected`` on this machine, or ``described`` in YAML.
    emulated
        Whether the unlike cores are emulated; every report says so.
    notes
        What a person should know about it (quotas, hardware threads that share a core).
    """

    name: str
    clusters: tuple[Cluster, ...]
    links: tuple[Link, ...] = ()
    overlap: bool = False
    memory_bytes: int | None = None
    origin: Literal["detected", "described"] = "described"
    emulated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, cluster by cluster, thread counts ascending."""
        return tuple(Slot(c.name, t) for c in self.clusters for t in c.thread_counts)

    @property
    def n_cores(self) -> int:
        """Number of cores of all clusters."""
        return sum(cluster.n_cores for cluster in self.clusters)

    def cluster(self, name: str) -> Cluster:
        """Return the cluster of that name.

        Raises
        ------
        KeyError
            There is none.
        """
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise KeyError(name)

    @property
    def fingerprint(self) -> str:
        """Short hash over everything that can change a measured cost of a slot."""
        text = json.dumps([asdict(cluster) for cluster in self.clusters], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
