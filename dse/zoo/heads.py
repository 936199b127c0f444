"""What image classifiers end with."""

from __future__ import annotations

from dse.zoo.builder import Builder
from dse.zoo.draft import DraftTensor
from dse.zoo.images import global_mean
from dse.zoo.vectors import fully_connected, softmax

# Size of the logits before those of the sample frames are taken away: what is left for another frame
# moves the probabilities and does not make one class certain.
LOGIT_GAIN = 1.0


def classifier(net: Builder, x: DraftTensor, classes: int) -> DraftTensor:
    """Draw a global mean over the image, one matrix and softmax."""
    return probabilities(net, global_mean(net, x, name="head/pool"), classes)


def probabilities(net: Builder, features: DraftTensor, classes: int, *, name: str = "head") -> DraftTensor:
    """Draw one matrix and softmax."""
    logits = fully_connected(net, features, classes, name=f"{name}/logits", gain=LOGIT_GAIN, centred=True)
    return softmax(net, logits, name=f"{name}/probabilities")
