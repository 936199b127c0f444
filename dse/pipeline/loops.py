"""What a lane's threads do between two frames, behind one interface with two implementations.

``PythonLoop`` runs any engine; ``native.NativeLoop`` runs the same algorithm in C, where every
stage is compiled: it needs no interpreter lock, which stages far below a millisecond would wait for.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from typing import Protocol

from dse.pipeline.engine import Array
from dse.pipeline.network import Network
from dse.pipeline.nodes import Order
from dse.pipeline.work import worker


class Loop(Protocol):
    """Counters and threads of a lane for one order after another.

    Stages and units are named by their index in the network.
    """

    kind: str
    """Name for people."""

    def start(self, order: Order, available: int, taken: int) -> None:
        """Set all counters for a new order: frames whose inputs are there, and that the sink has taken."""

    def job(self, unit: int) -> Callable[[], None]:
        """Return what the thread of a unit does for the order; raises ``StageFailedError``."""

    def begun(self, stage: int) -> int:
        """Return how many frames a stage has begun."""

    def done(self, stage: int) -> int:
        """Return how many frames a stage has done."""

    def offer(self, n_frames: int) -> None:
        """Say for how many frames inputs are there by now; wakes the stages that read them."""

    def limit(self, n_frames: int) -> None:
        """End the order after so many frames; everybody looks again."""

    def wait_out(self, frame: int, timeout_s: float) -> bool:
        """Wait until a frame has left the lane; False when time is up or it never will."""

    def take(self, n_frames: int) -> None:
        """Say how many frames the sink has taken; wakes the stages that wait for it."""

    def stop(self) -> None:
        """Make all threads come back at once."""

    def use_inputs(self, slots: Sequence[tuple[Array, ...]]) -> None:
        """Take the model's inputs from these slots from the next order on."""


class PythonLoop:
    """The loop in Python; see ``work.worker``.

    Parameters
    ----------
    network
        The lane.
    status
        Frames begun and done per stage, for whoever watches the process; None for none.
    spin_ns
        How long a thread with nothing to do keeps looking before it sleeps.
    """

    kind = "python"

    def __init__(self, network: Network, status: memoryview | None, spin_ns: int) -> None:
        self._network = network
        self._status = status
        self._spin_ns = spin_ns
        self._order = Order(0)

    def start(self, order: Order, available: int, taken: int) -> None:
        """See ``Loop``."""
        self._order = order
        for node in self._network.nodes:
            node.begun = node.taken = node.done = 0
        self._network.source.done = available
        self._network.sink.taken = taken

    def job(self, unit: int) -> Callable[[], None]:
        """See ``Loop``."""
        return worker(self._network, self._network.units[unit], self._order, self._status, self._spin_ns)

    def begun(self, stage: int) -> int:
        """See ``Loop``."""
        return self._network.nodes[stage].begun

    def done(self, stage: int) -> int:
        """See ``Loop``."""
        return self._network.nodes[stage].done

    def offer(self, n_frames: int) -> None:
        """See ``Loop``."""
        self._network.source.done = n_frames
        for unit in self._network.entering_units:
            unit.wake()

    def limit(self, n_frames: int) -> None:
        """See ``Loop``."""
        self._order.limit = n_frames
        self._network.wake_all()

    def wait_out(self, frame: int, timeout_s: float) -> bool:
        """See ``Loop``."""
        network, sink = self._network, self._network.sink
        if not network.frame_is_out(frame):
            sink.idle = True
            # Looks once more after saying that it sleeps.
            if not network.frame_is_out(frame) and frame < self._order.limit:
                with contextlib.suppress(queue.Empty):
                    sink.gate.get(timeout=timeout_s)
            sink.idle = False
        return network.frame_is_out(frame)

    def take(self, n_frames: int) -> None:
        """See ``Loop``."""
        self._network.sink.taken = n_frames
        for unit in self._network.final_units:
            unit.wake()

    def stop(self) -> None:
        """See ``Loop``."""
        self._order.stopped = True
        self._network.wake_all()

    def use_inputs(self, slots: Sequence[tuple[Array, ...]]) -> None:
        """See ``Loop``."""
        self._network.source.slots = list(slots)
        self._network.source.n_slots = len(slots)
