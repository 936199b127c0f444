"""GoogLeNet: nine inception modules of four branches."""

from __future__ import annotations

from collections.abc import Mapping

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import classifier
from dse.zoo.images import image_input, local_response_normalization, max_pool
from dse.zoo.vectors import concatenate

# Table 1 of the paper: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, projection after pooling.
MODULES = (
    ("3a", 64, 96, 128, 16, 32, 32),
    ("3b", 128, 128, 192, 32, 96, 64),
    ("4a", 192, 96, 208, 16, 48, 64),
    ("4b", 160, 112, 224, 24, 64, 64),
    ("4c", 128, 128, 256, 24, 64, 64),
    ("4d", 112, 144, 288, 32, 64, 64),
    ("4e", 256, 160, 320, 32, 128, 128),
    ("5a", 256, 160, 320, 32, 128, 128),
    ("5b", 384, 192, 384, 48, 128, 128),
)
POOL_BEFORE = ("4a", "5a")


def draw_googlenet(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw GoogLeNet for inference: without the auxiliary classifiers, which only training uses.

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
    C. Szegedy et al.: Going Deeper with Convolutions, CVPR 2015.
    """
    size = parameters["size"]
    net = Builder("googlenet", f"GoogLeNet at {size}", seed=seed, sampled=sampled)
    x = image_input(net, "image", size, size, 3)
    x = conv2d(net, x, 64, 7, stride=2, activation="RELU", name="conv1")
    x = max_pool(net, x, 3, 2, name="pool1")
    x = _normalise(net, x, "norm1")
    x = conv2d(net, x, 64, 1, activation="RELU", name="conv2_reduce")
    x = conv2d(net, x, 192, 3, activation="RELU", name="conv2")
    x = _normalise(net, x, "norm2")
    x = max_pool(net, x, 3, 2, name="pool2")
    for name, *filters in MODULES:
        if name in POOL_BEFORE:
            x = max_pool(net, x, 3, 2, name=f"pool_{name}")
        with net.scope(f"inception_{name}"):
            x = _inception(net, x, filters)
    return net.finish([classifier(net, x, parameters["classes"])])


def _inception(net: Builder, x: DraftTensor, filters: list[int]) -> DraftTensor:
    direct, reduce_3, out_3, reduce_5, out_5, projection = filters
    branch_1 = conv2d(net, x, direct, 1, activation="RELU", name="1x1")
    branch_3 = conv2d(net, x, reduce_3, 1, activation="RELU", name="3x3_reduce")
    branch_3 = conv2d(net, branch_3, out_3, 3, activation="RELU", name="3x3")
    branch_5 = conv2d(net, x, reduce_5, 1, activation="RELU", name="5x5_reduce")
    branch_5 = conv2d(net, branch_5, out_5, 5, activation="RELU", name="5x5")
    pooled = max_pool(net, x, 3, 1, name="pool")
    branch_pool = conv2d(net, pooled, projection, 1, activation="RELU", name="pool_projection")
    return concatenate(net, [branch_1, branch_3, branch_5, branch_pool], 3, name="concat")


def _normalise(net: Builder, x: DraftTensor, name: str) -> DraftTensor:
    return local_response_normalization(net, x, radius=2, bias=1.0, alpha=2e-5, beta=0.75, name=name)
