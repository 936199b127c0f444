"""(layer graph, platform, costs, wishes) -> a problem for ``solvers``, and mappings back to cores."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dse.costs import CostTable
from dse.errors import ConfigError, InputError, PlatformError
from dse.graph import Layer, LayerGraph
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Platform, Slot
from solvers import mapping as solver_mapping
from solvers import problem as solver_problem
from solvers.evaluate import stage_memory_bytes
from solvers.names import Names

if TYPE_CHECKING:
    from dse.config import Pin


@dataclass(frozen=True, slots=True)
class ResolvedPin:
    """A pin with layer indices, and the cores that it names (empty: any of the slot)."""

    layers: tuple[int, ...]
    slots: tuple[Slot, ...]
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asks of the mapping.

    Parameters
    ----------
    pins
        Layers on slots or cores.
    max_lanes, max_stages
        Caps, or None.
    memory_limit_bytes
        Over all clusters, or None.
    objective
        What is made best.
    queue_depth
        Frames that may wait in front of a stage.
    refused
        Layers that must not run on a cluster, by its name.
    """

    pins: tuple[ResolvedPin, ...] = ()
    max_lanes: int | None = None
    max_stages: int | None = None
    memory_limit_bytes: int | None = None
    objective: solver_problem.Objective = field(default_factory=solver_problem.Objective)
    queue_depth: int = 2
    refused: Mapping[str, Collection[int]] = field(default_factory=dict)


def find_layers(graph: LayerGraph, wanted: str | int) -> tuple[int, ...]:
    """Find the layers that a user means.

    Parameters
    ----------
    wanted
        A layer index, a range such as ``0-16``, a layer or tensor name, or a glob over names.

    Raises
    ------
    InputError
        Nothing matches; the message shows close names.
    """
    n_layers = len(graph.layers)
    text = str(wanted).strip()
    first, dash, last = text.partition("-")
    if first.isdigit() and (not dash or last.isdigit()):
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high < n_layers:
            raise InputError(f"layers {text!r}: the model has layers 0-{n_layers - 1}")
        return tuple(range(low, high + 1))
    names = {name: layer.index for layer in graph.layers for name in _names(graph, layer)}
    if text in names:
        return (names[text],)
    found = tuple(sorted({index for name, index in names.items() if fnmatch.fnmatchcase(name, text)}))
    if not found:
        import difflib

        close = difflib.get_close_matches(text, names, n=3, cutoff=0.4)
        hint = f"; close names: {', '.join(close)}" if close else ""
        raise InputError(f"layers {text!r}: no layer of {graph.name} has that name{hint}")
    return found


def _names(graph: LayerGraph, layer: Layer) -> tuple[str, ...]:
    return (layer.name, *(graph.tensors[tensor].name for tensor in layer.outputs))


def resolve_pins(graph: LayerGraph, platform: Platform, pins: Sequence[Pin]) -> tuple[ResolvedPin, ...]:
    """Turn the pins of a configuration into layer indices and slots.

    Raises
    ------
    ConfigError
        All faults at once: unknown layers, clusters or cores, more threads than cores, a layer in
        two pins, cores of two clusters in one pin.
    """
    faults: list[str] = []
    resolved: list[ResolvedPin] = []
    owner: dict[int, str] = {}
    # A pin of "the rest" is read last, when it is known what the others leave.
    for number, pin in sorted(enumerate(pins), key=lambda item: (item[1].rest, item[0])):
        where = pin.where or f"search.pins[{number}]"
        try:
            layers = (
                tuple(layer.index for layer in graph.layers if layer.index not in owner)
                if pin.rest
                else tuple(sorted({index for name in pin.layers for index in find_layers(graph, name)}))
            )
            slots = _pin_slots(platform, pin)
        except InputError as error:
            faults.append(f"{where}: {error}")
            continue
        for layer in layers:
            if layer in owner:
                faults.append(
                    f"{where}: layer {layer} ({graph.layers[layer].name}) is already pinned in "
                    f"{owner[layer]}; a layer can be pinned once"
                )
            owner[layer] = where
        if layers:
            resolved.append(ResolvedPin(layers, slots, pin.cores))
    if faults:
        raise ConfigError(faults)
    return tuple(resolved)


def _pin_slots(platform: Platform, pin: Pin) -> tuple[Slot, ...]:
    """Return the slots that a pin allows."""
    known = ", ".join(f"{c.n_cores} {c.name}" for c in platform.clusters)
    if pin.cores:
        homes = {c.name for c in platform.clusters for core in pin.cores if core in c.core_ids}
        every = set(platform.cpu_cores)
        missing = sorted(set(pin.cores) - every)
        if missing:
            raise PlatformError(
                f"core {missing[0]} is not on platform {platform.name} (it has {sorted(every)})"
            )
        if len(homes) != 1:
            raise PlatformError(
                f"cores {list(pin.cores)} belong to several clusters ({', '.join(sorted(homes))})"
            )
        wanted = Slot(homes.pop(), len(set(pin.cores)))
        slots = tuple(s for s in platform.slots if (s.cluster, s.threads) == (wanted.cluster, wanted.threads))
        if not slots:
            raise PlatformError(
                f"platform {platform.name} has no slot '{wanted}' (see 'threads' of the cluster)"
            )
        return slots
    if pin.cluster is None:
        raise PlatformError("a pin needs 'on' (for example '3 big') or 'cores'")
    if pin.cluster not in {c.name for c in platform.clusters}:
        raise PlatformError(f"cluster {pin.cluster!r} is not on platform {platform.name} (it has {known})")
    slots = tuple(
        slot
        for slot in platform.slots
        if slot.cluster == pin.cluster
        and pin.threads in (None, slot.threads)
        and pin.kernels in (None, slot.kernels)
    )
    if not slots:
        cluster = platform.cluster(pin.cluster)
        wanted_text = " ".join(str(part) for part in (pin.threads, pin.cluster, pin.kernels) if part)
        raise PlatformError(
            f"'{wanted_text}' is not a slot of platform {platform.name}: "
            f"cluster {pin.cluster} runs {', '.join(map(str, cluster.thread_counts))} threads"
            f" with kernels {', '.join(cluster.kernels)}"
        )
    return slots


def wanted_slots(platform: Platform, wanted: Sequence[str]) -> tuple[Slot, ...]:
    """Return the slots that ``4 big`` or ``big`` (any number of its cores) name; all without wishes.

    Raises
    ------
    PlatformError
        The platform has no such slot.
    """
    if not wanted:
        return platform.slots
    found: list[Slot] = []
    for text in wanted:
        named = [
            slot
            for slot in platform.slots
            if text.strip() in (str(slot), slot.cluster, f"{slot.cluster} {slot.kernels}")
        ]
        if not named:
            raise PlatformError(
                f"search.slots: platform {platform.name} has no slot {text!r}; it has "
                f"{', '.join(map(str, platform.slots))}"
            )
        found += named
    return tuple(dict.fromkeys(found))


def build_problem(
    graph: LayerGraph, platform: Platform, costs: CostTable, wishes: Wishes | None = None
) -> solver_problem.Problem:
    """Build the optimisation problem.

    Parameters
    ----------
    costs
        Must have a column for each slot of the platform that is to be used; slots without a column
        are left out.

    Raises
    ------
    InputError
        The cost table belongs to another model, or shares no slot with the platform.
    """
    wishes = wishes or Wishes()
    if len(costs.costs) != len(graph.layers):
        raise InputError(
            f"the cost table of {costs.model_name} has {len(costs.costs)} layers, "
            f"{graph.name} has {len(graph.layers)}: measure this model with 'dse profile'"
        )
    slots = problem_slots(platform, costs)
    columns = [costs.slots.index(slot) for slot in slots]
    cluster_index = {cluster.name: number for number, cluster in enumerate(platform.clusters)}
    cost_ns = np.zeros((len(graph.layers), len(slots)), np.int64)
    supported = np.zeros(cost_ns.shape, np.bool_)
    for layer, row in enumerate(costs.calibrated_ns):
        for place, column in enumerate(columns):
            value = row[column]
            if value is not None and layer not in wishes.refused.get(slots[place].cluster, ()):
                cost_ns[layer, place] = value
                supported[layer, place] = True
    loaded_ns = None
    if costs.loaded_ns is not None:
        loaded_ns = np.array([[row[column] or 0 for column in columns] for row in costs.loaded_ns], np.int64)
    setup, bandwidth = _links(platform, costs)
    sending = _sending(platform, costs)
    problem = solver_problem.Problem(
        cost_ns=cost_ns,
        loaded_cost_ns=loaded_ns,
        supported=supported,
        slots=tuple(_solver_slot(platform, cluster_index, slot) for slot in slots),
        cluster_sizes=tuple(cluster.n_cores for cluster in platform.clusters),
        flows=_flows(graph),
        constants=_constants(graph),
        overhead_ns=np.array([costs.overhead_ns[column] for column in columns], np.int64),
        stage_times=tuple(
            solver_problem.StageTime(
                frozenset(stage.layers), slots.index(stage.slot), stage.median_ns, stage.under_load
            )
            for stage in costs.stages
            if stage.median_ns is not None and stage.slot in slots
        ),
        setup_ns=setup,
        bandwidth_bytes_per_s=bandwidth,
        send_setup_ns=None if sending is None else sending[0],
        send_bandwidth_bytes_per_s=None if sending is None else sending[1],
        overlap=platform.overlap,
        groups=_groups(graph),
        networks=tuple(network.layers for network in graph.networks if network.layers),
        pins=tuple(
            solver_problem.Pin(pin.layers, tuple(slots.index(slot) for slot in pin.slots if slot in slots))
            for pin in wishes.pins
        ),
        stateful=graph.stateful,
        max_lanes=1 if any(pin.cores for pin in wishes.pins) else wishes.max_lanes,
        max_stages=wishes.max_stages,
        memory_limits_bytes=tuple(cluster.memory_bytes for cluster in platform.clusters),
        total_memory_limit_bytes=wishes.memory_limit_bytes or platform.memory_bytes,
        queue_depth=wishes.queue_depth,
        active_power_mw=_active_power(platform, slots),
        idle_power_mw=sum(cluster.idle_power_mw or 0 for cluster in platform.clusters),
        objective=wishes.objective,
        names=Names(
            layers=tuple(layer.name for layer in graph.layers),
            slots=tuple(map(str, slots)),
            clusters=tuple(cluster.name for cluster in platform.clusters),
        ),
    )
    if costs.corrections is None:
        return problem
    return costs.corrections.apply(problem, slots, [cluster.name for cluster in platform.clusters])


def stage_memory(graph: LayerGraph, layers: Sequence[int]) -> tuple[int, int]:
    """Return the bytes of a stage's constants, and the most bytes of tensors alive at a time."""
    n_layers = len(graph.layers)
    problem = solver_problem.Problem(
        cost_ns=np.zeros((n_layers, 1), np.int64),
        supported=np.ones((n_layers, 1), np.bool_),
        slots=(solver_problem.Slot(0, 1),),
        cluster_sizes=(1,),
        flows=_flows(graph),
        constants=_constants(graph),
        queue_depth=0,
    )
    inside = set(layers)
    weights = sum(one.n_bytes for one in problem.constants if inside & set(one.users))
    return weights, stage_memory_bytes(problem, sorted(inside)) - weights


def _solver_slot(platform: Platform, places: Mapping[str, int], slot: Slot) -> solver_problem.Slot:
    host = platform.cluster(slot.cluster).host
    if host is None:
        return solver_problem.Slot(places[slot.cluster], slot.threads)
    return solver_problem.Slot(places[slot.cluster], slot.threads, places[host.cluster], host.threads)


def problem_slots(platform: Platform, costs: CostTable) -> tuple[Slot, ...]:
    """Slots of the platform that the cost table knows, in the order of the problem's columns."""
    slots = tuple(slot for slot in platform.slots if slot in costs.slots)
    if not slots:
        raise InputError(
            f"the cost table is for slots {', '.join(map(str, costs.slots))}; "
            f"platform {platform.name} has {', '.join(map(str, platform.slots))}"
        )
    return slots


def _flows(graph: LayerGraph) -> tuple[solver_problem.Flow, ...]:
    outputs = set(graph.outputs)
    flows = []
    for tensor in dict.fromkeys((*graph.inputs, *(t for layer in graph.layers for t in layer.outputs))):
        users = graph.consumers.get(tensor, ())
        if users or tensor in outputs:
            flows.append(
                solver_problem.Flow(
                    graph.producer.get(tensor), users, graph.tensors[tensor].n_bytes, tensor in outputs
                )
            )
    return tuple(flows)


def _constants(graph: LayerGraph) -> tuple[solver_problem.Constant, ...]:
    users: dict[int, list[int]] = {}
    for layer in graph.layers:
        for tensor in dict.fromkeys(layer.constants):
            users.setdefault(tensor, []).append(layer.index)
    return tuple(
        solver_problem.Constant(graph.tensors[tensor].n_bytes, tuple(layers))
        for tensor, layers in users.items()
    )


def _groups(graph: LayerGraph) -> tuple[tuple[int, ...], ...]:
    members: dict[int, list[int]] = {}
    for layer in graph.layers:
        if layer.group is not None:
            members.setdefault(layer.group, []).append(layer.index)
    return tuple(tuple(layers) for layers in members.values() if len(layers) > 1)


def _links(platform: Platform, costs: CostTable) -> tuple[solver_problem.IntArray, solver_problem.FloatArray]:
    """Described links win over measured ones: the user wrote them down on purpose."""
    place = {cluster.name: number for number, cluster in enumerate(platform.clusters)}
    setup = np.zeros((len(place), len(place)), np.int64)
    bandwidth = np.full(setup.shape, np.inf)
    for link in (*costs.links, *platform.links):
        if link.source in place and link.target in place and not link.sender_pays:
            pair = place[link.source], place[link.target]
            setup[pair] = link.setup_ns
            bandwidth[pair] = np.inf if link.bandwidth_bytes_per_s is None else link.bandwidth_bytes_per_s
    return setup, bandwidth


def _sending(platform: Platform, costs: CostTable) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
    """What stages pay to hand out, by cluster; None where nobody pays.

    A cluster that pays differently by target pays the dearest.
    """
    links = [link for link in (*costs.links, *platform.links) if link.sender_pays]
    if not links:
        return None
    own = [[link for link in links if link.source == cluster.name] for cluster in platform.clusters]
    rates = [[float(link.bandwidth_bytes_per_s or np.inf) for link in some] for some in own]
    return (
        tuple(max((link.setup_ns for link in some), default=0) for some in own),
        tuple(min(some, default=np.inf) for some in rates),
    )


def _active_power(platform: Platform, slots: Sequence[Slot]) -> tuple[int, ...] | None:
    """Power of each slot, or None when a cluster does not tell (no energy is better than a wrong one)."""
    powers = []
    for slot in slots:
        host = platform.cluster(slot.cluster).host
        total = 0
        for part in (slot, host) if host is not None else (slot,):
            power = platform.cluster(part.cluster).active_power_mw
            if power is None:
                return None
            total += power * part.threads
        powers.append(total)
    return tuple(powers)


def place(
    mapping: solver_mapping.Mapping,
    platform: Platform,
    slots: Sequence[Slot],
    pins: Sequence[ResolvedPin] = (),
) -> PlacedMapping:
    """Give every set of cores of a mapping its core numbers.

    Cores named by pins go to the stages that hold the pinned layers; the others take the lowest
    free cores of their cluster.

    Raises
    ------
    PlatformError
        A cluster has too few cores.
    """
    free = {cluster.name: list(cluster.core_ids) for cluster in platform.clusters}
    taken: dict[int, tuple[int, ...]] = {}
    hosts: dict[int, tuple[int, ...]] = {}
    stages = [stage for lane in mapping.lanes for stage in lane.stages]
    for stage in stages:
        # Plans that break pins (baselines) are placed too: they take whatever is free.
        held = [pin for pin in pins if pin.cores and set(pin.layers) <= set(stage.layers)]
        pool = free[slots[stage.slot].cluster]
        if len(held) == 1 and stage.unit not in taken and slots[stage.slot] in held[0].slots:
            cores = held[0].cores
            if set(cores) <= set(pool):
                taken[stage.unit] = _take(pool, cores)
    for stage in stages:
        if stage.unit not in taken:
            slot = slots[stage.slot]
            host = platform.cluster(slot.cluster).host
            taken[stage.unit] = _take_any(free, slot)
            hosts[stage.unit] = () if host is None else _take_any(free, host)
    return PlacedMapping(
        tuple(
            PlacedLane(
                tuple(
                    PlacedStage(
                        name=f"lane{lane_number}.stage{number}",
                        layers=stage.layers,
                        cluster=slots[stage.slot].cluster,
                        threads=slots[stage.slot].threads,
                        cores=taken[stage.unit],
                        kernels=slots[stage.slot].kernels,
                        device=platform.cluster(slots[stage.slot].cluster).kind,
                        host_cores=hosts.get(stage.unit, ()),
                    )
                    for number, stage in enumerate(lane.stages)
                )
            )
            for lane_number, lane in enumerate(mapping.lanes)
        )
    )


def _take_any(free: Mapping[str, list[int]], slot: Slot) -> tuple[int, ...]:
    pool = free[slot.cluster]
    if len(pool) < slot.threads:
        raise PlatformError(f"the mapping uses more cores of cluster {slot.cluster} than it has")
    return _take(pool, pool[: slot.threads])


def _take(pool: list[int], cores: Sequence[int]) -> tuple[int, ...]:
    wanted = tuple(cores)
    for core in wanted:
        pool.remove(core)
    return wanted


def unplace(mapping: PlacedMapping, platform: Platform, slots: Sequence[Slot]) -> solver_mapping.Mapping:
    """Turn a placed mapping back into the solver's terms, for re-evaluation.

    Raises
    ------
    PlatformError
        A stage uses a slot that the platform or the cost table does not have.
    """
    units: dict[tuple[int, ...], int] = {}
    lanes = []
    for lane in mapping.lanes:
        stages = []
        for stage in lane.stages:
            slot = Slot(stage.cluster, stage.threads, stage.kernels)
            if slot not in slots:
                raise PlatformError(f"{stage.name}: no costs for slot '{slot}' on platform {platform.name}")
            unit = units.setdefault(stage.cores, len(units))
            stages.append(solver_mapping.Stage(stage.layers, slots.index(slot), unit))
        lanes.append(solver_mapping.Lane(tuple(stages)))
    return solver_mapping.Mapping(tuple(lanes))
