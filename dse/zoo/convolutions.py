"""Convolutions: each draws one operator and returns its output; weights and bias are named after it.

Images are (batch, height, width, channels).  The weights are scaled by the sample frame, see ``scaling``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import enum_value
from dse.zoo import arithmetic
from dse.zoo.arithmetic import Floats, Window
from dse.zoo.builder import Builder
from dse.zoo.draft import Array, DraftTensor
from dse.zoo.scaling import BIAS_SIZE, channel_scale, fan_in_scale

# Trained depthwise kernels are mostly smooth.  With a mean of about half their spread, random ones are
# smooth too; without it they amplify noise, and an int8 form has little to do with the float one.
DEPTHWISE_LEAN = 0.3


def conv2d(
    net: Builder,
    x: DraftTensor,
    filters: int,
    kernel: int | tuple[int, int],
    *,
    name: str,
    stride: int = 1,
    padding: str = "SAME",
    groups: int = 1,
    activation: str = "NONE",
    gain: float = 1.0,
) -> DraftTensor:
    """Convolve with a kernel (a number, or height and width).

    Parameters
    ----------
    groups
        Filters and channels are split into this many groups that do not see each other.
    gain
        Deviation of the result before activation.
    """
    window = Window.of(kernel, stride, padding)
    shape = (filters, *window.kernel, x.shape[3] // groups)
    weights = net.random(f"{name}/weights", shape)
    y = None if x.sample is None else arithmetic.conv2d(x.sample, weights, window)
    fallback = fan_in_scale(weights[0].size, gain)
    scale, bias = _scale_and_bias(net, y, name, np.full(filters, fallback), gain)
    drawn = _Convolution(
        x, window, (weights * scale[:, None, None, None]).astype(np.float32), bias, activation
    )
    result = None if y is None else arithmetic.activate(y * scale + bias, activation)
    options = Options("Conv2DOptions", drawn.options)
    # 6 is the first operator version with groups.
    return drawn.emit(net, name, "CONV_2D", options, result, version=1 if groups == 1 else 6)


def depthwise_conv2d(
    net: Builder,
    x: DraftTensor,
    kernel: int,
    *,
    name: str,
    stride: int = 1,
    padding: str = "SAME",
    activation: str = "NONE",
    gain: float = 1.0,
) -> DraftTensor:
    """Convolve each channel with a square kernel of its own."""
    window = Window.of(kernel, stride, padding)
    channels = x.shape[3]
    weights = net.random(f"{name}/weights", (1, kernel, kernel, channels)) + np.float32(DEPTHWISE_LEAN)
    y = None if x.sample is None else arithmetic.depthwise_conv2d(x.sample, weights, window)
    fallback = fan_in_scale(kernel * kernel, gain)
    scale, bias = _scale_and_bias(net, y, name, np.full(channels, fallback), gain)
    drawn = _Convolution(x, window, (weights * scale).astype(np.float32), bias, activation)
    result = None if y is None else arithmetic.activate(y * scale + bias, activation)
    options = Options("DepthwiseConv2DOptions", {**drawn.options, "depth_multiplier": 1})
    return drawn.emit(net, name, "DEPTHWISE_CONV_2D", options, result)


def transpose_conv2d(net: Builder, x: DraftTensor, filters: int, factor: int, *, name: str) -> DraftTensor:
    """Enlarge an image by ``factor`` with a kernel as wide as the stride (no overlap)."""
    batch, height, width, channels = x.shape
    shape = (batch, height * factor, width * factor, filters)
    limit = fan_in_scale(channels, 1.0)
    weights = net.random(f"{name}/weights", (filters, factor, factor, channels)) * np.float32(limit)
    bias = net.random(f"{name}/bias", (filters,)) * np.float32(BIAS_SIZE)
    return net.emit(
        "TRANSPOSE_CONV",
        [
            net.constant(shape, f"{name}/output_shape", np.int32),
            net.constant(weights, f"{name}/weights"),
            x,
            net.constant(bias, f"{name}/bias"),
        ],
        name,
        shape,
        options=Options(
            "TransposeConvOptions",
            {"padding": enum_value("Padding", "SAME"), "stride_w": factor, "stride_h": factor},
        ),
        version=3,  # the first version with a bias
        evaluate=lambda _, kernel, image, offset: arithmetic.transpose_conv2d(image, kernel, factor) + offset,
    )


def window_options(window: Window, activation: str) -> dict[str, int]:
    """Return the fields that all operators with a window share."""
    return {
        "padding": enum_value("Padding", window.padding),
        "stride_w": window.stride,
        "stride_h": window.stride,
        "fused_activation_function": enum_value("ActivationFunctionType", activation),
    }


def _scale_and_bias(
    net: Builder, y: Floats | None, name: str, fallback: Array, gain: float
) -> tuple[Array, Array]:
    """Return what to multiply the weights of each filter with, and the bias."""
    scale, offset = (fallback, np.zeros_like(fallback)) if y is None else channel_scale(y, gain)
    return scale, offset + BIAS_SIZE * gain * net.random(f"{name}/bias", scale.shape)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """What a convolution works with, scaled already."""

    x: DraftTensor
    window: Window
    weights: Array
    bias: Array
    activation: str

    @property
    def options(self) -> dict[str, int]:
        return {
            **window_options(self.window, self.activation),
            "dilation_w_factor": 1,
            "dilation_h_factor": 1,
        }

    def emit(
        self,
        net: Builder,
        name: str,
        op: str,
        options: Options,
        result: Floats | None,
        *,
        version: int = 1,
    ) -> DraftTensor:
        weights, bias = net.constant(self.weights, f"{name}/weights"), net.constant(self.bias, f"{name}/bias")
        shape = (self.x.shape[0], *self.window.out_sizes(self.x.shape), len(self.bias))
        inputs = [self.x, weights, bias]
        return net.emit(op, inputs, name, shape, options=options, version=version, result=result)
