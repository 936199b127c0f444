"""What is to be mapped onto what: the input of every solver.

Layers are numbered in a topological order of the layer graph.  Times are integer nanoseconds,
sizes integer bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solvers.errors import ProblemError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slot:
    """A way to run a stage: ``threads`` cores of the cluster with index ``cluster``.

    ``host_cluster`` and ``host_threads`` are cores that an accelerator occupies besides.
    """

    cluster: int
    threads: int
    host_cluster: int | None = None
    host_threads: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """One tensor between layers.

    Parameters
    ----------
    producer
        Layer index, or None for an input of the model (costs no transfer, only memory).
    consumers
        Layer indices, ascending, each once; empty for an output that nobody uses inside.
    n_bytes
        Size of the tensor.
    is_output
        Whether it is (also) an output of the model.
    """

    producer: int | None
    consumers: tuple[int, ...]
    n_bytes: int
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """Weights: resident once in every stage that holds one of the layers ``users``."""

    n_bytes: int
    users: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """A user's wish: in every lane these layers sit in one stage, on one of these slots.

    Layers of two different pins never share a stage; layers without a pin may join any.
    """

    layers: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageTime:
    """A measured whole stage: its ``compute_ns`` replaces the sum of layer costs."""

    layers: frozenset[int]
    slot: int
    compute_ns: int


class Goal(Enum):
    """What is optimised.  Ties: fewer cores, then lower latency, then fewer stages."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    ENERGY = "energy"


@dataclass(frozen=True, slots=True)
class Objective:
    """A goal, and the floors and ceilings that go with it.

    Parameters
    ----------
    goal
        What is made best.
    min_throughput_hz
        Frames per second that must be reached, or None.
    max_latency_ns
        Latency of the worst lane that must not be exceeded, or None.
    """

    goal: Goal = Goal.THROUGHPUT
    min_throughput_hz: float | None = None
    max_latency_ns: int | None = None


@dataclass(frozen=True)
class Problem:
    """A layer graph, its costs on every slot, and the limits.

    Parameters
    ----------
    cost_ns
        int64 array (layers, slots); entries where ``supported`` is false are ignored.
    supported
        bool array (layers, slots).
    slots
        One per column.
    cluster_sizes
        Cores per cluster.
    flows
        Every tensor that a layer produces and another uses, inputs and outputs of the model.
    constants
        Weights with the layers that use them.
    overhead_ns
        int64 array (slots,): paid once per invocation of a stage.
    setup_ns, bandwidth_bytes_per_s
        Arrays (clusters, clusters), [from, to]; the diagonal is the cost between two stages of one
        cluster.  Bandwidth is float and may be ``inf``.
    overlap
        busy = max(compute, receive) instead of their sum.
    groups
        Sets of layers that must share a stage.
    pins
        Wishes of the user.
    stage_times
        Measured whole stages that win over sums.
    stateful
        Frames depend on earlier frames: one lane per stream, so at most ``n_streams`` lanes.
    n_streams
        Independent input streams.
    max_lanes, max_stages
        Caps on lanes and on the stages of one lane, or None.
    memory_limits_bytes
        Per cluster, None for no limit.
    total_memory_limit_bytes
        Over all clusters, or None.
    queue_depth
        Frames that may wait in front of a stage: counts for memory.
    active_power_mw, idle_power_mw
        Per slot while busy; sum over all clusters while idle.  None when unknown.
    max_power_mw
        Mean power that must not be exceeded, or None.
    objective
        What is made best.
    """

    cost_ns: IntArray
    supported: BoolArray
    slots: tuple[Slot, ...]
    cluster_sizes: tuple[int, ...]
    flows: tuple[Flow, ...] = ()
    constants: tuple[Constant, ...] = ()
    overhead_ns: IntArray | None = None
    setup_ns: IntArray | None = None
    bandwidth_bytes_per_s: FloatArray | None = None
    overlap: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    pins: tuple[Pin, ...] = ()
    stage_times: tuple[StageTime, ...] = ()
    stateful: bool = False
    n_streams: int = 1
    max_lanes: int | None = None
    max_stages: int | None = None
    memory_limits_bytes: tuple[int | None, ...] | None = None
    total_memory_limit_bytes: int | None = None
    queue_depth: int = 2
    active_power_mw: tuple[int, ...] | None = None
    idle_power_mw: int | None = None
    max_power_mw: int | None = None
    objective: Objective = field(default_factory=Objective)

    def __post_init__(self) -> None:
        cost = np.array(self.cost_ns, dtype=np.int64)
        supported = np.array(self.supported, dtype=np.bool_)
        n_clusters = len(self.cluster_sizes)
        overhead = np.zeros(len(self.slots), np.int64) if self.overhead_ns is None else self.overhead_ns
        setup = np.zeros((n_clusters, n_clusters), np.int64) if self.setup_ns is None else self.setup_ns
        bandwidth = (
            np.full((n_clusters, n_clusters), np.inf)
            if self.bandwidth_bytes_per_s is None
            else self.bandwidth_bytes_per_s
        )
        for name, array in (
            ("cost_ns", cost),
            ("supported", supported),
            ("overhead_ns", np.array(overhead, dtype=np.int64)),
            ("setup_ns", np.array(setup, dtype=np.int64)),
            ("bandwidth_bytes_per_s", np.array(bandwidth, dtype=np.float64)),
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        self._check()

    def _check(self) -> None:
        if self.cost_ns.ndim != 2 or self.cost_ns.shape[1] != len(self.slots):
            raise ProblemError(f"cost_ns has shape {self.cost_ns.shape}, expected (layers, {len(self.slots)})")
        if self.supported.shape != self.cost_ns.shape:
            raise ProblemError(f"supported has shape {self.supported.shape}, cost_ns {self.cost_ns.shape}")
        if np.any(self.cost_ns[self.supported] < 0):
            raise ProblemError("cost_ns has a negative cost")
        n_clusters = len(self.cluster_sizes)
        for number, slot in enumerate(self.slots):
            if not 0 <= slot.cluster < n_clusters:
                raise ProblemError(f"slot {number} names cluster {slot.cluster} of {n_clusters}")
            if not 1 <= slot.threads <= self.cluster_sizes[slot.cluster]:
                raise ProblemError(
                    f"slot {number} wants {slot.threads} cores of cluster {slot.cluster}, "
                    f"which has {self.cluster_sizes[slot.cluster]}"
                )
        square = (n_clusters, n_clusters)
        if self.setup.shape != square or self.bandwidth.shape != square:
            raise ProblemError(f"links need arrays of shape {square}")
        if self.overhead.shape != (len(self.slots),):
            raise ProblemError(f"overhead_ns has shape {self.overhead.shape}, expected ({len(self.slots)},)")
        n_layers = self.n_layers
        for flow in self.flows:
            if flow.producer is not None and not 0 <= flow.producer < n_layers:
                raise ProblemError(f"a flow comes from layer {flow.producer} of {n_layers}")
            start = -1 if flow.producer is None else flow.producer
            for user in flow.consumers:
                if not start < user < n_layers:
                    raise ProblemError(
                        f"a flow goes from layer {flow.producer} to layer {user}: layers must be "
                        f"numbered in topological order below {n_layers}"
                    )
        for members, what in [(group, "group") for group in self.groups] + [
            (pin.layers, "pin") for pin in self.pins
        ]:
            for layer in members:
                if not 0 <= layer < n_layers:
                    raise ProblemError(f"a {what} names layer {layer} of {n_layers}")
        for pin in self.pins:
            if not pin.slots:
                raise ProblemError(f"the pin of layers {pin.layers} allows no slot")

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return int(self.cost_ns.shape[0])

    @property
    def overhead(self) -> IntArray:
        """``overhead_ns``, never None."""
        assert self.overhead_ns is not None  # noqa: S101 - set in __post_init__
        return self.overhead_ns

    @property
    def setup(self) -> IntArray:
        """``setup_ns``, never None."""
        assert self.setup_ns is not None  # noqa: S101 - set in __post_init__
        return self.setup_ns

    @property
    def bandwidth(self) -> FloatArray:
        """``bandwidth_bytes_per_s``, never None."""
        assert self.bandwidth_bytes_per_s is not None  # noqa: S101 - set in __post_init__
        return self.bandwidth_bytes_per_s

    def transfer_ns(self, source: int, target: int, n_bytes: int) -> int:
        """Time to hand ``n_bytes`` from a stage on cluster ``source`` to one on ``target``."""
        rate = float(self.bandwidth[source, target])
        moving = 0 if np.isinf(rate) else int(np.ceil(n_bytes * 1e9 / rate))
        return int(self.setup[source, target]) + moving

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (producer layer, consumer layer), each once, sorted."""
        return tuple(
            sorted(
                {(f.producer, user) for f in self.flows if f.producer is not None for user in f.consumers}
            )
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a solver may spend.

    Parameters
    ----------
    time_s
        Wall time.
    gap
        Stop when (found - bound) / bound is at most this.
    memory_bytes
        Working memory of one solver.
    workers
        Threads a solver may use.
    seed
        Same seed, same answer.
    progress
        Called with (incumbent period in ns or None, bound in ns or None) now and then.
    """

    time_s: float = 60.0
    gap: float = 0.0
    memory_bytes: int = 2 * 1024**3
    workers: int = 1
    seed: int = 0
    progress: Callable[[float | None, float | None], None] | None = None
