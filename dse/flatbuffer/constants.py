"""The values of constants, also of those that operators prepare (half precision, sparse, quantised)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dse.errors import ModelError
from dse.flatbuffer.checks import is_constant
from dse.flatbuffer.operators import operator_name
from dse.flatbuffer.records import Data, Model, Operator, Options, SubGraph, Tensor
from dse.flatbuffer.sizes import dtype_name

Array = npt.NDArray[Any]

# Element types that numpy has too; all are little-endian in the file.
_DTYPES = {
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "bool": "?",
}
_SPARSE = 1  # DimensionType.SPARSE_CSR


class Constants:
    """Looks up the constants of a model's main subgraph.

    Parameters
    ----------
    model
        A checked model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._main: SubGraph = model.subgraphs[0]
        self._maker = {
            index: operator for operator in self._main.operators for index in operator.outputs if index >= 0
        }

    def value(self, index: int) -> Array | None:
        """Return a constant's values in the tensor's own type and shape.

        Returns
        -------
        array or None
            None: the tensor is no constant, or it is prepared by operators or stored in a type that
            are not worked out here.
        """
        tensor = self._main.tensors[index]
        maker = self._maker.get(index)
        if maker is not None:
            return self._prepared(maker, tensor)
        if index in self._main.inputs or tensor.is_variable:
            return None
        return stored_value(self._model, tensor)

    def _prepared(self, operator: Operator, output: Tensor) -> Array | None:
        if len(operator.outputs) != 1 or not operator.inputs or operator.inputs[0] < 0:
            return None
        name = operator_name(self._model, operator)
        if name not in {"DEQUANTIZE", "DENSIFY", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE"}:
            return None
        values = self.value(operator.inputs[0])
        if values is None:
            return None
        if name == "DEQUANTIZE":
            return dequantized(values, self._main.tensors[operator.inputs[0]])
        if name == "TRANSPOSE":
            order = self.value(operator.inputs[1])
            return None if order is None else values.transpose(order.tolist())
        shape = tuple(output.shape or ())
        return values.reshape(shape) if math.prod(shape) == values.size else None


def stored_value(model: Model, tensor: Tensor) -> Array | None:
    """Return the values in a tensor's buffer, sparse ones filled up with zeros; None for other types.

    Raises
    ------
    ModelError
        The buffer is smaller than the shape, or the sparsity makes no sense.
    """
    kind = _DTYPES.get(dtype_name(tensor.type))
    if kind is None or not is_constant(model, tensor):
        return None
    shape = tuple(tensor.shape or ())
    data: Data = model.buffers[tensor.buffer].data or b""
    values: Array = np.frombuffer(data, dtype=kind, count=len(data) // np.dtype(kind).itemsize)
    if tensor.sparsity is not None:
        return _dense(values, shape, tensor.sparsity)
    if values.size < math.prod(shape):
        raise ModelError(f"constant {tensor.name!r} has {values.size} values, its shape needs {shape}")
    return values[: math.prod(shape)].reshape(shape)


def dequantized(values: Array, tensor: Tensor) -> Array | None:
    """Return real values as float32: of half-precision ones, or of quantised ones by scale and zero point."""
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    quantization = tensor.quantization
    if quantization is None or not quantization.scale or quantization.details is not None:
        return None
    scale = np.asarray(quantization.scale, np.float32)
    zero = np.asarray(quantization.zero_point or (0,) * scale.size, np.float32)
    if scale.size > 1:
        along = [1] * values.ndim
        along[quantization.quantized_dimension] = scale.size
        scale, zero = scale.reshape(along), zero.reshape(along)
    return np.asarray((values.astype(np.float32) - zero) * scale, np.float32)


def _dense(values: Array, shape: Sequence[int], sparsity: Options) -> Array:
    """Put the values of a sparse constant in their places.

    The levels of storage are walked in traversal order, for all entries at once: level by level, each
    entry becomes one per element of a dense level, or one per stored index of a sparse one.  Levels
    beyond the rank are places inside blocks.  Format: schema.fbs, ``SparsityParameters``.
    """
    order = tuple(sparsity.get("traversal_order", ()))
    blocks = tuple(sparsity.get("block_map", ()))
    levels = tuple(sparsity.get("dim_metadata", ()))
    places = np.zeros(1, np.int64)
    at = {level: np.zeros(1, np.int64) for level in order}
    sizes: dict[int, int] = {}
    try:
        for level, metadata in zip(order, levels, strict=True):
            if metadata.get("format") == _SPARSE:
                segments = _numbers(metadata.get("array_segments"))
                indices = _numbers(metadata.get("array_indices"))
                counts = segments[places + 1] - segments[places]
                starts = np.repeat(segments[places] - np.cumsum(counts) + counts, counts)
                places_below = starts + np.arange(int(counts.sum()))
                step = indices[places_below]
            else:
                size = sizes[level] = int(metadata.get("dense_size"))
                counts = np.full(places.size, size)
                step = np.tile(np.arange(size), places.size)
                places_below = np.repeat(places, size) * size + step
            at = {known: np.repeat(coordinates, counts) for known, coordinates in at.items()}
            at[level] = step
            places = places_below
        coordinates = [at[axis] for axis in range(len(shape))]
        for number, axis in enumerate(blocks):
            coordinates[axis] = coordinates[axis] * sizes[len(shape) + number] + at[len(shape) + number]
        dense = np.zeros(tuple(shape), values.dtype)
        dense[tuple(coordinates)] = values[places]
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise ModelError(
            f"the sparsity of a constant of shape {tuple(shape)} makes no sense: {error}"
        ) from None
    return dense


def _numbers(vector: Options | int) -> npt.NDArray[np.int64]:
    if not isinstance(vector, Options):
        raise TypeError("segments or indices are missing")
    values = vector.get("values", ())
    # Bytes as such; longer vectors of other types are typed views, short ones tuples (see ``records``).
    return np.asarray(np.frombuffer(values, "u1") if isinstance(values, bytes) else values).astype(np.int64)
