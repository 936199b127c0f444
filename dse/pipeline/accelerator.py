"""The process of one stage on an accelerator (``python -m dse.pipeline.accelerator --cores 0``).

It is driven from its main thread.  Requests of the parent, answered as a lane's are:

``build``   ``stage`` (JSON form), ``meeting`` (``apart.Meeting``), ``folder`` (of temporary files)
``attend``  work for the lane until the end; answered only when the stage fails
"""

from __future__ import annotations

import argparse
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dse.devices.accelerated import IN_FLIGHT, AcceleratedModel
from dse.devices.litert_c import find_ports
from dse.devices.serving import serve
from dse.errors import AffinityError, RuntimeRefusedError
from dse.pipeline.affinity import read_mask, thread_ids
from dse.pipeline.answering import memory_now, named_faults, remove_when_orphaned
from dse.pipeline.apart import SLOT_BYTES, TIME_BYTES, Meeting
from dse.pipeline.engine import Array, wanted_ports
from dse.pipeline.nodes import StageFailedError
from dse.pipeline.plan import StagePlan, stage_from_json


class AcceleratedStage:
    """A stage on the GPU of the runtime's compiled-model interface.

    Parameters
    ----------
    plan
        The stage.

    Raises
    ------
    RuntimeRefusedError
        There is no GPU, it refuses the stage, or it sees other ports.
    """

    kind = "gpu"
    depth = IN_FLIGHT

    def __init__(self, plan: StagePlan) -> None:
        self._model = AcceleratedModel(plan.model_path, max(1, len(plan.cores)))
        left = "; ".join(self._model.fallback)
        self.fallback = f"a part of it is left to the CPU ({left})" if left else ""
        self._ins = find_ports(wanted_ports(plan.inputs), self._model.inputs, f"{plan.name}, inputs")
        self._outs = find_ports(wanted_ports(plan.outputs), self._model.outputs, f"{plan.name}, outputs")

    def start(self, inputs: Sequence[Array], of: int) -> int:
        """Hand over the inputs and start; return how long the first took, in nanoseconds."""
        begin = time.monotonic_ns()
        for place, values in zip(self._ins, inputs):
            self._model.upload(place, values, of)
        uploaded = time.monotonic_ns()
        self._model.start(of)
        return uploaded - begin

    def finish(self, outputs: Sequence[Array], of: int) -> None:
        """Read the outputs back, which waits until they are there."""
        for place, slot in zip(self._outs, outputs):
            self._model.download(place, slot, of)


class _Stage:
    """State of the process: the stage once it is built."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._folder: Path | None = None
        self._parent = os.getppid()

    def clean(self) -> None:
        """Remove the parent's temporary folder when the parent was killed and can not."""
        remove_when_orphaned(self._folder, self._parent)

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        self._plan = stage_from_json(request["stage"])
        self._folder = Path(request["folder"])
        meeting = Meeting.from_json(request["meeting"])
        self._inputs, self._outputs = meeting.slots(self._plan)
        before = memory_now()
        self._stage = stage_for(self._plan)
        first_ns = self._first_invocation()
        self._ask, self._told = meeting.pipes()
        return {
            "engine": self._stage.kind,
            "fallback": self._stage.fallback,
            "depth": self._stage.depth,
            "first_invoke_ns": first_ns,
            "threads": self._masks(),
            "before": before,
            **memory_now(),
        }

    def attend(self, _: dict[str, Any]) -> dict[str, Any]:
        """Start frames as they come, and finish them in order while others are under way."""
        begun = 0
        waiting: deque[tuple[int, int, int]] = deque()  # slot, set of buffers, time of the inputs
        while True:
            slot = self._next_slot(block=not waiting)
            frame = begun - len(waiting) if slot is None else begun
            try:
                if slot is not None:
                    of = begun % self._stage.depth
                    waiting.append((slot, of, self._stage.start(self._inputs[slot], of)))
                    begun += 1
                    if len(waiting) < self._stage.depth:
                        continue
                slot, of, took_ns = waiting.popleft()
                self._stage.finish(self._outputs[slot], of)
            except Exception as error:
                raise StageFailedError(
                    f"{self._plan.name} failed on frame {frame} since it was built: "
                    f"{type(error).__name__}: {error}"
                ) from error
            os.write(self._told, took_ns.to_bytes(TIME_BYTES, "little"))

    def _next_slot(self, *, block: bool) -> int | None:
        """Return the slot of the next request, or None when there is none yet."""
        if not block and not select.select([self._ask], [], [], 0)[0]:
            return None
        return int.from_bytes(os.read(self._ask, SLOT_BYTES), "little")

    def _first_invocation(self) -> int:
        begin = time.monotonic_ns()
        try:
            self._stage.start(self._inputs[0], 0)
            self._stage.finish(self._outputs[0], 0)
        except Exception as error:
            raise StageFailedError(
                f"{self._plan.name} failed on its first frame: {type(error).__name__}: {error}"
            ) from error
        return time.monotonic_ns() - begin

    def _masks(self) -> list[dict[str, Any]]:
        """Read back where the threads may run; a driver may place its own threads as it likes."""
        main, found = os.getpid(), []
        wanted = self._cores or read_mask(main)
        for tid in sorted(thread_ids()):
            got = read_mask(tid)
            if tid == main and set(got) != set(wanted):
                raise AffinityError(f"{self._plan.name}: its process may run on cores {got}, wanted {wanted}")
            role = "stage" if tid == main else "driver"
            found.append(
                {"stage": self._plan.name, "tid": tid, "role": role, "wanted": list(wanted), "got": list(got)}
            )
        return found


def stage_for(plan: StagePlan) -> AcceleratedStage:
    """Build a stage on its accelerator.

    Raises
    ------
    RuntimeRefusedError
        See ``AcceleratedStage``; or there is no way to drive such an accelerator.
    """
    if plan.device != "gpu":
        raise RuntimeRefusedError(f"{plan.name}: the runtime can not drive a stage on a {plan.device}")
    return AcceleratedStage(plan)


def main() -> None:
    """Pin the process before it loads anything, and answer requests until the end of input."""
    parser = argparse.ArgumentParser(prog="python -m dse.pipeline.accelerator")
    parser.add_argument("--cores", default="", help="comma-separated core numbers; none for any")
    text = parser.parse_args().cores
    cores = tuple(int(part) for part in text.split(",") if part)
    if cores:
        os.sched_setaffinity(0, cores)
    stage = _Stage(cores)
    serve({"build": named_faults(stage.build), "attend": named_faults(stage.attend)}, stage.clean)


if __name__ == "__main__":
    main()
