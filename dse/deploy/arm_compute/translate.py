"""From layers of a model to the C++ function that builds them with the library's graph API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dse.deploy.arm_compute import elements, moves, windows
from dse.deploy.arm_compute.writing import Operation, UnsupportedError, Writer, read_operation, shape
from dse.errors import InputError
from dse.flatbuffer.constants import Constants
from dse.flatbuffer.cut import live_tensors
from dse.flatbuffer.reader import ModelFile
from dse.graph import Layer, LayerGraph

Translation = Callable[[Writer, Operation], str]

TRANSLATIONS: dict[str, Translation] = {
    **dict.fromkeys(("ADD", "MUL", "SUB"), elements.arithmetic),
    **dict.fromkeys(
        (
            "ABS",
            "ELU",
            "HARD_SWISH",
            "LOGISTIC",
            "RELU",
            "RELU6",
            "RELU_0_TO_1",
            "RELU_N1_TO_1",
            "SQRT",
            "SQUARE",
            "TANH",
        ),
        elements.activation,
    ),
    "AVERAGE_POOL_2D": windows.pool_2d,
    "CONCATENATION": moves.concatenation,
    "CONV_2D": windows.conv_2d,
    "DEPTH_TO_SPACE": moves.depth_to_space,
    "DEPTHWISE_CONV_2D": windows.depthwise_conv_2d,
    **dict.fromkeys(("EXPAND_DIMS", "RESHAPE", "SQUEEZE"), moves.reshape),
    "FULLY_CONNECTED": windows.fully_connected,
    "LEAKY_RELU": elements.leaky_relu,
    "LOCAL_RESPONSE_NORMALIZATION": elements.local_response,
    "MAX_POOL_2D": windows.pool_2d,
    "MEAN": windows.mean,
    **dict.fromkeys(("PAD", "PADV2"), moves.pad),
    "PRELU": elements.prelu,
    "RESIZE_BILINEAR": moves.resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": moves.resize_nearest,
    "SOFTMAX": elements.softmax,
    "SPACE_TO_DEPTH": moves.space_to_depth,
    "TRANSPOSE": moves.transpose,
    "TRANSPOSE_CONV": windows.transpose_conv,
}
"""How each operator is expressed, by its name."""


@dataclass(frozen=True, slots=True)
class StageCode:
    """A stage as C++.

    Parameters
    ----------
    name
        Of the function.
    code
        Its definition.
    arrays
        The constants that it reads, by file name.
    """

    name: str
    code: str
    arrays: dict[str, npt.NDArray[np.float32]] = field(repr=False)


def unsupported_layers(file: ModelFile, graph: LayerGraph) -> dict[int, str]:
    """Return why layers can not be expressed: layer index -> reason; only those that can not."""
    constants = Constants(file.model)
    reasons = {}
    for layer in graph.layers:
        writer = Writer(graph, values=dict.fromkeys(layer.inputs, "v0"))
        try:
            _translate(writer, read_operation(file, layer, constants))
        except UnsupportedError as error:
            reasons[layer.index] = str(error)
    return reasons


def stage_code(file: ModelFile, graph: LayerGraph, layers: Sequence[int], name: str) -> StageCode:
    """Write the function that builds some layers.

    Parameters
    ----------
    file, graph
        The whole model; tensors go by their index in it.
    layers
        Layer indices of the stage.
    name
        Of the function: a C++ identifier.

    Raises
    ------
    InputError
        A layer can not be expressed (see ``unsupported_layers``).
    """
    constants = Constants(file.model)
    inside = sorted(layers)
    inputs, outputs = live_tensors(graph, inside)
    writer = Writer(graph)
    for index in inputs:
        writer.input(index)
    operations = {index: read_operation(file, graph.layers[index], constants) for index in inside}
    scales = _folded_scales(graph, operations, set(outputs))
    for index in inside:
        if index in scales:
            continue
        operation = operations[index]
        scale = next((mul for mul, add in scales.items() if add == index), None)
        try:
            if scale is None:
                result = _translate(writer, operation)
            else:
                writer.begin(operations[scale].layer)
                writer.begin(operation.layer)
                result = elements.scale_and_offset(writer, operations[scale], operation)
        except UnsupportedError as error:
            raise InputError(
                f"layer {index} ({operation.layer.name}): {operation.layer.op}: {error}"
            ) from None
        writer.values[operation.outputs[0]] = result
    taken = {writer.values[index] for index in inputs}
    for index in outputs:
        writer.output(index, taken)
    body = "\n".join(f"    {line}" for line in writer.lines)
    return StageCode(name, f"void {name}(Net &net) {{\n{body}\n}}\n", writer.arrays)


def _translate(writer: Writer, operation: Operation) -> str:
    translation = TRANSLATIONS.get(operation.layer.op)
    if translation is None:
        raise UnsupportedError("the operator is not supported")
    _check_types(writer.graph, operation.layer)
    writer.begin(operation.layer)
    return translation(writer, operation)


def _check_types(graph: LayerGraph, layer: Layer) -> None:
    for index in (*layer.inputs, *layer.outputs):
        tensor = graph.tensors[index]
        if tensor.dtype != "float32":
            raise UnsupportedError(f"tensor {tensor.name!r} is {tensor.dtype}, only float32 is supported")
        shape(tensor.shape)


def _folded_scales(graph: LayerGraph, operations: dict[int, Operation], outputs: set[int]) -> dict[int, int]:
    """Find each MUL by constants per channel whose only user is an ADD of such: MUL -> ADD."""
    found = {}
    for index, operation in operations.items():
        if operation.layer.op != "MUL" or operation.activation != "NONE":
            continue
        made, dims = operation.layer.outputs[0], operation.out_shapes[0]
        users = graph.consumers.get(made, ())
        add = operations.get(users[0]) if len(users) == 1 and made not in outputs else None
        if add is None or add.layer.op != "ADD" or len(dims) != 4 or add.out_shapes[0] != dims:
            continue
        source = [size for size, value in zip(operation.shapes, operation.constants) if value is None]
        if source == [dims] and all(
            elements.per_channel(step, dims[3]) is not None for step in (operation, add)
        ):
            found[index] = users[0]
    return found
