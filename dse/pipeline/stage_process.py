"""Processes of single stages, as the parent starts them; see ``apart`` and ``accelerator``."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dse.devices.accelerators import child_environment
from dse.devices.child import Child
from dse.errors import DeviceError, DseError, RuntimeRefusedError
from dse.pipeline.answering import KINDS
from dse.pipeline.apart import Meeting
from dse.pipeline.network import ring_length
from dse.pipeline.plan import PipelinePlan, stage_to_json
from dse.pipeline.shared import make_shared_file

MEMORY = ("rss_bytes", "peak_rss_bytes")


@dataclass(frozen=True)
class StageProcess:
    """A stage in its own process, built and waiting for its lane.

    Parameters
    ----------
    lane, stage
        Which stage.
    child
        The process.
    meeting
        Where the lane meets it.
    answer
        What it told about itself when it was built.
    """

    lane: int
    stage: int
    child: Child
    meeting: Meeting
    answer: dict[str, Any]


def start_stage(
    plan: PipelinePlan, lane: int, stage: int, folder: Path, queue_depth: int, timeout_s: float
) -> StageProcess:
    """Start the process of a stage and build the stage in it.

    Parameters
    ----------
    plan, lane, stage
        Which one.
    folder
        For pipes and logs.
    queue_depth
        Frames that may wait in front of a stage.
    timeout_s
        For building: compiling for an accelerator takes seconds.

    Raises
    ------
    RuntimeRefusedError
        It can not be built; names plan, lane and stage.  Nothing else can take its place, so it is
        no matter for another engine.
    """
    one = plan.lanes[lane].stages[stage]
    name = f"{one.name} on {one.cluster}, lane {lane} of plan {plan.name!r}"
    meeting = _make_meeting(plan, lane, stage, folder, queue_depth)
    child = Child(
        "dse.pipeline.accelerator",
        ["--cores", ",".join(map(str, one.cores))],
        log_path=folder / f"stage-{lane}-{stage}.log",
        name=name,
        env=child_environment(),
    )
    request = {
        "command": "build",
        "stage": stage_to_json(one),
        "meeting": meeting.to_json(),
        "folder": str(folder),
    }
    try:
        answer = read_answer(child, child.request(request, timeout_s=timeout_s, doing="building the stage"))
        child.send({"command": "attend"})
    except DseError as error:
        child.kill()
        child.close()
        meeting.shared.unlink(missing_ok=True)
        text = str(error) if str(error).startswith(name) else f"{name}: {error}"
        raise RuntimeRefusedError(text) from None
    except BaseException:
        child.kill()
        child.close()
        meeting.shared.unlink(missing_ok=True)
        raise
    known = replace(
        meeting,
        engine=str(answer["engine"]),
        fallback=str(answer["fallback"]),
        depth=int(answer["depth"]),
    )
    return StageProcess(lane, stage, child, known, answer)


def read_answer(child: Child, answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, or raise the failure that it tells as what it is."""
    if "failed" in answer:
        kind = KINDS.get(answer["failed"]["kind"], DeviceError)
        raise kind(f"{child.name}: {answer['failed']['message']}")
    return answer


def _make_meeting(plan: PipelinePlan, lane: int, stage: int, folder: Path, queue_depth: int) -> Meeting:
    one = plan.lanes[lane].stages[stage]
    ask, told = (folder / f"{kind}-{lane}-{stage}" for kind in ("ask", "told"))
    for pipe in (ask, told):
        os.mkfifo(pipe, 0o600)
    n_slots = ring_length(plan.lanes[lane], plan.outputs, stage, queue_depth)
    return Meeting(ask, told, make_shared_file(one.inputs, one.outputs, n_slots, folder), n_slots)
