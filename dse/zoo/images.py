"""Image inputs, and the operators on images without weights: pooling, padding, resizing.

Images are (batch, height, width, channels).  Every function draws one operator and returns its
output.
"""

from __future__ import annotations

import numpy as np

from dse.flatbuffer.records import Options
from dse.zoo import arithmetic
from dse.zoo.arithmetic import Floats, Window
from dse.zoo.builder import Builder
from dse.zoo.convolutions import window_options
from dse.zoo.draft import DraftTensor

SAMPLE_FRAMES = 3
CONTRAST = 2.5
CELLS = 3


def image_sample(net: Builder, name: str, height: int, width: int, channels: int) -> Floats:
    """Return frames between -1 and 1: noise; smooth with high contrast; the same kind, but positive.

    Random weights that are sized by all of them suit whatever a user feeds.
    """
    noise = net.random(f"{name}/sample_noise", (height, width, channels)).astype(np.float64)
    cells = net.random(f"{name}/sample_cells", (SAMPLE_FRAMES - 1, CELLS, CELLS, channels)).astype(np.float64)
    smooth = _stretch(
        _stretch(cells, np.linspace(0, CELLS - 1, height), 1), np.linspace(0, CELLS - 1, width), 2
    )
    signed, positive = np.clip(CONTRAST * smooth, -1, 1)
    return np.stack([noise, signed, (positive + 1) / 2])


def _stretch(values: Floats, at: Floats, axis: int) -> Floats:
    """Interpolate linearly at fractional indices along one axis."""
    low = np.minimum(at.astype(int), values.shape[axis] - 1)
    high = np.minimum(low + 1, values.shape[axis] - 1)
    share = (at - low).reshape([-1 if dim == axis else 1 for dim in range(values.ndim)])
    return np.asarray(values.take(low, axis) * (1 - share) + values.take(high, axis) * share)


def image_input(net: Builder, name: str, height: int, width: int, channels: int) -> DraftTensor:
    """Add a float image input with values that are meant to lie between -1 and 1."""
    sample = image_sample(net, name, height, width, channels) if net.sampled else None
    return net.add_input(name, (1, height, width, channels), sample=sample)


def max_pool(
    net: Builder, x: DraftTensor, kernel: int, stride: int, *, name: str, padding: str = "SAME"
) -> DraftTensor:
    """Take the maximum of each window."""
    return _pool(net, "MAX_POOL_2D", x, Window.of(kernel, stride, padding), name)


def average_pool(
    net: Builder, x: DraftTensor, kernel: int, stride: int, *, name: str, padding: str = "SAME"
) -> DraftTensor:
    """Take the mean of each window; padding does not count."""
    return _pool(net, "AVERAGE_POOL_2D", x, Window.of(kernel, stride, padding), name)


def _pool(net: Builder, op: str, x: DraftTensor, window: Window, name: str) -> DraftTensor:
    pool = arithmetic.max_pool if op == "MAX_POOL_2D" else arithmetic.average_pool
    return net.emit(
        op,
        [x],
        name,
        (x.shape[0], *window.out_sizes(x.shape), x.shape[3]),
        options=Options(
            "Pool2DOptions",
            {
                **window_options(window, "NONE"),
                "filter_width": window.kernel[1],
                "filter_height": window.kernel[0],
            },
        ),
        evaluate=lambda image: pool(image, window),
    )


def global_mean(net: Builder, x: DraftTensor, *, name: str) -> DraftTensor:
    """Average each channel over the image: (batch, height, width, channels) -> (batch, channels)."""
    return net.emit(
        "MEAN",
        [x, net.constant((1, 2), f"{name}/axes", np.int32)],
        name,
        (x.shape[0], x.shape[3]),
        options=Options("ReducerOptions", {"keep_dims": False}),
        evaluate=lambda image, _: image.mean(axis=(1, 2)),
    )


def pad(net: Builder, x: DraftTensor, before: int, after: int, *, name: str) -> DraftTensor:
    """Put zeros around the image."""
    pads = ((0, 0), (before, after), (before, after), (0, 0))
    extra = before + after
    return net.emit(
        "PAD",
        [x, net.constant(pads, f"{name}/paddings", np.int32)],
        name,
        (x.shape[0], x.shape[1] + extra, x.shape[2] + extra, x.shape[3]),
        options=Options("PadOptions", {}),
        evaluate=lambda image, _: np.pad(image, pads),
    )


def resize_nearest(net: Builder, x: DraftTensor, factor: int, *, name: str) -> DraftTensor:
    """Enlarge an image by repeating its pixels."""
    height, width = x.shape[1] * factor, x.shape[2] * factor
    return net.emit(
        "RESIZE_NEAREST_NEIGHBOR",
        [x, net.constant((height, width), f"{name}/size", np.int32)],
        name,
        (x.shape[0], height, width, x.shape[3]),
        options=Options(
            "ResizeNearestNeighborOptions", {"align_corners": False, "half_pixel_centers": False}
        ),
        evaluate=lambda image, _: image.repeat(factor, axis=1).repeat(factor, axis=2),
    )


def resize_bilinear(net: Builder, x: DraftTensor, factor: int, *, name: str) -> DraftTensor:
    """Enlarge an image by interpolating linearly between pixel centres."""
    height, width = x.shape[1] * factor, x.shape[2] * factor

    def centres(size: int) -> Floats:
        return np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)

    return net.emit(
        "RESIZE_BILINEAR",
        [x, net.constant((height, width), f"{name}/size", np.int32)],
        name,
        (x.shape[0], height, width, x.shape[3]),
        options=Options("ResizeBilinearOptions", {"align_corners": False, "half_pixel_centers": True}),
        version=3,  # the first version with half_pixel_centers
        evaluate=lambda image, _: _stretch(_stretch(image, centres(x.shape[1]), 1), centres(x.shape[2]), 2),
    )


def local_response_normalization(
    net: Builder, x: DraftTensor, *, radius: int, bias: float, alpha: float, beta: float, name: str
) -> DraftTensor:
    """Divide by a power of the energy in the neighbouring ``2 radius + 1`` channels.

    References
    ----------
    A. Krizhevsky, I. Sutskever, G. E. Hinton: ImageNet Classification with Deep Convolutional Neural
    Networks, NIPS 2012, section 3.3.
    """
    settings = {"bias": bias, "alpha": alpha, "beta": beta}
    return net.emit(
        "LOCAL_RESPONSE_NORMALIZATION",
        [x],
        name,
        x.shape,
        options=Options("LocalResponseNormalizationOptions", {"radius": radius, **settings}),
        evaluate=lambda image: arithmetic.local_response_normalization(image, radius=radius, **settings),
    )
