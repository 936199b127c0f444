"""A model on an accelerator of the runtime's compiled-model interface, with the CPU for the rest.

Only for child processes, and only from their main thread.  The folder of the runtime's libraries
has to be on ``LD_LIBRARY_PATH`` when the process starts, or the accelerator is not found.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from dse.devices.litert_c import CompiledModel, _environment

GPU_AND_CPU = 3
_READ, _WRITE = 0, 1


class AcceleratedModel(CompiledModel):
    """A compiled model with buffers of the accelerator's own kind.

    Parameters
    ----------
    path
        The .tflite file.
    threads
        Of the kernels that stay on the CPU.

    Raises
    ------
    RuntimeRefusedError
        There is no accelerator, or it refuses the model.
    """

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads)
        self._in = self._managed("Input", len(self.inputs))
        self._out = self._managed("Output", len(self.outputs))

    def fill(self, number: int, data: bytes) -> None:
        """Write the bytes of an input."""
        buffer, address = ctypes.c_void_p(self._in[number]), ctypes.c_void_p()
        self._call("LiteRtLockTensorBuffer", buffer, ctypes.byref(address), ctypes.c_int(_WRITE))
        ctypes.memmove(address, data, len(data))
        self._call("LiteRtUnlockTensorBuffer", buffer)

    def invoke(self) -> None:
        """Run, and wait until the outputs can be read."""
        self.run(self._in, self._out)
        for handle in self._out:
            buffer, address = ctypes.c_void_p(handle), ctypes.c_void_p()
            self._call("LiteRtLockTensorBuffer", buffer, ctypes.byref(address), ctypes.c_int(_READ))
            self._call("LiteRtUnlockTensorBuffer", buffer)

    def _call(self, function: str, *arguments: object) -> None:
        if function == "LiteRtSetOptionsHardwareAccelerators":
            arguments = (arguments[0], GPU_AND_CPU)
        super()._call(function, *arguments)

    def _managed(self, side: str, count: int) -> Any:
        handles = self.handles(count)
        for number in range(count):
            needs = self._make(
                f"LiteRtGetCompiledModel{side}BufferRequirements",
                self._compiled,
                ctypes.c_size_t(0),
                ctypes.c_size_t(number),
            )
            kind = ctypes.byref(self._types[side, number])
            buffer = self._make(
                "LiteRtCreateManagedTensorBufferFromRequirements", _environment(), kind, needs
            )
            handles[number] = buffer.value
        return handles


def load_accelerated(path: Path, threads: int, seed: int) -> AcceleratedModel:
    """Build a model for the accelerator and fill its inputs with seeded values."""
    import numpy as np

    from dse.devices.inside import input_values

    model = AcceleratedModel(path, threads)
    random = np.random.default_rng(seed)
    for number, tensor in enumerate(model.inputs):
        model.fill(number, input_values(tensor, random))
    return model
