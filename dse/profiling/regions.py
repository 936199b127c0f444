"""Layer costs on an accelerator: single layers give the shape, regions of layers the size.

A layer that runs alone on an accelerator pays for waiting and for reading its output back, and is
fused with nothing; the same layer inside a stage pays neither.  So rows of neighbouring layers are
timed as stages too, and the costs of their layers are scaled to what the row takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dse.costs import Cost
from dse.graph import LayerGraph

N_REGIONS = 8
Region = tuple[int, ...]


def regions(graph: LayerGraph, supported: Sequence[bool]) -> tuple[Region, ...]:
    """Part the supported layers into rows of neighbours, about ``N_REGIONS`` of like weight.

    Layers that share state are left out: they can not be parted.

    Parameters
    ----------
    supported
        By layer, whether the accelerator runs it.
    """
    weights = [_weight(graph, layer) for layer in range(len(graph.layers))]
    usable = [ok and graph.layers[n].group is None for n, ok in enumerate(supported)]
    share = sum(w for w, ok in zip(weights, usable, strict=True) if ok) / N_REGIONS
    found: list[Region] = []
    row: list[int] = []
    filled = 0.0
    for layer, ok in enumerate(usable):
        if row and (not ok or filled >= share):
            found.append(tuple(row))
            row, filled = [], 0.0
        if ok:
            row.append(layer)
            filled += weights[layer]
    if row:
        found.append(tuple(row))
    return tuple(region for region in found if len(region) > 1)


def scaled(
    column: Sequence[Cost],
    times_ns: Mapping[Region, int],
    overhead_ns: int,
    handing_out_ns: Mapping[Region, int],
) -> list[Cost]:
    """Scale the costs of one slot so that the layers of each region sum up to what it takes.

    Parameters
    ----------
    column
        By layer; single layers.
    times_ns
        Measured regions, the invocation included.
    overhead_ns
        Of an invocation.
    handing_out_ns
        Per region what its outputs cost to read back, which stages pay apart from computing.
    """
    costs = list(column)
    for region, time_ns in times_ns.items():
        total = sum(costs[layer].median_ns or 0 for layer in region)
        if not total:
            continue
        factor = max(0, time_ns - overhead_ns - handing_out_ns.get(region, 0)) / total
        for layer in region:
            costs[layer] = _scaled(costs[layer], factor, region)
    return costs


def _scaled(cost: Cost, factor: float, region: Region) -> Cost:
    if cost.median_ns is None:
        return cost
    interval = cost.interval_ns
    told = f"scaled by {factor:.2f} to layers {region[0]}-{region[-1]} timed as one stage"
    return replace(
        cost,
        median_ns=round(cost.median_ns * factor),
        interval_ns=None if interval is None else (round(interval[0] * factor), round(interval[1] * factor)),
        reason=f"{cost.reason}; {told}" if cost.reason else told,
    )


def _weight(graph: LayerGraph, layer: int) -> float:
    """What a layer may weigh: arithmetic, or the bytes that it moves; decided without measuring."""
    one = graph.layers[layer]
    moved = sum(graph.tensors[tensor].n_bytes for tensor in (*one.inputs, *one.outputs))
    return float((one.macs or 0) + moved + one.weight_bytes + 1)
