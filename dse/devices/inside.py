"""Timing a model from inside, with the profiler of the runtime's C interface.

Only for child processes.  The layout of profiler events is not promised by the runtime's headers,
so every run is checked: known kinds, names that are there, and no more time than the run took.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.devices.litert_c import ALIGNMENT, CompiledModel, SignatureTensor
from dse.errors import RuntimeRefusedError

if TYPE_CHECKING:
    import numpy as np

OPERATOR, KERNEL = 2, 8
KINDS = frozenset({1, OPERATOR, 4, KERNEL, 16, 32})  # the others are phases of the whole run


class _Event(ctypes.Structure):
    _fields_ = (
        ("tag", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("start_us", ctypes.c_uint64),
        ("elapsed_us", ctypes.c_uint64),
        ("memory_before", ctypes.c_uint64 * 3),
        ("memory_after", ctypes.c_uint64 * 3),
        ("metadata1", ctypes.c_uint64),
        ("metadata2", ctypes.c_uint64),
        ("source", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Event:
    """One profiler event of the main graph or of a delegate.

    Parameters
    ----------
    tag
        Name of the kernel or operator.
    kind
        2: an operator of the graph (``index`` is its number in the file); 8: a kernel inside a
        delegate (``index`` counts the kernels of this delegate).
    index
        See ``kind``.
    elapsed_us
        Whole microseconds.
    """

    tag: str
    kind: int
    index: int
    elapsed_us: int


class InsideModel(CompiledModel):
    """A compiled model with the runtime's profiler and inputs of its own.

    Parameters
    ----------
    path
        The .tflite file.
    threads
        Threads of the kernels.
    kernels
        See ``dse.platforms.Kernels``.

    Raises
    ------
    RuntimeRefusedError
        The runtime refuses the model or has no profiler.
    """

    def __init__(self, path: Path, threads: int, kernels: str = "default") -> None:
        super().__init__(path, threads, kernels)
        self.input_data = [_aligned(tensor.buffer_bytes) for tensor in self.inputs]
        self._output_data = [_aligned(tensor.buffer_bytes) for tensor in self.outputs]
        self._in = self._wrap_all("Input", self.input_data)
        self._out = self._wrap_all("Output", self._output_data)
        self._profiler = self._make("LiteRtCompiledModelGetProfiler", self._compiled)

    def fill(self, number: int, data: bytes) -> None:
        """Write the bytes of an input."""
        import numpy as np

        self.input_data[number][: len(data)] = np.frombuffer(data, np.uint8)

    def run_once(self) -> None:
        """Run on the inputs as they are."""
        self.run(self._in, self._out)

    def profile(self) -> list[Event]:
        """Run once under the profiler.

        Returns
        -------
        list of Event
            Operators of the main graph and kernels, in execution order.

        Raises
        ------
        RuntimeRefusedError
            The events are not what they are known to be.
        """
        self._call("LiteRtResetProfiler", self._profiler)
        self._call("LiteRtStartProfiler", self._profiler)
        start = time.perf_counter_ns()
        self.run_once()
        took_us = (time.perf_counter_ns() - start) // 1000
        self._call("LiteRtStopProfiler", self._profiler)
        return self._events(took_us)

    def _events(self, took_us: int) -> list[Event]:
        count = ctypes.c_int()
        self._call("LiteRtGetNumProfilerEvents", self._profiler, ctypes.byref(count))
        raw = (_Event * max(1, count.value))()
        self._call("LiteRtGetProfilerEvents", self._profiler, count, raw)
        found = raw[: count.value]
        timed_us = sum(event.elapsed_us for event in found if event.type == KERNEL)
        if timed_us > took_us or any(event.type not in KINDS or not event.tag for event in found):
            raise RuntimeRefusedError(
                f"{self._path}: profiler events have another layout in this version of the runtime"
            )
        return [
            Event(event.tag.decode(errors="replace"), event.type, event.metadata1, event.elapsed_us)
            for event in found
            if event.type == KERNEL or (event.type == OPERATOR and event.metadata2 == 0)
        ]

    def _add_further_options(self, options: ctypes.c_void_p) -> None:
        self._add_text_options(options, b"runtime_options_string", b"enable_profiling = true\n")

    def _wrap_all(self, side: str, arrays: list[np.ndarray[Any, Any]]) -> Any:
        handles = self.handles(len(arrays))
        for number, array in enumerate(arrays):
            handles[number] = self.wrap(side, number, array.ctypes.data, array.nbytes)
        return handles


def input_values(tensor: SignatureTensor, random: np.random.Generator) -> bytes:
    """Return seeded bytes for an input; see ``dse.devices.worker.values``."""
    import numpy as np

    from dse.devices.worker import values

    return values(random, tensor.shape, np.dtype(tensor.dtype), tensor.name).tobytes()


def _aligned(n_bytes: int) -> np.ndarray[Any, Any]:
    import numpy as np

    whole = np.zeros(max(1, n_bytes) + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + max(1, n_bytes)]
