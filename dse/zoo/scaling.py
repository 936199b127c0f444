"""How large random weights are, so that activations neither vanish nor explode through the depth.

A trained convolution network has batch normalisation (or weights that learned the same): every
channel before the non-linearity has about mean 0 and variance 1.  Random weights of a fixed size
do not: in deep ReLU networks nearly all of the signal ends up in a component that is the same for
every input, and the outputs stop moving.  So the mean and deviation per channel over a few sample
frames are folded into weights and bias, as a converter folds batch normalisation.

Only half of the mean is taken away.  With all of it a deep network of random weights is chaotic
(frames unlike the samples grow until one class is certain whatever the frame), with none of it the
outputs hardly move; half was found to work for every architecture of the zoo.

References
----------
S. Ioffe, C. Szegedy: Batch Normalization, ICML 2015.
D. Mishkin, J. Matas: All You Need Is a Good Init, ICLR 2016 (scaling layer by layer with data).
B. Poole et al.: Exponential expressivity in deep neural networks through transient chaos, NIPS 2016.
K. He et al.: Delving Deep into Rectifiers, ICCV 2015 (the fallback without samples).
"""

from __future__ import annotations

import numpy as np

from dse.zoo.arithmetic import Floats, round_statistic
from dse.zoo.draft import Array

BIAS_SIZE = 0.1
CENTRING = 0.5
# Fewer positions than this say little about a channel; the whole layer's size is used then.
MIN_POSITIONS = 8


def channel_scale(y: Floats, gain: float) -> tuple[Array, Array]:
    """Return (scale, offset) per channel that bring ``y`` to half its mean and deviation ``gain``.

    Parameters
    ----------
    y
        What the unscaled weights give for the sample frames; channels last.
    gain
        Deviation wanted, from half of the mean.

    Notes
    -----
    With fewer than ``MIN_POSITIONS`` values per channel the offset is 0 and the scale is the same
    for all channels: it brings the root mean square of the layer to ``gain``.
    """
    rows = y.reshape(-1, y.shape[-1])
    size = float(np.sqrt(np.mean(rows * rows))) or 1.0
    if len(rows) < MIN_POSITIONS:
        scale = round_statistic(np.full(y.shape[-1], gain / size))
        return scale, np.zeros_like(scale)
    centre = CENTRING * rows.mean(axis=0)
    # A channel that hardly varies is not blown up to noise.
    deviation = np.maximum(np.sqrt(np.mean((rows - centre) ** 2, axis=0)), 0.05 * size)
    scale = round_statistic(gain / deviation)
    return scale, -round_statistic(centre / deviation * gain)


def fan_in_scale(fan_in: int, gain: float) -> float:
    """Return the limit of uniform weights that keep the variance of a unit-variance input."""
    return gain * float(np.sqrt(3.0 / fan_in))
