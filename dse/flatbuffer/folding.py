"""Working out constants ahead of time: a model without the operators that only prepare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dse.flatbuffer.constants import Constants
from dse.flatbuffer.extraction import STAGE_SIGNATURE, NamedTensor, minimal_model
from dse.flatbuffer.operators import clean
from dse.flatbuffer.records import Buffer, Model, TensorMap


def fold_constants(model: Model) -> Model:
    """Return the model with prepared constants stored, and without the operators that prepared them.

    Half-precision weights become single precision, sparse ones dense: what runtimes want that know no
    DEQUANTIZE or DENSIFY of constants.  Operators that can not be worked out stay.

    Parameters
    ----------
    model
        A checked model; a stage of one keeps the names of its ``stage`` signature.

    Raises
    ------
    ModelError
        A constant is damaged.

    Notes
    -----
    Results are the same to the bit: half precision converts exactly.
    """
    main = model.subgraphs[0]
    constants = Constants(model)
    tensors = list(main.tensors)
    buffers = list(model.buffers)
    kept = []
    for number, operator in enumerate(main.operators):
        outputs = [index for index in operator.outputs if index >= 0]
        values = [constants.value(index) for index in outputs]
        if not values or any(value is None for value in values):
            kept.append(number)
            continue
        for index, value in zip(outputs, values, strict=True):
            tensors[index] = replace(tensors[index], buffer=len(buffers), sparsity=None)
            buffers.append(Buffer(np.ascontiguousarray(value).tobytes()))
    folded = replace(
        model,
        subgraphs=(replace(main, tensors=tuple(tensors)), *model.subgraphs[1:]),
        buffers=tuple(buffers),
    )
    inputs, outputs_maps = _stage_names(model)
    return minimal_model(
        folded, kept, _named(model, main.inputs, inputs), _named(model, main.outputs, outputs_maps)
    )


def _stage_names(model: Model) -> tuple[Sequence[TensorMap], Sequence[TensorMap]]:
    for signature in model.signature_defs:
        if signature.subgraph_index == 0 and signature.signature_key == STAGE_SIGNATURE:
            return signature.inputs, signature.outputs
    return (), ()


def _named(model: Model, indices: Sequence[int], known: Sequence[TensorMap]) -> list[NamedTensor]:
    names = {entry.tensor_index: entry.name for entry in known}
    tensors = model.subgraphs[0].tensors
    return [
        (index, names.get(index) or clean(tensors[index].name or "") or f"tensor_{index}")
        for index in dict.fromkeys(indices)
    ]
