"""AlexNet: the chain of large layers that the published partitioning studies start with."""

from __future__ import annotations

from collections.abc import Mapping

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import probabilities
from dse.zoo.images import image_input, local_response_normalization, max_pool
from dse.zoo.vectors import fully_connected, reshape


def draw_alexnet(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw AlexNet as published: convolutions 2, 4 and 5 in two groups, two response normalisations.

    Parameters
    ----------
    parameters
        ``size`` of the square image (227 gives the published 55 x 55 maps), ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.

    References
    ----------
    A. Krizhevsky, I. Sutskever, G. E. Hinton: ImageNet Classification with Deep Convolutional Neural
    Networks, NIPS 2012.
    """
    size = parameters["size"]
    net = Builder("alexnet", f"AlexNet at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    x = conv2d(net, x, 96, 11, stride=4, padding="VALID", activation="RELU", name="conv1")
    x = _normalised_pool(net, x, "1")
    x = conv2d(net, x, 256, 5, groups=2, activation="RELU", name="conv2")
    x = _normalised_pool(net, x, "2")
    x = conv2d(net, x, 384, 3, activation="RELU", name="conv3")
    x = conv2d(net, x, 384, 3, groups=2, activation="RELU", name="conv4")
    x = conv2d(net, x, 256, 3, groups=2, activation="RELU", name="conv5")
    x = max_pool(net, x, 3, 2, padding="VALID", name="pool5")
    x = reshape(net, x, (1, x.n_elements), name="flatten")
    x = fully_connected(net, x, 4096, activation="RELU", name="fc6")
    x = fully_connected(net, x, 4096, activation="RELU", name="fc7")
    return net.finish([probabilities(net, x, parameters["classes"])])


def _normalised_pool(net: Builder, x: DraftTensor, number: str) -> DraftTensor:
    # Constants of section 3.3: k = 2, n = 5 neighbours, alpha = 1e-4, beta = 0.75.
    x = local_response_normalization(net, x, radius=2, bias=2.0, alpha=1e-4, beta=0.75, name=f"norm{number}")
    return max_pool(net, x, 3, 2, padding="VALID", name=f"pool{number}")
