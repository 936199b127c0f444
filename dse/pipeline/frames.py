"""Frames checked against the model's inputs before they are run."""

from __future__ import annotations

from collections.abc import Sequence

from dse.errors import InputError
from dse.pipeline.engine import Array, numpy_type
from dse.pipeline.plan import PipelinePlan


def check_frame(plan: PipelinePlan, frame: Sequence[Array]) -> None:
    """Check one frame; see ``check_frames``."""
    check_frames(plan, (frame,))


def check_frames(plan: PipelinePlan, frames: Sequence[Sequence[Array]]) -> None:
    """Check prepared frames against the inputs of a plan.

    Raises
    ------
    InputError
        There is none, or one has another number, type or shape of arrays.
    """
    if not frames:
        raise InputError(f"plan {plan.name!r}: expected at least one frame to run")
    for number, frame in enumerate(frames):
        if len(frame) != len(plan.inputs):
            raise InputError(
                f"plan {plan.name!r}: frame {number} has {len(frame)} arrays, "
                f"the model {len(plan.inputs)} inputs"
            )
        for port, values in zip(plan.inputs, frame):
            wanted, got = (numpy_type(port), port.shape), (values.dtype, values.shape)
            if wanted != got:
                raise InputError(
                    f"plan {plan.name!r}: frame {number} has {got[0]}{got[1]} for input {port.name!r}, "
                    f"expected {wanted[0]}{wanted[1]}"
                )
