"""The small program that runs on a device and times models: ``python -m dse.devices.worker``.

It pins itself before it loads anything that could start threads, because the runtime's workers
keep the affinity mask of the thread that builds them.  It answers the commands of
``dse.devices.serving`` with the handlers of ``Worker``.  The parent's side is
``dse.profiling.slot_worker``.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.devices.serving import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from dse.devices.inside import InsideModel

TASKS = Path("/proc/self/task")
KIB = 1024
YARDSTICK_BYTES, N_YARDSTICKS = 1 << 15, 15
# What a native runner and the in-situ profiler need of the runtime's C interface.
C_FUNCTIONS = (
    "LiteRtCreateEnvironment",
    "LiteRtCreateModelFromFile",
    "LiteRtCreateOptions",
    "LiteRtSetOptionsHardwareAccelerators",
    "LiteRtCreateOpaqueOptions",
    "LiteRtAddOpaqueOptions",
    "LiteRtCreateCompiledModel",
    "LiteRtGetCompiledModelInputBufferRequirements",
    "LiteRtGetCompiledModelOutputBufferRequirements",
    "LiteRtCreateManagedTensorBufferFromRequirements",
    "LiteRtLockTensorBuffer",
    "LiteRtUnlockTensorBuffer",
    "LiteRtRunCompiledModel",
    "LiteRtCompiledModelGetProfiler",
    "LiteRtStartProfiler",
    "LiteRtStopProfiler",
    "LiteRtGetNumProfilerEvents",
    "LiteRtGetProfilerEvents",
)


def main(argv: list[str] | None = None) -> None:
    """Pin this process to the cores of ``--cores 0,1`` and answer requests until the end of input."""
    parser = argparse.ArgumentParser(prog="python -m dse.devices.worker")
    parser.add_argument("--cores", required=True, help="comma-separated core numbers")
    cores = tuple(int(part) for part in parser.parse_args(argv).cores.split(","))
    os.sched_setaffinity(0, cores)
    worker = Worker()
    serve(
        {
            "hello": worker.hello,
            "yardstick": lambda _: {"yardstick_ns": yardstick_ns()},
            "affinity": lambda _: {"threads": thread_masks()},
            "load": worker.load,
            "time": worker.time,
            "busy": worker.busy,
            "calm": worker.calm,
            "unload": worker.unload,
            "load_inside": worker.load_inside,
            "time_inside": worker.time_inside,
            "capture": capture,
            "c_interface": lambda _: c_interface(),
            "try_affinity": lambda _: {"masks": try_affinity(cores)},
        }
    )


def yardstick_ns() -> int:
    """Return how long a fixed piece of arithmetic takes (median of some tries).

    It stays inside the core: slower than before means that the clock fell, or that somebody on the
    other hardware thread of the physical core works, whom no counter of a virtual machine shows.
    """
    data = bytes(YARDSTICK_BYTES)
    times = sorted(time_invocations(lambda: hashlib.sha256(data), 1, N_YARDSTICKS))
    return times[N_YARDSTICKS // 2]


def thread_masks(tasks: Path = TASKS) -> dict[str, list[int]]:
    """Read back the affinity mask of every thread of this process, by thread number."""
    masks: dict[str, list[int]] = {}
    for task in tasks.iterdir():
        try:
            masks[task.name] = sorted(os.sched_getaffinity(int(task.name)))
        except ProcessLookupError:  # the thread has ended meanwhile
            continue
    return masks


def try_affinity(cores: Sequence[int]) -> dict[str, list[int]]:
    """Pin a new thread to each core in turn and return the masks that were read back."""
    masks: dict[str, list[int]] = {}

    def pin(core: int) -> None:
        me = threading.get_native_id()
        try:
            os.sched_setaffinity(me, {core})
        except OSError:
            return
        masks[str(core)] = sorted(os.sched_getaffinity(me))

    for core in cores:
        thread = threading.Thread(target=pin, args=(core,))
        thread.start()
        thread.join()
    return masks


def c_interface() -> dict[str, Any]:
    """Look for the runtime's C functions in its shared library."""
    import ctypes

    import ai_edge_litert

    path = Path(ai_edge_litert.__file__).parent / "libLiteRt.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return {"missing": [f"the library itself ({error})"], "n_found": 0}
    missing = [name for name in C_FUNCTIONS if not hasattr(library, name)]
    return {"missing": missing, "n_found": len(C_FUNCTIONS) - len(missing)}


class MemoryGrowth:
    """By how much this process grows at its peak, from now on.

    Parameters
    ----------
    process
        The kernel's folder of this process.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._process = process
        try:
            (process / "clear_refs").write_text("5")  # the peak starts anew
        except OSError:  # then only growth beyond the earlier peak shows
            self._before = self._read("VmHWM")
        else:
            self._before = self._read("VmRSS")

    @property
    def n_bytes(self) -> int:
        """The growth so far."""
        return max(0, self._read("VmHWM") - self._before)

    def _read(self, field: str) -> int:
        for line in (self._process / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) * KIB
        return 0


@dataclass
class Worker:
    """Interpreters that stay resident, so that many models can be timed in turns."""

    loaded: dict[str, Any] = field(default_factory=dict)
    inside: InsideModel | None = None
    _background: threading.Thread | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def hello(self, _: dict[str, Any]) -> dict[str, Any]:
        """Tell who this is: versions and the mask that was really applied."""
        import ai_edge_litert

        interpreter_class()
        return {
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "runtime": "ai-edge-litert",
            "runtime_version": ai_edge_litert.__version__,
            "cores": sorted(os.sched_getaffinity(0)),
        }

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build, allocate and fill an interpreter and run it once.

        The request has ``id``, ``path``, ``threads``, ``seed`` and ``kernels`` (one of
        ``dse.platforms.Kernels``, or ``gpu``); ``values`` may name a file of numbers for some inputs, by
        position.  The answer has the times of the build, of the first (cold) and of the second
        invocation, by how much the process grew at its peak, and the ``fallback``: what an accelerator
        leaves to the CPU.
        """
        growth = MemoryGrowth()
        start = time.perf_counter_ns()
        if request.get("kernels") == "gpu":
            from dse.devices.accelerated import load_accelerated

            interpreter: Any = load_accelerated(
                Path(request["path"]), int(request["threads"]), int(request["seed"])
            )
            built = time.perf_counter_ns()
        else:
            interpreter = interpreter_class()(
                model_path=request["path"],
                num_threads=int(request["threads"]),
                **resolver(request.get("kernels", "default")),
            )
            interpreter.allocate_tensors()
            built = time.perf_counter_ns()
            fill_inputs(interpreter, int(request["seed"]), request.get("values"))
        filled = time.perf_counter_ns()
        interpreter.invoke()
        ran = time.perf_counter_ns()
        interpreter.invoke()
        warm = time.perf_counter_ns()
        self.loaded[request["id"]] = interpreter
        return {
            "build_ns": built - start,
            "first_ns": ran - filled,
            "second_ns": warm - ran,
            "grown_bytes": growth.n_bytes,
            "fallback": list(getattr(interpreter, "fallback", ())),
        }

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time models in the order given; each visit is ``[id, warm-up runs, timed runs]``.

        ``pause_ns`` is how long to sleep before every timed run.
        """
        pause_ns = int(request.get("pause_ns", 0))
        samples: dict[str, list[int]] = {}
        collecting = gc.isenabled()
        gc.disable()  # a collection inside a timed run would be noise of our own making
        try:
            for name, n_warmup, n_timed in request["visits"]:
                model = self.loaded[name]
                # What counts of an accelerator is how often it finishes a frame.
                intervals = getattr(model, "intervals_ns", None)
                samples.setdefault(name, []).extend(
                    intervals(n_warmup, n_timed)
                    if intervals is not None
                    else time_invocations(model.invoke, n_warmup, n_timed, pause_ns)
                )
        finally:
            if collecting:
                gc.enable()
        return {"samples": samples}

    def busy(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the model ``id`` over and over in the background, until ``calm``."""
        if self._background is None:
            invoke = self.loaded[request["id"]].invoke
            self._stop.clear()

            def repeat() -> None:
                while not self._stop.is_set():
                    invoke()

            self._background = threading.Thread(target=repeat, daemon=True)
            self._background.start()
        return {}

    def calm(self, _: dict[str, Any]) -> dict[str, Any]:
        """End ``busy``; answers when the last run is over."""
        if self._background is not None:
            self._stop.set()
            self._background.join()
            self._background = None
        return {}

    def load_inside(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build a model with the runtime's profiler (one at a time), fill it and run it twice.

        The request has ``path``, ``threads``, ``seed`` and ``kernels``.
        """
        import numpy as np

        from dse.devices.inside import InsideModel, input_values

        self.inside = None
        model = InsideModel(Path(request["path"]), int(request["threads"]), request.get("kernels", "default"))
        random = np.random.default_rng(int(request["seed"]))
        for number, tensor in enumerate(model.inputs):
            model.fill(number, input_values(tensor, random))
        model.run_once()
        start = time.perf_counter_ns()
        model.profile()
        second_ns = time.perf_counter_ns() - start
        self.inside = model
        return {"second_ns": second_ns}

    def time_inside(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the model of ``load_inside`` under the profiler.

        The request has ``n_warmup`` and ``n_runs``; the answer has the ``pieces`` (kind, name and
        number of each operator of the main graph and each kernel, in execution order) and, per
        piece, its times in microseconds, one per run.
        """
        if self.inside is None:
            raise ValueError("no model is loaded for profiling")
        for _ in range(int(request["n_warmup"])):
            self.inside.run_once()
        runs = [self.inside.profile() for _ in range(int(request["n_runs"]))]
        pieces = [[event.kind, event.tag, event.index] for event in runs[0]]
        if any([[event.kind, event.tag, event.index] for event in run] != pieces for run in runs):
            raise ValueError("the runtime's profiler reports other kernels in every run")
        return {
            "pieces": pieces,
            "times_us": [[run[i].elapsed_us for run in runs] for i in range(len(pieces))],
        }

    def unload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Forget interpreters."""
        for name in request["ids"]:
            self.loaded.pop(name, None)
        gc.collect()
        return {}


def time_invocations(
    invoke: Callable[[], object], n_warmup: int, n_timed: int, pause_ns: int = 0
) -> list[int]:
    """Time single calls, each from its start to its end, in nanoseconds; sleep before each of them."""
    clock = time.perf_counter_ns
    for _ in range(n_warmup):
        invoke()
    samples = []
    for _ in range(n_timed):
        if pause_ns:
            time.sleep(pause_ns / 1e9)
        start = clock()
        invoke()
        samples.append(clock() - start)
    return samples


def interpreter_class() -> Any:
    """Import the runtime's interpreter (late: the process has to be pinned first)."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


def resolver(kernels: str) -> dict[str, Any]:
    """Return the arguments with which an interpreter runs some kernels (``dse.platforms.Kernels``)."""
    if kernels == "default":
        return {}
    from ai_edge_litert.interpreter import OpResolverType

    types = {
        "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        "reference": OpResolverType.BUILTIN_REF,
    }
    return {"experimental_op_resolver_type": types[kernels]}


def fill_inputs(interpreter: Any, seed: int, files: dict[str, str] | None = None) -> None:
    """Give every input of an interpreter values that no operator rejects.

    Parameters
    ----------
    interpreter
        Allocated.
    seed
        For inputs without a file.  Integers of 16 bits and more may be indices, axes or lengths, so
        they are 0 or 1; 8-bit values are quantised numbers and take their whole range.
    files
        ``.npy`` files by position of the input.

    Raises
    ------
    ValueError
        An input has a type that can not be filled (strings, resources).
    """
    import numpy as np

    random = np.random.default_rng(seed)
    for position, detail in enumerate(interpreter.get_input_details()):
        given = (files or {}).get(str(position))
        if given is not None:
            interpreter.set_tensor(detail["index"], np.load(given, allow_pickle=False))
            continue
        shape, dtype = tuple(int(n) for n in detail["shape"]), np.dtype(detail["dtype"])
        interpreter.set_tensor(detail["index"], values(random, shape, dtype, detail["name"]))


def values(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], name: str
) -> np.ndarray[Any, Any]:
    """Return one array of seeded values; see ``fill_inputs``."""
    import numpy as np

    if dtype.kind == "f":
        return random.uniform(-1.0, 1.0, shape).astype(dtype)
    if dtype.kind == "c":
        return (random.uniform(-1, 1, shape) + 1j * random.uniform(-1, 1, shape)).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (limits.min, limits.max) if dtype.itemsize == 1 else (0, 1)
        return random.integers(low, high, shape, endpoint=True).astype(dtype)
    raise ValueError(f"input {name!r} has the type {dtype}, which can not be filled with numbers")


def capture(request: dict[str, Any]) -> dict[str, Any]:
    """Run a model once and write some of its inner tensors to files.

    The request has ``path``, ``seed``, ``tensors`` (indices in the main subgraph) and ``folder``;
    the answer has the ``files`` by tensor index.
    """
    import numpy as np

    interpreter = interpreter_class()(model_path=request["path"], experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    fill_inputs(interpreter, int(request["seed"]))
    interpreter.invoke()
    files: dict[str, str] = {}
    for tensor in request["tensors"]:
        path = Path(request["folder"]) / f"tensor{tensor}.npy"
        try:
            np.save(path, interpreter.get_tensor(tensor), allow_pickle=False)
        except ValueError:  # a tensor without numbers, or never computed (a branch not taken)
            continue
        files[str(tensor)] = str(path)
    return {"files": files}


if __name__ == "__main__":
    main()
