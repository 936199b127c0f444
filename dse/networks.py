"""What a plan means for each network of a workload: its time, where it runs, who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dse.costs import CostTable
from dse.graph import LayerGraph, Network
from dse.placement import PlacedLane, PlacedMapping, PlacedStage, span_text
from dse.platforms import Slot
from dse.results import Gap, PlanResult, StageNumbers


@dataclass(frozen=True, slots=True)
class NetworkTime:
    """A network in a plan; times are of one frame, over all its stages, means over the lanes.

    Where a stage holds layers of several networks, its time is divided by the layers' costs.
    """

    name: str
    n_layers: int
    macs: int | None
    weight_bytes: int
    predicted_ns: int
    measured_ns: int | None
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoreUse:
    """A set of cores that work together.

    ``busy`` is the share of a frame's period in which they work; ``idle_ns`` is the rest, per frame.
    """

    lane: int
    cluster: str
    cores: tuple[int, ...]
    networks: tuple[str, ...]
    busy: float
    idle_ns: int
    measured: bool


@dataclass(frozen=True, slots=True)
class NetworkGap:
    """Idle time of cores between the work for two networks, see ``dse.results.Gap``."""

    cores: tuple[int, ...]
    after: str
    before: str
    n_per_frame: float
    median_ns: int
    share: float


@dataclass(frozen=True)
class PlanNetworks:
    """A plan seen by its networks.

    Parameters
    ----------
    networks
        In the order of the workload.
    bottleneck
        The network that takes most of the time of the busiest cores.
    cores
        Sets of cores, lane by lane.
    gaps
        Measured idle times, longest in sum first; empty where nothing was measured.
    """

    networks: tuple[NetworkTime, ...]
    bottleneck: str
    cores: tuple[CoreUse, ...]
    gaps: tuple[NetworkGap, ...]

    @property
    def busy(self) -> float:
        """Mean share of the time in which the cores in use work."""
        n_cores = sum(len(use.cores) for use in self.cores)
        return sum(use.busy * len(use.cores) for use in self.cores) / max(1, n_cores)


def span_of(graph: LayerGraph, layers: Sequence[int]) -> str:
    """Write layers for people: whole networks of a workload by name, parts with their layers' numbers.

    For example ``0-16`` of a plain model, and ``hand + face 140-163`` of a workload.
    """
    inside = set(layers)
    parts = []
    for network in graph.networks:
        own = [layer for layer in network.layers if layer in inside]
        if own:
            whole = len(own) == len(network.layers)
            parts.append(network.name if whole else f"{network.name} {span_text(own)}")
    return " + ".join(parts) or span_text(layers)


def plan_networks(graph: LayerGraph, costs: CostTable, plan: PlanResult) -> PlanNetworks | None:
    """Look at a plan by its networks; None for a plain model."""
    if not graph.networks:
        return None
    numbers = {stage.name: stage for stage in plan.stages}
    measured = all(stage.measured_busy_ns is not None for stage in plan.stages)
    table = costs.calibrated_ns
    shares = {stage.name: _shares(graph, table, costs.slots, stage) for stage in plan.mapping.stages}
    lanes = plan.mapping.lanes
    periods = [_period_ns(lane, numbers, measured) for lane in lanes]
    times = [_network_time(graph, network, plan, shares, periods, measured) for network in graph.networks]
    told = plan.measured.diagnosis if plan.measured else None
    busy = {} if told is None else dict(told.core_utilisation)
    cores = [
        use
        for number, (lane, period) in enumerate(zip(lanes, periods))
        for use in _uses(graph, number, lane, numbers, period, busy, measured)
    ]
    return PlanNetworks(
        tuple(times),
        _bottleneck(lanes, numbers, shares, measured),
        tuple(cores),
        _gaps(graph, plan.mapping, plan.measured.gaps if plan.measured else ()),
    )


def _network_time(
    graph: LayerGraph,
    network: Network,
    plan: PlanResult,
    shares: dict[str, dict[str, float]],
    periods: Sequence[int],
    measured: bool,
) -> NetworkTime:
    numbers = {stage.name: stage for stage in plan.stages}
    rates = [1 / period for period in periods]

    def time_ns(real: bool) -> int:
        """Of a frame, the mean over the lanes by their rates."""
        by_lane = [
            sum(_busy_ns(numbers[s.name], real) * shares[s.name].get(network.name, 0) for s in lane.stages)
            for lane in plan.mapping.lanes
        ]
        return round(sum(t * rate for t, rate in zip(by_lane, rates)) / sum(rates))

    macs = [graph.layers[layer].macs for layer in network.layers]
    constants = {tensor for layer in network.layers for tensor in graph.layers[layer].constants}
    slots = (stage.slot for stage in plan.mapping.stages if network.name in shares[stage.name])
    return NetworkTime(
        name=network.name,
        n_layers=len(network.layers),
        macs=None if None in macs else sum(n for n in macs if n is not None),
        weight_bytes=sum(graph.tensors[tensor].n_bytes for tensor in constants),
        predicted_ns=time_ns(False),
        measured_ns=time_ns(True) if measured else None,
        slots=tuple(dict.fromkeys(slots)),
    )


def _busy_ns(numbers: StageNumbers, measured: bool) -> int:
    return (numbers.measured_busy_ns or 0) if measured else numbers.predicted_busy_ns


def _units(lane: PlacedLane) -> dict[tuple[int, ...], list[PlacedStage]]:
    found: dict[tuple[int, ...], list[PlacedStage]] = {}
    for stage in lane.stages:
        found.setdefault(stage.cores, []).append(stage)
    return found


def _period_ns(lane: PlacedLane, numbers: dict[str, StageNumbers], measured: bool) -> int:
    loads = [sum(_busy_ns(numbers[s.name], measured) for s in stages) for stages in _units(lane).values()]
    return max(1, *loads)


def _shares(
    graph: LayerGraph, table: Sequence[Sequence[int | None]], slots: Sequence[Slot], stage: PlacedStage
) -> dict[str, float]:
    """Return the share of a stage's time that each of its networks takes, by the layers' costs."""
    names = graph.networks_of(stage.layers)
    if len(names) == 1:
        return {names[0]: 1.0}
    column, inside = slots.index(Slot(stage.cluster, stage.threads, stage.kernels)), set(stage.layers)
    sums = {
        network.name: sum(table[layer][column] or 0 for layer in network.layers if layer in inside)
        for network in graph.networks
        if network.name in names
    }
    total = sum(sums.values())
    return {name: value / total if total else 1 / len(names) for name, value in sums.items()}


def _uses(
    graph: LayerGraph,
    number: int,
    lane: PlacedLane,
    numbers: dict[str, StageNumbers],
    period_ns: int,
    shares: Mapping[int, float],
    measured: bool,
) -> list[CoreUse]:
    """Return how busy each set of cores of a lane is; ``shares`` are those measured, by core."""
    found = []
    for cores, stages in _units(lane).items():
        busy_ns = sum(_busy_ns(numbers[stage.name], measured) for stage in stages)
        busy = busy_ns / period_ns
        if measured and cores and cores[0] in shares:
            busy = shares[cores[0]]
        networks = dict.fromkeys(name for stage in stages for name in graph.networks_of(stage.layers))
        idle_ns = round(busy_ns * (1 / busy - 1)) if busy else 0
        found.append(
            CoreUse(number, stages[0].cluster, cores, tuple(networks), round(busy, 4), idle_ns, measured)
        )
    return found


def _bottleneck(
    lanes: Sequence[PlacedLane],
    numbers: dict[str, StageNumbers],
    shares: dict[str, dict[str, float]],
    measured: bool,
) -> str:
    """Return the network with most of the time on the busiest cores, over the lanes by their rates."""
    weights: dict[str, float] = {}
    for lane in lanes:
        period = _period_ns(lane, numbers, measured)
        for stages in _units(lane).values():
            if sum(_busy_ns(numbers[s.name], measured) for s in stages) < period:
                continue
            for stage in stages:
                for name, share in shares[stage.name].items():
                    own = share * _busy_ns(numbers[stage.name], measured) / period
                    weights[name] = weights.get(name, 0.0) + own / period
    return max(weights, key=lambda name: weights[name])


def _gaps(graph: LayerGraph, mapping: PlacedMapping, gaps: Sequence[Gap]) -> tuple[NetworkGap, ...]:
    stages = {stage.name: stage for stage in mapping.stages}
    found = []
    for gap in gaps:
        after, before = stages[gap.after], stages[gap.before]
        labels = ["+".join(graph.networks_of(stage.layers)) for stage in (after, before)]
        found.append(
            NetworkGap(before.cores, labels[0], labels[1], gap.n_per_frame, gap.median_ns, gap.share)
        )
    return tuple(found)
