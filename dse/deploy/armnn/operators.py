"""What Arm NN's parser of .tflite files takes and runs as LiteRT does.

The table is that of version 20.08.  Each entry was held against the real parser and its reference
backend; the refusals beyond it are things that this version imports without a word and gets wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dse.flatbuffer.constants import Array, Constants
from dse.flatbuffer.layers import resolved_shape
from dse.flatbuffer.reader import ModelFile
from dse.flatbuffer.schema import enum_name
from dse.graph import Layer, LayerGraph

VERSION = "20.08"

OPERATORS = frozenset(
    {
        "ADD",
        "AVERAGE_POOL_2D",
        "BATCH_TO_SPACE_ND",
        "CONCATENATION",
        "CONV_2D",
        "CUSTOM:TFLite_Detection_PostProcess",
        "DEPTHWISE_CONV_2D",
        "DEQUANTIZE",
        "DIV",
        "EXP",
        "FULLY_CONNECTED",
        "HARD_SWISH",
        "L2_NORMALIZATION",
        "LEAKY_RELU",
        "LOGISTIC",
        "MAXIMUM",
        "MAX_POOL_2D",
        "MEAN",
        "MINIMUM",
        "MUL",
        "NEG",
        "PACK",
        "PAD",
        "QUANTIZE",
        "RELU",
        "RELU6",
        "RESHAPE",
        "RESIZE_BILINEAR",
        "RESIZE_NEAREST_NEIGHBOR",
        "SLICE",
        "SOFTMAX",
        "SPACE_TO_BATCH_ND",
        "SPLIT",
        "SPLIT_V",
        "SQUEEZE",
        "STRIDED_SLICE",
        "SUB",
        "TANH",
        "TRANSPOSE",
        "TRANSPOSE_CONV",
        "UNPACK",
    }
)
"""Operators that the parser knows."""

_TYPES = frozenset({"float32", "uint8", "int8", "int32"})
_ACTIVATIONS = frozenset({"NONE", "RELU", "RELU6", "TANH"})
_MAX_RANK = 4

Reasons = dict[int, str]


def unsupported_layers(file: ModelFile, graph: LayerGraph, layers: Iterable[int] | None = None) -> Reasons:
    """Return why Arm NN can not run layers: layer index -> reason; only those that it can not run.

    Parameters
    ----------
    file, graph
        The whole model.
    layers
        Which to look at; all of them by default.
    """
    call = _Calls(file, graph)
    chosen = range(len(graph.layers)) if layers is None else layers
    found = {index: call.reason(graph.layers[index]) for index in chosen}
    return {index: reason for index, reason in found.items() if reason is not None}


class _Calls:
    def __init__(self, file: ModelFile, graph: LayerGraph) -> None:
        self._main = file.model.subgraphs[0]
        self._graph = graph
        self._constants = Constants(file.model)

    def reason(self, layer: Layer) -> str | None:
        if layer.op not in OPERATORS:
            return f"the parser of Arm NN {VERSION} does not know {layer.op}"
        if layer.group is not None:
            return "it keeps state between frames"
        for index in (*layer.inputs, *layer.outputs):
            tensor = self._graph.tensors[index]
            if tensor.dtype not in _TYPES:
                return f"tensor {tensor.name!r} is {tensor.dtype}"
            if len(tensor.shape) > _MAX_RANK:
                return f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions, more than {_MAX_RANK}"
        for index in self._main.operators[layer.operators[-1]].inputs:
            if index >= 0 and self._graph.tensors[index].kind == "constant" and self._value(index) is None:
                return f"the constant {self._graph.tensors[index].name!r} can not be worked out ahead of time"
        activation = enum_name(
            "ActivationFunctionType", int(self._option(layer, "fused_activation_function"))
        )
        if activation not in _ACTIVATIONS:
            return f"its activation {activation} is not known"
        further = _FURTHER.get(layer.op)
        return None if further is None else further(self, layer)

    def shape(self, layer: Layer, position: int) -> tuple[int, ...]:
        return resolved_shape(self._main.tensors[self._main.operators[layer.operators[-1]].inputs[position]])

    def constant(self, layer: Layer, position: int) -> Array | None:
        return self._value(self._main.operators[layer.operators[-1]].inputs[position])

    def convolution(self, layer: Layer) -> str | None:
        if self.shape(layer, 0)[-1] != self.shape(layer, 1)[-1]:
            return "it is a grouped convolution, which comes out wrong"
        return None

    def fully_connected(self, layer: Layer) -> str | None:
        if len(self._graph.tensors[layer.outputs[0]].shape) != 2:
            return "its output has other than 2 dimensions"
        return None

    def mean(self, layer: Layer) -> str | None:
        axes = self.constant(layer, 1)
        if axes is None or (axes < 0).any():
            return "the dimensions that it averages over are not constant, or counted from the last"
        return None

    def resize(self, layer: Layer) -> str | None:
        small, large = self.shape(layer, 0), self._graph.tensors[layer.outputs[0]].shape
        whole = all(large[axis] % small[axis] == 0 for axis in (1, 2))
        if self._option(layer, "half_pixel_centers") and (layer.op == "RESIZE_BILINEAR" or not whole):
            return "half_pixel_centers is ignored, so it comes out wrong"
        return None

    def _option(self, layer: Layer, name: str) -> int:
        options = self._main.operators[layer.operators[-1]].builtin_options
        return int(options.get(name)) if options is not None else 0

    def _value(self, index: int) -> Array | None:
        return self._constants.value(index)


_FURTHER: dict[str, Callable[[_Calls, Layer], str | None]] = {
    "CONV_2D": _Calls.convolution,
    "FULLY_CONNECTED": _Calls.fully_connected,
    "MEAN": _Calls.mean,
    "RESIZE_BILINEAR": _Calls.resize,
    "RESIZE_NEAREST_NEIGHBOR": _Calls.resize,
}
