"""Layers with a window over the image, and matrix products: convolutions, pooling, fully connected."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dse.deploy.arm_compute.elements import fused
from dse.deploy.arm_compute.writing import Operation, Shape, UnsupportedError, Writer
from dse.flatbuffer.schema import enum_name


def conv_2d(w: Writer, operation: Operation) -> str:
    """Translate CONV_2D, grouped ones too."""
    _need_image(operation)
    weights = _spread(operation, operation.reals(1, "weights"))
    filters, height, width, depth = weights.shape
    groups, rest = divmod(operation.shapes[0][3], depth)
    if rest or filters % groups:
        raise UnsupportedError(f"weights for {depth} channels do not fit {operation.shapes[0][3]} channels")
    arguments = (
        f"{width}U, {height}U, {filters}U, {w.constant(weights, 'weights')}, {_bias(w, operation)}, "
        f"{_window(operation, height, width)}"
    )
    layer = f"ConvolutionLayer({arguments}{f', {groups}U' if groups > 1 else ''})"
    return w.chain(w.value(operation, 0), layer, *fused(operation))


def depthwise_conv_2d(w: Writer, operation: Operation) -> str:
    """Translate DEPTHWISE_CONV_2D."""
    _need_image(operation)
    weights = _spread(operation, operation.reals(1, "weights"))
    _, height, width, channels = weights.shape
    multiplier = channels // operation.shapes[0][3]
    layer = (
        f"DepthwiseConvolutionLayer({width}U, {height}U, {w.constant(weights[0], 'weights')}, "
        f"{_bias(w, operation)}, {_window(operation, height, width)}, {multiplier})"
    )
    return w.chain(w.value(operation, 0), layer, *fused(operation))


def transpose_conv(w: Writer, operation: Operation) -> str:
    """Translate TRANSPOSE_CONV."""
    weights = operation.reals(1, "weights")
    dims, out = operation.shapes[2], operation.out_shapes[0]
    if len(dims) != 4 or weights.ndim != 4:
        raise UnsupportedError("it works on something else than images")
    filters, height, width, _ = weights.shape
    stride_y, stride_x = (int(operation.options.get(f"stride_{axis}", 1)) for axis in "hw")
    pads = []
    for size, size_out, kernel, stride in (
        (dims[2], out[2], width, stride_x),
        (dims[1], out[1], height, stride_y),
    ):
        total = (size - 1) * stride + kernel - size_out
        if total < 0:
            raise UnsupportedError("its output is larger than the windows reach")
        pads += [total // 2, total - total // 2]
    bias = w.constant(operation.reals(3, "biases"), "bias") if operation.has(3) else "nullptr"
    layer = (
        f"DeconvolutionLayer({width}U, {height}U, {filters}U, {w.constant(weights, 'weights')}, {bias}, "
        f"{_pad_stride(stride_x, stride_y, *pads)})"
    )
    return w.chain(w.value(operation, 2), layer, *fused(operation))


def fully_connected(w: Writer, operation: Operation) -> str:
    """Translate FULLY_CONNECTED; leading dimensions are one batch."""
    if operation.options.get("weights_format", 0):
        raise UnsupportedError("its weights are shuffled")
    weights = operation.reals(1, "weights")
    units, depth = weights.shape
    dims = operation.shapes[0]
    batch = math.prod(dims) // depth
    source = w.reshaped(w.value(operation, 0), dims, (batch, depth))
    layer = (
        f"FullyConnectedLayer({units}U, {w.constant(weights, 'weights')}, {_bias(w, operation)}, "
        "FullyConnectedLayerInfo().set_weights_trained_layout(DataLayout::NHWC))"
    )
    result = w.chain(source, layer, *fused(operation))
    return w.reshaped(result, (batch, units), operation.out_shapes[0])


def pool_2d(w: Writer, operation: Operation) -> str:
    """Translate MAX_POOL_2D and AVERAGE_POOL_2D; padding does not count in averages."""
    _need_image(operation)
    kind = "MAX" if operation.layer.op == "MAX_POOL_2D" else "AVG"
    height, width = (int(operation.options.get(f"filter_{side}", 1)) for side in ("height", "width"))
    layer = (
        f"PoolingLayer(PoolingLayerInfo(PoolingType::{kind}, Size2D({width}U, {height}U), DataLayout::NHWC, "
        f"{_window(operation, height, width)}, true))"
    )
    return w.chain(w.value(operation, 0), layer, *fused(operation))


def mean(w: Writer, operation: Operation) -> str:
    """Translate MEAN over neighbouring dimensions: pooling over all of an image of the same values."""
    dims = operation.shapes[0]
    axes = sorted({int(axis) % len(dims) for axis in operation.constant(1, "axes").reshape(-1)})
    if not axes or axes != list(range(axes[0], axes[-1] + 1)):
        raise UnsupportedError("the dimensions that it averages over are not neighbours")
    first, last = axes[0], axes[-1]
    image: Shape = (math.prod(dims[:first]), *_plane(dims[first : last + 1]), math.prod(dims[last + 1 :]))
    source = w.reshaped(w.value(operation, 0), dims, image)
    pooled = w.chain(source, "PoolingLayer(PoolingLayerInfo(PoolingType::AVG, DataLayout::NHWC))")
    return w.reshaped(pooled, (image[0], 1, 1, image[3]), operation.out_shapes[0])


def _plane(dims: Shape) -> tuple[int, int]:
    return (dims[0], dims[1]) if len(dims) == 2 else (math.prod(dims), 1)


def _need_image(operation: Operation) -> None:
    if len(operation.shapes[0]) != 4:
        raise UnsupportedError(f"it works on {len(operation.shapes[0])} dimensions, expected an image of 4")


def _bias(w: Writer, operation: Operation) -> str:
    return w.constant(operation.reals(2, "biases"), "bias") if operation.has(2) else "nullptr"


def _spread(operation: Operation, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weights with the holes of a dilated window written out as zeros.

    The layers of the graph API know no dilation, though the library's functions do.
    """
    steps = [int(operation.options.get(f"dilation_{axis}_factor", 1)) for axis in "hw"]
    if steps == [1, 1]:
        return weights
    filters, height, width, depth = weights.shape
    size = (filters, (height - 1) * steps[0] + 1, (width - 1) * steps[1] + 1, depth)
    spread = np.zeros(size, np.float32)
    spread[:, :: steps[0], :: steps[1]] = weights
    return spread


def _window(operation: Operation, height: int, width: int) -> str:
    """Return strides and padding; SAME puts the odd row and column behind the image."""
    dims, out = operation.shapes[0], operation.out_shapes[0]
    stride_y, stride_x = (int(operation.options.get(f"stride_{axis}", 1)) for axis in "hw")
    pads = [0, 0, 0, 0]
    if enum_name("Padding", int(operation.options.get("padding", 0))) == "SAME":
        for place, (size, size_out, kernel, stride) in enumerate(
            ((dims[2], out[2], width, stride_x), (dims[1], out[1], height, stride_y))
        ):
            total = max((size_out - 1) * stride + kernel - size, 0)
            pads[2 * place : 2 * place + 2] = total // 2, total - total // 2
    return _pad_stride(stride_x, stride_y, *pads)


def _pad_stride(stride_x: int, stride_y: int, left: int, right: int, top: int, bottom: int) -> str:
    return (
        f"PadStrideInfo({stride_x}U, {stride_y}U, {left}U, {right}U, {top}U, {bottom}U, "
        "DimensionRoundingType::FLOOR)"
    )
