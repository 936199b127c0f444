"""Cuts between neighbouring layers of the execution order, where state allows them.

A converter likes to read all variables at the beginning of a model and to write each where it is
used, so nearly every position lies between a reader and its writer.  But a reader that only layers
behind the cut need can as well go behind the cut, together with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dse.graph import LayerGraph

# Above this many layers, readers are not moved: trying that at every position takes quadratic time.
_MAX_LAYERS = 4000


def group_members(graph: LayerGraph) -> dict[int, list[int]]:
    """Return the layers of each group."""
    members: dict[int, list[int]] = {}
    for layer in graph.layers:
        if layer.group is not None:
            members.setdefault(layer.group, []).append(layer.index)
    return members


def stages_at(graph: LayerGraph, positions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the stages of cuts before the layers at ``positions``.

    Notes
    -----
    Each layer goes to the stage of its place in the order, or to a later one when it shares state
    with a layer there or needs the outputs of a layer there: the least such assignment, found by
    raising layers until nothing changes.  A layer is raised at most once per stage, so this takes
    O(stages x (layers + edges)).  A stage may end up without layers: ``check_cut`` refuses that.
    """
    borders = sorted(set(positions))
    stage_of = [sum(border <= layer.index for border in borders) for layer in graph.layers]
    members = group_members(graph)
    waiting = [layer for layers in members.values() for layer in layers]
    while waiting:
        layer = waiting.pop()
        stage = stage_of[layer]
        tied = [user for tensor in graph.layers[layer].outputs for user in graph.consumers.get(tensor, ())]
        group = graph.layers[layer].group
        if group is not None:
            tied += members[group]
        for other in tied:
            if stage_of[other] < stage:
                stage_of[other] = stage
                waiting.append(other)
    return tuple(
        tuple(layer for layer, stage in enumerate(stage_of) if stage == number)
        for number in range(len(borders) + 1)
    )


def possible_cuts(graph: LayerGraph) -> tuple[int, ...]:
    """Return the positions of the execution order where a cut parts no shared state.

    Position ``p`` lies before layer ``p``; 0 and the number of layers are left out.  A position
    counts when the layers that have to move behind it (see ``stages_at``) do not include the
    layer right before it: then the cut is where it was meant.
    """
    unbroken = _positions_without_moves(graph)
    if len(unbroken) == len(graph.layers) - 1 or len(graph.layers) > _MAX_LAYERS:
        return tuple(unbroken)
    found = set(unbroken)
    for position in range(1, len(graph.layers)):
        if position not in found and position - 1 in stages_at(graph, [position])[0]:
            found.add(position)
    return tuple(sorted(found))


def _positions_without_moves(graph: LayerGraph) -> list[int]:
    """Return the positions with each group wholly on one side; one linear pass."""
    last = {group: layers[-1] for group, layers in group_members(graph).items()}
    found, reach = [], -1
    for position in range(1, len(graph.layers)):
        group = graph.layers[position - 1].group
        reach = max(reach, position - 1 if group is None else last[group])
        if reach < position:
            found.append(position)
    return found
