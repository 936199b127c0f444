"""Frames and the outputs that belong to them: what a bundle is checked with where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dse.graph import LayerGraph
from dse.pipeline.engine import Array
from dse.pipeline.plan import PipelinePlan
from dse.validation.outputs import moving_frames, whole_outputs

FLOAT_TOLERANCE = 1e-3
"""Allowed difference of floating-point outputs, as a share of the output's range over all frames.

Wider than for split against whole on one machine: kernels of another processor round otherwise.
"""

STEP_TOLERANCE = 2
"""Allowed difference of 8- and 16-bit outputs, in quantisation steps; others must be equal."""

N_FRAMES = 4


@dataclass(frozen=True, slots=True)
class Reference:
    """Inputs and outputs of the whole model.

    Parameters
    ----------
    inputs, outputs
        Per tensor of the model one array, frames along the first axis; frames follow each other
        from a fresh state.
    tolerances
        Allowed absolute difference per output.
    moved
        Whether the frames move the outputs: else agreement says little.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    tolerances: tuple[float, ...]
    moved: bool

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return len(self.inputs[0]) if self.inputs else len(self.outputs[0])

    @property
    def frames(self) -> list[tuple[Array, ...]]:
        """The inputs, frame by frame."""
        return list(zip(*self.inputs))

    def write(self, folder: Path) -> None:
        """Write ``input_N.npy`` and ``output_N.npy`` (version 1.0 of the format, row by row)."""
        folder.mkdir()
        for side, arrays in (("input", self.inputs), ("output", self.outputs)):
            for number, values in enumerate(arrays):
                np.save(folder / f"{side}_{number}.npy", np.ascontiguousarray(values), allow_pickle=False)


def make_reference(whole_model: Path, graph: LayerGraph, plan: PipelinePlan, seed: int) -> Reference:
    """Make frames and run the whole model on them, in a child process.

    Raises
    ------
    InputError, DeviceError
        No frame can be made for an input, or the model does not run.
    """
    frames, moved = moving_frames(whole_model, graph, plan, N_FRAMES, seed)
    results = whole_outputs(whole_model, plan, frames)
    inputs = tuple(np.stack(values) for values in zip(*frames))
    outputs = tuple(np.stack(values) for values in zip(*results))
    return Reference(inputs, outputs, tuple(_tolerance(values) for values in outputs), moved)


def _tolerance(values: Array) -> float:
    if values.dtype.kind in "iub":
        return float(STEP_TOLERANCE if values.dtype.itemsize <= 2 and values.dtype.kind != "b" else 0)
    finite = np.abs(values) if values.dtype.kind == "c" else values
    finite = finite[np.isfinite(finite)]
    return FLOAT_TOLERANCE * float(finite.max() - finite.min()) if finite.size else 0.0
