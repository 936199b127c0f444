"""Inception-v3: branches of different depth, kernels of 1 x 7 and 7 x 1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dse.zoo.builder import Builder
from dse.zoo.convolutions import conv2d
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import classifier
from dse.zoo.images import average_pool, image_input, max_pool
from dse.zoo.vectors import concatenate

Step = tuple[int, int | tuple[int, int]]
"""A convolution of a branch: filters, kernel."""

ROW, COLUMN = (1, 7), (7, 1)


def draw_inception_v3(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw Inception-v3 for inference (no auxiliary classifier).

    Parameters
    ----------
    parameters
        ``size`` of the square image (published: 299), ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to size the weights by sample frames.

    References
    ----------
    C. Szegedy et al.: Rethinking the Inception Architecture for Computer Vision, CVPR 2016; the
    branch widths are those of the authors' published model.
    """
    size = parameters["size"]
    net = Builder("inception_v3", f"Inception-v3 at {size}", seed=seed, sampled=sampled)
    conv = partial(conv2d, activation="RELU")
    x = image_input(net, "image", size, size, 3)
    x = conv(net, x, 32, 3, stride=2, padding="VALID", name="stem/conv1")
    x = conv(net, x, 32, 3, padding="VALID", name="stem/conv2")
    x = conv(net, x, 64, 3, name="stem/conv3")
    x = max_pool(net, x, 3, 2, padding="VALID", name="stem/pool1")
    x = conv(net, x, 80, 1, padding="VALID", name="stem/conv4")
    x = conv(net, x, 192, 3, padding="VALID", name="stem/conv5")
    x = max_pool(net, x, 3, 2, padding="VALID", name="stem/pool2")
    for number, pooled in enumerate((32, 64, 64)):
        branches: list[list[Step]] = [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]]
        x = _module(net, x, f"mixed_35_{number}", branches, pooled)
    x = _reduction(net, x, "reduction_17", [[(384, 3)], [(64, 1), (96, 3), (96, 3)]])
    for number, width in enumerate((128, 160, 160, 192)):
        branches = [
            [(192, 1)],
            [(width, 1), (width, ROW), (192, COLUMN)],
            [(width, 1), (width, COLUMN), (width, ROW), (width, COLUMN), (192, ROW)],
        ]
        x = _module(net, x, f"mixed_17_{number}", branches, 192)
    x = _reduction(
        net, x, "reduction_8", [[(192, 1), (320, 3)], [(192, 1), (192, ROW), (192, COLUMN), (192, 3)]]
    )
    for number in range(2):
        with net.scope(f"mixed_8_{number}"):
            x = _wide_module(net, x)
    return net.finish([classifier(net, x, parameters["classes"])])


def _branch(
    net: Builder, x: DraftTensor, name: str, steps: list[Step], *, shrink: bool = False
) -> DraftTensor:
    for number, (filters, kernel) in enumerate(steps):
        last = shrink and number == len(steps) - 1
        x = conv2d(
            net,
            x,
            filters,
            kernel,
            stride=2 if last else 1,
            padding="VALID" if last else "SAME",
            activation="RELU",
            name=f"{name}/conv{number}",
        )
    return x


def _module(net: Builder, x: DraftTensor, name: str, branches: list[list[Step]], pooled: int) -> DraftTensor:
    """Draw branches that keep the size, one of them behind average pooling."""
    with net.scope(name):
        parts = [_branch(net, x, f"branch{number}", steps) for number, steps in enumerate(branches)]
        pool = average_pool(net, x, 3, 1, name="branch_pool/pool")
        parts.append(_branch(net, pool, "branch_pool", [(pooled, 1)]))
        return concatenate(net, parts, 3, name="concat")


def _reduction(net: Builder, x: DraftTensor, name: str, branches: list[list[Step]]) -> DraftTensor:
    """Draw branches that halve the size, one of them max pooling."""
    with net.scope(name):
        parts = [
            _branch(net, x, f"branch{number}", steps, shrink=True) for number, steps in enumerate(branches)
        ]
        parts.append(max_pool(net, x, 3, 2, padding="VALID", name="branch_pool/pool"))
        return concatenate(net, parts, 3, name="concat")


def _wide_module(net: Builder, x: DraftTensor) -> DraftTensor:
    """Draw the last kind of module, whose branches fan out into 1 x 3 and 3 x 1."""
    direct = _branch(net, x, "branch0", [(320, 1)])
    middle = _branch(net, x, "branch1", [(384, 1)])
    deep = _branch(net, x, "branch2", [(448, 1), (384, 3)])
    fans = [
        _branch(net, part, f"{name}/{shape[0]}x{shape[1]}", [(384, shape)])
        for name, part in (("branch1", middle), ("branch2", deep))
        for shape in ((1, 3), (3, 1))
    ]
    pool = average_pool(net, x, 3, 1, name="branch_pool/pool")
    projected = _branch(net, pool, "branch_pool", [(192, 1)])
    return concatenate(net, [direct, *fans, projected], 3, name="concat")
