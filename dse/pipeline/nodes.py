"""What a lane is made of while it runs: source, stages with their rings, sink, and pinned threads."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dse.errors import AffinityError, DseError
from dse.pipeline.engine import Array, Engine, fill_slot, make_slot
from dse.pipeline.plan import Port, StagePlan

N_TIMES = 4
"""Time stamps of a stage and frame: receive starts, compute starts, compute ends, send ends."""

MAX_FRAMES = 1 << 22
"""A run records, and so makes, at most this many frames."""


class StageFailedError(DseError):
    """A stage raised while it worked on a frame."""


class Source:
    """The model's inputs: prepared frames in a ring; ``done`` counts those that may be used."""

    def __init__(self, ports: Sequence[Port], frames: Sequence[Sequence[Array]]) -> None:
        self.slots = [tuple(fill_slot(*pair) for pair in zip(ports, frame)) for frame in frames]
        self.n_slots = len(self.slots)
        self.done = 0


class Sink:
    """The model's outputs: a user of the last stages, or nobody (then ``taken`` is far ahead)."""

    def __init__(self) -> None:
        self.taken = MAX_FRAMES
        self.idle = False
        self.gate: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        """Make the waiting thread look again."""
        if self.idle:
            self.gate.put(None)


@dataclass(slots=True)
class Order:
    """What the threads do until further notice.

    ``limit`` is the number of frames to make, ``in_flight`` the most frames inside the lane,
    ``n_recorded`` how many frames ``times`` has room for, the first ones or (``keeps_last``) the last.
    """

    limit: int
    in_flight: int | None = None
    times: memoryview | None = None
    n_recorded: int = 0
    keeps_last: bool = False
    stopped: bool = False

    def row(self, frame: int) -> int | None:
        """Return where the times of a frame belong, in frames; None when they are not kept."""
        if self.times is None or not (self.keeps_last or frame < self.n_recorded):
            return None
        return frame % self.n_recorded


class StageNode:
    """A stage at work: its engine, its ring of output slots and its counters."""

    def __init__(
        self, index: int, plan: StagePlan, n_slots: int, slots: list[tuple[Array, ...]] | None = None
    ) -> None:
        self.index = index
        self.plan = plan
        self.slots = slots or [tuple(make_slot(port) for port in plan.outputs) for _ in range(n_slots)]
        self.n_slots = n_slots
        self.engine: Engine
        self.sources: tuple[StageNode | Source, ...] = ()
        self.feeds: tuple[tuple[StageNode | Source, int], ...] = ()
        self.users: tuple[StageNode | Sink, ...] = ()
        self.wakes_on_take: tuple[Unit, ...] = ()
        self.wakes_on_done: tuple[Unit | Sink, ...] = ()
        self.wakes_entering: tuple[Unit, ...] = ()
        self.is_final = False
        self.begun = 0
        self.taken = 0
        self.done = 0
        self.last_sent_ns = 0


class Unit:
    """A thread pinned to one set of cores, and the stages that it runs."""

    def __init__(self, cores: tuple[int, ...], stages: Sequence[StageNode]) -> None:
        self.cores = cores
        self.stages = tuple(stages)
        self.idle = False
        self.gate: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.tid = 0
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=f"cores {cores}", daemon=True).start()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Have the thread do something; jobs run one after another."""
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future

    def close(self) -> None:
        """End the thread after its jobs."""
        self._jobs.put(None)

    def pin(self) -> None:
        """Pin the calling thread; whatever it creates afterwards inherits the mask.

        Raises
        ------
        AffinityError
            The kernel refuses.
        """
        self.tid = threading.get_native_id()
        try:
            os.sched_setaffinity(self.tid, self.cores)
        except OSError as error:
            raise AffinityError(
                f"{self.stages[0].plan.name}: the kernel does not let a thread run on cores "
                f"{self.cores}: {error}"
            ) from None

    def wake(self) -> None:
        """Make the thread look again whether it can go on."""
        if self.idle:
            self.gate.put(None)

    def _serve(self) -> None:
        while (order := self._jobs.get()) is not None:
            job, future = order
            try:
                future.set_result(job())
            except BaseException as error:  # handed to whoever waits for the job
                future.set_exception(error)
