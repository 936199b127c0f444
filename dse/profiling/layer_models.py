"""Which models have to be timed for the layers of a graph: one per distinct layer or state group."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dse.graph import Layer, LayerGraph
from dse.profiling.campaign import Subject

if TYPE_CHECKING:
    from dse.flatbuffer.reader import ModelFile


def subject_of(graph: LayerGraph, layer: Layer) -> str:
    """Return the name of the subject that a layer is timed with.

    Equal layers share one.  Layers that share state are timed together, because they can only run
    together.
    """
    if layer.group is None:
        return f"layer-{layer.key}"
    keys = " ".join(f"{member.index}:{member.key}" for member in group_members(graph, layer.group))
    return f"state-{hashlib.sha256(keys.encode()).hexdigest()[:24]}"


def group_members(graph: LayerGraph, group: int) -> tuple[Layer, ...]:
    """Return the layers of a state group, in execution order."""
    return tuple(layer for layer in graph.layers if layer.group == group)


def counts_for_group(graph: LayerGraph, layer: Layer) -> bool:
    """Whether a layer carries the cost of its state group (its first layer does)."""
    return layer.group is None or group_members(graph, layer.group)[0].index == layer.index


def layer_subjects(file: ModelFile, graph: LayerGraph) -> tuple[Subject, ...]:
    """Return what has to be timed, each once, in execution order.

    The models are cut out of the file when they are needed, not here.
    """
    subjects: dict[str, Subject] = {}
    for layer in graph.layers:
        name = subject_of(graph, layer)
        if name not in subjects:
            members = (layer,) if layer.group is None else group_members(graph, layer.group)
            subjects[name] = Subject(
                name,
                sum(member.weight_bytes for member in members),
                build=partial(cut_out, file, graph, tuple(member.index for member in members)),
            )
    return tuple(subjects.values())


def cut_out(file: ModelFile, graph: LayerGraph, layers: Sequence[int]) -> bytes | bytearray:
    """Return some layers as a model of their own.

    Raises
    ------
    CutError
        They can not run alone.
    """
    from dse.flatbuffer.cut import extract
    from dse.flatbuffer.encode import encode

    return encode(extract(file, graph, layers))
