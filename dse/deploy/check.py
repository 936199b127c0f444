"""Whether a bundle is what it was when it was made, and gives the outputs that it should give here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dse.deploy.checksums import check_sums, sha256_of
from dse.deploy.linux import run as runner
from dse.errors import InputError, MismatchError
from dse.mapping_file import read_mapping
from dse.pipeline.plan import LanePlan, PipelinePlan, Port, StagePlan
from dse.pipeline.supervise import Pipeline


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """What was checked.

    Parameters
    ----------
    n_files
        Files whose checksum is right.
    n_frames
        Reference frames that went through every lane; 0 when nothing was run.
    worst
        Per output of the model the largest difference from the reference, as a share of what is allowed.
    """

    n_files: int
    n_frames: int = 0
    worst: tuple[float, ...] = ()


def check_bundle(folder: Path, *, run: bool = True) -> BundleCheck:
    """Check a bundle.

    Parameters
    ----------
    folder
        The bundle.
    run
        Also run the reference frames through every lane, on this machine.

    Raises
    ------
    InputError
        Not a bundle, or files are missing or were changed; or this machine lacks its cores.
    MismatchError
        An output differs from the reference by more than its tolerance.
    DeviceError
        A stage does not run.
    """
    names = check_sums(folder)
    read_mapping(folder / "mapping.yaml")
    try:
        told = runner.Plan(folder)
        inputs = runner.load_arrays(folder / "reference", told.inputs, "input")
        expected = runner.load_arrays(folder / "reference", told.outputs, "output")
    except runner.BadInputError as error:
        raise InputError(str(error)) from None
    if told.mapping != sha256_of(folder / "mapping.yaml"):
        raise InputError(f"{folder}: plan.txt does not belong to this mapping.yaml: export the bundle again")
    if not run:
        return BundleCheck(len(names))
    plan = _pipeline_plan(folder, told)
    lacking = sorted(set(plan.cores) - os.sched_getaffinity(0))
    if lacking:
        raise InputError(
            f"{folder}: its stages want cores {lacking}, which this process may not use: "
            f"run its own verify step on the target, or check the files only (--files-only)"
        )
    frames = list(zip(*inputs))
    worst = [0.0] * len(plan.outputs)
    with Pipeline(plan, frames) as pipeline:
        for number, found in enumerate(pipeline.collect(len(frames))):
            for at, tolerance in enumerate(told.tolerances):
                ours = np.stack([outputs[at] for outputs in found])
                gap = runner.largest_difference(ours, expected[at])
                if gap > tolerance:
                    raise MismatchError(
                        f"{folder}: lane {number}: output {plan.outputs[at].name!r} differs from the "
                        f"reference by up to {gap:.3g}, allowed {tolerance:.3g}"
                    )
                worst[at] = max(worst[at], gap / tolerance if tolerance else 0.0)
    return BundleCheck(len(names), len(frames), tuple(worst))


def _pipeline_plan(folder: Path, told: runner.Plan) -> PipelinePlan:
    """Return the plan of ``plan.txt`` for the product's own pipeline, which adds the clusters' names."""
    clusters = {stage.name: stage for stage in read_mapping(folder / "mapping.yaml").mapping.stages}

    def stage(one: runner.Stage) -> StagePlan:
        placed = clusters[one.name]
        ports = _ports(one.takes), _ports(one.gives)
        return StagePlan(
            one.name, one.path, placed.cluster, tuple(sorted(one.cores)), one.threads, *ports, placed.kernels
        )

    lanes = tuple(LanePlan(tuple(stage(one) for one in lane)) for lane in told.lanes)
    return PipelinePlan(folder.name, lanes, _ports(told.inputs), _ports(told.outputs), told.stateful)


def _ports(ports: Sequence[runner.Port]) -> tuple[Port, ...]:
    return tuple(Port(p.key, p.name, p.dtype.name, p.shape, p.n_bytes) for p in ports)
