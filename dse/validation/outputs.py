"""Whether the stages give the whole model's outputs.

Split and whole model run under the same kernels in the same kind of process, several frames in a
row, so that state is compared too.  Outputs should be bit-equal; where fusing differs at a cut,
floating-point values may differ in the last digits, so there is a tolerance and it is reported.
A lane of several kernel libraries, or with an accelerator, has no whole under the same kernels: it is
compared with the usual ones, and the tolerance is larger.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dse.errors import MismatchError
from dse.graph import LayerGraph
from dse.inputs import STYLES, Frame, make_frames
from dse.pipeline.engine import Array
from dse.pipeline.plan import LanePlan, PipelinePlan, StagePlan
from dse.pipeline.supervise import Pipeline
from dse.platforms import KERNELS, Kernels

FLOAT_TOLERANCE = 1e-4
"""Allowed difference of floating-point outputs, as a share of the output's range over all frames."""

OTHER_FLOAT_TOLERANCE = 2e-2
"""The same where the split runs other kernels than the whole: half-precision arithmetic of a GPU."""

STEP_TOLERANCE = 1
"""Allowed difference of 8- and 16-bit outputs, in quantisation steps; wider integers must be equal."""

OTHER_STEP_TOLERANCE = 32
"""The same where the split runs other kernels: quantised results of the libraries differ by dozens."""

_MANY = 128
_MANY_BYTES = 16 << 20
_MOVED = 10  # outputs count as moved when they change by this many tolerances


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One output of the model, split against whole.

    Parameters
    ----------
    name
        Of the output.
    max_difference
        Largest absolute difference over all frames (in steps for integers).
    tolerance
        What is allowed, in the same unit.
    value_range
        Largest minus smallest value of the whole model's output over all frames.
    unit
        ``steps`` or ``values``.
    bit_equal
        Whether nothing differs at all.
    moved
        Whether different frames gave noticeably different values.
    frame
        The frame with the largest difference.
    """

    name: str
    max_difference: float
    tolerance: float
    value_range: float
    unit: str
    bit_equal: bool
    moved: bool
    frame: int

    @property
    def ok(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.max_difference <= self.tolerance

    def __str__(self) -> str:
        if self.bit_equal:
            return f"{self.name}: bit-equal"
        return (
            f"{self.name}: differs by up to {self.max_difference:.3g} {self.unit} (frame {self.frame}; "
            f"allowed {self.tolerance:.3g}, range of the output {self.value_range:.3g})"
        )


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """Outcome of a comparison of split and whole model."""

    n_frames: int
    outputs: tuple[OutputDifference, ...]
    others: tuple[str, ...] = ()
    """Kernel libraries and accelerators that ran the split, where they differ from the whole's."""

    @property
    def bit_equal(self) -> bool:
        """Whether all outputs are equal to the last bit."""
        return all(output.bit_equal for output in self.outputs)

    @property
    def outputs_moved(self) -> bool:
        """Whether the frames changed at least one output: else the check says little."""
        return any(output.moved for output in self.outputs)

    @property
    def ok(self) -> bool:
        """Whether all outputs are within their tolerance."""
        return all(output.ok for output in self.outputs)

    def __str__(self) -> str:
        if self.bit_equal:
            text = f"split equals whole to the last bit on {self.n_frames} frames"
        else:
            worst = max(self.outputs, key=lambda o: o.max_difference / (o.tolerance or 1e-30))
            by = f" of other kernels ({', '.join(self.others)})" if self.others else ""
            text = f"split equals whole within tolerance{by} on {self.n_frames} frames ({worst})"
        if not self.outputs_moved:
            text += "; the frames did not move the outputs, so this says little"
        return text


def check_outputs(
    whole_model: Path,
    plan: PipelinePlan,
    frames: Sequence[Frame],
    *,
    engine: str = "auto",
    same_kernels: bool = True,
) -> OutputCheck:
    """Compare the stages of a plan with the whole model, several frames in a row.

    Every lane that differs from the others is run as a real pipeline; where this machine lacks the
    plan's cores (a plan for another platform), its stages run one after another on one core.

    Parameters
    ----------
    whole_model
        The uncut model.
    plan
        The stages.
    frames
        Inputs, in order; see ``moving_frames``.
    engine
        How the stages run (see ``Pipeline``); the whole model runs in the interpreter, so this
        checks the engine as well.
    same_kernels
        Whether a lane of one kernel library is compared with the whole under the same; else with the
        whole under the usual kernels.

    Raises
    ------
    MismatchError
        An output differs by more than its tolerance; quotes output, numbers and frame.
    InputError, RuntimeRefusedError, ChildDiedError
        A stage can not be run.
    """
    lanes: dict[object, LanePlan] = {}
    for lane in plan.lanes:
        lanes.setdefault(way_of_running(lane), lane)
    available = os.sched_getaffinity(0)
    here = all(set(lane.cores) <= available for lane in lanes.values())
    found: OutputCheck | None = None
    expected: dict[tuple[int, Kernels], list[tuple[Array, ...]]] = {}
    for lane in lanes.values():
        alone = replace(plan, lanes=(lane if here else _on_one_core(lane, min(available)),))
        own = kernels_of(alone.lanes[0])
        kernels = _reference(own) if same_kernels else "default"
        threads = max((stage.threads for stage in alone.lanes[0].stages if not stage.is_apart), default=1)
        if (threads, kernels) not in expected:
            whole = _whole(whole_model, alone, threads, kernels)
            expected[threads, kernels] = _run(whole, frames, "interpreter")
        others = tuple(sorted(own)) if own != {kernels} else ()
        check = compare(alone, expected[threads, kernels], _run(alone, frames, engine), others)
        for output in check.outputs:
            if not output.ok:
                raise MismatchError(
                    f"plan {plan.name!r}: the stages do not give the outputs of {whole_model.name}: "
                    f"{output}. Stages: {', '.join(f'{s.name} ({s.model_path.name})' for s in lane.stages)}"
                    f"{f'; run with {_and(others)} against {kernels}' if others else ''}"
                )
        found = check if found is None else _worse(found, check)
    assert found is not None  # noqa: S101 - a plan has lanes
    return found


def way_of_running(lane: LanePlan) -> object:
    """Return what lanes have in common that give the same outputs: files, threads and kernels."""
    return tuple((str(s.model_path), s.threads, s.kernels, s.device) for s in lane.stages)


def kernels_of(lane: LanePlan) -> frozenset[str]:
    """Return the kernel libraries and accelerators that run a lane."""
    return frozenset(s.device if s.is_apart else s.kernels for s in lane.stages)


def needs_check(lane: LanePlan) -> bool:
    """Whether a lane may give other outputs than the whole model as everybody runs it."""
    return len(lane.stages) > 1 or kernels_of(lane) != {"default"}


def _reference(own: frozenset[str]) -> Kernels:
    """Return the kernels of the whole model to compare with.

    A lane that runs one kernel library throughout is compared with the whole under the same; a mix, and
    whatever runs on an accelerator, with the usual kernels.
    """
    return next((kernels for kernels in KERNELS if own == {kernels}), "default")


def _and(names: Sequence[str]) -> str:
    return " and ".join(f"{name} kernels" if name in KERNELS else f"the {name}" for name in names)


def compare(
    plan: PipelinePlan,
    whole: Sequence[tuple[Array, ...]],
    split: Sequence[tuple[Array, ...]],
    others: tuple[str, ...] = (),
) -> OutputCheck:
    """Compare two series of outputs, frame by frame; pure.

    Parameters
    ----------
    plan
        Names the outputs.
    whole, split
        Outputs by frame.
    others
        What ran the split, where that is not what ran the whole: then differences are larger, and
        ``OTHER_FLOAT_TOLERANCE`` and ``OTHER_STEP_TOLERANCE`` count.

    Raises
    ------
    MismatchError
        The series differ in number, type or shape.
    """
    if len(whole) != len(split):
        raise MismatchError(f"plan {plan.name!r}: {len(split)} frames came out, expected {len(whole)}")
    found = []
    for number, port in enumerate(plan.outputs):
        ours = [frame[number] for frame in split]
        theirs = [frame[number] for frame in whole]
        if any(a.dtype != b.dtype or a.shape != b.shape for a, b in zip(ours, theirs)):
            raise MismatchError(
                f"plan {plan.name!r}: output {port.name!r} is {ours[0].dtype}{ours[0].shape}, "
                f"expected {theirs[0].dtype}{theirs[0].shape}"
            )
        name = port.name or str(port.tensor)
        found.append(_difference(name, np.stack(theirs), np.stack(ours), same=not others))
    return OutputCheck(len(whole), tuple(found), others)


def moving_frames(
    whole_model: Path, graph: LayerGraph, plan: PipelinePlan, n: int, seed: int
) -> tuple[tuple[Frame, ...], bool]:
    """Make frames that move the model's outputs, trying one style after another.

    A model with state may answer only after a while, so more than ``n`` frames may come back.

    Parameters
    ----------
    whole_model, graph
        The model.
    plan
        Any plan of it: gives inputs, outputs and a core to run on.
    n, seed
        See ``make_frames``.

    Returns
    -------
    frames, moved
        The first style that moves the outputs, or the first style at all and False.
    """
    plan = _here(plan)
    candidates = []
    frame_bytes = sum(graph.tensors[index].n_bytes for index in graph.inputs)
    tries = [(style, n) for style in STYLES]
    if graph.stateful and _MANY * frame_bytes <= _MANY_BYTES:
        tries.append(("held", max(n, _MANY)))
    for style, count in tries:
        frames = make_frames(graph, count, seed, style=style)
        outputs = _run(_whole(whole_model, plan, 1), frames, "interpreter")
        if compare(plan, outputs, outputs).outputs_moved:
            return frames, True
        candidates.append(frames)
    return candidates[0], False


def whole_outputs(whole_model: Path, plan: PipelinePlan, frames: Sequence[Frame]) -> list[tuple[Array, ...]]:
    """Run the uncut model on frames, in order from a fresh state, in a child process.

    Parameters
    ----------
    plan
        Any plan of the model: gives inputs, outputs and, where this machine has it, a core.
    """
    return _run(_whole(whole_model, _here(plan), 1), frames, "interpreter")


def _here(plan: PipelinePlan) -> PipelinePlan:
    """Return a plan whose first lane can run on this machine."""
    available = os.sched_getaffinity(0)
    if plan.lanes[0].cores <= available:
        return plan
    return replace(plan, lanes=(_on_one_core(plan.lanes[0], min(available)),))


def _run(plan: PipelinePlan, frames: Sequence[Frame], engine: str) -> list[tuple[Array, ...]]:
    with Pipeline(plan, frames, engine=engine) as pipeline:
        return pipeline.collect(len(frames))[0]


def _whole(model: Path, plan: PipelinePlan, threads: int, kernels: Kernels = "default") -> PipelinePlan:
    stages = [stage for stage in plan.lanes[0].stages if stage.cores] or list(plan.lanes[0].stages)
    first = next((s for s in stages if s.threads == threads and not s.is_apart), stages[0])
    cores = first.cores or (min(os.sched_getaffinity(0)),)
    stage = StagePlan("whole model", model, first.cluster, cores, threads, plan.inputs, plan.outputs, kernels)
    return PipelinePlan(
        f"{plan.name}, uncut", (LanePlan((stage,)),), plan.inputs, plan.outputs, plan.stateful
    )


def _on_one_core(lane: LanePlan, core: int) -> LanePlan:
    return LanePlan(tuple(replace(stage, cores=(core,), threads=1, device="cpu") for stage in lane.stages))


def _difference(
    name: str, whole: npt.NDArray[Any], split: npt.NDArray[Any], *, same: bool
) -> OutputDifference:
    integral = whole.dtype.kind in "iub"
    wide = np.complex128 if whole.dtype.kind == "c" else np.float64
    theirs, ours = whole.astype(wide), split.astype(wide)
    equal = (whole == split) | ((theirs != theirs) & (ours != ours))  # noqa: PLR0124 - true for NaN only
    with np.errstate(invalid="ignore"):
        gaps = np.where(equal, 0.0, np.abs(theirs - ours))
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
        if integral:  # of 64-bit numbers, neighbours may be the same number of 64-bit floating point
            gaps = np.where(equal, 0.0, np.maximum(gaps, 1.0))
        finite = np.abs(theirs[np.isfinite(theirs)]) if wide is np.complex128 else theirs[np.isfinite(theirs)]
        spread = float(finite.max() - finite.min()) if finite.size else 0.0
        changes = np.abs(theirs - theirs[:1])
    largest = gaps.reshape(len(gaps), -1).max(axis=1) if gaps.size else np.zeros(len(gaps))
    if integral:
        steps = STEP_TOLERANCE if same else OTHER_STEP_TOLERANCE
        tolerance = float(steps if whole.dtype.itemsize <= 2 and whole.dtype.kind != "b" else 0)
        moved = bool((changes > 0).any())
    else:
        tolerance = (FLOAT_TOLERANCE if same else OTHER_FLOAT_TOLERANCE) * spread
        moved = bool((changes > _MOVED * FLOAT_TOLERANCE * spread).any()) and spread > 0
    frame = int(largest.argmax())
    return OutputDifference(
        name=name,
        max_difference=float(largest[frame]),
        tolerance=tolerance,
        value_range=spread,
        unit="steps" if integral else "values",
        bit_equal=whole.tobytes() == split.tobytes(),
        moved=moved,
        frame=frame,
    )


def _worse(one: OutputCheck, other: OutputCheck) -> OutputCheck:
    pairs = zip(one.outputs, other.outputs)
    return OutputCheck(
        one.n_frames,
        tuple(a if a.max_difference >= b.max_difference else b for a, b in pairs),
        tuple(sorted({*one.others, *other.others})),
    )
