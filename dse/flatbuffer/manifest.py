"""How the stages of a split model connect, as plain data for files and for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dse.flatbuffer.stages import SplitModel, StageTensor

FORMAT = 1


def manifest(split: SplitModel, files: Sequence[str] | None = None) -> dict[str, Any]:
    """Return how stages connect: where each input comes from, where each output goes.

    Parameters
    ----------
    split
        The stages.
    files
        Names of their files, in stage order; by default ``<stage name>.tflite``.

    Returns
    -------
    dict
        JSON-able.  ``inputs`` and ``outputs`` are the whole model's; an output's ``stage`` is the
        one that makes it.  Each stage has its file name, layers, inputs (``from`` is ``model`` or
        a stage number) and outputs (``to`` lists stage numbers; ``model_output`` tells whether it
        leaves the model).  ``cuts`` sums up what crosses from stage to stage, in bytes.
    """
    maker = {out.tensor: number for number, stage in enumerate(split.stages) for out in stage.outputs}
    model_inputs = {tensor.tensor for tensor in split.inputs}
    model_outputs = {tensor.tensor for tensor in split.outputs}
    users: dict[int, list[int]] = {}
    for number, stage in enumerate(split.stages):
        for tensor in stage.inputs:
            users.setdefault(tensor.tensor, []).append(number)
    names = [f"{stage.name}.tflite" for stage in split.stages] if files is None else list(files)
    stages = []
    crossing: dict[tuple[int, int], list[StageTensor]] = {}
    for number, stage in enumerate(split.stages):
        inputs = []
        for tensor in stage.inputs:
            source: str | int = "model"
            if tensor.tensor not in model_inputs:
                source = maker[tensor.tensor]
                crossing.setdefault((source, number), []).append(tensor)
            inputs.append({**_entry(tensor), "from": source})
        outputs = [
            {
                **_entry(tensor),
                "to": [user for user in users.get(tensor.tensor, ()) if user != number],
                "model_output": tensor.tensor in model_outputs,
            }
            for tensor in stage.outputs
        ]
        stages.append(
            {
                "name": stage.name,
                "file": names[number],
                "bytes": len(stage.data),
                "layers": list(stage.layers),
                "inputs": inputs,
                "outputs": outputs,
            }
        )
    return {
        "format": FORMAT,
        "model": split.name,
        "inputs": [_entry(tensor) for tensor in split.inputs],
        "outputs": [{**_entry(tensor), "stage": maker[tensor.tensor]} for tensor in split.outputs],
        "stages": stages,
        "cuts": [
            {
                "from": maker_stage,
                "to": user_stage,
                "bytes": sum(tensor.n_bytes for tensor in tensors),
                "tensors": [tensor.name for tensor in tensors],
            }
            for (maker_stage, user_stage), tensors in sorted(crossing.items())
        ],
    }


def _entry(tensor: StageTensor) -> dict[str, Any]:
    return {
        "tensor": tensor.tensor,
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.n_bytes,
    }
