"""Chips with unlike cores: clusters, links, and the slots that a stage can run on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

ClusterKind = Literal["cpu", "gpu", "npu"]
DEVICES: tuple[ClusterKind, ...] = get_args(ClusterKind)
Kernels = Literal["default", "builtin", "reference"]
"""Which of the runtime's kernel libraries runs a stage.

``default``: what the runtime chooses by itself (XNNPACK, and the built-in kernels for what that
refuses; on an accelerator, the device); ``builtin``: the built-in kernels without XNNPACK;
``reference``: the plain kernels that the others are tested against.
"""
KERNELS: tuple[Kernels, ...] = get_args(Kernels)


@dataclass(frozen=True, slots=True)
class Slot:
    """A way to run a stage: some cores of one cluster, with one of the kernel libraries.

    Examples
    --------
    >>> str(Slot("big", 2)), str(Slot("big", 2, "builtin"))
    ('2 big', '2 big builtin')
    """

    cluster: str
    threads: int
    kernels: Kernels = "default"

    def __str__(self) -> str:
        return f"{self.threads} {self.cluster}" + ("" if self.kernels == "default" else f" {self.kernels}")


def split_kernels(text: str) -> tuple[str, Kernels | None]:
    """Part ``big builtin`` into the cluster and its kernels; None when the text names none."""
    name, _, last = text.strip().rpartition(" ")
    for kernels in KERNELS:
        if name and last == kernels:
            return name.strip(), kernels
    return text.strip(), None


def parse_slot(text: str) -> Slot | None:
    """Read a slot as ``str`` writes it; None when the text has another form.

    Examples
    --------
    >>> parse_slot("2 big builtin")
    Slot(cluster='big', threads=2, kernels='builtin')
    """
    threads, _, rest = text.strip().partition(" ")
    cluster, kernels = split_kernels(rest)
    if not (threads.isascii() and threads.isdecimal() and 0 < int(threads) < 10_000 and cluster):
        return None
    return Slot(cluster, int(threads), kernels or "default")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Identical cores that share a clock and a cache.

    Parameters
    ----------
    name
        Unique on the platform, for example ``big``.
    core_ids
        Numbers of the cores in the kernel's counting.  An accelerator has one number of its own,
        which no core has.
    kind
        Accelerators are clusters of one.
    capacity
        Relative speed as the kernel tells it (1024 is the fastest core), when known.
    max_hz
        Highest clock, when known.
    threads
        Thread counts that are worth a slot; empty means all of 1..n.
    kernels
        Kernel libraries that are worth a slot; the first is the usual one.
    host
        Of an accelerator: the cores that are busy driving it, when some are kept for that.
    device
        Of an accelerator: what the driver calls it.
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
    kernels: tuple[Kernels, ...] = ("default",)
    host: Slot | None = None
    device: str = ""

    @property
    def n_cores(self) -> int:
        """Number of cores."""
        return len(self.core_ids)

    @property
    def is_accelerator(self) -> bool:
        """Whether it is no CPU cores."""
        return self.kind != "cpu"

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Thread counts of the cluster's slots, ascending."""
        return self.threads or tuple(range(1, self.n_cores + 1))


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of handing a tensor from a stage on one cluster to a stage on another (or the same).

    ``bandwidth_bytes_per_s`` of None means that only ``setup_ns`` is paid.  With ``sender_pays`` it is
    the time of the stage that hands out, once per tensor whoever uses it (an accelerator's outputs are
    copied out of it); else that of each stage that receives.  ``assumed``: nobody measured or described it.
    """

    source: str
    target: str
    setup_ns: int
    bandwidth_bytes_per_s: int | None
    sender_pays: bool = False
    assumed: bool = False


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
        Pairs that are not listed cost nothing; without any on a described platform and without measured
        ones, ``assumed_links`` takes their place.
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
        """All slots, cluster by cluster, kernels in their order, thread counts ascending."""
        return tuple(Slot(c.name, t, k) for c in self.clusters for k in c.kernels for t in c.thread_counts)

    @property
    def cpu_cores(self) -> tuple[int, ...]:
        """Numbers of all CPU cores, cluster by cluster."""
        return tuple(core for c in self.clusters if not c.is_accelerator for core in c.core_ids)

    @property
    def accelerators(self) -> tuple[Cluster, ...]:
        """The clusters that are no CPU cores."""
        return tuple(cluster for cluster in self.clusters if cluster.is_accelerator)

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
        # Kernels are part of a slot's name: offering more of them changes no cost.
        known = [{k: v for k, v in asdict(cluster).items() if k != "kernels"} for cluster in self.clusters]
        text = json.dumps(known, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


ASSUMED_SETUP_NS, ASSUMED_BYTES_PER_S = 5_000, 10_000_000_000
"""What a hand-over is taken to cost where nobody says.

On a 16-core server a thread took 2.4 us for 64 KiB of another core's, 6.8 us for 256 KiB and 18 us for
1 MiB, and 7.6 us to wake (``benchmarks/results/gpu_run_h200.json``, ``links``).  Cores and memory of
boards are a few times slower.  On the safe side: with free hand-overs searches cut models into
dozens of pieces for a gain that no board would show.
"""


def assumed_links(platform: Platform) -> tuple[Link, ...]:
    """Return links of the assumed costs between all clusters of a platform, each with itself included."""
    names = [cluster.name for cluster in platform.clusters]
    return tuple(
        Link(source, target, ASSUMED_SETUP_NS, ASSUMED_BYTES_PER_S, assumed=True)
        for source in names
        for target in names
    )
