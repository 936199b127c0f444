"""Which models have to be timed for the layers of a graph: one per distinct layer or state group."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dse.devices.child import Child
from dse.errors import DeviceError
from dse.graph import Layer, LayerGraph
from dse.profiling.campaign import Subject

if TYPE_CHECKING:
    from dse.flatbuffer.reader import ModelFile

INDEX_TYPES = frozenset({"int32", "int64", "uint32", "uint64", "bool"})
CAPTURE_TIMEOUT_S = 120.0


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


def inner_numbers(graph: LayerGraph) -> tuple[int, ...]:
    """Return the tensors inside a model that may be shapes, indices or conditions.

    A layer that takes them does not run with made-up values.
    """
    return tuple(
        tensor
        for tensor in graph.producer
        if graph.tensors[tensor].dtype in INDEX_TYPES and tensor in graph.consumers
    )


def capture_numbers(file: ModelFile, graph: LayerGraph, folder: Path, seed: int) -> dict[int, Path]:
    """Run the whole model once and keep the values of ``inner_numbers``, in files by tensor.

    Returns nothing for what can not be captured: those layers are timed with made-up values, and
    refused when they do not run with them.
    """
    tensors = inner_numbers(graph)
    if not tensors:
        return {}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    request = {
        "command": "capture",
        "path": str(file.path),
        "seed": seed,
        "tensors": tensors,
        "folder": str(folder),
    }
    with Child(
        "dse.devices.worker",
        ["--cores", cores],
        log_path=folder / "capture.log",
        name="the capture of values",
    ) as child:
        try:
            answer = child.request(request, timeout_s=CAPTURE_TIMEOUT_S)
        except DeviceError:
            return {}
    return {int(tensor): Path(path) for tensor, path in answer["files"].items()}


def layer_subjects(
    file: ModelFile, graph: LayerGraph, numbers: Mapping[int, Path] | None = None
) -> tuple[Subject, ...]:
    """Return what has to be timed, each once, in execution order.

    The models are cut out of the file when they are needed, not here.

    Parameters
    ----------
    numbers
        Files with the values of inner tensors.
    """
    subjects: dict[str, Subject] = {}
    for layer in graph.layers:
        name = subject_of(graph, layer)
        if name not in subjects:
            members = (layer,) if layer.group is None else group_members(graph, layer.group)
            chosen = tuple(member.index for member in members)
            subjects[name] = Subject(
                name,
                sum(member.weight_bytes for member in members),
                build=partial(cut_out, file, graph, chosen),
                values=live_inputs(graph, chosen, numbers or {}),
            )
    return tuple(subjects.values())


def span_name(span: Sequence[int]) -> str:
    """Return the name of the subject that some layers are timed with as one stage."""
    text = ",".join(map(str, span))
    return f"span-{len(span)}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def span_subject(
    file: ModelFile, graph: LayerGraph, span: Sequence[int], numbers: Mapping[int, Path] | None = None
) -> Subject:
    """Return what times some layers as one stage; ``numbers`` as for ``layer_subjects``."""
    return Subject(
        span_name(span),
        sum(graph.layers[layer].weight_bytes for layer in span),
        build=partial(cut_out, file, graph, tuple(span)),
        values=live_inputs(graph, span, numbers or {}),
    )


def live_inputs(graph: LayerGraph, layers: Sequence[int], numbers: Mapping[int, Path]) -> dict[int, Path]:
    """Return the files of captured values for the inputs of some layers, by position."""
    from dse.flatbuffer.cut import live_tensors

    inputs, _ = live_tensors(graph, layers)
    return {position: numbers[tensor] for position, tensor in enumerate(inputs) if tensor in numbers}


def cut_out(file: ModelFile, graph: LayerGraph, layers: Sequence[int]) -> bytes | bytearray:
    """Return some layers as a model of their own.

    Raises
    ------
    CutError, ModelError
        They can not be written as a model of their own.
    """
    from dse.flatbuffer.cut import extract

    return extract(file, graph, layers).data
