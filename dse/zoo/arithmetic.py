"""What the operators compute, in numpy and double precision.

Used to work out a sample frame while a model is drawn.  Images are (batch, height, width, channels),
convolution weights (out, height, width, in), as in the file.  Double precision is not for
accuracy: sums come out the same to about 15 digits whatever the order in which a library adds, so
the statistics that are rounded and put into the weights are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dse.zoo.draft import Array

Floats = npt.NDArray[np.float64]
# Rows of a weight matrix that are widened to double precision at a time.
_ROWS = 512
# Up to this many values per window, the windows are copied out and multiplied at once.
_GATHERED = 400


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides over an image.

    Parameters
    ----------
    kernel
        Height and width of the window in pixels.
    stride
        Step in both directions.
    padding
        ``SAME`` (output = input size / stride, rounded up) or ``VALID`` (inside the image only).
    """

    kernel: tuple[int, int]
    stride: int = 1
    padding: str = "SAME"

    @classmethod
    def of(cls, kernel: int | tuple[int, int], stride: int, padding: str) -> Window:
        """Return a window; one number means a square one."""
        return cls((kernel, kernel) if isinstance(kernel, int) else kernel, stride, padding)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """All (row, column) inside the window."""
        return tuple(np.ndindex(self.kernel))

    def pads(self, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the pixels put (before, after) the height and the width of an image shape."""
        if self.padding == "VALID":
            return (0, 0), (0, 0)
        totals = [
            max((-(-size // self.stride) - 1) * self.stride + kernel - size, 0)
            for size, kernel in zip(shape[1:3], self.kernel, strict=True)
        ]
        return (totals[0] // 2, totals[0] - totals[0] // 2), (totals[1] // 2, totals[1] - totals[1] // 2)

    def out_sizes(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of positions of the window down and across an image shape."""
        (top, bottom), (left, right) = self.pads(shape)
        height = (shape[1] + top + bottom - self.kernel[0]) // self.stride + 1
        width = (shape[2] + left + right - self.kernel[1]) // self.stride + 1
        return height, width

    def view(self, x: Floats, fill: float = 0.0) -> Array:
        """Return a view (batch, rows, columns, channels, kernel height, kernel width)."""
        pads = self.pads(x.shape)
        if any(sum(pair) for pair in pads):
            x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(x, self.kernel, axis=(1, 2))
        return view[:, :: self.stride, :: self.stride]


def conv2d(x: Floats, weights: Array, window: Window) -> Floats:
    """Convolve, without bias; grouped when the weights have fewer input channels than the image."""
    groups = x.shape[3] // weights.shape[3]
    parts = zip(np.split(x, groups, axis=3), np.split(weights.astype(np.float64), groups), strict=True)
    return np.concatenate([_conv2d(image, part, window) for image, part in parts], axis=3)


def _conv2d(x: Floats, weights: Floats, window: Window) -> Floats:
    """Convolve by one matrix product per place of the window, or one in all when that is small."""
    view = window.view(x)
    if weights[0].size <= _GATHERED:
        rows = view.transpose(0, 1, 2, 4, 5, 3).reshape(*view.shape[:3], -1)
        return np.asarray(rows @ weights.reshape(len(weights), -1).T)
    total = np.zeros((*view.shape[:3], len(weights)))
    for row, column in window.places:
        total += np.ascontiguousarray(view[..., row, column]) @ weights[:, row, column].T
    return total


def depthwise_conv2d(x: Floats, weights: Array, window: Window) -> Floats:
    """Convolve each channel with its own kernel; weights (1, height, width, channels)."""
    view = window.view(x)
    total = np.zeros(view.shape[:4])
    for row, column in window.places:
        total += view[..., row, column] * weights[0, row, column]
    return total


def transpose_conv2d(x: Floats, weights: Array, stride: int) -> Floats:
    """Scatter each pixel through a kernel as wide as the stride: output = input size x stride."""
    batch, height, width, _ = x.shape
    out, kernel = weights.shape[0], weights.shape[1]
    if kernel != stride:
        raise ValueError(f"kernel {kernel} and stride {stride} must be equal")
    # (b, h, w, out, kh, kw) -> (b, h, kh, w, kw, out)
    spread = np.tensordot(x, weights.astype(np.float64), axes=([3], [3]))
    spread = spread.transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(spread).reshape(batch, height * stride, width * stride, out)


def max_pool(x: Floats, window: Window) -> Floats:
    """Take the maximum of each window."""
    view = window.view(x, fill=-np.inf)
    best = np.full(view.shape[:4], -np.inf)
    for row, column in window.places:
        np.maximum(best, view[..., row, column], out=best)
    return best


def average_pool(x: Floats, window: Window) -> Floats:
    """Take the mean of each window; padding does not count."""
    ones = np.ones((1, *x.shape[1:3], 1))
    count = window.view(ones).sum(axis=(4, 5))
    return np.asarray(window.view(x).sum(axis=(4, 5)) / count)


def fully_connected(x: Floats, weights: Array) -> Floats:
    """Multiply by weights (out, in), widening a few rows at a time to bound memory."""
    parts = [
        x @ weights[start : start + _ROWS].astype(np.float64).T for start in range(0, len(weights), _ROWS)
    ]
    return np.concatenate(parts, axis=-1)


def activate(x: Floats, activation: str) -> Floats:
    """Apply a fused activation: ``NONE``, ``RELU`` or ``RELU6``."""
    if activation == "NONE":
        return x
    upper = {"RELU": np.inf, "RELU6": 6.0}[activation]
    return np.clip(x, 0.0, upper)


def softmax(x: Floats) -> Floats:
    """Normalised exponentials over the last dimension."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def logistic(x: Floats) -> Floats:
    """Sigmoid, by way of tanh, which can not overflow."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))


def gelu(x: Floats) -> Floats:
    """Gaussian error linear unit, x * Phi(x).

    The error function is approximated to 1.5e-7.

    References
    ----------
    M. Abramowitz, I. A. Stegun: Handbook of Mathematical Functions, formula 7.1.26.
    """
    z = np.abs(x) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * z)
    coefficients = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    series = np.zeros_like(t)
    for coefficient in coefficients:
        series = (series + coefficient) * t
    erf = np.sign(x) * (1.0 - series * np.exp(-z * z))
    return np.asarray(0.5 * x * (1.0 + erf))


def local_response_normalization(x: Floats, *, radius: int, bias: float, alpha: float, beta: float) -> Floats:
    """Divide by a power of the energy in neighbouring channels."""
    squares = np.pad(x * x, [(0, 0)] * (x.ndim - 1) + [(radius, radius)])
    energy = np.zeros_like(x)
    for shift in range(2 * radius + 1):
        energy += squares[..., shift : shift + x.shape[-1]]
    return np.asarray(x / (bias + alpha * energy) ** beta)


def round_statistic(value: Floats) -> Floats:
    """Keep 12 significant bits, so that the last digits of a sum do not reach the file."""
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.round(mantissa * 4096.0) / 4096.0, exponent)
