"""Part of a model on its own: from some tensors to others, to run it or to look at a tensor."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from dse.errors import CutError
from dse.flatbuffer.cut import extract
from dse.flatbuffer.positions import group_members
from dse.flatbuffer.reader import ModelFile
from dse.flatbuffer.stages import StageModel
from dse.graph import LayerGraph

_N_SIMILAR = 3


def extract_part(
    file: ModelFile,
    graph: LayerGraph,
    start: Sequence[str] = (),
    end: Sequence[str] = (),
    *,
    name: str = "part",
) -> StageModel:
    """Make a model of what lies between tensors.

    Parameters
    ----------
    file, graph
        The whole model.
    start
        Names or indices of tensors that the part takes in; none: the model's inputs.
    end
        Names or indices of tensors that the part gives out; none: the model's outputs that depend
        on ``start``.
    name
        Name of the part.

    Returns
    -------
    StageModel
        Its inputs are ``start`` and whatever else the layers between need (a skip connection that
        begins elsewhere); its outputs are ``end`` and whatever else made inside is used outside.

    Raises
    ------
    CutError
        A tensor is unknown or a constant, nothing lies between, or state would be parted.
    """
    first = tuple(find_tensor(graph, text) for text in start)
    last = tuple(find_tensor(graph, text) for text in end)
    layers = layers_between(graph, first, last)
    inside = set(layers)
    for group, members in group_members(graph).items():
        if not inside.isdisjoint(members) and not inside.issuperset(members):
            raise CutError(
                f"layers {', '.join(map(str, members))} share {graph.shared[group]} and can not be parted, "
                f"but only {', '.join(str(m) for m in members if m in inside)} would be in the part"
            )
    return extract(file, graph, layers, name=name, also=last)


def layers_between(graph: LayerGraph, start: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
    """Return the layers that lie on a way from a start tensor to an end tensor.

    Parameters
    ----------
    start
        Tensor indices; none: everything that ``end`` needs.
    end
        Tensor indices; none: the model's outputs that depend on ``start``.

    Raises
    ------
    CutError
        An end tensor is not made by any layer, or does not depend on the start.
    """
    goals = tuple(end) or tuple(tensor for tensor in graph.outputs if tensor in graph.producer)
    for tensor in goals:
        if tensor not in graph.producer:
            raise CutError(f"tensor {graph.tensors[tensor].name!r} is not made by any layer")
    begin = set(start)
    needed: set[int] = set()
    waiting = [tensor for tensor in goals if tensor not in begin]
    while waiting:
        layer = graph.producer.get(waiting.pop())
        if layer is not None and layer not in needed:
            needed.add(layer)
            waiting += [tensor for tensor in graph.layers[layer].inputs if tensor not in begin]
    if not begin:
        return tuple(sorted(needed))
    reached = set(begin)
    between = []
    for layer_index in sorted(needed):  # execution order: makers come first
        layer_record = graph.layers[layer_index]
        if not reached.isdisjoint(layer_record.inputs):
            between.append(layer_index)
            reached.update(layer_record.outputs)
    missed = [tensor for tensor in goals if tensor not in reached or tensor in begin]
    # Without a wish, those model outputs are meant that depend on the start.
    for tensor in missed if end or len(missed) == len(goals) else ():
        names = ", ".join(repr(graph.tensors[index].name) for index in start)
        raise CutError(f"tensor {graph.tensors[tensor].name!r} does not depend on {names}")
    return tuple(between)


def find_tensor(graph: LayerGraph, text: str) -> int:
    """Return the index of an input or of a tensor that a layer makes, by name or index.

    Raises
    ------
    CutError
        There is none, or the name fits several; the message helps on.
    """
    crossing = [*graph.inputs, *(tensor for layer in graph.layers for tensor in layer.outputs)]
    if text.isdigit() and int(text) in crossing:
        return int(text)
    found = [index for index in dict.fromkeys(crossing) if graph.tensors[index].name == text]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(map(str, found))
        raise CutError(f"{len(found)} tensors are named {text!r}; give the index, one of {numbers}")
    names = [graph.tensors[index].name for index in crossing]
    close = difflib.get_close_matches(text, names, _N_SIMILAR, 0.4)
    hint = f"; similar names: {', '.join(map(repr, close))}" if close else ""
    raise CutError(f"no layer of {graph.name} makes a tensor {text!r}, and no input has that name{hint}")
