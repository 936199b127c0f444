"""``dse extract``: a part of a model on its own, checked against the whole, and its values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dse.errors import InputError
from dse.files import write_bytes
from dse.flatbuffer.cut import extract, split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.parts import extract_part
from dse.flatbuffer.reader import ModelFile, read_model
from dse.flatbuffer.stages import StageModel, StageTensor
from dse.graph import LayerGraph
from dse.inputs import make_frames
from dse.measuring import N_FRAMES
from dse.pipeline.plan import LanePlan, PipelinePlan, StagePlan, model_ports, stage_ports
from dse.pipeline.supervise import Pipeline
from dse.validation import OutputCheck, check_outputs, moving_frames

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Part:
    """A part that was written to a file."""

    path: Path
    model: StageModel
    check: OutputCheck | None


def extract_model(
    model: Path, start: Sequence[str], end: Sequence[str], out: Path, *, verify: bool = False
) -> Part:
    """Write what lies between tensors as a model of its own.

    Parameters
    ----------
    model
        The .tflite file.
    start, end
        Names or indices of tensors; none: the model's inputs, the model's outputs.
    out
        File to write; must not exist.
    verify
        Put the part back between what comes before and after it, and compare with the whole model.

    Raises
    ------
    CutError
        See ``dse.flatbuffer.parts.extract_part``.
    InputError
        ``out`` exists.
    MismatchError
        With the part in its place the model's outputs differ.
    """
    if out.exists():
        raise InputError(f"{out}: exists; choose another name with --out or remove it")
    file = read_model(model)
    graph = build_graph(file)
    part = extract_part(file, graph, start, end, name=out.stem)
    write_bytes(out, part.data)
    return Part(out, part, _check(file, graph, part) if verify else None)


def _check(file: ModelFile, graph: LayerGraph, part: StageModel) -> OutputCheck:
    inside = set(part.layers)
    after: set[int] = set()
    for layer in graph.layers:
        makers = {graph.producer[tensor] for tensor in layer.inputs if tensor in graph.producer}
        if layer.index not in inside and not makers.isdisjoint(inside | after):
            after.add(layer.index)
    before = [layer.index for layer in graph.layers if layer.index not in inside | after]
    pieces = [piece for piece in (before, sorted(inside), sorted(after)) if piece]
    with TemporaryDirectory(prefix="dse-extract-") as folder:
        stages = [_stage(Path(folder), piece) for piece in split(file, graph, pieces).stages]
        plan = PipelinePlan(part.name, (LanePlan(tuple(stages)),), *model_ports(graph))
        frames, _ = moving_frames(file.path, graph, plan, N_FRAMES, seed=0)
        return check_outputs(file.path, plan, frames)


def run_part(model: Path, part: Part, given: Mapping[str, Path], seed: int = 0) -> Values:
    """Run a part once and return the values of its outputs by tensor name.

    Parameters
    ----------
    model
        The whole model.
    given
        A ``.npy`` file for each of the part's inputs; none: the model's own inputs are drawn from
        ``seed`` and carried through the layers before the part.

    Raises
    ------
    InputError
        An input is missing or unknown, or an array has another type or shape.
    """
    file = read_model(model)
    graph = build_graph(file)
    inputs, outputs = stage_ports(part.model)
    with TemporaryDirectory(prefix="dse-extract-") as folder:
        stages = [_stage(Path(folder), part.model)]
        if given:
            frame = tuple(_load(tensor, given) for tensor in part.model.inputs)
            unknown = sorted(given.keys() - {tensor.name for tensor in part.model.inputs})
            if unknown:
                names = ", ".join(repr(tensor.name) for tensor in part.model.inputs)
                raise InputError(f"the part has no input {unknown[0]!r}; it has {names}")
        else:
            inputs, _ = model_ports(graph)
            frame = make_frames(graph, 1, seed)[0]
            made = [t.tensor for t in part.model.inputs if t.tensor in graph.producer]
            if made:
                stages.insert(0, _stage(Path(folder), _before(file, graph, made)))
        plan = PipelinePlan(part.model.name, (LanePlan(tuple(stages)),), inputs, outputs)
        with Pipeline(plan, [frame]) as pipeline:
            values = pipeline.collect(1)[0][0]
    return {port.name: value for port, value in zip(outputs, values, strict=True)}


def _before(file: ModelFile, graph: LayerGraph, tensors: Sequence[int]) -> StageModel:
    """Return everything that the tensors need, as one model."""
    needed: set[int] = set()
    waiting = list(tensors)
    while waiting:
        layer = graph.producer.get(waiting.pop())
        if layer is not None and layer not in needed:
            needed.add(layer)
            waiting += graph.layers[layer].inputs
    return extract(file, graph, sorted(needed), name="before", also=tensors)


def _stage(folder: Path, model: StageModel) -> StagePlan:
    path = folder / f"{len(list(folder.iterdir()))}.tflite"
    write_bytes(path, model.data)
    core = min(os.sched_getaffinity(0))
    return StagePlan(model.name, path, "cpu", (core,), 1, *stage_ports(model))


def _load(tensor: StageTensor, given: Mapping[str, Path]) -> npt.NDArray[np.generic]:
    import numpy as np

    path = given.get(tensor.name)
    if path is None:
        raise InputError(
            f"no values for input {tensor.name!r} of the part: give --input {tensor.name}=FILE.npy"
        )
    try:
        values: npt.NDArray[np.generic] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a .npy file that can be read: {error}") from None
    if values.shape != tensor.shape or values.dtype.name != tensor.dtype:
        raise InputError(
            f"{path}: expected {tensor.dtype} {list(tensor.shape)} for input {tensor.name!r}, "
            f"got {values.dtype.name} {list(values.shape)}"
        )
    return values
