"""One stage in the runtime: build it, give it a frame, run it, take its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dse.errors import InputError, RuntimeRefusedError
from dse.pipeline.plan import Port, StagePlan

Array = npt.NDArray[Any]
_ALIGNMENT = 64


class Engine(Protocol):
    """What the runner needs of a stage; every method is called from the stage's own thread.

    A slot is memory for one frame's values of one tensor, made by ``make_slot``; there are few of
    them and they stay until ``forget``, so an engine may remember what it knows of each.
    """

    kind: str
    """Name for people."""

    fallback: str
    """Why it is not the engine that was tried first, else empty."""

    holds_inputs: bool
    """Whether input slots are read until ``compute`` returns (else only until ``receive`` does)."""

    def receive(self, inputs: Sequence[Array]) -> None:
        """Take a frame's inputs."""

    def compute(self, outputs: Sequence[Array]) -> None:
        """Run the stage; may write the outputs already."""

    def send(self, outputs: Sequence[Array]) -> None:
        """Put the outputs into their slots, where they are not yet there."""

    def forget(self, slots: Iterable[Array]) -> None:
        """Let go of slots that will not be used again."""

    def close(self) -> None:
        """Free what the runtime holds."""


EngineFactory = Callable[[StagePlan], Engine]


class InterpreterEngine:
    """A stage in a LiteRT interpreter: inputs and outputs are copied.

    Parameters
    ----------
    plan
        The stage; its file is loaded here, with the affinity of the calling thread.

    Raises
    ------
    RuntimeRefusedError
        The runtime can not load the file.
    InputError
        The file's inputs or outputs differ from the plan's ports.
    """

    kind = "interpreter"
    fallback = ""
    holds_inputs = False

    def __init__(self, plan: StagePlan) -> None:
        from ai_edge_litert.interpreter import Interpreter

        from dse.devices.worker import resolver

        self._plan = plan
        try:
            self._interpreter = Interpreter(
                model_path=str(plan.model_path), num_threads=plan.threads, **resolver(plan.kernels)
            )
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise RuntimeRefusedError(
                f"{plan.name}: the runtime refused {plan.model_path}: {error}"
            ) from None
        inputs = self._interpreter.get_input_details()
        outputs = self._interpreter.get_output_details()
        _check_ports(plan, "input", plan.inputs, inputs)
        _check_ports(plan, "output", plan.outputs, outputs)
        self._inputs = [int(detail["index"]) for detail in inputs]
        self._views = [self._interpreter.tensor(int(detail["index"])) for detail in outputs]

    def receive(self, inputs: Sequence[Array]) -> None:
        """Copy a frame into the interpreter."""
        for index, values in zip(self._inputs, inputs):
            self._interpreter.set_tensor(index, values)

    def compute(self, outputs: Sequence[Array]) -> None:
        """Run the stage; other threads run meanwhile."""
        self._interpreter.invoke()

    def send(self, outputs: Sequence[Array]) -> None:
        """Copy the outputs; views of the interpreter's memory do not outlive this call."""
        for view, slot, port in zip(self._views, outputs, self._plan.outputs):
            values = view()
            if values.shape != slot.shape:
                raise InputError(
                    f"{self._plan.name}: output {port.name!r} has shape {values.shape} on this frame, "
                    f"expected {slot.shape}; a tensor whose shape depends on the data can not cross stages"
                )
            np.copyto(slot, values)

    def forget(self, slots: Iterable[Array]) -> None:
        """Do nothing: slots are copied."""

    def close(self) -> None:
        """Free the interpreter."""
        del self._views, self._interpreter


class CompiledEngine:
    """A stage compiled through the runtime's C API: reads and writes the slots without copies.

    Parameters
    ----------
    plan
        The stage; its file is loaded here, with the affinity of the calling thread.

    Raises
    ------
    RuntimeRefusedError
        The C API is not there, refuses the model (variable tensors) or sees other ports, or an
        input is an output too: the runtime leaves such an output's buffer as it is.
    """

    kind = "compiled"
    fallback = ""
    holds_inputs = True

    def __init__(self, plan: StagePlan) -> None:
        from dse.devices.litert_c import CompiledModel, find_ports

        through = [port.name for port in plan.outputs if port.tensor in {one.tensor for one in plan.inputs}]
        if through:
            raise RuntimeRefusedError(f"{plan.name}: {through} are inputs and outputs at once")
        self._plan = plan
        self._model = CompiledModel(plan.model_path, plan.threads, plan.kernels)
        self._in_places = find_ports(wanted_ports(plan.inputs), self._model.inputs, f"{plan.name}, inputs")
        self._out_places = find_ports(
            wanted_ports(plan.outputs), self._model.outputs, f"{plan.name}, outputs"
        )
        self._ins = self._model.handles(len(plan.inputs))
        self._outs = self._model.handles(len(plan.outputs))
        self._known: dict[tuple[str, int, int], tuple[int, Array]] = {}

    def receive(self, inputs: Sequence[Array]) -> None:
        """Point the model's inputs at the slots."""
        for place, slot in zip(self._in_places, inputs):
            self._ins[place] = self.handle("Input", place, slot)

    def compute(self, outputs: Sequence[Array]) -> None:
        """Run the stage, writing into the slots; other threads run meanwhile."""
        for place, slot in zip(self._out_places, outputs):
            self._outs[place] = self.handle("Output", place, slot)
        self._model.run(self._ins, self._outs)

    def send(self, outputs: Sequence[Array]) -> None:
        """Do nothing: the outputs are where they belong."""

    def forget(self, slots: Iterable[Array]) -> None:
        """Free the runtime's buffers around slots; nothing runs meanwhile."""
        gone = set(map(id, slots))
        for key in [key for key in self._known if key[2] in gone]:
            handle, _ = self._known.pop(key)
            self._model.unwrap(handle)

    def close(self) -> None:
        """Free the compiled model and its buffers."""
        self._known.clear()
        self._model.close()

    @property
    def run_address(self) -> int:
        """Address of the runtime's function that runs a model, for the native loop."""
        return self._model.run_address

    @property
    def model_address(self) -> int:
        """Address of the compiled model, for the native loop."""
        return self._model.address

    def place(self, side: str, number: int) -> int:
        """Return where the runtime has an ``Input`` or ``Output`` of the plan."""
        return (self._in_places if side == "Input" else self._out_places)[number]

    def handle(self, side: str, place: int, slot: Array) -> int:
        """Return the runtime's buffer around a slot."""
        key = (side, place, id(slot))
        if key not in self._known:
            handle = self._model.wrap(side, place, slot.ctypes.data, padded_bytes(slot.nbytes))
            # The slot is kept, so that its memory and its identity stay its own.
            self._known[key] = handle, slot
        return self._known[key][0]


def best_engine(plan: StagePlan) -> Engine:
    """Build the compiled engine, or the interpreter where the C API refuses the stage."""
    try:
        return CompiledEngine(plan)
    except RuntimeRefusedError as error:
        engine = InterpreterEngine(plan)
        engine.fallback = str(error)
        return engine


ENGINES: dict[str, EngineFactory] = {
    "auto": best_engine,
    "compiled": CompiledEngine,
    "interpreter": InterpreterEngine,
}
"""Ways to run a stage, by name."""


def make_slot(port: Port) -> Array:
    """Return zeroed memory for one frame of a tensor, aligned and padded as the runtime wants it.

    Raises
    ------
    InputError
        Type, shape and size of the port contradict each other.
    """
    kind = numpy_type(port)
    n_bytes = int(np.prod(port.shape, dtype=np.int64)) * kind.itemsize
    if n_bytes != port.n_bytes:
        raise InputError(
            f"tensor {port.name!r}: {port.dtype}{port.shape} takes {n_bytes} bytes, "
            f"but the plan hands over {port.n_bytes}"
        )
    raw = np.zeros(padded_bytes(n_bytes) + _ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT
    return raw[begin : begin + n_bytes].view(kind).reshape(port.shape)


def fill_slot(port: Port, values: Array) -> Array:
    """Return a slot that holds some values."""
    slot = make_slot(port)
    slot[...] = values
    return slot


def padded_bytes(n_bytes: int) -> int:
    """Return the size of a slot of so many bytes, up to the next boundary."""
    return max(1, -(-n_bytes // _ALIGNMENT)) * _ALIGNMENT


def wanted_ports(ports: Sequence[Port]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, element type and shape of ports, for ``litert_c.find_ports``."""
    return [(port.name, port.dtype, port.shape) for port in ports]


def numpy_type(port: Port) -> np.dtype[Any]:
    """Return the type that the runtime's arrays have for a port.

    Raises
    ------
    InputError
        Such values can not be handed from one stage to another.
    """
    try:
        kind = np.dtype(port.dtype)
    except TypeError:
        kind = None
    if kind is None or kind.kind not in "biufc":
        raise InputError(f"tensor {port.name!r} of type {port.dtype} can not be handed from stage to stage")
    return kind


def _check_ports(
    plan: StagePlan, side: str, ports: Sequence[Port], details: Sequence[dict[str, Any]]
) -> None:
    where = f"{plan.name} ({plan.model_path.name})"
    if len(ports) != len(details):
        raise InputError(f"{where}: the file has {len(details)} {side}s, the plan {len(ports)}")
    for number, (port, detail) in enumerate(zip(ports, details)):
        shape = tuple(int(size) for size in detail["shape"])
        kind = np.dtype(detail["dtype"])
        for what, wanted, got in (
            ("type", numpy_type(port), kind),
            ("shape", port.shape, shape),
        ):
            if wanted != got:
                raise InputError(
                    f"{where}: {side} {number} {port.name!r} has {what} {got} in the file, "
                    f"but the plan hands over {wanted}"
                )
        if port.name and port.name != detail["name"]:
            raise InputError(
                f"{where}: {side} {number} is called {detail['name']!r} in the file, "
                f"{port.name!r} in the plan"
            )
