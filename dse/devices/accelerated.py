"""A model on an accelerator of the runtime's compiled-model interface, with the CPU for the rest.

Only for child processes, and only from their main thread (from another one it crashes).  The folder
of the runtime's libraries has to be on ``LD_LIBRARY_PATH`` when the process starts, or the
accelerator is not found: see ``dse.devices.accelerators.child_environment``.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.devices.litert_c import CPU, GPU, CompiledModel, environment, library
from dse.errors import RuntimeRefusedError

if TYPE_CHECKING:
    import numpy as np

_FUNCTIONS = (
    "LiteRtCompiledModelIsFullyAccelerated",
    "LiteRtCreateManagedTensorBufferFromRequirements",
    "LiteRtLockTensorBuffer",
    "LiteRtUnlockTensorBuffer",
)
IN_FLIGHT = 3
"""Frames that an accelerator gets before it has finished the first: reading back takes long."""

_READ, _WRITE = 0, 1
_ERROR = re.compile(r"ERROR: \[[^\]]*\] (.*)")
_LEFT_OUT = "operations are not supported by GPU delegate"
_REASON = re.compile(r"[A-Z][A-Z0-9_]*(?:[ :].*)?|CUSTOM.*")


class AcceleratedModel(CompiledModel):
    """A compiled model with buffers of the accelerator's own kind.

    Parameters
    ----------
    path
        The .tflite file.
    threads
        Of the kernels that stay on the CPU.
    n_sets
        Sets of buffers: frames that can be in flight.

    Raises
    ------
    RuntimeRefusedError
        There is no accelerator, or it refuses the model; with what the runtime said about it.
    """

    def __init__(self, path: Path, threads: int, n_sets: int = IN_FLIGHT) -> None:
        missing = [name for name in _FUNCTIONS if not hasattr(library(), name)]
        if missing:
            raise RuntimeRefusedError(f"the runtime's C API lacks {', '.join(missing)}")
        with _overheard() as said:
            try:
                super().__init__(path, threads, hardware=CPU | GPU)
            except RuntimeRefusedError as error:
                told = [match[1] for line in said() if (match := _ERROR.match(line))]
                raise RuntimeRefusedError(": ".join((str(error), *told[-1:]))) from None
            self.fallback = fallback_told(said()) if not self._fully_accelerated() else ()
        self._sets = [
            (self._managed("Input", len(self.inputs)), self._managed("Output", len(self.outputs)))
            for _ in range(n_sets)
        ]

    def fill(self, number: int, data: bytes) -> None:
        """Write the bytes of an input, in every set of buffers."""
        for inputs, _ in self._sets:
            with self._locked(inputs[number], _WRITE) as address:
                ctypes.memmove(address, data, len(data))

    def upload(self, number: int, values: np.ndarray[Any, Any], of: int = 0) -> None:
        """Copy an array to an input of a set."""
        with self._locked(self._sets[of][0][number], _WRITE) as address:
            ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, number: int, values: np.ndarray[Any, Any], of: int = 0) -> None:
        """Copy an output of a set to an array; waits until the accelerator is done with it."""
        with self._locked(self._sets[of][1][number], _READ) as address:
            ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def start(self, of: int = 0) -> None:
        """Run on a set of buffers; the outputs are there when they are read."""
        self.run(*self._sets[of])

    def wait(self, of: int = 0) -> None:
        """Wait until the outputs of a set can be read."""
        for handle in self._sets[of][1]:
            with self._locked(handle, _READ):
                pass

    def invoke(self) -> None:
        """Run, and wait until the outputs can be read."""
        self.start()
        self.wait()

    def intervals_ns(self, n_warmup: int, n_timed: int) -> list[int]:
        """Time frames of a full accelerator: from one frame's outputs to the next one's.

        So many frames are in flight as there are sets of buffers, as in a pipeline that is busy.
        """
        n_sets = len(self._sets)
        samples = []
        for frame in range(n_sets):
            self.start(frame)
        before = 0
        n_frames = n_warmup + n_timed + 1
        for frame in range(n_frames):
            self.wait(frame % n_sets)
            now = time.perf_counter_ns()
            if frame > n_warmup:
                samples.append(now - before)
            before = now
            self.start(frame % n_sets)  # up to the end, or the last intervals would be those of a drain
        for frame in range(n_frames, n_frames + n_sets):
            self.wait(frame % n_sets)
        return samples

    def close(self) -> None:
        """Free what the runtime holds."""
        for handle in (handle for both in self._sets for side in both for handle in side):
            self._call_nothing("LiteRtDestroyTensorBuffer", ctypes.c_void_p(handle))
        super().close()

    def _fully_accelerated(self) -> bool:
        answer = ctypes.c_bool()
        self._call("LiteRtCompiledModelIsFullyAccelerated", self._compiled, ctypes.byref(answer))
        return answer.value

    @contextmanager
    def _locked(self, handle: int, how: int) -> Iterator[ctypes.c_void_p]:
        buffer, address = ctypes.c_void_p(handle), ctypes.c_void_p()
        self._call("LiteRtLockTensorBuffer", buffer, ctypes.byref(address), ctypes.c_int(how))
        try:
            yield address
        finally:
            self._call("LiteRtUnlockTensorBuffer", buffer)

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
            buffer = self._make("LiteRtCreateManagedTensorBufferFromRequirements", environment(), kind, needs)
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


def fallback_told(lines: Sequence[str]) -> tuple[str, ...]:
    """Return what the runtime says about operators that it leaves to the CPU, one reason each.

    Never empty: where the runtime names nothing, the answer says that.
    """
    told: list[str] = []
    listing = False
    for line in lines:
        if _LEFT_OUT in line:
            listing = True
        elif listing and _REASON.fullmatch(line.strip()):
            told.append(line.strip().rstrip(":").rstrip())
        elif listing:
            listing = False
    return tuple(dict.fromkeys(told)) or ("some operators, which the runtime does not name",)


@contextmanager
def _overheard() -> Iterator[Any]:
    """Listen to what native code prints on standard error; it is passed on afterwards.

    The runtime tells which operators it leaves to the CPU, and why, in no other way.
    """
    with tempfile.TemporaryFile() as heard:
        before = os.dup(2)
        os.dup2(heard.fileno(), 2)

        def said() -> list[str]:
            return _text(heard.fileno()).splitlines()

        try:
            yield said
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.write(2, _text(heard.fileno()).encode())


def _text(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
