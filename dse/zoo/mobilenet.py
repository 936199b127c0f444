"""MobileNets: depthwise separable convolutions, without and with inverted residuals."""

from __future__ import annotations

from collections.abc import Mapping

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d, depthwise_conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import HEADROOM, LOGIT_GAIN, LOGIT_GAIN_INT8, classifier
from dse.zoo.images import image_input
from dse.zoo.quantize import quantize
from dse.zoo.vectors import add

# (channels, stride) of the 13 separable layers - table 1 of the MobileNet paper.
SEPARABLE = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)

# (expansion, channels, repeats, stride of the first) - table 2 of the MobileNetV2 paper.
INVERTED_RESIDUALS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def scaled_channels(channels: int, width_percent: int) -> int:
    """Return channels times a width multiplier, as a multiple of 8 that is at most 10 % too small."""
    wanted = channels * width_percent / 100
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded


def draw_mobilenet_v1(
    parameters: Mapping[str, int], seed: int, *, sampled: bool = True, logit_gain: float = LOGIT_GAIN
) -> Draft:
    """Draw MobileNet (version 1) as published, with ReLU6 as the authors' models have it.

    Parameters
    ----------
    parameters
        ``size`` of the square image, ``width`` multiplier in percent, ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.
    logit_gain
        How far apart the classes are, see ``heads``.

    References
    ----------
    A. G. Howard et al.: MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
    Applications, 2017, arXiv:1704.04861.
    """
    size, width = parameters["size"], parameters["width"]
    net = Builder("mobilenet_v1", f"MobileNet {width / 100:g} at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    x = conv2d(net, x, scaled_channels(32, width), 3, stride=2, activation="RELU6", name="stem/conv")
    for number, (channels, stride) in enumerate(SEPARABLE):
        with net.scope(f"layer_{number}"):
            x = depthwise_conv2d(net, x, 3, stride=stride, activation="RELU6", name="depthwise")
            x = conv2d(net, x, scaled_channels(channels, width), 1, activation="RELU6", name="pointwise")
    return net.finish([classifier(net, x, parameters["classes"], logit_gain)])


def draw_mobilenet_v2(
    parameters: Mapping[str, int], seed: int, *, sampled: bool = True, logit_gain: float = LOGIT_GAIN
) -> Draft:
    """Draw MobileNetV2 as published: 17 blocks, ReLU6, linear bottlenecks.

    Parameters
    ----------
    parameters
        ``size`` of the square image, ``width`` multiplier in percent, ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.
    logit_gain
        How far apart the classes are, see ``heads``.

    References
    ----------
    M. Sandler et al.: MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018.
    """
    size, width, classes = parameters["size"], parameters["width"], parameters["classes"]
    net = Builder("mobilenet_v2", f"MobileNetV2 {width / 100:g} at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    x = conv2d(net, x, scaled_channels(32, width), 3, stride=2, activation="RELU6", name="stem/conv")
    block = 0
    for expansion, channels, repeats, first_stride in INVERTED_RESIDUALS:
        for repeat in range(repeats):
            with net.scope(f"block_{block}"):
                stride = first_stride if repeat == 0 else 1
                x = _inverted_residual(net, x, expansion, scaled_channels(channels, width), stride)
            block += 1
    # The last layer does not shrink with the width multiplier (section 6.1 of the paper).
    last = scaled_channels(1280, max(width, 100))
    x = conv2d(net, x, last, 1, activation="RELU6", name="head/conv")
    return net.finish([classifier(net, x, classes, logit_gain)])


def draw_mobilenet_v1_int8(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw MobileNet in int8, see ``draw_mobilenet_v1`` and ``quantize``; always with samples."""
    del sampled
    return quantize(draw_mobilenet_v1(parameters, seed, logit_gain=LOGIT_GAIN_INT8), HEADROOM)


def draw_mobilenet_v2_int8(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw MobileNetV2 in int8, see ``draw_mobilenet_v2`` and ``quantize``; always with samples."""
    del sampled
    return quantize(draw_mobilenet_v2(parameters, seed, logit_gain=LOGIT_GAIN_INT8), HEADROOM)


def _inverted_residual(
    net: Builder, x: DraftTensor, expansion: int, channels: int, stride: int
) -> DraftTensor:
    y = x
    if expansion > 1:
        y = conv2d(net, y, x.shape[3] * expansion, 1, activation="RELU6", name="expand")
    y = depthwise_conv2d(net, y, 3, stride=stride, activation="RELU6", name="depthwise")
    y = conv2d(net, y, channels, 1, name="project")
    return add(net, x, y, name="add") if x.shape == y.shape else y
