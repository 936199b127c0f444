"""U-Net: an encoder and a decoder with long skips between them."""

from __future__ import annotations

from collections.abc import Mapping

from dse.errors import InputError
from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d, transpose_conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.images import image_input, max_pool
from dse.zoo.vectors import concatenate, softmax


def unet_macs(parameters: Mapping[str, int]) -> int:
    """Return the multiply-accumulates of all convolutions.

    With s = size / 2^l and c = base 2^l at level l: two convolutions down, ``9 s^2 (in c + c^2)``; where
    the decoder comes by, ``2 c^2 s^2`` for the up-convolution (4 taps per input pixel, a quarter of
    the output pixels) and ``9 s^2 (2 c^2 + c^2)``; the last layer ``size^2 base classes``.
    """
    size, base, depth = parameters["size"], parameters["base"], parameters["depth"]
    total = size**2 * base * parameters["classes"]
    channels = 3
    for level in range(depth + 1):
        pixels, width = (size >> level) ** 2, base << level
        total += 9 * pixels * (channels * width + width**2)
        if level < depth:
            total += 2 * width**2 * pixels + 9 * pixels * 3 * width**2
        channels = width
    return total


def draw_unet(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw a U-Net for segmentation.

    Parameters
    ----------
    parameters
        ``size`` of the square image, ``base`` channels at the top (published: 64), ``depth`` number of
        halvings (published: 4), ``classes`` per pixel.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.

    Notes
    -----
    Convolutions pad, so that the skips need no cropping and the output has the image's size; this
    is how the network is commonly used.

    Raises
    ------
    InputError
        ``size`` is not a multiple of 2^depth.

    References
    ----------
    O. Ronneberger, P. Fischer, T. Brox: U-Net: Convolutional Networks for Biomedical Image
    Segmentation, MICCAI 2015.
    """
    size, base, depth = parameters["size"], parameters["base"], parameters["depth"]
    if size % 2**depth:
        raise InputError(
            f"unet: size = {size} must be a multiple of 2^depth = {2**depth}: every level halves the image"
        )
    net = Builder("unet", f"U-Net of base {base}, depth {depth}, at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    skips = []
    for level in range(depth):
        with net.scope(f"down_{level}"):
            x = _two_convolutions(net, x, base << level)
            skips.append(x)
            x = max_pool(net, x, 2, 2, name="pool")
    with net.scope("bottom"):
        x = _two_convolutions(net, x, base << depth)
    for level in reversed(range(depth)):
        with net.scope(f"up_{level}"):
            wide = transpose_conv2d(net, x, base << level, 2, name="enlarge")
            x = concatenate(net, [skips[level], wide], 3, name="skip")
            x = _two_convolutions(net, x, base << level)
    logits = conv2d(net, x, parameters["classes"], 1, name="head/logits")
    return net.finish([softmax(net, logits, name="head/probabilities")])


def _two_convolutions(net: Builder, x: DraftTensor, channels: int) -> DraftTensor:
    x = conv2d(net, x, channels, 3, activation="RELU", name="conv1")
    return conv2d(net, x, channels, 3, activation="RELU", name="conv2")
