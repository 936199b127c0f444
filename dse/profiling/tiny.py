"""A model that does next to nothing: what an invocation costs by itself."""

from __future__ import annotations

from dse.flatbuffer import records

_ABS = 101
_FLOAT32 = 0


def tiny_model() -> bytes:
    """Return a .tflite file that takes the absolute value of one float.

    Running it takes as long as entering and leaving the runtime and its delegate.
    """
    from dse.flatbuffer.encode import encode

    tensors = tuple(
        records.Tensor(shape=(1,), type=_FLOAT32, buffer=0, name=name, has_rank=True) for name in ("x", "y")
    )
    graph = records.SubGraph(
        tensors=tensors,
        inputs=(0,),
        outputs=(1,),
        operators=(records.Operator(0, (0,), (1,)),),
        name="main",
    )
    model = records.Model((graph,), (records.OperatorCode(_ABS),), (records.Buffer(),))
    return bytes(encode(model))
