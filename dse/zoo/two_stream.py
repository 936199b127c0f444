"""A two-stream network: two inputs, two outputs, and a place where the streams meet."""

from __future__ import annotations

from collections.abc import Mapping

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import classifier
from dse.zoo.images import image_input, max_pool
from dse.zoo.vectors import concatenate

# Horizontal and vertical displacement between ten pairs of frames.
FLOW_CHANNELS = 20
# (widths of the base, kernel, stride, pooled) of a stream's convolutions.
STREAM = ((1, 7, 2, True), (2, 5, 2, True), (4, 3, 1, False), (4, 3, 1, False))


def two_stream_macs(parameters: Mapping[str, int]) -> int:
    """Return the multiply-accumulates of both streams, the fusion and both classifiers."""
    base, classes = parameters["base"], parameters["classes"]
    total, size = 0, parameters["size"]
    inputs = 3 + FLOW_CHANNELS  # of both streams together
    for widths, kernel, stride, pooled in STREAM:
        size = -(-size // stride)
        total += size**2 * kernel**2 * inputs * widths * base
        inputs = 2 * widths * base
        size = -(-size // 2) if pooled else size
    fused = STREAM[-1][0] * base
    return total + size**2 * 2 * fused * fused + 2 * fused * classes


def draw_two_stream(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw a small two-stream network for video.

    Parameters
    ----------
    parameters
        ``size`` of frame and flow, ``base`` channels of the first layer, ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.

    Notes
    -----
    Inputs: a frame (3 channels) and a stack of optical flow (20 channels).  Outputs: the action, from
    both streams fused by a 1 x 1 convolution, and the motion, from the flow alone, which stays a
    stream of its own after the fusion.  Smaller than the published one, which has 90 M parameters
    in its matrices.

    References
    ----------
    K. Simonyan, A. Zisserman: Two-Stream Convolutional Networks for Action Recognition, NIPS 2014.
    C. Feichtenhofer, A. Pinz, A. Zisserman: Convolutional Two-Stream Network Fusion, CVPR 2016.
    """
    size, base, classes = parameters["size"], parameters["base"], parameters["classes"]
    net = Builder("two_stream", f"two-stream network of base {base} at {size}", seed=seed, sampled=sampled)
    frame = image_input(net, "frame", size, size, 3)
    flow = image_input(net, "flow", size, size, FLOW_CHANNELS)
    spatial = _stream(net, frame, base, "spatial")
    temporal = _stream(net, flow, base, "temporal")
    with net.scope("fusion"):
        both = concatenate(net, [spatial, temporal], 3, name="concat")
        fused = conv2d(net, both, 4 * base, 1, activation="RELU", name="conv")
    with net.scope("action"):
        action = classifier(net, fused, classes)
    with net.scope("motion"):
        motion = classifier(net, temporal, classes)
    return net.finish([action, motion])


def _stream(net: Builder, x: DraftTensor, base: int, name: str) -> DraftTensor:
    with net.scope(name):
        for number, (widths, kernel, stride, pooled) in enumerate(STREAM, start=1):
            x = conv2d(net, x, widths * base, kernel, stride=stride, activation="RELU", name=f"conv{number}")
            if pooled:
                x = max_pool(net, x, 3, 2, name=f"pool{number}")
    return x
