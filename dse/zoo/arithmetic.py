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


@dataclass(frozen=True, slots=True)
class Window:
    """A square window that slides over an image.

    Parameters
    ----------
    kernel, stride
        Width of the window and step, in pixels.
    padding
        ``SAME`` (output = input size / stride, rounded up) or ``VALID`` (inside the image only).
    """

    kernel: int
    stride: int = 1
    padding: str = "SAME"

    def pads(self, size: int) -> tuple[int, int]:
        """Return how many pixels are put before and after a dimension of this size."""
        if self.padding == "VALID":
            return 0, 0
        total = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
        return total // 2, total - total // 2

    def out_size(self, size: int) -> int:
        """Return the number of places of the window along a dimension of this size."""
        return (size + sum(self.pads(size)) - self.kernel) // self.stride + 1

    def view(self, x: Floats, fill: float = 0.0) -> Array:
        """Return a view (batch, rows, columns, channels, kernel, kernel) of all places."""
        pads = [self.pads(size) for size in x.shape[1:3]]
        if any(sum(pair) for pair in pads):
            x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(x, (self.kernel, self.kernel), axis=(1, 2))
        return view[:, :: self.stride, :: self.stride]


def conv2d(x: Floats, weights: Array, window: Window) -> Floats:
    """Convolve, without bias: one matrix product per kernel position, or one in all when that is small."""
    kernel, channels = window.kernel, weights.shape[3]
    wide = weights.astype(np.float64)
    view = window.view(x)
    if kernel == 1:
        return np.asarray(view[..., 0, 0] @ wide[:, 0, 0].T)
    if channels * kernel <= 64:
        rows = view.transpose(0, 1, 2, 4, 5, 3).reshape(*view.shape[:3], -1)
        return np.asarray(rows @ wide.reshape(len(wide), -1).T)
    total = np.zeros((*view.shape[:3], len(wide)))
    for row in range(kernel):
        for column in range(kernel):
            total += np.ascontiguousarray(view[..., row, column]) @ wide[:, row, column].T
    return total


def depthwise_conv2d(x: Floats, weights: Array, window: Window) -> Floats:
    """Convolve each channel with its own kernel; weights (1, height, width, channels)."""
    kernel = window.kernel
    view = window.view(x)
    total = np.zeros(view.shape[:4])
    for row in range(kernel):
        for column in range(kernel):
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
    best = view[..., 0, 0].copy()
    for row in range(window.kernel):
        for column in range(window.kernel):
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
