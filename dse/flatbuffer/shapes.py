"""A model with other, fixed shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dse.flatbuffer.layers import is_dynamic
from dse.flatbuffer.records import Model

Shape = tuple[int, ...]


def dynamic_inputs(model: Model) -> dict[int, Shape]:
    """Return the main subgraph's inputs whose shape is open, with -1 for what is open.

    Returns
    -------
    dict
        Shape by position of the input.
    """
    main = model.subgraphs[0]
    return {
        position: tuple(main.tensors[index].shape_signature or main.tensors[index].shape or ())
        for position, index in enumerate(main.inputs)
        if is_dynamic(main.tensors[index])
    }


def with_shapes(model: Model, shapes: Mapping[int, Shape | None]) -> Model:
    """Return the model with the given shapes in its main subgraph.

    Parameters
    ----------
    shapes
        Shape by tensor index; None leaves a tensor as open as it was.  Constants keep theirs.
    """
    main = model.subgraphs[0]
    tensors = tuple(
        tensor
        if (shape := shapes.get(index)) is None or model.buffers[tensor.buffer].data
        else replace(tensor, shape=shape, shape_signature=None)
        for index, tensor in enumerate(main.tensors)
    )
    return replace(model, subgraphs=(replace(main, tensors=tensors), *model.subgraphs[1:]))
