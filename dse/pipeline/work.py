"""The loop of a lane's threads: take the oldest frame that can go on, run its stage, tell the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from dse.pipeline.apart import ApartEngine
from dse.pipeline.network import Network
from dse.pipeline.nodes import N_TIMES, Order, StageFailedError, StageNode, Unit


def worker(
    network: Network, unit: Unit, order: Order, status: memoryview | None, spin_ns: int
) -> Callable[[], None]:
    """Return what a thread does for an order; see ``LaneRunner`` for ``status`` and ``spin_ns``."""
    if any(isinstance(node.engine, ApartEngine) for node in unit.stages):
        return _stand_in(network, unit, order, status, spin_ns)

    def work() -> None:
        while not order.stopped:
            ready = [node for node in unit.stages if network.ready(node, order)]
            if ready:
                # The oldest frame first: it drains before new ones fill, and no stage starves.
                node = min(ready, key=_frame_of)
                frame = node.done
                try:
                    _step(network, node, order, status)
                except Exception as error:
                    raise StageFailedError(
                        f"{node.plan.name} failed on frame {frame}: {type(error).__name__}: {error}"
                    ) from error
            elif all(node.done >= order.limit for node in unit.stages):
                return
            else:
                _rest(network, unit, order, spin_ns)

    return work


def _stand_in(
    network: Network, unit: Unit, order: Order, status: memoryview | None, spin_ns: int
) -> Callable[[], None]:
    """Return what the thread of stages on an accelerator does: ask ahead, and wait for the oldest."""
    pairs = [(node, node.engine) for node in unit.stages if isinstance(node.engine, ApartEngine)]

    def work() -> None:
        while not order.stopped:
            for node, engine in pairs:
                while node.begun - node.done < engine.depth and network.ready_for(node, order, node.begun):
                    _ask(node, engine, status)
            busy = [pair for pair in pairs if pair[0].begun > pair[0].done]
            if busy:
                node, engine = min(busy, key=lambda pair: pair[0].done)
                _finish(network, node, engine, order, status)
            elif all(node.done >= order.limit for node, _ in pairs):
                return
            else:
                _rest(network, unit, order, spin_ns)

    return work


def _ask(node: StageNode, engine: ApartEngine, status: memoryview | None) -> None:
    """Hand a stage's next frame to its process."""
    frame = node.begun
    node.begun = frame + 1
    if status is not None:
        status[2 * node.index] = frame + 1
    engine.ask(
        frame % node.n_slots, [made.slots[frame % made.n_slots][position] for made, position in node.feeds]
    )
    node.taken = frame + 1
    for unit in node.wakes_on_take:
        unit.wake()


def _finish(
    network: Network, node: StageNode, engine: ApartEngine, order: Order, status: memoryview | None
) -> None:
    """Wait for the oldest frame that is with a stage's process.

    Frames overlap there.  So that times add up to what the accelerator is busy, a frame's begins when
    the one before is done.
    """
    frame = node.done
    begin, taking_ns = engine.finish()
    done = time.monotonic_ns()
    begin = max(begin, node.last_sent_ns) if frame else begin
    node.last_sent_ns = done
    if order.times is not None and (row := order.row(frame)) is not None:
        at = (row * len(network.nodes) + node.index) * N_TIMES
        order.times[at] = begin
        order.times[at + 1] = min(begin + taking_ns, done)
        order.times[at + 2] = order.times[at + 3] = done
    node.done = frame + 1
    _tell(node, order, status)


def _tell(node: StageNode, order: Order, status: memoryview | None) -> None:
    """Wake those who wait for a stage's frame."""
    for waiter in node.wakes_on_done:
        waiter.wake()
    if order.in_flight is not None:
        for unit in node.wakes_entering:
            unit.wake()
    if status is not None:
        status[2 * node.index + 1] = node.done


def first_invocation(node: StageNode) -> int:
    """Run a stage on frame 0 of the stages before: allocates, packs weights, starts threads.

    Returns
    -------
    int
        Time in the runtime, in nanoseconds.

    Raises
    ------
    StageFailedError
        It raised.
    """
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


def _step(network: Network, node: StageNode, order: Order, status: memoryview | None) -> None:
    """Run a stage on its next frame."""
    clock = time.monotonic_ns
    frame = node.done
    node.begun = frame + 1
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
    if order.times is not None and (row := order.row(frame)) is not None:
        at = (row * len(network.nodes) + node.index) * N_TIMES
        order.times[at] = received
        order.times[at + 1] = computing
        order.times[at + 2] = computed
        order.times[at + 3] = sent
    node.taken = node.done = frame + 1
    if engine.holds_inputs:
        for unit in node.wakes_on_take:
            unit.wake()
    _tell(node, order, status)


def _frame_of(node: StageNode) -> int:
    return node.done


def _rest(network: Network, unit: Unit, order: Order, spin_ns: int) -> None:
    """Sleep until somebody wakes the unit; looks once more after saying that it sleeps."""
    if spin_ns:
        end = time.monotonic_ns() + spin_ns
        while time.monotonic_ns() < end:
            if _can_go_on(network, unit, order):
                return
            time.sleep(0)  # lets other threads have the interpreter lock
    unit.idle = True
    if not _can_go_on(network, unit, order):
        unit.gate.get()
    unit.idle = False


def _can_go_on(network: Network, unit: Unit, order: Order) -> bool:
    return (
        order.stopped
        or any(network.ready(node, order) for node in unit.stages)
        or all(node.done >= order.limit for node in unit.stages)
    )
