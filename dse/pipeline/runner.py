"""The threads of one lane: one per set of cores, handing frames over through rings of slots.

Frames are numbered and every stage works on them in order, so a hand-over needs no queue: a stage
counts the frames whose inputs it has ``taken`` and those it has ``done``.  Frame f lives in slot
f modulo the ring's length.  A stage may start frame f when every source has done it and every
user has taken frame f - length.  So no frame can be lost, doubled or reordered, nothing is
allocated per frame, and a full ring holds its producer back.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from dse.devices.worker import yardstick_ns
from dse.errors import DeviceError
from dse.pipeline.affinity import ThreadRecord, read_back, thread_ids
from dse.pipeline.apart import ApartEngine, Meeting
from dse.pipeline.engine import Array, Engine, EngineFactory, InterpreterEngine
from dse.pipeline.native import make_loop
from dse.pipeline.network import Network
from dse.pipeline.nodes import MAX_FRAMES, N_TIMES, Order, StageNode, Unit
from dse.pipeline.plan import LanePlan, Port
from dse.pipeline.work import first_invocation

_ENDLESS = 1 << 62
WATCHED_FRAMES = 1 << 14
"""Frames of a stream whose times are kept for who looks on."""
_SINK_POLL_S = 0.1


Watch = Callable[[Callable[[], int], Callable[[int], list[list[int]]]], AbstractContextManager[object]]


class LaneRunner:
    """A lane, built and ready to run.

    Parameters
    ----------
    plan
        The lane.
    inputs, outputs
        Of the model.
    frames
        Prepared frames; a run repeats them in order.
    queue_depth
        Frames that may wait in front of a stage.
    status
        Shared memory of ``2 * n_stages`` integers: frames begun and done per stage, for whoever
        watches the process; None for none.
    engine
        Makes the engine of a stage, in the stage's thread.
    stateful
        Whether stages keep state: then they are built anew after their first invocation, so that
        the first frame finds no trace of it; and by ``renew``.
    spin_ns
        How long a thread with nothing to do keeps looking before it sleeps: saves the time to be
        woken, costs the core.
    loop
        What runs between two frames: ``native`` (C, needs a compiler and compiled stages),
        ``python``, or ``auto`` (native where it can be).
    apart
        By stage, where the process is met that runs it.

    Raises
    ------
    RuntimeRefusedError, InputError, AffinityError
        See ``InterpreterEngine`` and ``affinity.read_back``.
    """

    def __init__(
        self,
        plan: LanePlan,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        frames: Sequence[Sequence[Array]],
        *,
        queue_depth: int = 2,
        status: memoryview | None = None,
        engine: EngineFactory = InterpreterEngine,
        spin_ns: int = 0,
        stateful: bool = False,
        loop: str = "auto",
        apart: Mapping[int, Meeting] | None = None,
    ) -> None:
        shared = {number: meeting.slots(plan.stages[number]) for number, meeting in (apart or {}).items()}
        self._apart = {number: (meeting, shared[number][0]) for number, meeting in (apart or {}).items()}
        self._threads: dict[int, tuple[str, str, tuple[int, ...]]] = {}
        rings = {number: made for number, (_, made) in shared.items()}
        self._network = Network(plan, inputs, outputs, frames, queue_depth, rings)
        self._strangers_known: frozenset[int] = frozenset()
        self._factory = engine
        self._make_loop = partial(make_loop, self._network, status, spin_ns, loop)
        self._stateful = stateful
        self._has_past = False
        self.first_invoke_ns = self._build()
        self._loop = self._make_loop()
        self._strangers_known = thread_ids() - self._threads.keys()
        self.affinity = read_back(self._threads)

    @property
    def engines(self) -> tuple[str, ...]:
        """How each stage runs."""
        return tuple(node.engine.kind for node in self._network.nodes)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why stages do not run in the engine that was tried first."""
        return tuple(
            f"{node.plan.name} runs in the {node.engine.kind}: {node.engine.fallback}"
            for node in self._network.nodes
            if node.engine.fallback
        )

    @property
    def loop(self) -> str:
        """What runs between two frames: ``native`` or ``python``."""
        return self._loop.kind

    @property
    def n_stages(self) -> int:
        """Number of stages."""
        return len(self._network.nodes)

    def check_affinity(self) -> tuple[ThreadRecord, ...]:
        """Read the masks of all threads back again, also of those that started late.

        Raises
        ------
        AffinityError
            A mask is not what it should be.
        """
        strangers = thread_ids() - self._threads.keys() - self._strangers_known
        return read_back(self._threads, strangers)

    def yardsticks(self) -> tuple[int, ...]:
        """Time a fixed piece of arithmetic on each set of cores (see ``dse.devices.worker``), in ns."""
        return tuple(unit.submit(yardstick_ns).result() for unit in self._network.units)

    def renew(self) -> None:
        """Forget the frames before: stages that keep state are built anew if they have seen any."""
        if self._has_past and self._stateful:
            self._rebuild()
            self._loop = self._make_loop()
        self._has_past = False

    def close(self) -> None:
        """End the threads (a lane's process just ends)."""
        for unit in self._network.units:
            unit.close()

    def collect(self, n_frames: int) -> list[tuple[Array, ...]]:
        """Run some frames through the full pipeline and return their outputs, in order."""
        outputs: list[tuple[Array, ...]] = []

        def keep(frame: int) -> None:
            outputs.append(tuple(values.copy() for values in self._network.outputs_of(frame)))

        order = Order(n_frames)
        self._loop.start(order, MAX_FRAMES, 0)
        self._drain(order, self._launch(), keep)
        return outputs

    def stream(
        self,
        inputs: list[tuple[Array, ...]],
        outputs: list[tuple[Array, ...]],
        more: Callable[[], int | None],
        tell: Callable[[], None],
        record: int = 0,
        watch: Watch | None = None,
    ) -> tuple[memoryview, int]:
        """Run frames that somebody else puts into slots, until there are no more.

        Parameters
        ----------
        inputs, outputs
            As many slots each as frames may be under way; frame f uses slot f modulo their number.
        more
            Waits for frames; returns how many more have come, None for the end.
        tell
            Called when the outputs of the next frame are in their slot.
        record
            Keep the time stamps of so many frames, the first ones.
        watch
            See ``run``; only without ``record``.

        Returns
        -------
        times, n_frames
            As ``run``, of the frames that were recorded; the number of all frames.
        """
        kept = record if watch is None else WATCHED_FRAMES
        order = Order(_ENDLESS, None, self._room_for(kept), kept, keeps_last=watch is not None)
        loop, prepared = self._loop, self._network.source.slots
        offered = 0

        def feed() -> None:
            nonlocal offered
            while (count := more()) is not None:
                offered += count
                loop.offer(offered)
            loop.limit(offered)

        def deliver(frame: int) -> None:
            for slot, values in zip(outputs[frame % len(outputs)], self._network.outputs_of(frame)):
                np.copyto(slot, values)
            tell()

        loop.use_inputs(inputs)
        try:
            loop.start(order, 0, 0)
            before = thread_ids()
            with self._watching(watch, order):
                # These threads are ours, not the runtime's, and may run where they like.
                self._strangers_known |= thread_ids() - before
                futures = self._launch()
                feeder = threading.Thread(target=feed, name="feeder", daemon=True)
                feeder.start()
                self._strangers_known |= {feeder.native_id or 0}
                self._drain(order, futures, deliver)
                feeder.join()
        finally:
            loop.use_inputs(prepared)
            for node in self._network.nodes:
                node.engine.forget(slot for slots in inputs for slot in slots)
        return order.times or memoryview(b"").cast("q"), order.limit

    def _drain(self, order: Order, futures: Sequence[Future[Any]], consume: Callable[[int], None]) -> None:
        """Take frames as they come out, until the limit or a failure."""
        frame = 0
        while frame < order.limit and not any(future.done() and future.exception() for future in futures):
            if self._loop.wait_out(frame, _SINK_POLL_S):
                consume(frame)
                frame += 1
                self._loop.take(frame)
        self._land(order, futures)

    def run(
        self,
        *,
        n_frames: int | None = None,
        seconds: float | None = None,
        in_flight: int | None = None,
        start_ns: int | None = None,
        watch: Watch | None = None,
    ) -> tuple[memoryview, int]:
        """Run at full speed for a number of frames or a time.

        Parameters
        ----------
        n_frames, seconds
            One of them, or both: whichever is reached first.
        in_flight
            Most frames inside the lane; None leaves it to the rings.
        start_ns
            Monotonic time to start at, so that lanes start together.
        watch
            Makes something that looks on while frames pass (annotations), given functions that
            tell how many frames are done and when a frame was where (of a stream, one of the last
            ``WATCHED_FRAMES``).

        Returns
        -------
        times, n_frames
            Time stamps, ``times[(frame * n_stages + stage) * N_TIMES + k]``, and frames made.

        Raises
        ------
        StageFailedError
            A stage raised; the message names it and the frame.
        """
        limit = min(n_frames or MAX_FRAMES, MAX_FRAMES)
        order = Order(limit, in_flight, self._room_for(limit), limit)
        while start_ns is not None and (left := start_ns - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        before = thread_ids()
        self._loop.start(order, MAX_FRAMES, MAX_FRAMES)
        with self._watching(watch, order):
            # The watcher's thread is ours, and may run where it likes.
            self._strangers_known |= thread_ids() - before
            futures = self._launch()
            done, waiting = wait(futures, timeout=seconds, return_when=FIRST_EXCEPTION)
            if waiting and not any(future.exception() for future in done):
                self._stop_entering(order)
            self._land(order, futures)
        assert order.times is not None  # noqa: S101 - set above
        return order.times, order.limit

    def _room_for(self, n_frames: int) -> memoryview | None:
        """Return memory for time stamps; anonymous, so it costs nothing until it is written to."""
        n_bytes = n_frames * self.n_stages * N_TIMES * 8
        return memoryview(mmap.mmap(-1, n_bytes)).cast("q") if n_bytes else None

    def _watching(self, watch: Watch | None, order: Order) -> AbstractContextManager[object]:
        if watch is None:
            return contextlib.nullcontext()
        stages = range(self.n_stages)

        def done() -> int:
            return min(map(self._loop.done, stages))

        def times(frame: int) -> list[list[int]]:
            assert order.times is not None  # noqa: S101 - what is watched is recorded
            first = (frame % order.n_recorded) * self.n_stages
            return [
                order.times[(first + stage) * N_TIMES : (first + stage + 1) * N_TIMES].tolist()
                for stage in stages
            ]

        return watch(done, times)

    def _launch(self) -> list[Future[Any]]:
        self._has_past = True
        return [unit.submit(self._loop.job(number)) for number, unit in enumerate(self._network.units)]

    def _stop_entering(self, order: Order) -> None:
        """Let no further frame enter, and set the limit to the frames that have entered."""
        loop, network = self._loop, self._network
        entering = [node.index for node in network.nodes if network.source in node.sources]
        # A thread may just have passed its test and not yet counted: hence 2, and the second look.
        while True:
            end = max(map(loop.begun, entering)) + 2
            loop.offer(end)
            if max(map(loop.begun, entering)) < end:
                break
        loop.limit(min(order.limit, end))

    def _land(self, order: Order, futures: Sequence[Future[Any]]) -> None:
        """Wait for the threads; on a failure stop them all and raise it."""
        _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        self._loop.stop()
        wait(waiting)
        for future in futures:
            future.result()
        done = [self._loop.done(stage) for stage in range(self.n_stages)]
        if any(count != order.limit for count in done):
            counts = ", ".join(f"{node.plan.name} {n}" for node, n in zip(self._network.nodes, done))
            raise DeviceError(f"frames were lost: expected {order.limit} from every stage, got {counts}")

    def _build(self) -> tuple[int, ...]:
        """Build one stage after another, so that new threads can be told apart, and run frame 0."""
        known = thread_ids()
        for unit in self._network.units:
            unit.submit(unit.pin).result()
            self._threads[unit.tid] = (unit.stages[0].plan.name, "stage", unit.cores)
        first = []
        for unit in self._network.units:
            for node in unit.stages:
                node.engine = unit.submit(partial(self._engine, node)).result()
                known = self._claim(known, node, unit)
        for node in self._network.nodes:
            unit = next(u for u in self._network.units if node in u.stages)
            first.append(unit.submit(partial(first_invocation, node)).result())
            known = self._claim(known, node, unit)
        if self._stateful:
            self._rebuild()
        return tuple(first)

    def _rebuild(self) -> None:
        known = thread_ids()
        for unit in self._network.units:
            for node in unit.stages:
                unit.submit(node.engine.close).result()
                node.engine = unit.submit(partial(self._engine, node)).result()
                known = self._claim(known, node, unit)

    def _engine(self, node: StageNode) -> Engine:
        if node.index in self._apart:
            return ApartEngine(node.plan, *self._apart[node.index])
        return self._factory(node.plan)

    def _claim(self, known: frozenset[int], node: StageNode, unit: Unit) -> frozenset[int]:
        now = thread_ids()
        for tid in now - known - self._threads.keys():
            self._threads[tid] = (node.plan.name, "runtime", unit.cores)
        return now
