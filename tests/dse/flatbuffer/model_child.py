"""Runs models in a child process: ``python -m model_child``."""

from __future__ import annotations

from typing import Any

import numpy as np

from dse.devices.serving import serve


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run all frames through one model; arrays travel in .npz files."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    fields: dict[str, Any] = {"model_path": request["model"], "num_threads": 1}
    if request["builtin"]:
        fields["experimental_op_resolver_type"] = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(**fields)
    for index, shape in request["shapes"].items():
        detail = interpreter.get_input_details()[int(index)]
        interpreter.resize_tensor_input(detail["index"], shape, strict=True)
    interpreter.allocate_tensors()
    inputs = interpreter.get_input_details()
    outputs = interpreter.get_output_details()
    arrays = np.load(request["inputs"])
    found = {}
    for frame in range(request["n_frames"]):
        for position, detail in enumerate(inputs):
            interpreter.set_tensor(detail["index"], arrays[f"{frame}_{position}"])
        interpreter.invoke()
        for position, detail in enumerate(outputs):
            found[f"{frame}_{position}"] = interpreter.get_tensor(detail["index"])
    np.savez(request["outputs"], **found)
    return {
        "names": [[detail["name"] for detail in details] for details in (inputs, outputs)],
        "signatures": interpreter.get_signature_list(),
    }


if __name__ == "__main__":
    serve({"run": run})
