"""ResNet-50: bottleneck blocks with short skips."""

from __future__ import annotations

from collections.abc import Mapping

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import classifier
from dse.zoo.images import image_input, max_pool
from dse.zoo.vectors import add

# (filters of the bottleneck, blocks) of conv2_x .. conv5_x, table 1 of the paper.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


def draw_resnet50(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw ResNet-50 as published: the first 1 x 1 convolution of a stage has the stride.

    Parameters
    ----------
    parameters
        ``size`` of the square image, ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.

    References
    ----------
    K. He et al.: Deep Residual Learning for Image Recognition, CVPR 2016.
    """
    size = parameters["size"]
    net = Builder("resnet50", f"ResNet-50 at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    x = conv2d(net, x, 64, 7, stride=2, activation="RELU", name="conv1")
    x = max_pool(net, x, 3, 2, name="pool1")
    for number, (filters, blocks) in enumerate(STAGES, start=2):
        for block in range(blocks):
            with net.scope(f"conv{number}_{block + 1}"):
                x = _bottleneck(
                    net, x, filters, stride=2 if number > 2 and block == 0 else 1, first=block == 0
                )
    return net.finish([classifier(net, x, parameters["classes"])])


def _bottleneck(net: Builder, x: DraftTensor, filters: int, *, stride: int, first: bool) -> DraftTensor:
    y = conv2d(net, x, filters, 1, stride=stride, activation="RELU", name="reduce")
    y = conv2d(net, y, filters, 3, activation="RELU", name="conv")
    # The sum of the branches keeps about the variance of the first block of its stage.
    y = conv2d(net, y, filters * EXPANSION, 1, name="expand", gain=1.0 if first else 0.5)
    if first:
        x = conv2d(net, x, filters * EXPANSION, 1, stride=stride, name="shortcut")
    return add(net, x, y, activation="RELU", name="add")
