"""Cutting a model in many places and comparing with the whole."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx
from running import FLOAT_TOLERANCE, difference, moved

from dse.flatbuffer.cut import extract, possible_cuts, split, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.inputs import STYLES, make_frames

N_FRAMES = 3


def audible(file):
    """Leave the last layers out of a model that answers 0 to anything but its word."""
    if "wakeword" not in file.name:
        return file
    graph = build_graph(file)
    last = next(layer.index for layer in graph.layers if layer.op == "LOGISTIC")
    keep = [layer.index for layer in graph.layers if layer.index < last or not layer.outputs]
    return model_from_bytes(extract(file, graph, keep).data, file.name)


def reference(file, graph, runner):
    """Return frames that move the outputs, and what the whole model gives."""
    for style in STYLES:
        frames = make_frames(graph, N_FRAMES, 1, style=style)
        expected = runner.run(bytes(file.data), frames)
        if moved(expected):
            return frames, expected
    raise AssertionError(f"no frames move the outputs of {file.name}")


def sample(values, n):
    """Take about n of the values, the first and the last always."""
    step = max(1, -(-len(values) // n))
    return sorted({*values[::step], *values[-1:]})


def check_positions(file, graph, runner, n):
    """Cut in two at up to n positions; return the largest difference."""
    worst = 0.0
    frames, expected = reference(file, graph, runner)
    positions = possible_cuts(graph)
    assert positions
    for position in sample(positions, n):
        pieces = split(file, graph, stages_at(graph, [position]))
        gap = difference(expected, runner.run_split(pieces, frames))
        assert gap <= tolerance(graph), f"{file.name} cut before layer {position}: differs by {gap}"
        worst = max(worst, gap)
    return worst


def random_stages(graph, n_stages, seed):
    """Cut a random topological order: stages that are convex, but no prefixes of the file's order.

    Layers of a group, and all that lie between them, are taken together as one node.
    """
    rng = random.Random(seed)
    bound = networkx.DiGraph(graph.edges)
    bound.add_nodes_from(layer.index for layer in graph.layers)
    for layer in graph.layers:
        if layer.group is not None:
            first = next(other.index for other in graph.layers if other.group == layer.group)
            bound.add_edges_from([(first, layer.index), (layer.index, first)])
    nodes = networkx.condensation(bound)
    waits = {node: set(nodes.predecessors(node)) for node in nodes}
    order, ready = [], sorted(node for node in waits if not waits[node])
    while ready:
        taken = ready.pop(rng.randrange(len(ready)))
        order.append(taken)
        for node in sorted(nodes.successors(taken)):
            waits[node].discard(taken)
            if not waits[node]:
                ready.append(node)
    if len(order) < n_stages:
        return None
    borders = [0, *sorted(rng.sample(range(1, len(order)), n_stages - 1)), len(order)]
    members = nodes.nodes(data="members")
    return [[layer for node in order[a:b] for layer in members[node]] for a, b in pairwise(borders)]


def check_random(file, graph, runner, seeds):
    """Cut in three or four random convex stages; return the largest difference."""
    worst = 0.0
    frames, expected = reference(file, graph, runner)
    for seed in seeds:
        stages = random_stages(graph, 3 + seed % 2, seed)
        if stages is None:
            continue
        gap = difference(expected, runner.run_split(split(file, graph, stages), frames))
        assert gap <= tolerance(graph), f"{file.name} cut by seed {seed}: differs by {gap}"
        worst = max(worst, gap)
    return worst


def tolerance(graph):
    """Shares of the range for floating-point outputs, quantisation steps for integer ones."""
    floats = any(graph.tensors[index].dtype.startswith("float") for index in graph.outputs)
    return FLOAT_TOLERANCE if floats else 1
