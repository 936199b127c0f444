"""What crosses at every position of the execution order, so that a person sees the cheap cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dse.flatbuffer.positions import group_members, possible_cuts, stages_at
from dse.graph import LayerGraph


@dataclass(frozen=True, slots=True)
class CutCost:
    """A cut right before a layer.

    Parameters
    ----------
    position
        Index of the first layer after the cut.
    layer
        Name of that layer.
    tensors
        Tensors made before and used after; model inputs go straight to where they are used.
    n_bytes
        Their size.
    weight_bytes
        Constants of the layers before the cut (those used on both sides count here too).
    macs
        Multiply-accumulates before the cut, of the layers whose formula is known.
    possible
        False when layers on both sides share state, even after moving those behind the cut that only
        layers behind it need (see ``positions``); then the numbers are of the plain cut.
    """

    position: int
    layer: str
    tensors: tuple[int, ...]
    n_bytes: int
    weight_bytes: int
    macs: int
    possible: bool


def cut_costs(graph: LayerGraph) -> tuple[CutCost, ...]:
    """Return the cost of every cut between two neighbouring layers, in order.

    Notes
    -----
    One linear pass; positions where layers move behind the cut are worked out one by one.
    """
    allowed = set(possible_cuts(graph))
    groups = group_members(graph).values()
    return tuple(
        _moved_cost(graph, cost)
        if cost.position in allowed and any(g[0] < cost.position <= g[-1] for g in groups)
        else replace(cost, possible=cost.position in allowed)
        for cost in _plain_costs(graph)
    )


def _plain_costs(graph: LayerGraph) -> Iterator[CutCost]:
    last_use = {tensor: users[-1] for tensor, users in graph.consumers.items()}
    alive: dict[int, None] = {}
    constants: set[int] = set()
    weight_bytes = macs = n_bytes = 0
    for layer in graph.layers[:-1]:
        for tensor in layer.outputs:
            if last_use.get(tensor, -1) > layer.index:
                alive[tensor] = None
                n_bytes += graph.tensors[tensor].n_bytes
        for tensor in dict.fromkeys(layer.inputs):
            if tensor in alive and last_use[tensor] == layer.index:
                del alive[tensor]
                n_bytes -= graph.tensors[tensor].n_bytes
        new = set(layer.constants) - constants
        constants |= new
        weight_bytes += sum(graph.tensors[tensor].n_bytes for tensor in new)
        macs += layer.macs or 0
        position = layer.index + 1
        name = graph.layers[position].name
        yield CutCost(position, name, tuple(alive), n_bytes, weight_bytes, macs, possible=True)


def _moved_cost(graph: LayerGraph, cost: CutCost) -> CutCost:
    before, after = stages_at(graph, [cost.position])
    made = {tensor for layer in before for tensor in graph.layers[layer].outputs}
    used = dict.fromkeys(tensor for layer in after for tensor in graph.layers[layer].inputs if tensor in made)
    constants = {tensor for layer in before for tensor in graph.layers[layer].constants}
    return replace(
        cost,
        tensors=tuple(used),
        n_bytes=sum(graph.tensors[tensor].n_bytes for tensor in used),
        weight_bytes=sum(graph.tensors[tensor].n_bytes for tensor in constants),
        macs=sum(graph.layers[layer].macs or 0 for layer in before),
    )


def cheap_cuts(costs: tuple[CutCost, ...]) -> tuple[CutCost, ...]:
    """Return the possible cuts that are no dearer than their neighbours: local minima of the bytes.

    Of several equal ones in a row the first is kept.
    """
    possible = [cost for cost in costs if cost.possible]
    found = []
    for number, cost in enumerate(possible):
        before = possible[number - 1].n_bytes if number else None
        following = next((c.n_bytes for c in possible[number + 1 :] if c.n_bytes != cost.n_bytes), None)
        if (before is None or before > cost.n_bytes) and (following is None or following > cost.n_bytes):
            found.append(cost)
    return tuple(found)
