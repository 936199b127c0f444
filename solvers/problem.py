"""What is to be mapped onto what: the input of every solver.

Layers are numbered in a topological order of the layer graph.  Times are integer nanoseconds,
sizes integer bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solvers.errors import ProblemError
from solvers.names import Names
from solvers.problem_checks import check

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
StageTable = dict[tuple[frozenset[int], int], int]
"""Nanoseconds of whole stages by (layers, slot)."""


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

    Layers of two different pins never share a stage nor a unit (a set of cores); layers without a
    pin may join any stage.
    """

    layers: tuple[int, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageTime:
    """A measured whole stage: ``compute_ns`` replaces the sum of layer costs and the slot's overhead.

    Where two name the same layers, slot and condition, the later one counts.

    Parameters
    ----------
    loaded
        Whether it was measured while other cores worked (see ``Problem.loaded_cost_ns``) or alone; None
        where load changes nothing.
    """

    layers: frozenset[int]
    slot: int
    compute_ns: int
    loaded: bool | None = None


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
    loaded_cost_ns
        int64 array (layers, slots): costs while other cores work too, nowhere below ``cost_ns``.  They
        hold in every mapping of more than one set of cores (unit); None: load changes nothing.
    overhead_ns
        int64 array (slots,): paid once per invocation of a stage.
    setup_ns, bandwidth_bytes_per_s
        Arrays (clusters, clusters), [from, to]; the diagonal is the cost between two stages of one
        cluster.  Bandwidth is float and may be ``inf``.
    send_setup_ns, send_bandwidth_bytes_per_s
        Per cluster: what the *producing* stage pays, once, for every tensor that another stage uses
        (chips that copy out through host memory).  None means nothing.
    free_within_unit
        Stages of one unit hand over for nothing, and a tensor that several stages of one unit use
        is charged once (devices that keep tensors in a memory of their own).
    overlap
        busy = max(compute, hand-over) instead of their sum.
    groups
        Sets of layers that must share a stage.
    colocated
        Sets of layers that must share a unit, though not a stage.
    networks
        The layers of each network of a workload, each after those that feed it; empty for a plain model.
        Tells searches what to try; no mapping has to keep a network together.
    pins
        Wishes of the user.
    stage_times
        Measured whole stages that win over sums.  Where one was measured in one condition only, it
        takes in the other as much more or less as the sum of its layers does.
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
    names
        For messages.
    """

    cost_ns: IntArray
    supported: BoolArray
    slots: tuple[Slot, ...]
    cluster_sizes: tuple[int, ...]
    flows: tuple[Flow, ...] = ()
    constants: tuple[Constant, ...] = ()
    loaded_cost_ns: IntArray | None = None
    overhead_ns: IntArray | None = None
    setup_ns: IntArray | None = None
    bandwidth_bytes_per_s: FloatArray | None = None
    send_setup_ns: tuple[int, ...] | None = None
    send_bandwidth_bytes_per_s: tuple[float, ...] | None = None
    free_within_unit: bool = False
    overlap: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    colocated: tuple[tuple[int, ...], ...] = ()
    networks: tuple[tuple[int, ...], ...] = ()
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
    names: Names = field(default_factory=Names)

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
        loaded = () if self.loaded_cost_ns is None else (np.array(self.loaded_cost_ns, dtype=np.int64),)
        for name, array in (
            ("cost_ns", cost),
            *(("loaded_cost_ns", array) for array in loaded),
            ("supported", supported),
            ("overhead_ns", np.array(overhead, dtype=np.int64)),
            ("setup_ns", np.array(setup, dtype=np.int64)),
            ("bandwidth_bytes_per_s", np.array(bandwidth, dtype=np.float64)),
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        check(self)

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

    @cached_property
    def load_matters(self) -> bool:
        """Whether costs depend on what other cores do."""
        return self.loaded_cost_ns is not None or self.measured_ns != self.loaded_measured_ns

    @property
    def under_load(self) -> Problem:
        """The same problem with the costs under load as the only ones."""
        cost = self.cost_ns if self.loaded_cost_ns is None else self.loaded_cost_ns
        return self._with_costs(cost, self.loaded_measured_ns)

    @property
    def isolated(self) -> Problem:
        """The same problem without the costs under load."""
        return self._with_costs(self.cost_ns, self.measured_ns)

    def _with_costs(self, cost_ns: IntArray, measured: StageTable) -> Problem:
        if not self.load_matters:
            return self
        times = tuple(StageTime(layers, slot, time) for (layers, slot), time in measured.items())
        return self.with_times(cost_ns, None, times)

    def with_times(
        self, cost_ns: IntArray, loaded_cost_ns: IntArray | None, stage_times: tuple[StageTime, ...]
    ) -> Problem:
        """Return the problem with other times; what follows from the graph is not worked out again."""
        changed = replace(self, cost_ns=cost_ns, loaded_cost_ns=loaded_cost_ns, stage_times=stage_times)
        for name in ("cores", "flows_into", "flows_from", "constants_of", "edges", "edge_array"):
            if name in self.__dict__:
                changed.__dict__[name] = self.__dict__[name]
        return changed

    def transfer_ns(self, source: int, target: int, n_bytes: int) -> int:
        """Time to hand ``n_bytes`` from a stage on cluster ``source`` to one on ``target``."""
        rate = float(self.bandwidth[source, target])
        moving = 0 if np.isinf(rate) else int(np.ceil(n_bytes * 1e9 / rate))
        return int(self.setup[source, target]) + moving

    def send_ns(self, source: int, n_bytes: int) -> int:
        """Time that a stage on cluster ``source`` pays to hand out a tensor, once for all consumers."""
        setup = 0 if self.send_setup_ns is None else self.send_setup_ns[source]
        rate = np.inf if self.send_bandwidth_bytes_per_s is None else self.send_bandwidth_bytes_per_s[source]
        return int(setup) + (0 if np.isinf(rate) else int(np.ceil(n_bytes * 1e9 / rate)))

    @cached_property
    def cores(self) -> IntArray:
        """int64 array (slots, clusters): cores that a stage on each slot occupies, host cores too."""
        table = np.zeros((len(self.slots), len(self.cluster_sizes)), np.int64)
        for number, slot in enumerate(self.slots):
            table[number, slot.cluster] += slot.threads
            if slot.host_cluster is not None:
                table[number, slot.host_cluster] += slot.host_threads
        table.setflags(write=False)
        return table

    @cached_property
    def measured_ns(self) -> StageTable:
        """``stage_times`` by (layers, slot), of each stage working alone."""
        alone, loaded = self._stage_times(False), self.loaded_measured_ns
        return {
            # Load makes nothing faster: where it seems so, the time under load holds for both.
            key: min(time, alone[key] if key in alone else self._moved_ns(*key, time, loaded=False))
            for key, time in loaded.items()
        }

    @cached_property
    def loaded_measured_ns(self) -> StageTable:
        """``stage_times`` by (layers, slot), while other cores work."""
        alone, loaded = self._stage_times(False), self._stage_times(True)
        return {
            key: loaded[key] if key in loaded else self._moved_ns(*key, alone[key], loaded=True)
            for key in dict.fromkeys((time.layers, time.slot) for time in self.stage_times)
        }

    def _stage_times(self, loaded: bool) -> StageTable:
        return {
            (time.layers, time.slot): time.compute_ns
            for time in self.stage_times
            if time.loaded is None or time.loaded is loaded
        }

    def _moved_ns(self, layers: frozenset[int], slot: int, time_ns: int, *, loaded: bool) -> int:
        """Return what a stage takes in the condition it was not measured in, told from its layers."""
        if self.loaded_cost_ns is None:
            return time_ns
        members = [layer for layer in sorted(layers) if 0 <= layer < self.n_layers]
        alone, busy = (
            int(cost[members, slot].sum() + self.overhead[slot])
            for cost in (self.cost_ns, self.loaded_cost_ns)
        )
        if not alone:
            return time_ns
        return time_ns * busy // alone if loaded else -(-time_ns * alone // busy)

    @cached_property
    def flows_into(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the flows that each layer consumes."""
        found: list[list[int]] = [[] for _ in range(self.n_layers)]
        for number, flow in enumerate(self.flows):
            for user in flow.consumers:
                found[user].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def flows_from(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the flows that each layer produces."""
        found: list[list[int]] = [[] for _ in range(self.n_layers)]
        for number, flow in enumerate(self.flows):
            if flow.producer is not None:
                found[flow.producer].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def constants_of(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the constants that each layer uses."""
        found: list[list[int]] = [[] for _ in range(self.n_layers)]
        for number, constant in enumerate(self.constants):
            for user in constant.users:
                if not 0 <= user < self.n_layers:
                    raise ProblemError(f"a constant names layer {user} of {self.n_layers}")
                found[user].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def lane_limit(self) -> int | None:
        """Most lanes that ``max_lanes`` and state allow, or None for no limit besides the cores."""
        caps = [self.max_lanes] if self.max_lanes is not None else []
        if self.stateful:
            caps.append(self.n_streams)
        return min(caps) if caps else None

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs (producer layer, consumer layer), each once, sorted."""
        return tuple(
            sorted({(f.producer, user) for f in self.flows if f.producer is not None for user in f.consumers})
        )

    @cached_property
    def edge_array(self) -> IntArray:
        """``edges`` as int64 (edges, 2)."""
        return np.array(self.edges, np.int64).reshape(-1, 2)
