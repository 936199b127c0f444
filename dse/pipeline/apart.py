"""A stage that runs in a process of its own: the lane's end of it.

An accelerator can only be driven from the main thread of a process, so its stage gets one
(``dse.pipeline.accelerator``).  In the lane a thread stands in for it: it copies a frame's inputs
into memory that both processes share, asks through a named pipe, and finds the outputs in the
stage's own ring, which lies in that memory too.  So order, back-pressure and watching are those of
any other stage.  Several frames may be with the accelerator at a time, since reading its outputs back
takes long.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dse.errors import DeviceError
from dse.pipeline.engine import Array
from dse.pipeline.plan import StagePlan
from dse.pipeline.shared import Slots, map_slots

SLOT_BYTES = 4
"""A request is the number of the slots to use, little endian."""

TIME_BYTES = 8
"""The answer, when the outputs are in their slot: nanoseconds that the inputs took to the accelerator."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a lane and the process of one of its stages meet.

    Parameters
    ----------
    ask, told
        Named pipes for requests and answers.
    shared
        File of the shared memory.
    n_slots
        How many slots it has, for inputs and for outputs.
    engine, fallback, depth
        How the stage runs there, what of it runs elsewhere, and how many frames it takes at a time;
        known when the process is built.
    """

    ask: Path
    told: Path
    shared: Path
    n_slots: int
    engine: str = ""
    fallback: str = ""
    depth: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "ask": str(self.ask),
            "told": str(self.told),
            "shared": str(self.shared),
            "n_slots": self.n_slots,
            "engine": self.engine,
            "fallback": self.fallback,
            "depth": self.depth,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Meeting:
        """Read the JSON form."""
        paths = Path(data["ask"]), Path(data["told"]), Path(data["shared"])
        told = str(data["engine"]), str(data["fallback"]), int(data["depth"])
        return cls(*paths, int(data["n_slots"]), *told)

    def slots(self, stage: StagePlan) -> tuple[Slots, Slots]:
        """Map the slots of the stage's inputs and of its outputs."""
        return map_slots(self.shared, stage.inputs, stage.outputs, self.n_slots)

    def pipes(self) -> tuple[int, int]:
        """Open both pipes, for both directions: then neither end waits for the other to open it."""
        return os.open(self.ask, os.O_RDWR), os.open(self.told, os.O_RDWR)


class ApartEngine:
    """Stands in for a stage in another process.

    Parameters
    ----------
    plan
        The stage.
    meeting
        Where the other process is met.
    inputs
        The shared slots of the inputs.
    """

    holds_inputs = False

    def __init__(self, plan: StagePlan, meeting: Meeting, inputs: Slots) -> None:
        self.kind = meeting.engine
        self.fallback = meeting.fallback
        self.depth = min(meeting.depth, meeting.n_slots)
        self._name = plan.name
        self._inputs = inputs
        self._ask, self._told = meeting.pipes()
        self._asked: deque[tuple[int, int]] = deque()

    def ask(self, slot: int, inputs: Sequence[Array]) -> None:
        """Copy a frame into shared memory, and ask for its outputs in the slot of that number."""
        begin = time.monotonic_ns()
        for shared, values in zip(self._inputs[slot], inputs):
            np.copyto(shared, values)
        self._asked.append((begin, time.monotonic_ns() - begin))
        os.write(self._ask, slot.to_bytes(SLOT_BYTES, "little"))

    def finish(self) -> tuple[int, int]:
        """Wait for the oldest frame asked for; return when it was, and how long its inputs took over."""
        told = os.read(self._told, TIME_BYTES)
        if len(told) != TIME_BYTES:
            raise DeviceError(f"{self._name}: its process answered {told!r}, expected {TIME_BYTES} bytes")
        begin, copying_ns = self._asked.popleft()
        return begin, copying_ns + int.from_bytes(told, "little")

    def receive(self, inputs: Sequence[Array]) -> None:
        """Ask for the first frame, with the first slot."""
        self.ask(0, inputs)

    def compute(self, outputs: Sequence[Array]) -> None:
        """Wait until the outputs are in the ring."""
        self.finish()

    def send(self, outputs: Sequence[Array]) -> None:
        """Do nothing: the outputs are where they belong."""

    def forget(self, slots: Iterable[Array]) -> None:
        """Do nothing: slots are copied."""

    def close(self) -> None:
        """Let go of the pipes; the other process is the parent's."""
        os.close(self._ask)
        os.close(self._told)
