"""Integer forms: a float draft becomes int8 the way post-training quantisation does it.

Weights are symmetric with one scale per output channel, activations have one scale and zero point
from the range that the sample frames give them, biases are int32.

References
----------
B. Jacob et al.: Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference, CVPR 2018.
The TensorFlow Lite 8-bit quantization specification (ranges, axes, fixed output scales).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dse.flatbuffer.records import Options, Quantization
from dse.zoo.arithmetic import round_statistic
from dse.zoo.draft import Array, Draft, DraftOperator, DraftTensor

Range = tuple[float, float]

# Operators with weights: positions of input, weights and bias, and the weights' channel axis.
_WEIGHTED = {
    "CONV_2D": (0, 1, 2, 0),
    "DEPTHWISE_CONV_2D": (0, 1, 2, 3),
    "FULLY_CONNECTED": (0, 1, 2, 0),
    "TRANSPOSE_CONV": (2, 1, 3, 0),
}
# Operators that move values without changing them: all their tensors have one scale.
_ONE_SCALE = frozenset(
    (
        *("RESHAPE", "TRANSPOSE", "GATHER", "CONCATENATION", "PAD", "MAX_POOL_2D", "AVERAGE_POOL_2D"),
        *("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR"),
    )
)
# Output ranges that the specification fixes: 1/256 from -128, 1/128 around 0.
_FIXED: dict[str, tuple[float, int]] = {
    "SOFTMAX": (1 / 256, -128),
    "LOGISTIC": (1 / 256, -128),
    "TANH": (1 / 128, 0),
}
_VERSIONS = {
    "ADD": 2,
    "AVERAGE_POOL_2D": 2,
    "BATCH_MATMUL": 2,
    "CONCATENATION": 2,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "GATHER": 2,
    "GELU": 2,
    "LOGISTIC": 2,
    "MAX_POOL_2D": 2,
    "MEAN": 2,
    "MUL": 2,
    "PAD": 2,
    "RESHAPE": 1,
    "RESIZE_BILINEAR": 3,
    "RESIZE_NEAREST_NEIGHBOR": 2,
    "RSQRT": 2,
    "SOFTMAX": 2,
    "SQUARED_DIFFERENCE": 2,
    "SUB": 2,
    "TANH": 2,
    "TRANSPOSE": 2,
    "TRANSPOSE_CONV": 3,
}
# A scale product of 1 or more is a later version of the multiplication.
_MUL_ABOVE_ONE = 3


def quantize(draft: Draft, headroom: Mapping[str, float] | None = None) -> Draft:
    """Return the int8 form of a float draft that was drawn with sample frames.

    Parameters
    ----------
    draft
        Its tensors keep their names; the samples stay those of the float draft, as a reference.
    headroom
        Tensor name -> how many times wider its range is than the sample frames say.  They are few,
        and values near the outputs differ most from frame to frame.

    Returns
    -------
    Draft
        Inputs and outputs are int8 where they were float; a float value that an operator makes from
        integers (CAST) is followed by QUANTIZE.

    Raises
    ------
    ValueError
        The draft has no samples, or an operator that has no int8 form here.
    """
    return _Quantizer(draft, headroom or {}).run()


class _Quantizer:
    def __init__(self, draft: Draft, headroom: Mapping[str, float]) -> None:
        self._headroom = headroom
        self._draft = draft
        self._tensors: list[DraftTensor] = list(draft.tensors)
        self._operators: list[DraftOperator] = []
        # Tensor of the draft -> the tensor that the operators after it use.
        self._current = list(range(len(draft.tensors)))

    def run(self) -> Draft:
        leaders = _shared_scales(self._draft)
        ranges = _ranges(self._draft, leaders, self._headroom)
        fixed = {
            leaders[operator.outputs[0]]: _FIXED[operator.op]
            for operator in self._draft.operators
            if operator.op in _FIXED
        }
        weights = {
            index
            for operator in self._draft.operators
            for index in _weights_and_bias(operator)
            if index is not None
        }
        for index in ranges:
            if index not in weights:
                scale, zero_point = fixed.get(leaders[index]) or _scale(ranges[leaders[index]])
                self._tensors[index] = _as_int8(self._tensors[index], scale, zero_point)
        for operator in self._draft.operators:
            self._convert(operator)
        return replace(
            self._draft,
            name=f"{self._draft.name}_int8",
            description=f"{self._draft.description}, int8",
            tensors=tuple(self._tensors),
            operators=tuple(self._operators),
            outputs=tuple(self._current[index] for index in self._draft.outputs),
        )

    def _convert(self, operator: DraftOperator) -> None:
        if operator.op == "CAST":
            self._cast(operator)
            return
        if operator.op not in _VERSIONS and operator.op != "FULLY_CONNECTED":
            raise ValueError(f"{operator.op} has no int8 form here")
        if operator.op in _WEIGHTED:
            self._quantize_weights(operator)
        inputs = tuple(None if index is None else self._current[index] for index in operator.inputs)
        self._operators.append(replace(operator, inputs=inputs, version=self._version(operator)))

    def _cast(self, operator: DraftOperator) -> None:
        """Keep the cast in float and quantise its result."""
        index = operator.outputs[0]
        integer = self._tensors[index]
        self._tensors[index] = self._draft.tensors[index]
        self._tensors.append(replace(integer, index=len(self._tensors), name=f"{integer.name}_int8"))
        self._current[index] = len(self._tensors) - 1
        self._operators.append(operator)
        options = Options("QuantizeOptions", {})
        self._operators.append(DraftOperator("QUANTIZE", (index,), (self._current[index],), options))

    def _quantize_weights(self, operator: DraftOperator) -> None:
        at_input, at_weights, at_bias, axis = _WEIGHTED[operator.op]
        given, weights, bias = (_required(operator, at) for at in (at_input, at_weights, at_bias))
        values = _constant(self._tensors[weights])
        others = tuple(other for other in range(values.ndim) if other != axis)
        largest = np.abs(values).max(axis=others)
        scales = (np.where(largest > 0, largest, 1.0) / 127).astype(np.float32)
        along = scales.reshape([-1 if dim == axis else 1 for dim in range(values.ndim)])
        integers = np.clip(np.rint(values / along), -127, 127).astype(np.int8)
        self._tensors[weights] = _with_integers(self._tensors[weights], integers, scales, axis)
        quantization = self._tensors[given].quantization
        if quantization is None or quantization.scale is None:
            raise ValueError(f"{self._tensors[given].name} has no scale")
        bias_scales = (np.float64(quantization.scale[0]) * scales).astype(np.float32)
        wide = np.rint(_constant(self._tensors[bias]) / bias_scales.astype(np.float64))
        limits = np.iinfo(np.int32)
        integers = np.clip(wide, limits.min, limits.max).astype(np.int32)
        self._tensors[bias] = _with_integers(self._tensors[bias], integers, bias_scales, 0)

    def _version(self, operator: DraftOperator) -> int:
        if operator.op == "FULLY_CONNECTED":
            keeps = operator.options is not None and operator.options.get("keep_num_dims")
            return 5 if keeps else 4
        if operator.op == "MUL":
            a, b = (self._tensors[index] for index in operator.inputs if index is not None)
            if _scale_of(a) * _scale_of(b) >= _scale_of(self._tensors[operator.outputs[0]]):
                return _MUL_ABOVE_ONE
        return _VERSIONS[operator.op]


def _weights_and_bias(operator: DraftOperator) -> tuple[int | None, ...]:
    if operator.op not in _WEIGHTED:
        return ()
    _, at_weights, at_bias, _ = _WEIGHTED[operator.op]
    return operator.inputs[at_weights], operator.inputs[at_bias]


def _shared_scales(draft: Draft) -> list[int]:
    """Return for every tensor the one that stands for all tensors that must have its scale."""
    leaders = list(range(len(draft.tensors)))

    def find(index: int) -> int:
        while leaders[index] != index:
            index = leaders[index]
        return index

    for operator in draft.operators:
        if operator.op in _ONE_SCALE:
            for index in operator.inputs:
                if index is not None and draft.tensors[index].dtype.kind == "f":
                    leaders[find(index)] = find(operator.outputs[0])
    return [find(index) for index in range(len(draft.tensors))]


def _ranges(draft: Draft, leaders: Sequence[int], headroom: Mapping[str, float]) -> dict[int, Range]:
    """Return the range of every float tensor; of those that share a scale, the range of all."""
    own: dict[int, Range] = {}
    for tensor in draft.tensors:
        if tensor.dtype.kind != "f":
            continue
        limits = tensor.limits
        if tensor.constant is not None:
            limits = (float(tensor.constant.min()), float(tensor.constant.max()))
        if limits is None:
            raise ValueError(f"{tensor.name}: the draft was drawn without sample frames")
        factor = headroom.get(tensor.name, 1.0)
        own[tensor.index] = (factor * limits[0], factor * limits[1])
    joint: dict[int, Range] = {}
    for index, (low, high) in own.items():
        known = joint.get(leaders[index], (0.0, 0.0))  # 0 must be exact: padding and ReLU need it
        joint[leaders[index]] = (min(known[0], low), max(known[1], high))
    return {index: joint[leaders[index]] for index in own}


def _scale(limits: Range) -> tuple[float, int]:
    """Return scale and zero point that map a range to -128 .. 127."""
    low, high = round_statistic(np.array(limits)).tolist()
    if low == high:
        return 1.0, 0
    scale = float(np.float32((high - low) / 255))
    return scale, int(np.clip(np.rint(-128 - low / scale), -128, 127))


def _as_int8(tensor: DraftTensor, scale: float, zero_point: int) -> DraftTensor:
    integers = None
    if tensor.constant is not None:
        levels = np.rint(tensor.constant.astype(np.float64) / scale) + zero_point
        integers = np.clip(levels, -128, 127).astype(np.int8)
    quantization = Quantization(scale=(scale,), zero_point=(zero_point,))
    return replace(tensor, dtype=np.dtype(np.int8), constant=integers, quantization=quantization)


def _with_integers(
    tensor: DraftTensor, integers: Array, scales: npt.NDArray[np.float32], axis: int
) -> DraftTensor:
    quantization = Quantization(
        scale=tuple(float(scale) for scale in scales),
        zero_point=(0,) * len(scales),
        quantized_dimension=axis,
    )
    return replace(tensor, dtype=integers.dtype, constant=integers, quantization=quantization)


def _constant(tensor: DraftTensor) -> npt.NDArray[Any]:
    if tensor.constant is None or tensor.dtype.kind != "f":
        raise ValueError(f"{tensor.name} must be a float constant that one operator uses")
    return tensor.constant


def _required(operator: DraftOperator, position: int) -> int:
    index = operator.inputs[position]
    if index is None:
        raise ValueError(f"{operator.op} needs its input {position} here")
    return index


def _scale_of(tensor: DraftTensor) -> float:
    if tensor.quantization is None or not tensor.quantization.scale:
        raise ValueError(f"{tensor.name} has no scale")
    return tensor.quantization.scale[0]
