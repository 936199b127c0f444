"""The shapes that the runtime gives every tensor for inputs of chosen shapes.

The child's side is this module run as a program: native code may crash on a shape it does not like.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dse.devices.child import Child
from dse.devices.serving import serve

TIMEOUT_S = 120.0
Shape = tuple[int, ...]


def runtime_shapes(model: Path, inputs: Mapping[int, Shape]) -> dict[int, Shape | None]:
    """Ask the runtime for the shapes of all tensors of the main subgraph.

    Parameters
    ----------
    model
        The .tflite file.
    inputs
        Wanted shape by position of the input; others keep theirs.

    Returns
    -------
    dict
        Shape by tensor index; None where it depends on the values of the inputs.

    Raises
    ------
    RuntimeRefusedError
        The model does not run with these shapes.
    ChildDiedError, ChildTimeoutError
        The runtime crashed or hung.
    """
    with tempfile.TemporaryDirectory(prefix="dse-shapes-") as folder:
        child = Child(__name__, log_path=Path(folder) / "log.txt", name=f"shapes of {model.name}")
        with child:
            answer = child.request(
                {
                    "command": "shapes",
                    "model": str(model),
                    "inputs": {str(position): list(shape) for position, shape in inputs.items()},
                },
                timeout_s=TIMEOUT_S,
                doing="running the model with the new shapes",
            )
    return {int(index): None if shape is None else tuple(shape) for index, shape in answer["shapes"].items()}


def _shapes(request: dict[str, Any]) -> dict[str, Any]:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    try:
        # The built-in kernels keep the shapes of all tensors; a delegate hides those inside it.
        interpreter = Interpreter(
            model_path=request["model"],
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        seen = _run(interpreter, request["inputs"])
    except RuntimeError:
        # Some operators are known to the default delegate only.
        interpreter = Interpreter(model_path=request["model"], experimental_preserve_all_tensors=True)
        seen = _run(interpreter, request["inputs"])
    first, second = seen
    return {"shapes": {str(i): first[i] if first[i] == second[i] else None for i in first}}


def _run(interpreter: Any, shapes: dict[str, list[int]]) -> list[dict[int, list[int]]]:
    """Run with zeros and with other values: shapes that differ depend on values."""
    import numpy as np

    details = interpreter.get_input_details()
    for position, shape in shapes.items():
        interpreter.resize_tensor_input(details[int(position)]["index"], shape)
    interpreter.allocate_tensors()
    random = np.random.default_rng(0)
    found = []
    for number in range(2):
        for detail in interpreter.get_input_details():
            values = np.zeros(detail["shape"], detail["dtype"])
            if number and values.dtype.kind == "f":
                values = random.normal(0, 1, detail["shape"]).astype(detail["dtype"])
            interpreter.set_tensor(detail["index"], values)
        interpreter.invoke()
        found.append({d["index"]: [int(n) for n in d["shape"]] for d in interpreter.get_tensor_details()})
    return found


if __name__ == "__main__":
    serve({"shapes": _shapes})
