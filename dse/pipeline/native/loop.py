"""A lane's counters and threads in C; see ``stage_loop.h`` for the algorithm."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from dse.errors import InputError
from dse.pipeline.engine import Array, CompiledEngine
from dse.pipeline.loops import Loop, PythonLoop
from dse.pipeline.native.structures import (
    Arena,
    Failure,
    Gate,
    Lane,
    NativeUnavailableError,
    Node,
    PortHandles,
    lines,
    load_library,
)
from dse.pipeline.network import Network
from dse.pipeline.nodes import Order, Sink, Source, StageFailedError, StageNode, Unit

LOOPS = ("auto", "native", "python")


def make_loop(network: Network, status: memoryview | None, spin_ns: int, wanted: str = "auto") -> Loop:
    """Return the loop for a lane whose engines are built.

    Parameters
    ----------
    network, status, spin_ns
        See ``PythonLoop``.
    wanted
        ``native``, ``python``, or ``auto``: native where every stage is compiled and the library
        can be built.

    Raises
    ------
    InputError
        Native was asked for and can not be had; says why.
    """
    if wanted not in LOOPS:
        raise InputError(f"loop {wanted!r} is not known, expected one of {', '.join(LOOPS)}")
    if wanted != "python":
        try:
            return NativeLoop(network, status, spin_ns)
        except NativeUnavailableError as error:
            if wanted == "native":
                raise InputError(f"loop 'native' can not be had: {error}") from None
    return PythonLoop(network, status, spin_ns)


class NativeLoop:
    """The loop in C; see ``loops.Loop`` for the methods and ``PythonLoop`` for the parameters.

    Raises
    ------
    NativeUnavailableError
        A stage is not compiled, or the library can not be built.
    """

    kind = "native"

    def __init__(self, network: Network, status: memoryview | None, spin_ns: int) -> None:
        others = [node.plan.name for node in network.nodes if type(node.engine) is not CompiledEngine]
        if others:
            raise NativeUnavailableError(f"{', '.join(others)}: not run through the compiled-model interface")
        self._api = load_library()
        self._network = network
        self._status = status
        self._order = Order(0)
        n_nodes, n_units = len(network.nodes), len(network.units)
        sizes = (ctypes.sizeof(Lane), *[ctypes.sizeof(Node)] * n_nodes, *[ctypes.sizeof(Gate)] * n_units)
        self._arena = Arena(sum(map(lines, sizes)))
        self._lane = self._arena.place(Lane)
        self._nodes = [self._arena.place(Node) for _ in network.nodes]
        self._gates = [self._arena.place(Gate) for _ in network.units]
        self._failures = [Failure() for _ in network.units]
        self._handles: dict[int, object] = {}
        self._lane.run = network.nodes[0].engine.run_address  # type: ignore[attr-defined]
        self._lane.spin_ns = spin_ns
        self._lane.n_stages = n_nodes
        if status is not None:
            self._lane.status = ctypes.addressof(ctypes.c_char.from_buffer(status))
        self._lane.n_finals = len(network.finals)
        self._lane.finals = self._addresses([self._nodes[node.index] for node in network.finals])
        for node, native in zip(network.nodes, self._nodes):
            self._describe(node, native)
        self._mine = [
            self._addresses([self._nodes[node.index] for node in unit.stages]) for unit in network.units
        ]

    def start(self, order: Order, available: int, taken: int) -> None:
        """See ``Loop``."""
        self._order = order
        for native in self._nodes:
            for counter in (native.begun, native.taken, native.done):
                self._set(counter, 0)
        lane = self._lane
        self._set(lane.limit, order.limit)
        self._set(lane.stopped, 0)
        self._set(lane.available, available)
        self._set(lane.taken, taken)
        lane.in_flight = order.in_flight or 0
        lane.times, lane.n_times = None, 0
        if order.times is not None:
            lane.times = ctypes.addressof(ctypes.c_char.from_buffer(order.times))
            lane.n_times = order.n_recorded
        lane.last_times = order.keeps_last

    def job(self, unit: int) -> Callable[[], None]:
        """See ``Loop``."""
        failure = self._failures[unit]

        def work() -> None:
            ended = self._api.stage_loop_work(
                ctypes.byref(self._lane),
                self._mine[unit],
                len(self._network.units[unit].stages),
                ctypes.byref(self._gates[unit]),
                ctypes.byref(failure),
            )
            if ended:
                plan = self._network.nodes[failure.stage].plan
                raise StageFailedError(
                    f"{plan.name} failed on frame {failure.frame}: {plan.model_path}: "
                    f"the runtime failed to run the model (status {failure.status})"
                )

        return work

    def begun(self, stage: int) -> int:
        """See ``Loop``."""
        return int(self._api.stage_loop_get(ctypes.byref(self._nodes[stage].begun)))

    def done(self, stage: int) -> int:
        """See ``Loop``."""
        return int(self._api.stage_loop_get(ctypes.byref(self._nodes[stage].done)))

    def offer(self, n_frames: int) -> None:
        """See ``Loop``."""
        self._set(self._lane.available, n_frames)
        self._wake(self._network.entering_units)

    def limit(self, n_frames: int) -> None:
        """See ``Loop``."""
        self._order.limit = n_frames
        self._set(self._lane.limit, n_frames)
        self._wake_all()

    def wait_out(self, frame: int, timeout_s: float) -> bool:
        """See ``Loop``."""
        return bool(self._api.stage_loop_wait(ctypes.byref(self._lane), frame, round(timeout_s * 1e9)))

    def take(self, n_frames: int) -> None:
        """See ``Loop``."""
        self._set(self._lane.taken, n_frames)
        self._wake(self._network.final_units)

    def stop(self) -> None:
        """See ``Loop``."""
        self._order.stopped = True
        self._set(self._lane.stopped, 1)
        self._wake_all()

    def use_inputs(self, slots: Sequence[tuple[Array, ...]]) -> None:
        """See ``Loop``."""
        source = self._network.source
        source.slots, source.n_slots = list(slots), len(slots)
        for node, native in zip(self._network.nodes, self._nodes):
            if source in node.sources:
                self._describe_ports(node, native)

    def _describe(self, node: StageNode, native: Node) -> None:
        native.index, native.n_slots = node.index, node.n_slots
        native.model = node.engine.model_address  # type: ignore[attr-defined]
        native.input_handles = self._room(len(node.plan.inputs))
        native.output_handles = self._room(len(node.plan.outputs))
        native.n_sources = len(node.sources)
        native.sources = self._addresses([self._done_of(source) for source in node.sources])
        native.n_users = len(node.users)
        native.users = self._addresses([self._taken_of(user) for user in node.users])
        # Inputs are free when a stage is done: who waits for either is woken then.
        waiting = dict.fromkeys((*node.wakes_on_take, *node.wakes_on_done))
        native.n_wake_done = len(waiting)
        native.wake_done = self._addresses([self._gate_of(one) for one in waiting])
        native.n_wake_entering = len(node.wakes_entering)
        native.wake_entering = self._addresses([self._gate_of(unit) for unit in node.wakes_entering])
        native.is_final = node.is_final
        native.enters = self._network.source in node.sources
        # While half of a ring is left, nobody waits for a sleeper.
        makers = [source.n_slots for source in node.sources if isinstance(source, StageNode)]
        native.patience = min([node.n_slots, *makers]) // 2
        self._describe_ports(node, native)

    def _describe_ports(self, node: StageNode, native: Node) -> None:
        """Look up the runtime's handle of every slot that a stage reads or writes, in its order of ports."""
        engine: Any = node.engine
        inputs = {
            engine.place("Input", number): [slots[at] for slots in maker.slots]
            for number, (maker, at) in enumerate(node.feeds)
        }
        outputs = {
            engine.place("Output", number): [slots[number] for slots in node.slots]
            for number in range(len(node.plan.outputs))
        }
        sides = self._ports("Input", engine, inputs), self._ports("Output", engine, outputs)
        native.n_inputs, native.inputs = len(inputs), ctypes.addressof(sides[0][0])
        native.n_outputs, native.outputs = len(outputs), ctypes.addressof(sides[1][0])
        # In place of those for the slots before.
        self._handles[node.index] = sides

    def _ports(
        self, side: str, engine: Any, slots: dict[int, list[Array]]
    ) -> tuple[ctypes.Array[PortHandles], list[object]]:
        """Return the structures of one side's ports, and what they point at."""
        ports = (PortHandles * max(1, len(slots)))()
        kept: list[object] = []
        for place, ring in slots.items():
            handles = (ctypes.c_void_p * len(ring))(*(engine.handle(side, place, slot) for slot in ring))
            kept.append(handles)
            ports[place].handles = ctypes.addressof(handles)
            ports[place].n_slots = len(ring)
        return ports, kept

    def _done_of(self, source: StageNode | Source) -> Any:
        return self._lane.available if isinstance(source, Source) else self._nodes[source.index].done

    def _taken_of(self, user: StageNode | Sink) -> Any:
        return self._lane.taken if isinstance(user, Sink) else self._nodes[user.index].taken

    def _gate_of(self, one: Unit | Sink) -> Gate:
        if isinstance(one, Sink):
            gate: Gate = self._lane.sink
            return gate
        return self._gates[self._network.units.index(one)]

    def _addresses(self, things: Sequence[Any]) -> int:
        array = (ctypes.c_void_p * max(1, len(things)))(*(ctypes.addressof(thing) for thing in things))
        return self._arena.keep(array)

    def _room(self, count: int) -> int:
        return self._arena.keep((ctypes.c_void_p * max(1, count))())

    def _set(self, counter: Any, value: int) -> None:
        self._api.stage_loop_set(ctypes.byref(counter), value)

    def _wake(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._api.stage_loop_wake(ctypes.byref(self._gate_of(unit)))

    def _wake_all(self) -> None:
        self._wake(self._network.units)
        self._api.stage_loop_wake(ctypes.byref(self._lane.sink))
