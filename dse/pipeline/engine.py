"""One stage in the runtime: build it, give it a frame, run it, take its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dse.errors import InputError, RuntimeRefusedError
from dse.pipeline.plan import Port, StagePlan

Array = npt.NDArray[Any]


class Engine(Protocol):
    """What the runner needs of a stage; every method is called from the stage's own thread.

    A slot is memory for one frame's values of one tensor, made by ``make_slot``.
    """

    holds_inputs: bool
    """Whether input slots are read until ``compute`` returns (else only until ``receive`` does)."""

    def receive(self, inputs: Sequence[Array]) -> None:
        """Take a frame's inputs."""

    def compute(self) -> None:
        """Run the stage."""

    def send(self, outputs: Sequence[Array]) -> None:
        """Put the outputs where their users find them."""

    def reset(self) -> None:
        """Forget state between frames (variable tensors)."""


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

    holds_inputs = False

    def __init__(self, plan: StagePlan) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._plan = plan
        try:
            self._interpreter = Interpreter(model_path=str(plan.model_path), num_threads=plan.threads)
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

    def compute(self) -> None:
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

    def reset(self) -> None:
        """Zero the variable tensors."""
        self._interpreter.reset_all_variables()


def make_slot(port: Port) -> Array:
    """Return memory for one frame of a tensor."""
    return np.zeros(port.shape, numpy_type(port))


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
        n_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        for what, wanted, got in (
            ("type", numpy_type(port), kind),
            ("shape", port.shape, shape),
            ("size in bytes", port.n_bytes, n_bytes),
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
