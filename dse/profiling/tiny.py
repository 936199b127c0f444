"""Models of one operator: what an invocation and a hand-over cost by themselves."""

from __future__ import annotations

from dse.flatbuffer import records

_ABS = 101
_MUL = 18
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


def doubling_model(n_floats: int) -> bytes:
    """Return a .tflite file that doubles some floats: it reads and writes each once."""
    import numpy as np

    from dse.flatbuffer.encode import encode

    shape = (1, n_floats)
    tensors = (
        records.Tensor(shape, _FLOAT32, 0, "x", has_rank=True),
        records.Tensor((1,), _FLOAT32, 1, "two", has_rank=True),
        records.Tensor(shape, _FLOAT32, 0, "y", has_rank=True),
    )
    double = records.Operator(0, (0, 1), (2,), builtin_options=records.Options("MulOptions", {}))
    graph = records.SubGraph(tensors, (0,), (2,), (double,), "main")
    buffers = (records.Buffer(), records.Buffer(np.array([2], np.float32).tobytes()))
    return bytes(encode(records.Model((graph,), (records.OperatorCode(_MUL),), buffers)))
