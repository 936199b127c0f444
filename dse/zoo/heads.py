"""What image classifiers end with."""

from __future__ import annotations

from dse.zoo.builder import Builder
from dse.zoo.draft import DraftTensor
from dse.zoo.images import global_mean
from dse.zoo.vectors import fully_connected, softmax

# Size of the logits before those of the sample frames are taken away: what is left for another frame
# moves the probabilities and does not make one class certain.
LOGIT_GAIN = 1.0
# Probabilities in steps of 1/256 need classes that stand out more.
LOGIT_GAIN_INT8 = 2.0
# How much wider the ranges of the int8 form are than a few sample frames say, see ``quantize``.
HEADROOM = {"head/pool": 2.0, "head/logits": 6.0}


def classifier(net: Builder, x: DraftTensor, classes: int, gain: float = LOGIT_GAIN) -> DraftTensor:
    """Draw a global mean over the image, one matrix and softmax."""
    return probabilities(net, global_mean(net, x, name="head/pool"), classes, gain)


def probabilities(net: Builder, features: DraftTensor, classes: int, gain: float = LOGIT_GAIN) -> DraftTensor:
    """Draw one matrix and softmax; ``gain`` is the size of the logits, see ``LOGIT_GAIN``."""
    logits = fully_connected(net, features, classes, name="head/logits", gain=gain, centred=True)
    return softmax(net, logits, name="head/probabilities")
