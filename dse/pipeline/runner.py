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
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dse.errors import AffinityError, DeviceError, DseError
from dse.pipeline.affinity import ThreadRecord, read_back, thread_ids
from dse.pipeline.engine import Array, Engine, EngineFactory, InterpreterEngine, fill_slot, make_slot
from dse.pipeline.plan import LanePlan, Port, StagePlan, final_stages, levels

N_TIMES = 4
"""Time stamps of a stage and frame: receive starts, compute starts, compute ends, send ends."""

MAX_FRAMES = 1 << 19
"""A run records, and so makes, at most this many frames."""

_ENDLESS = 1 << 62
_SINK_POLL_S = 0.1


Watch = Callable[[Callable[[], int], Callable[[int], list[list[int]]]], AbstractContextManager[object]]


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

    ``limit`` is the number of frames to make, ``in_flight`` the most frames inside the lane.
    """

    limit: int
    in_flight: int | None = None
    times: memoryview | None = None
    stopped: bool = False


class StageNode:
    """A stage at work: its engine, its ring of output slots and its counters."""

    def __init__(self, index: int, plan: StagePlan, n_slots: int) -> None:
        self.index = index
        self.plan = plan
        self.slots = [tuple(make_slot(port) for port in plan.outputs) for _ in range(n_slots)]
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
    ) -> None:
        self.plan = plan
        self._outputs = tuple(outputs)
        self._status = status
        self._threads: dict[int, tuple[str, str, tuple[int, ...]]] = {}
        self._source = Source(inputs, frames)
        self._sink = Sink()
        self.nodes = tuple(
            StageNode(number, stage, _ring_length(plan, outputs, number, queue_depth))
            for number, stage in enumerate(plan.stages)
        )
        self._connect(inputs)
        self._strangers_known = thread_ids()
        self.units = tuple(
            Unit(tuple(sorted(plan.stages[members[0]].cores)), [self.nodes[m] for m in members])
            for members in plan.units
        )
        self._arrange_wake_ups()
        self.first_invoke_ns = self._build(engine)
        self._strangers_known = thread_ids() - self._threads.keys()
        self.affinity = read_back(self._threads)

    def check_affinity(self) -> tuple[ThreadRecord, ...]:
        """Read the masks of all threads back again, also of those that started late.

        Raises
        ------
        AffinityError
            A mask is not what it should be.
        """
        strangers = thread_ids() - self._threads.keys() - self._strangers_known
        return read_back(self._threads, strangers)

    def close(self) -> None:
        """End the threads (a lane's process just ends)."""
        for unit in self.units:
            unit.close()

    def collect(self, n_frames: int) -> list[tuple[Array, ...]]:
        """Run some frames through the full pipeline and return their outputs, in order."""
        outputs: list[tuple[Array, ...]] = []

        def keep(frame: int) -> None:
            outputs.append(tuple(values.copy() for values in self._outputs_of(frame)))

        order = Order(n_frames)
        self._drain(order, self._launch(order, keeping=True), keep)
        return outputs

    def stream(
        self,
        inputs: list[tuple[Array, ...]],
        outputs: list[tuple[Array, ...]],
        more: Callable[[], int | None],
        tell: Callable[[], None],
    ) -> int:
        """Run frames that somebody else puts into slots, until there are no more.

        Parameters
        ----------
        inputs, outputs
            As many slots each as frames may be under way; frame f uses slot f modulo their number.
        more
            Waits for frames; returns how many more have come, None for the end.
        tell
            Called when the outputs of the next frame are in their slot.

        Returns
        -------
        int
            Number of frames.
        """
        order = Order(_ENDLESS)
        source, prepared = self._source, self._source.slots

        def feed() -> None:
            while (count := more()) is not None:
                source.done += count
                for unit in self._entering_units:
                    unit.wake()
            order.limit = source.done
            self._wake_all()

        def deliver(frame: int) -> None:
            for slot, values in zip(outputs[frame % len(outputs)], self._outputs_of(frame)):
                np.copyto(slot, values)
            tell()

        source.slots, source.n_slots = inputs, len(inputs)
        try:
            futures = self._launch(order, keeping=True, available=0)
            feeder = threading.Thread(target=feed, name="feeder", daemon=True)
            feeder.start()
            # It is ours, not the runtime's, and may run where it likes.
            self._strangers_known |= {feeder.native_id or 0}
            self._drain(order, futures, deliver)
            feeder.join()
        finally:
            source.slots, source.n_slots = prepared, len(prepared)
        return order.limit

    def _drain(self, order: Order, futures: Sequence[Future[Any]], consume: Callable[[int], None]) -> None:
        """Take frames as they come out, until the limit or a failure."""
        sink, frame = self._sink, 0
        while frame < order.limit and not any(future.done() and future.exception() for future in futures):
            if not self._frame_is_out(frame):
                sink.idle = True
                if not self._frame_is_out(frame) and frame < order.limit:
                    with contextlib.suppress(queue.Empty):
                        sink.gate.get(timeout=_SINK_POLL_S)
                sink.idle = False
                continue
            consume(frame)
            frame += 1
            sink.taken = frame
            for unit in self._final_units:
                unit.wake()
        self._land(order, futures)

    def _outputs_of(self, frame: int) -> list[Array]:
        return [made.slots[frame % made.n_slots][at] for made, at in self._results]

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
            tell how many frames are done and when a frame was where.

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
        # Anonymous memory costs nothing until it is written to.
        memory = mmap.mmap(-1, limit * len(self.nodes) * N_TIMES * 8)
        order = Order(limit, in_flight, memoryview(memory).cast("q"))
        while start_ns is not None and (left := start_ns - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        before = thread_ids()
        with self._watching(watch, order):
            # The watcher's thread is ours, and may run where it likes.
            self._strangers_known |= thread_ids() - before
            futures = self._launch(order)
            done, waiting = wait(futures, timeout=seconds, return_when=FIRST_EXCEPTION)
            if waiting and not any(future.exception() for future in done):
                self._stop_entering(order)
            self._land(order, futures)
        assert order.times is not None  # noqa: S101 - set above
        return order.times, order.limit

    def _watching(self, watch: Watch | None, order: Order) -> AbstractContextManager[object]:
        if watch is None:
            return contextlib.nullcontext()
        for node in self.nodes:
            node.done = 0

        def done() -> int:
            return min(node.done for node in self.nodes)

        def times(frame: int) -> list[list[int]]:
            assert order.times is not None  # noqa: S101 - a run records
            n = len(self.nodes)
            return [
                order.times[(frame * n + stage) * N_TIMES : (frame * n + stage + 1) * N_TIMES].tolist()
                for stage in range(n)
            ]

        return watch(done, times)

    def _launch(
        self, order: Order, *, keeping: bool = False, available: int = MAX_FRAMES
    ) -> list[Future[Any]]:
        for node in self.nodes:
            node.begun = node.taken = node.done = 0
        self._source.done = available
        self._sink.taken = 0 if keeping else MAX_FRAMES
        return [unit.submit(_worker(self, unit, order)) for unit in self.units]

    def _stop_entering(self, order: Order) -> None:
        """Let no further frame enter, and set the limit to the frames that have entered."""
        entering = [node for node in self.nodes if self._source in node.sources]
        # A thread may just have passed its test and not yet counted: hence 2, and the second look.
        while True:
            end = max(node.begun for node in entering) + 2
            self._source.done = end
            if max(node.begun for node in entering) < end:
                break
        order.limit = min(order.limit, end)
        self._wake_all()

    def _land(self, order: Order, futures: Sequence[Future[Any]]) -> None:
        """Wait for the threads; on a failure stop them all and raise it."""
        _, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        order.stopped = True
        self._wake_all()
        wait(waiting)
        for future in futures:
            future.result()
        if any(node.done != order.limit for node in self.nodes):
            counts = ", ".join(f"{node.plan.name} {node.done}" for node in self.nodes)
            raise DeviceError(f"frames were lost: expected {order.limit} from every stage, got {counts}")

    def _frame_is_out(self, frame: int) -> bool:
        return all(final.done > frame for final in self.finals)

    def _wake_all(self) -> None:
        for unit in self.units:
            unit.gate.put(None)
        self._sink.gate.put(None)

    def _connect(self, inputs: Sequence[Port]) -> None:
        position = {port.tensor: number for number, port in enumerate(inputs)}
        users: dict[int, list[StageNode]] = {}
        for node in self.nodes:
            sources: list[StageNode | Source] = []
            feeds: list[tuple[StageNode | Source, int]] = []
            for port, maker in zip(node.plan.inputs, self.plan.sources(node.index)):
                if maker is None:
                    feeds.append((self._source, position[port.tensor]))
                    sources.append(self._source)
                else:
                    made = self.nodes[maker]
                    tensors = [output.tensor for output in made.plan.outputs]
                    feeds.append((made, tensors.index(port.tensor)))
                    sources.append(made)
                    users.setdefault(maker, []).append(node)
            node.sources = tuple(dict.fromkeys(sources))
            node.feeds = tuple(feeds)
        for node in self.nodes:
            node.users = tuple(dict.fromkeys(users.get(node.index, ())))
        self.finals = tuple(self.nodes[index] for index in final_stages(self.plan, self._outputs))
        for final in self.finals:
            final.is_final = True
            final.users += (self._sink,)
        producer = self.plan.producer
        self._results: list[tuple[StageNode | Source, int]] = []
        for port in self._outputs:
            if port.tensor in producer:
                made = self.nodes[producer[port.tensor]]
                tensors = [output.tensor for output in made.plan.outputs]
                self._results.append((made, tensors.index(port.tensor)))
            else:
                self._results.append((self._source, position[port.tensor]))

    def _arrange_wake_ups(self) -> None:
        home = {node: unit for unit in self.units for node in unit.stages}
        entering = [home[node] for node in self.nodes if self._source in node.sources]
        self._entering_units = tuple(dict.fromkeys(entering))
        self._final_units = tuple(dict.fromkeys(home[node] for node in self.finals))
        for node in self.nodes:
            own = home[node]
            above = [home[made] for made in node.sources if isinstance(made, StageNode)]
            below = [home[user] for user in node.users if isinstance(user, StageNode)]
            if node.is_final:
                below += [home[final] for final in self.finals]
            node.wakes_on_take = tuple(unit for unit in dict.fromkeys(above) if unit is not own)
            node.wakes_on_done = tuple(unit for unit in dict.fromkeys(below) if unit is not own)
            if node in self.finals:
                node.wakes_on_done += (self._sink,)
                node.wakes_entering = tuple(unit for unit in dict.fromkeys(entering) if unit is not own)

    def _build(self, factory: EngineFactory) -> tuple[int, ...]:
        """Build one stage after another, so that new threads can be told apart, and run frame 0."""
        known = thread_ids()
        for unit in self.units:
            unit.submit(unit.pin).result()
            self._threads[unit.tid] = (unit.stages[0].plan.name, "stage", unit.cores)
        first = []
        for unit in self.units:
            for node in unit.stages:
                node.engine = unit.submit(_maker(factory, node.plan)).result()
                known = self._claim(known, node, unit)
        for node in self.nodes:
            unit = next(u for u in self.units if node in u.stages)
            first.append(unit.submit(_first(node)).result())
            known = self._claim(known, node, unit)
        return tuple(first)

    def _claim(self, known: frozenset[int], node: StageNode, unit: Unit) -> frozenset[int]:
        now = thread_ids()
        for tid in now - known - self._threads.keys():
            self._threads[tid] = (node.plan.name, "runtime", unit.cores)
        return now

    def ready(self, node: StageNode, order: Order) -> bool:
        """Whether a stage can start its next frame."""
        frame = node.done
        if frame >= order.limit:
            return False
        for source in node.sources:
            if source.done <= frame:
                return False
        oldest = frame - node.n_slots
        for user in node.users:
            if user.taken <= oldest:
                return False
        # Outputs leave together, so a quick branch may not run ahead of a slow one.
        if node.is_final and min(final.done for final in self.finals) <= oldest:
            return False
        if order.in_flight is not None and self._source in node.sources:
            return all(frame - final.done < order.in_flight for final in self.finals)
        return True

    def step(self, node: StageNode, order: Order) -> None:
        """Run a stage on its next frame."""
        clock = time.monotonic_ns
        frame = node.done
        node.begun = frame + 1
        status = self._status
        if status is not None:
            status[2 * node.index] = frame + 1
        engine = node.engine
        outputs = node.slots[frame % node.n_slots]
        received = clock()
        engine.receive([made.slots[frame % made.n_slots][position] for made, position in node.feeds])
        if not engine.holds_inputs:
            node.taken = frame + 1
            for unit in node.wakes_on_take:
                unit.wake()
        computing = clock()
        engine.compute(outputs)
        computed = clock()
        engine.send(outputs)
        sent = clock()
        # Stamps first: whoever sees the frame done may read them.
        if order.times is not None:
            at = (frame * len(self.nodes) + node.index) * N_TIMES
            order.times[at] = received
            order.times[at + 1] = computing
            order.times[at + 2] = computed
            order.times[at + 3] = sent
        node.taken = node.done = frame + 1
        if engine.holds_inputs:
            for unit in node.wakes_on_take:
                unit.wake()
        for waiter in node.wakes_on_done:
            waiter.wake()
        if order.in_flight is not None:
            for unit in node.wakes_entering:
                unit.wake()
        if status is not None:
            status[2 * node.index + 1] = frame + 1


def _worker(runner: LaneRunner, unit: Unit, order: Order) -> Callable[[], None]:
    def work() -> None:
        while not order.stopped:
            ready = [node for node in unit.stages if runner.ready(node, order)]
            if ready:
                # The oldest frame first: it drains before new ones fill, and no stage starves.
                _guarded_step(runner, min(ready, key=_frame_of), order)
            elif all(node.done >= order.limit for node in unit.stages):
                return
            else:
                _rest(runner, unit, order)

    return work


def _frame_of(node: StageNode) -> int:
    return node.done


def _rest(runner: LaneRunner, unit: Unit, order: Order) -> None:
    """Sleep until somebody wakes the unit; looks once more after saying that it sleeps."""
    unit.idle = True
    if not (
        order.stopped
        or any(runner.ready(node, order) for node in unit.stages)
        or all(node.done >= order.limit for node in unit.stages)
    ):
        unit.gate.get()
    unit.idle = False


def _guarded_step(runner: LaneRunner, node: StageNode, order: Order) -> None:
    frame = node.done
    try:
        runner.step(node, order)
    except Exception as error:
        raise StageFailedError(
            f"{node.plan.name} failed on frame {frame}: {type(error).__name__}: {error}"
        ) from error


def _maker(factory: EngineFactory, plan: StagePlan) -> Callable[[], Engine]:
    return lambda: factory(plan)


def _first(node: StageNode) -> Callable[[], int]:
    """First invocation, on frame 0 of the stages before: allocates, packs weights, starts threads."""

    def invoke() -> int:
        inputs = [made.slots[0][position] for made, position in node.feeds]
        try:
            node.engine.receive(inputs)
            begin = time.monotonic_ns()
            node.engine.compute(node.slots[0])
            end = time.monotonic_ns()
            node.engine.send(node.slots[0])
        except Exception as error:
            raise StageFailedError(
                f"{node.plan.name} failed on its first frame: {type(error).__name__}: {error}"
            ) from error
        return end - begin

    return invoke


def _ring_length(plan: LanePlan, outputs: Sequence[Port], stage: int, queue_depth: int) -> int:
    """Slots of a stage's ring: a tensor that skips stages waits while the frame passes them."""
    level = levels(plan)
    distance = [
        level[number] - level[stage]
        for number in range(len(plan.stages))
        if stage in [source for source in plan.sources(number) if source is not None]
    ]
    if stage in final_stages(plan, outputs):
        distance.append(1 + max(level) - level[stage])
    return queue_depth * max(distance) + 2
