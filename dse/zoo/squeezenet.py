"""SqueezeNet 1.0: fire modules, two branches each."""

from __future__ import annotations

from collections.abc import Mapping

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import LOGIT_GAIN
from dse.zoo.images import global_mean, image_input, max_pool
from dse.zoo.vectors import concatenate, softmax

# (squeeze filters, expand filters of each branch) of fire2 .. fire9; pooling follows fire4 and fire8.
FIRES = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
POOL_AFTER = (4, 8)


def draw_squeezenet(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw SqueezeNet 1.0 (the plain one, without bypass).

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
    F. N. Iandola et al.: SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB
    model size, 2016, arXiv:1602.07360, table 1.
    """
    size = parameters["size"]
    net = Builder("squeezenet", f"SqueezeNet 1.0 at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    x = conv2d(net, x, 96, 7, stride=2, padding="VALID", activation="RELU", name="conv1")
    x = _pool(net, x, "pool1")
    for number, (squeeze, expand) in enumerate(FIRES, start=2):
        with net.scope(f"fire{number}"):
            x = _fire(net, x, squeeze, expand)
        if number in POOL_AFTER:
            x = _pool(net, x, f"pool{number}")
    x = conv2d(net, x, parameters["classes"], 1, activation="RELU", name="conv10", gain=2 * LOGIT_GAIN)
    return net.finish([softmax(net, global_mean(net, x, name="pool10"), name="probabilities")])


def _fire(net: Builder, x: DraftTensor, squeeze: int, expand: int) -> DraftTensor:
    narrow = conv2d(net, x, squeeze, 1, activation="RELU", name="squeeze")
    left = conv2d(net, narrow, expand, 1, activation="RELU", name="expand_1x1")
    right = conv2d(net, narrow, expand, 3, activation="RELU", name="expand_3x3")
    return concatenate(net, [left, right], 3, name="concat")


def _pool(net: Builder, x: DraftTensor, name: str) -> DraftTensor:
    """Draw pooling whose last window may reach over the edge, as the authors' framework does it."""
    return max_pool(net, x, 3, 2, padding="VALID" if x.shape[1] % 2 else "SAME", name=name)
