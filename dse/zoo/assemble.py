"""From a draft to the records of a file."""

from __future__ import annotations

import numpy as np

from dse.flatbuffer import records, schema
from dse.zoo.draft import Draft, DraftTensor

SIGNATURE = "serving_default"


def assemble(draft: Draft) -> records.Model:
    """Return the records of a file; constants are views of the draft's arrays, not copies.

    Notes
    -----
    The signature names inputs and outputs by the last part of their tensors' names where that is
    unique, otherwise by the whole name with underscores.
    """
    codes: list[records.OperatorCode] = []
    buffers = [records.Buffer()]  # buffer 0 is the empty one
    tensors = []
    for tensor in draft.tensors:
        buffer = 0
        if tensor.constant is not None:
            buffer = len(buffers)
            buffers.append(records.Buffer(_data(tensor)))
        tensors.append(_tensor(tensor, buffer))
    operators = []
    for operator in draft.operators:
        code = records.OperatorCode(schema.builtin(operator.op), version=operator.version)
        if code not in codes:
            codes.append(code)
        operators.append(
            records.Operator(
                opcode_index=codes.index(code),
                inputs=tuple(-1 if index is None else index for index in operator.inputs),
                outputs=operator.outputs,
                builtin_options=operator.options,
            )
        )
    signature = records.SignatureDef(
        inputs=_bind(draft, draft.inputs),
        outputs=_bind(draft, draft.outputs),
        signature_key=SIGNATURE,
    )
    graph = records.SubGraph(
        tensors=tuple(tensors),
        inputs=draft.inputs,
        outputs=draft.outputs,
        operators=tuple(operators),
        name="main",
    )
    return records.Model(
        subgraphs=(graph,),
        operator_codes=tuple(codes),
        buffers=tuple(buffers),
        description=draft.description,
        signature_defs=(signature,),
    )


def _data(tensor: DraftTensor) -> memoryview:
    values = tensor.constant
    if values is None:
        raise ValueError(f"{tensor.name} is no constant")
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def _tensor(tensor: DraftTensor, buffer: int) -> records.Tensor:
    return records.Tensor(
        shape=tensor.shape,
        type=schema.enum_value("TensorType", tensor.dtype.name.upper()),
        buffer=buffer,
        name=tensor.name,
        quantization=tensor.quantization,
        is_variable=tensor.variable,
        has_rank=True,
    )


def _bind(draft: Draft, indices: tuple[int, ...]) -> tuple[records.TensorMap, ...]:
    full = [draft.tensors[index].name for index in indices]
    names = [name.rsplit("/", 1)[-1] for name in full]
    if len(set(names)) < len(names):
        names = [name.replace("/", "_") for name in full]
    return tuple(records.TensorMap(name, index) for name, index in zip(names, indices, strict=True))
