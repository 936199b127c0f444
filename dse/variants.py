"""Whether slots with other kernels, and accelerators, give the model's outputs: tried before the search.

What is fast but wrong has no place in a search; its slots are masked, with the reason, and the rest
goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dse.costs import CostTable
from dse.errors import DeviceError, MismatchError
from dse.graph import LayerGraph
from dse.inputs import Frame
from dse.pipeline.plan import PipelinePlan, whole_model_plan
from dse.platforms import Platform, Slot
from dse.progress import Progress
from dse.validation import check_outputs, moving_frames

if TYPE_CHECKING:
    from dse.flatbuffer.reader import ModelFile

N_FRAMES = 4


def mask_unsound(
    file: ModelFile, graph: LayerGraph, platform: Platform, costs: CostTable, seed: int, progress: Progress
) -> CostTable:
    """Mask the slots whose kernels or accelerator do not give the whole model's outputs.

    The whole model runs once with each, on real inputs, and is compared with the usual kernels (within
    the tolerance for other kernels, see ``dse.validation``).

    Parameters
    ----------
    file, graph
        The model.
    platform
        The machine.
    costs
        Whose slots are tried.
    seed
        Of the inputs.
    progress
        Told about every way.

    Returns
    -------
    CostTable
        Layers on masked slots are unsupported, and the reason says why.
    """
    ways: dict[tuple[str, str], list[Slot]] = {}
    for slot in costs.slots:
        device = platform.cluster(slot.cluster).kind
        if device != "cpu" or slot.kernels != "default":
            ways.setdefault((device, slot.kernels), []).append(slot)
    ways = {way: slots for way, slots in ways.items() if _has_costs(costs, slots)}
    if not ways:
        return costs
    usual = whole_model_plan("usual kernels", graph, file.path, "cpu", [platform.cpu_cores[:1]])
    frames, _ = moving_frames(file.path, graph, usual, N_FRAMES, seed)
    masked: dict[Slot, str] = {}
    with progress.task("checking other kernels", len(ways)) as task:
        for slots in ways.values():
            slot = min(slots, key=lambda slot: slot.threads)
            if reason := _fault(file.path, _plan(usual, platform, slot), frames):
                progress.log(f"{', '.join(map(str, slots))}: left out: {reason}")
                masked.update(dict.fromkeys(slots, reason))
            task.advance(1, str(slot))
    return costs.without(masked)


def _has_costs(costs: CostTable, slots: Sequence[Slot]) -> bool:
    columns = [costs.slots.index(slot) for slot in slots]
    return any(row[column].median_ns is not None for row in costs.costs for column in columns)


def _plan(usual: PipelinePlan, platform: Platform, slot: Slot) -> PipelinePlan:
    """Return the plan of the whole model on a slot."""
    cluster = platform.cluster(slot.cluster)
    if not cluster.is_accelerator:
        cores = cluster.core_ids[: slot.threads]
    else:
        cores = () if cluster.host is None else platform.cluster(cluster.host.cluster).core_ids[:1]
    lane = usual.lanes[0]
    stage = replace(
        lane.stages[0],
        cluster=cluster.name,
        cores=cores,
        threads=slot.threads,
        kernels=slot.kernels,
        device=cluster.kind,
    )
    return replace(usual, name=f"whole, {slot}", lanes=(replace(lane, stages=(stage,)),))


def _fault(model: Path, plan: PipelinePlan, frames: Sequence[Frame]) -> str:
    """Say what is wrong with a way to run, or nothing."""
    try:
        check_outputs(model, plan, frames, same_kernels=False)
    except MismatchError as error:
        return f"its outputs are not the model's: {str(error).partition(': ')[2]}"
    except DeviceError as error:
        return str(error).splitlines()[0]
    return ""
