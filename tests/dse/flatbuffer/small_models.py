"""Small models for tests, written with the product's own records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dse.flatbuffer.encode import encode
from dse.flatbuffer.reader import ModelFile, model_from_bytes
from dse.flatbuffer.records import (
    Buffer,
    Model,
    Operator,
    OperatorCode,
    Options,
    Quantization,
    SubGraph,
    Tensor,
)
from dse.flatbuffer.schema import builtin, enum_value

_DTYPES = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "INT32": np.int32,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "INT16": np.int16,
}


class Draft:
    """A model in the making; subgraph 0 is there from the start."""

    def __init__(self):
        self.buffers = [Buffer()]
        self.codes = []
        self.graphs = [Body(self)]

    @property
    def main(self):
        return self.graphs[0]

    def body(self):
        self.graphs.append(Body(self))
        return self.graphs[-1]

    def code(self, name, version):
        custom = name.removeprefix("CUSTOM:") if name.startswith("CUSTOM:") else None
        number = builtin("CUSTOM") if custom is not None else builtin(name)
        wanted = OperatorCode(number, custom, version)
        if wanted not in self.codes:
            self.codes.append(wanted)
        return self.codes.index(wanted)

    def model(self, **fields) -> Model:
        return Model(
            subgraphs=tuple(graph.subgraph() for graph in self.graphs),
            operator_codes=tuple(self.codes),
            buffers=tuple(self.buffers),
            **fields,
        )

    def data(self, *, external=None, **fields) -> bytearray:
        return encode(self.model(**fields), external=external)

    def file(self, *, external=None, **fields) -> ModelFile:
        return model_from_bytes(self.data(external=external, **fields), "small")


class Body:
    """A subgraph in the making."""

    def __init__(self, draft: Draft):
        self._draft = draft
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.inputs: Sequence[int] = ()
        self.outputs: Sequence[int] = ()

    def tensor(self, name, shape, dtype="FLOAT32", *, scale=None, zero=0, axis=0, **fields) -> int:
        """Add a tensor; with ``scale`` it is quantised."""
        quantization = None
        if scale is not None:
            scales = tuple(float(np.float32(s)) for s in np.atleast_1d(scale))
            quantization = Quantization(
                scale=scales, zero_point=(zero,) * len(scales), quantized_dimension=axis
            )
        fields.setdefault("quantization", quantization)
        self.tensors.append(
            Tensor(shape=tuple(shape), type=enum_value("TensorType", dtype), name=name, **fields)
        )
        return len(self.tensors) - 1

    def constant(self, name, values, dtype="FLOAT32", **fields) -> int:
        """Add a constant tensor."""
        array = np.asarray(values, dtype=_DTYPES[dtype])
        return self.stored(name, array.shape, array.tobytes(), dtype, **fields)

    def stored(self, name, shape, data, dtype="FLOAT32", **fields) -> int:
        """Add a tensor with the given bytes in a buffer of its own."""
        self._draft.buffers.append(Buffer(bytes(data)))
        return self.tensor(name, shape, dtype, buffer=len(self._draft.buffers) - 1, **fields)

    def op(self, name, inputs, outputs, table=None, options=None, version=1, **fields) -> None:
        """Add an operator with options of the given table."""
        self.operators.append(
            Operator(
                opcode_index=self._draft.code(name, version),
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                builtin_options=None if table is None else Options(table, options or {}),
                **fields,
            )
        )

    def subgraph(self) -> SubGraph:
        return SubGraph(
            tensors=tuple(self.tensors),
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            operators=tuple(self.operators),
        )

    def dense(self, source, name, units, *, bias=True, seed=0, activation=0) -> int:
        """Add a FULLY_CONNECTED layer with random float weights."""
        depth = self.tensors[source].shape[-1]
        random = np.random.default_rng(seed)
        weights = self.constant(f"{name}/weights", random.normal(0, 0.5, (units, depth)))
        offset = self.constant(f"{name}/bias", random.normal(0, 0.5, (units,))) if bias else -1
        out = self.tensor(name, (*self.tensors[source].shape[:-1], units))
        self.op(
            "FULLY_CONNECTED",
            (source, weights, offset),
            (out,),
            "FullyConnectedOptions",
            {"fused_activation_function": activation},
        )
        return out

    def elementwise(self, op, sources, name, table=None, options=None) -> int:
        """Add an operator whose output looks like its first input."""
        first = self.tensors[sources[0]]
        self.tensors.append(Tensor(shape=first.shape, type=first.type, name=name))
        out = len(self.tensors) - 1
        self.op(op, sources, (out,), table, options)
        return out


def chain(n: int = 4, width: int = 8) -> Draft:
    """A chain of n dense layers."""
    draft = Draft()
    main = draft.main
    tensor = main.tensor("x", (1, width))
    main.inputs = (tensor,)
    for number in range(n):
        tensor = main.dense(tensor, f"dense_{number}", width, seed=number, activation=number % 2)
    main.outputs = (tensor,)
    return draft
