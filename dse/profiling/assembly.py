"""From a journal of measurements to the costs of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dse.costs import Cost
from dse.graph import Layer, LayerGraph
from dse.platforms import Slot
from dse.profiling.cache import Journal, Record
from dse.profiling.in_situ import OPERATOR, Resolution, Resolved, resolve
from dse.profiling.inside_run import TOTAL, known_pieces, piece_name
from dse.profiling.layer_models import counts_for_group, subject_of
from dse.profiling.options import ProfileOptions
from dse.profiling.stats import repeatable_interval, visit_interval

RESOLUTION_NS = 250  # of the mean of some runs that the profiler counts in whole microseconds

if TYPE_CHECKING:
    from dse.flatbuffer.records import Model


def resolutions(
    model: Model, graph: LayerGraph, slots: tuple[Slot, ...], journal: Journal, options: ProfileOptions
) -> dict[Slot, Resolution]:
    """Return, per slot, where the profiler's times of the layers are in a journal."""
    found: dict[Slot, Resolution] = {}
    for slot in slots:
        record = journal.record(str(slot), TOTAL)
        if options.method == "extracted":
            found[slot] = Resolution({}, "not asked for")
        elif record.refused or not record.visits:
            found[slot] = Resolution({}, record.refused or "not measured")
        else:
            found[slot] = resolve(model, graph, known_pieces(journal, slot))
    return found


def unresolved_layers(graph: LayerGraph, found: Mapping[Slot, Resolution]) -> tuple[Layer, ...]:
    """Return the layers that have to be timed on their own, for some slot at least."""
    return tuple(
        layer
        for layer in graph.layers
        if any(layer.index not in resolution.layers for resolution in found.values())
    )


def layer_cost(
    graph: LayerGraph,
    layer: Layer,
    slot: Slot,
    journal: Journal,
    resolution: Resolution,
    overhead_ns: int,
    typical: Callable[[Sequence[int]], int],
) -> Cost:
    """Return what a layer costs on a slot: in situ where that is resolved, else extracted."""
    resolved = resolution.layers.get(layer.index)
    if resolved is not None:
        return _inside_cost(graph, layer, slot, journal, resolution, resolved, typical)
    record = journal.record(str(slot), subject_of(graph, layer))
    return _extracted_cost(record, overhead_ns, typical, counts=counts_for_group(graph, layer))


def precision_reached(graph: LayerGraph, costs: tuple[tuple[Cost, ...], ...], asked: float) -> dict[str, Any]:
    """Return how many costs reached the asked precision, for the conditions of a table."""
    reached: dict[tuple[str, int], float] = {}
    n_all: set[tuple[str, int]] = set()
    for layer, row in zip(graph.layers, costs, strict=True):
        for slot, cost in enumerate(row):
            if not cost.median_ns or not cost.samples_ns:
                continue
            name = f"{layer.index}" if cost.source == "in_situ" else subject_of(graph, layer)
            n_all.add((name, slot))
            if cost.interval_ns is not None:
                width = cost.interval_ns[1] - cost.interval_ns[0]
                reached[name, slot] = width / (2 * cost.median_ns)
    n_within = sum(value <= asked for value in reached.values())
    return {
        "asked": asked,
        "n_measured": len(n_all),
        "n_within": n_within,
        "median": round(sorted(reached.values())[len(reached) // 2], 4) if reached else None,
        "worst": round(max(reached.values()), 4) if reached and len(reached) == len(n_all) else None,
    }


def _extracted_cost(
    record: Record, overhead_ns: int, typical: Callable[[Sequence[int]], int], *, counts: bool
) -> Cost:
    if record.refused or not record.visits:
        return Cost(None, reason=record.refused or "not measured")
    if not counts:
        return Cost(0, reason="measured together with the layers that share its state")
    interval = visit_interval(record.used_visits)
    return Cost(
        max(0, typical(record.samples_ns) - overhead_ns),
        record.samples_ns,
        interval_ns=None
        if interval is None
        else (max(0, interval[0] - overhead_ns), max(0, interval[1] - overhead_ns)),
    )


def _inside_cost(
    graph: LayerGraph,
    layer: Layer,
    slot: Slot,
    journal: Journal,
    resolution: Resolution,
    resolved: Resolved,
    typical: Callable[[Sequence[int]], int],
) -> Cost:
    if not resolved.pieces:
        host = "a neighbour" if resolved.host is None else f"layer {graph.layers[resolved.host].name}"
        return Cost(0, source="in_situ", reason=f"runs inside the kernel of {host}")
    columns = [journal.record(str(slot), piece_name(piece)).samples_ns for piece in resolved.pieces]
    samples = tuple(map(sum, zip(*columns, strict=True)))
    guests = [
        graph.layers[index].name for index, other in resolution.layers.items() if other.host == layer.index
    ]
    reason = f"its kernel also does {', '.join(guests)}" if guests else ""
    kinds = {known_pieces(journal, slot)[piece].kind for piece in resolved.pieces}
    outside = slot.kernels == "default" and OPERATOR in kinds
    fallback = "built-in kernels: XNNPACK does not take it" if outside else ""
    interval = repeatable_interval(samples, RESOLUTION_NS * len(resolved.pieces))
    return Cost(typical(samples), samples, "in_situ", reason, interval, fallback)
