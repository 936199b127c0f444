"""Frames checked against the model's inputs before they are run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dse.errors import InputError
from dse.pipeline.engine import Array, numpy_type
from dse.pipeline.plan import PipelinePlan


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
        check_frame(plan, frame, number)


def check_frame(plan: PipelinePlan, frame: Sequence[Array], number: int) -> None:
    """Check one frame, which messages call by its number; see ``check_frames``."""
    where = f"plan {plan.name!r}: frame {number}"
    if not hasattr(frame, "__len__"):
        raise InputError(
            f"{where} is of type {type(frame).__name__}, expected a tuple of arrays, one per input"
        )
    if len(frame) != len(plan.inputs):
        raise InputError(f"{where} has {len(frame)} arrays, the model {len(plan.inputs)} inputs")
    for port, values in zip(plan.inputs, frame):
        wanted = numpy_type(port), port.shape
        is_array = isinstance(values, np.ndarray | np.generic)
        if not is_array or wanted != (values.dtype, values.shape):
            got = f"{values.dtype}{values.shape}" if is_array else f"a {type(values).__name__}"
            raise InputError(
                f"{where} has {got} for input {port.name!r}, expected an array {wanted[0]}{wanted[1]}"
            )
