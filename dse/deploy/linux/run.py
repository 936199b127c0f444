#!/usr/bin/env python3
"""Run the pipelines of this bundle; needs ai-edge-litert, numpy and nothing else.

  python3 run.py --verify                                 checksums, and outputs against the reference
  python3 run.py --seconds 10                             full speed on the reference frames
  python3 run.py --frames clip.npy --output results       frames along the first axis, outputs to a folder
  camera | python3 run.py --frames - --output -           raw frames in, raw outputs out
  python3 run.py --source camera:frames --output show:draw    callables in your modules

A model with several inputs takes a folder with input_0.npy, input_1.npy, ...  A source callable
returns an iterable of tuples of arrays; a sink is called as sink(number, outputs).  A model with state
runs one stream per lane: give --frames or --source, and --output, once per stream.

Every lane is a process, every stage in it a thread that pins itself before it builds its model, so
that the runtime's own threads inherit the mask; the masks are read back.  Stages share memory: a frame
lives in slot (number modulo slots) of every tensor, and enters a lane only when the frame that had the
slot before has left it.  That is all the back-pressure there is; no frame can be lost, doubled or
reordered.  SIGINT and SIGTERM stop the sources; what is under way is finished and delivered.
Exit codes: 0 done, 1 failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import importlib.util
import json
import mmap
import os
import queue
import re
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

# Idle threads of numpy's matrix library would disturb the stages.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

HERE = Path(__file__).resolve().parent
HEADER = "tflite-dse plan 1"
ALIGNMENT = 64
WARM_UP_S = 0.5
POLL_S = 0.2
GRACE_S = 2.0
KEPT_LATENCIES = 200_000
GO, END = b"\1", b""  # what passes between threads and processes, frame by frame

Array = Any  # numpy.ndarray
Frame = Sequence[Array]
Sink = Callable[[int, tuple[Array, ...]], object]


class FailedError(Exception):
    """The work failed (exit code 1)."""


class BadInputError(FailedError):
    """Something given can not be used (exit code 2)."""


def say(text: str) -> None:
    """Write a line for people."""
    sys.stderr.write(text + "\n")


def show(cores: Iterable[int]) -> str:
    """Write core numbers for people."""
    return ", ".join(str(core) for core in sorted(cores))


class Port:
    """A tensor at the edge of a stage: equal keys are the same tensor."""

    def __init__(self, key: str, dtype: str, shape: str, n_bytes: str, name: str) -> None:
        self.key = int(key)
        self.dtype = np.dtype(dtype)
        self.shape = () if shape == "-" else tuple(int(size) for size in shape.split("x"))
        self.n_bytes = int(n_bytes)
        self.name = name
        if int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize != self.n_bytes:
            raise ValueError(f"{dtype} {shape} does not take {n_bytes} bytes")

    @property
    def padded(self) -> int:
        """Bytes of a slot, up to the next boundary that the runtime wants."""
        return max(1, -(-self.n_bytes // ALIGNMENT)) * ALIGNMENT


class Stage:
    """A model file on some cores."""

    def __init__(self, home: Path, name: str, threads: str, cores: str, kernels: str, file: str) -> None:
        self.name, self.threads, self.kernels, self.path = name, int(threads), kernels, home / file
        self.cores = frozenset(int(core) for core in cores.split(","))
        self.takes: list[Port] = []
        self.gives: list[Port] = []


class Plan:
    """What ``plan.txt`` says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mapping = self.model = ""
        self.stateful, self.queue = False, 2
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self.tolerances: list[float] = []
        self.lanes: list[list[Stage]] = []
        path = folder / "plan.txt"
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"{path}: can not be read: {error}") from None
        if not lines or lines[0] != HEADER:
            raise BadInputError(f"{path}: expected {HEADER!r} in its first line")
        for number, line in enumerate(lines[1:], 2):
            word, *fields = line.split(" ")
            try:
                self._take(word, [unescape(field) for field in fields])
            except (ValueError, TypeError, LookupError) as error:
                raise BadInputError(f"{path}:{number}: {line!r} is damaged: {error}") from None
        if not self.lanes or not all(self.lanes) or len(self.tolerances) != len(self.outputs):
            raise BadInputError(f"{path}: lanes, stages or tolerances are missing")

    def _take(self, word: str, fields: list[str]) -> None:
        if word == "lane":
            self.lanes.append([])
        elif word == "stage":
            self.lanes[-1].append(Stage(self.folder, *fields))
        elif word in ("input", "output", "takes", "gives"):
            home = {"input": self.inputs, "output": self.outputs}.get(word)
            (getattr(self.lanes[-1][-1], word) if home is None else home).append(Port(*fields))
        elif word == "tolerance":
            self.tolerances.append(float(fields[0]))
        elif word == "stateful":
            self.stateful = {"yes": True, "no": False}[fields[0]]
        elif word == "queue":
            self.queue = int(fields[0])
        elif word in ("mapping", "model"):
            setattr(self, word, fields[0])
        else:
            raise ValueError(f"unknown word {word!r}")

    def n_slots(self, lane: list[Stage]) -> int:
        """Frames that may be inside a lane: so many per stage that a frame passes, and some to spare."""
        return self.queue * max(levels(lane)) + self.queue + 2


def unescape(field: str) -> str:
    """Read a field of the plan: %XX is a byte, a lone % is nothing."""
    if field == "%":
        return ""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), field.encode())
    return raw.decode("utf-8", "surrogateescape")


def sources(lane: list[Stage], at: int) -> list[int | None]:
    """For each input of a stage the earlier stage that makes it; None: it is an input of the model."""
    made = {port.key: number for number, stage in enumerate(lane[:at]) for port in stage.gives}
    return [made.get(port.key) for port in lane[at].takes]


def levels(lane: list[Stage]) -> list[int]:
    """Longest way, in hand-overs, from the model's inputs to each stage."""
    found: list[int] = []
    for at in range(len(lane)):
        found.append(1 + max((found[s] for s in sources(lane, at) if s is not None), default=-1))
    return found


def check_sums(folder: Path, every: bool) -> None:
    """Check the files that are run, or every file of the bundle, against SHA256SUMS."""
    sums = folder / "SHA256SUMS"
    try:
        lines = sums.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{sums}: can not be read: {error}") from None
    listed: dict[str, str] = {}
    for line in lines:
        if not re.fullmatch(r"[0-9a-f]{64}  .+", line):
            raise BadInputError(f"{sums}: expected sums and files, got {line!r}")
        listed[line[66:]] = line[:64]
    faults = [f"{name} is not listed" for name in ("plan.txt", "mapping.yaml") if name not in listed]
    for name, wanted in listed.items():
        if every or name in ("plan.txt", "mapping.yaml") or name.startswith("stages/"):
            try:
                if sha256(folder / name) != wanted:
                    faults.append(f"{name} was changed")
            except OSError as error:
                faults.append(f"{name} can not be read ({error.strerror})")
    if faults:
        raise BadInputError(f"{folder}: {'; '.join(faults)}: copy or export the bundle again")


def sha256(path: Path) -> str:
    """Return the sum of a file."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()


ELEMENTS = {
    1: "float32", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 8: "complex64",
    9: "int8", 10: "float16", 11: "float64", 13: "uint64", 16: "uint32", 17: "uint16",
}  # fmt: skip


SIZE = ctypes.c_size_t


class Compiled:
    """A stage through the runtime's C API (libLiteRt.so): reads and writes the slots themselves."""

    kind = "compiled"

    class _Type(ctypes.Structure):
        _fields_ = (("element", ctypes.c_int), ("bits", ctypes.c_uint32))
        _fields_ += (("sizes", ctypes.c_int32 * 8), ("strides", ctypes.c_uint32 * 8))  # type: ignore[assignment]

    api: Any = None
    environment: Any = None

    def __init__(self, stage: Stage) -> None:
        cls = type(self)
        if cls.environment is None:
            found = importlib.util.find_spec("ai_edge_litert")
            if found is None or found.origin is None:
                raise FailedError("the package ai-edge-litert is not installed")
            cls.api = ctypes.CDLL(str(Path(found.origin).parent / "libLiteRt.so"))
            cls.environment = self._make("CreateEnvironment", 0, None)
        self._model = self._make("CreateModelFromFile", self.environment, os.fsencode(stage.path))
        options = self._make("CreateOptions")
        self._call("SetOptionsHardwareAccelerators", options, 1)  # the CPU
        libc = ctypes.CDLL(None)
        libc.strdup.restype = ctypes.c_void_p
        # The runtime frees the text with the function that it is given.
        mode = "xnnpack" if stage.kernels == "default" else stage.kernels
        settings = f'num_threads = {stage.threads}\nkernel_mode = "{mode}"\n'
        text = ctypes.c_void_p(libc.strdup(settings.encode()))
        free = ctypes.cast(libc.free, ctypes.c_void_p)
        self._call("AddOpaqueOptions", options, self._make("CreateOpaqueOptions", b"xnnpack", text, free))
        self._compiled = self._make("CreateCompiledModel", self.environment, self._model, options)
        self.api.LiteRtDestroyOptions(options)
        n_signatures = SIZE()
        self._call("GetNumModelSignatures", self._model, ctypes.byref(n_signatures))
        if n_signatures.value != 1:
            raise FailedError(f"expected one signature, the runtime sees {n_signatures.value}")
        signature = self._make("GetModelSignature", self._model, SIZE(0))
        self._ins = self._side("Input", signature, stage.takes)
        self._outs = self._side("Output", signature, stage.gives)
        self._known: dict[int, tuple[Any, Any]] = {}

    def run(self, slot: int, inputs: Frame, outputs: Frame) -> None:
        """Run the stage on a slot's arrays."""
        if slot not in self._known:
            self._known[slot] = self._wrap(self._ins, inputs), self._wrap(self._outs, outputs)
        ins, outs = self._known[slot]
        sides = (SIZE(len(ins)), ins, SIZE(len(outs)), outs)
        status = self.api.LiteRtRunCompiledModel(self._compiled, SIZE(0), *sides)
        if status:
            raise FailedError(f"the runtime failed with status {status}")

    def _side(self, side: str, signature: Any, ports: list[Port]) -> list[tuple[int, Any, int]]:
        """Return place in the signature, type and slot size of each port, found by name."""
        count = SIZE()
        self._call(f"GetNumSignature{side}s", signature, ctypes.byref(count))
        found, names = [], []
        for number in range(count.value):
            tensor = self._make(f"GetSignature{side}TensorByIndex", signature, SIZE(number))
            name, kind, needed = ctypes.c_char_p(), self._Type(), SIZE()
            self._call("GetTensorName", tensor, ctypes.byref(name))
            self._call("GetRankedTensorType", tensor, ctypes.byref(kind))
            place = (SIZE(0), SIZE(number))
            needs = self._make(f"GetCompiledModel{side}BufferRequirements", self._compiled, *place)
            self._call("GetTensorBufferRequirementsBufferSize", needs, ctypes.byref(needed))
            names.append((name.value or b"").decode("utf-8", "surrogateescape"))
            found.append((number, kind, needed.value))
        if len(found) != len(ports):
            raise FailedError(f"the file has {len(found)} {side.lower()}s, the plan {len(ports)}")
        distinct = len(set(names)) == len(names)
        chosen = []
        for at, port in enumerate(ports):
            number, kind, size = found[names.index(port.name) if distinct and port.name in names else at]
            shape = tuple(kind.sizes[: kind.bits & 0x7F])
            if (ELEMENTS.get(kind.element), shape) != (port.dtype.name, port.shape) or size > port.padded:
                raise FailedError(f"{side.lower()} {port.name!r} of the file is of another type or shape")
            chosen.append((number, kind, port.padded))
        return chosen

    def _wrap(self, side: list[tuple[int, Any, int]], arrays: Frame) -> Any:
        handles = (ctypes.c_void_p * len(side))()
        for (place, kind, padded), values in zip(side, arrays):
            memory = (ctypes.c_void_p(values.ctypes.data), SIZE(padded), None)
            handles[place] = self._make("CreateTensorBufferFromHostMemory", ctypes.byref(kind), *memory)
        return handles

    def _make(self, function: str, *arguments: Any) -> Any:
        made = ctypes.c_void_p()
        self._call(function, *arguments, ctypes.byref(made))
        return made

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.api, f"LiteRt{function}")(*arguments)
        if status:
            raise FailedError(f"LiteRt{function} failed with status {status}")


class Interpreted:
    """A stage in the interpreter: inputs and outputs are copied."""

    kind = "interpreter"

    def __init__(self, stage: Stage) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        kind = {"builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}.get(stage.kernels)
        how = {} if kind is None else {"experimental_op_resolver_type": OpResolverType[kind]}
        self._interpreter = Interpreter(str(stage.path), num_threads=stage.threads, **how)
        self._interpreter.allocate_tensors()
        self._ins = [detail["index"] for detail in self._interpreter.get_input_details()]
        outs = [detail["index"] for detail in self._interpreter.get_output_details()]
        self._views = [self._interpreter.tensor(index) for index in outs]

    def run(self, slot: int, inputs: Frame, outputs: Frame) -> None:
        """Run the stage."""
        for index, values in zip(self._ins, inputs):
            self._interpreter.set_tensor(index, values)
        self._interpreter.invoke()
        for view, values in zip(self._views, outputs):
            np.copyto(values, view())


def build(stage: Stage, engine: str) -> Compiled | Interpreted:
    """Build the engine of a stage; ``auto`` falls back to the interpreter (models with state)."""
    if engine == "interpreter":
        return Interpreted(stage)
    try:
        return Compiled(stage)
    except (FailedError, OSError, AttributeError) as error:
        if engine == "compiled":
            raise FailedError(f"the C API refused {stage.path.name}: {error}") from None
        return Interpreted(stage)


def make_slots(ports: Iterable[Port], n: int) -> dict[int, list[Array]]:
    """Return ``n`` arrays per tensor, in memory that processes forked later share."""
    return {
        port.key: [np.ndarray(port.shape, port.dtype, mmap.mmap(-1, port.padded)) for _ in range(n)]
        for port in ports
    }


class Lane:
    """A lane as the parent sees it: its pipes, its shared slots, its process."""

    def __init__(self, plan: Plan, number: int, stop_flag: mmap.mmap) -> None:
        self.plan, self.number, self.stop_flag = plan, number, stop_flag
        self.stages = plan.lanes[number]
        self.n_slots = plan.n_slots(self.stages)
        self.inputs = make_slots(plan.inputs, self.n_slots)
        self.outputs = make_slots(plan.outputs, self.n_slots)
        feeding = {s for at in range(len(self.stages)) for s in sources(self.stages, at)}
        every = range(len(self.stages))
        ends = [bool({port.key for port in stage.gives} & self.outputs.keys()) for stage in self.stages]
        self.entering = [at for at in every if None in sources(self.stages, at) or not self.stages[at].takes]
        self.final = [at for at in every if at not in feeding or ends[at]]
        self.pid, self.status, self.reaping = 0, 0, threading.Lock()

    def start(self, options: argparse.Namespace, others: list[Lane]) -> None:
        """Fork; the child never returns."""
        # Pipes are made now, so that lanes that run already do not hold ends of them.
        self.feed = {at: os.pipe() for at in self.entering}
        self.done = {at: os.pipe() for at in self.final}
        self.life, self.told, self.go = os.pipe(), os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            for _, write in (*self.done.values(), self.told):
                os.close(write)
            self.tells = os.fdopen(self.told[0])
            for read, _ in (*self.feed.values(), self.life, self.go):
                os.close(read)
            return
        code = 1
        try:
            # Ends of other lanes' pipes would keep those lanes from noticing that the parent is gone.
            for lane in others:
                lane.close()
            for _, write in (*self.feed.values(), self.life, self.go):
                os.close(write)
            for stop in (signal.SIGINT, signal.SIGTERM):
                signal.signal(stop, signal.SIG_IGN)
            threading.Thread(target=self._die_with_parent, daemon=True).start()
            Work(self, options).run()
            code = 0
        except BaseException as error:
            if not isinstance(error, BrokenPipeError):  # then the parent has what it wanted
                say(f"run.py: lane {self.number}: {error}")
        finally:
            os._exit(code)

    def close(self) -> None:
        """Close the parent's ends: the lane ends when it sees that."""
        for _, write in (*self.feed.values(), self.life, self.go):
            os.close(write)
        for read, _ in self.done.values():
            os.close(read)
        self.tells.close()

    def answer(self) -> dict[str, Any]:
        """Read the next line that the lane tells."""
        line = self.tells.readline()
        if not line:
            raise FailedError(f"lane {self.number} {self.death()}")
        return dict(json.loads(line))

    def death(self) -> str:
        """Wait for the process and say how it ended."""
        with self.reaping:
            if self.pid:
                self.status, self.pid = os.waitpid(self.pid, 0)[1], 0
        killed = f"was killed by signal {os.WTERMSIG(self.status)}"
        return killed if os.WIFSIGNALED(self.status) else f"ended with code {os.WEXITSTATUS(self.status)}"

    def _die_with_parent(self) -> None:
        os.read(self.life[0], 1)
        os._exit(1)


class Work:
    """The inside of a lane's process: a thread per stage, joined by queues of tokens."""

    def __init__(self, lane: Lane, options: argparse.Namespace) -> None:
        self.lane, self.options = lane, options
        stages = lane.stages
        self.made = [
            make_slots((p for p in s.gives if p.key not in lane.outputs), lane.n_slots) for s in stages
        ]
        turns = {stage.cores: threading.Lock() for stage in stages}
        self.turns = [turns[stage.cores] for stage in stages]
        self.waits: list[list[Callable[[], bytes]]] = [[] for _ in stages]
        self.signals: list[list[Callable[[bytes], object]]] = [[] for _ in stages]
        self.engines: list[Any] = [None] * len(stages)
        self.tids, self.busy_ns = [0] * len(stages), [0] * len(stages)
        self.entered = [0] * lane.n_slots
        self.latencies: deque[int] = deque(maxlen=KEPT_LATENCIES)
        self.begin_ns = self.first_ns = self.last_ns = self.counted = self.n_done = 0
        for at in range(len(lane.stages)):
            for source in dict.fromkeys(s for s in sources(lane.stages, at) if s is not None):
                tokens: queue.SimpleQueue[bytes] = queue.SimpleQueue()
                self.signals[source].append(tokens.put)
                self.waits[at].append(tokens.get)
        if self.options.looping:
            for start in lane.entering:
                for end in lane.final:
                    # As many frames may be inside as there are slots.
                    tokens = queue.SimpleQueue()
                    for _ in range(lane.n_slots):
                        tokens.put(GO)
                    self.signals[end].append(tokens.put)
                    self.waits[start].append(tokens.get)
        else:
            for start in lane.entering:
                self.waits[start].append(partial(os.read, lane.feed[start][0], 1))
            for end in lane.final:
                self.signals[end].append(partial(os.write, lane.done[end][1]))

    def run(self) -> None:
        """Build the stages one after another, run until the end, and tell the figures."""
        mine: set[int | None] = {int(path.name) for path in Path("/proc/self/task").iterdir()}
        begin = threading.Event()
        threads = []
        for at in range(len(self.lane.stages)):
            built = threading.Event()
            threads.append(threading.Thread(target=self._stage, args=(at, built, begin), daemon=True))
            threads[-1].start()
            built.wait()
        self._check_masks(mine)
        self._tell({"engines": [engine.kind for engine in self.engines]})
        os.read(self.lane.go[0], 1)
        self.begin_ns = time.monotonic_ns() + int(WARM_UP_S * 1e9)
        begin.set()
        for thread in threads:
            thread.join()
        self._check_masks(mine)
        window = self.last_ns - self.first_ns
        hz = self.counted * 1e9 / window if window > 0 else 0.0
        stages = zip(self.lane.stages, self.busy_ns)
        busy = {stage.name: total // max(1, self.n_done) for stage, total in stages}
        self._tell({"frames": self.n_done, "hz": hz, **quantiles(self.latencies), "busy_ns": busy})

    def _quietly(self, stage: Stage) -> Compiled | Interpreted:
        """Build a stage; what the runtime says meanwhile is shown only when it fails."""
        with tempfile.TemporaryFile() as words:
            loud = os.dup(2)
            os.dup2(words.fileno(), 2)
            try:
                return build(stage, self.options.engine)
            except BaseException:
                os.lseek(words.fileno(), 0, os.SEEK_SET)
                os.write(loud, words.read())
                raise
            finally:
                os.dup2(loud, 2)
                os.close(loud)

    def _stage(self, at: int, built: threading.Event, begin: threading.Event) -> None:
        stage = self.lane.stages[at]
        try:
            self.tids[at] = threading.get_native_id()
            try:
                os.sched_setaffinity(0, stage.cores)
            except OSError as error:
                raise FailedError(f"the kernel refuses cores {show(stage.cores)}: {error.strerror}") from None
            self.engines[at] = engine = self._quietly(stage)
            ins, outs = self._arrays(at)
            built.set()
            begin.wait()
            self._frames(at, engine, ins, outs)
        except BaseException as error:
            say(f"run.py: {stage.name}: {error or type(error).__name__}")
            os._exit(1)

    def _frames(self, at: int, engine: Compiled | Interpreted, ins: list[Frame], outs: list[Frame]) -> None:
        """Work on frame after frame until a token says that there are no more."""
        waits, signals, turn, n_slots = self.waits[at], self.signals[at], self.turns[at], self.lane.n_slots
        entering = at == self.lane.entering[0]
        leaving = at == self.lane.final[-1]
        looping_in = self.options.looping and at in self.lane.entering
        clock, stop_flag = time.monotonic_ns, self.lane.stop_flag
        frame = 0
        while True:
            token = GO
            for wait in waits:
                token = wait() and token
            if not token or (looping_in and stop_flag[0]):
                for tell in signals:
                    tell(END)
                return
            slot = frame % n_slots
            if entering:
                self.entered[slot] = clock()
            with turn:
                begun = clock()
                engine.run(slot, ins[slot], outs[slot])
                ended = clock()
            self.busy_ns[at] += ended - begun
            frame += 1
            if leaving:
                self._count(ended, ended - self.entered[slot])
            for tell in signals:
                tell(GO)

    def _count(self, now: int, latency: int) -> None:
        self.n_done += 1
        if now >= self.begin_ns:
            self.counted += bool(self.first_ns)
            self.first_ns = self.first_ns or now
            self.last_ns = now
            self.latencies.append(latency)

    def _arrays(self, at: int) -> tuple[list[Frame], list[Frame]]:
        """Return the arrays of a stage, slot by slot: [slot][input], [slot][output]."""
        lane, stage = self.lane, self.lane.stages[at]
        home = self._home
        takes = zip(stage.takes, sources(lane.stages, at))
        ins = [lane.inputs[port.key] if made is None else home(made, port.key) for port, made in takes]
        outs = [home(at, port.key) for port in stage.gives]
        slots = range(lane.n_slots)
        return [[column[n] for column in ins] for n in slots], [[column[n] for column in outs] for n in slots]

    def _home(self, at: int, key: int) -> list[Array]:
        return self.made[at].get(key) or self.lane.outputs[key]

    def _check_masks(self, mine: set[int | None]) -> None:
        """Read back where every thread may run: a thread of the runtime must stay on its stage's cores."""
        wanted = dict(zip(self.tids, (stage.cores for stage in self.lane.stages)))
        allowed = set(wanted.values())
        for tid in [int(path.name) for path in Path("/proc/self/task").iterdir()]:
            if tid in mine:
                continue
            try:
                got = frozenset(os.sched_getaffinity(tid))
            except ProcessLookupError:
                continue
            if got != wanted.get(tid, got) or got not in allowed:
                raise FailedError(f"thread {tid} may run on cores {show(got)}, which is not where it belongs")

    def _tell(self, what: dict[str, Any]) -> None:
        os.write(self.lane.told[1], json.dumps(what).encode() + b"\n")


@contextmanager
def running(plan: Plan, options: argparse.Namespace) -> Iterator[tuple[list[Lane], Callable[[], None]]]:
    """Start the lanes; gives them and a function that stops lanes which make their own frames."""
    stop_flag = mmap.mmap(-1, 1)
    lanes = [Lane(plan, number, stop_flag) for number in range(len(plan.lanes))]
    try:
        for number, lane in enumerate(lanes):
            lane.start(options, lanes[:number])
        for lane in lanes:
            for stage, kind in zip(lane.stages, lane.answer()["engines"]):
                what = f"{stage.name} ({stage.path.name}, {kind}) on cores {show(stage.cores)}"
                say(f"lane {lane.number}: {what}")
        yield lanes, lambda: stop_flag.write_byte(1)
    finally:
        for lane in lanes:
            if lane.pid:
                lane.close()
                lane.death()


class Stream:
    """Frames of one source through one or more lanes, delivered to a sink in order."""

    def __init__(
        self, lanes: list[Lane], source: Iterable[Frame], sink: Sink, stopping: Callable[[], bool]
    ) -> None:
        self.lanes, self.source, self.sink, self.stopping = lanes, source, sink, stopping
        self.plan = lanes[0].plan
        self.room: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in lanes:
            for _ in range(lane.n_slots):
                self.room.put(lane)
        # The sink holds the source back, too.
        self.under_way = threading.Semaphore(4 * sum(lane.n_slots for lane in lanes))
        self.pending: dict[Lane, queue.SimpleQueue[tuple[int, int, int] | None]]
        self.pending = {lane: queue.SimpleQueue() for lane in lanes}
        self.ready: dict[int, tuple[Array, ...]] = {}
        self.change = threading.Condition()
        self.error: BaseException | None = None
        self.n_fed, self.n_delivered, self.fed_all = 0, 0, False
        self.latencies: deque[int] = deque(maxlen=KEPT_LATENCIES)
        self.first_ns = self.last_ns = 0
        jobs: list[tuple[Any, ...]] = [(self._feed,), (self._deliver,)]
        jobs += [(self._collect, lane) for lane in lanes]
        self.threads = [threading.Thread(target=self._guard, args=job, daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def alive(self) -> bool:
        """Whether something is still to be delivered."""
        return self.threads[1].is_alive() and self.error is None

    def _guard(self, job: Callable[..., None], *arguments: Any) -> None:
        try:
            job(*arguments)
        except BaseException as error:
            with self.change:
                self.error = self.error or error
                self.change.notify_all()

    def _feed(self) -> None:
        counts = dict.fromkeys(self.lanes, 0)
        try:
            for frame in self.source:
                check_frame(self.plan, frame, self.n_fed)
                self.under_way.acquire()
                lane = self.room.get()
                slot = counts[lane] % lane.n_slots
                counts[lane] += 1
                for port, values in zip(self.plan.inputs, frame):
                    lane.inputs[port.key][slot][...] = values
                self.pending[lane].put((self.n_fed, slot, time.monotonic_ns()))
                self.n_fed += 1
                with suppress(BrokenPipeError):  # the lane died: _collect says how
                    for _, write in lane.feed.values():
                        os.write(write, b"\1")
                if self.stopping():
                    break
        finally:
            for lane in self.lanes:
                self.pending[lane].put(None)
            with self.change:
                self.fed_all = True
                self.change.notify_all()

    def _collect(self, lane: Lane) -> None:
        while (entry := self.pending[lane].get()) is not None:
            number, slot, begun = entry
            for read, _ in lane.done.values():
                if not os.read(read, 1):
                    raise FailedError(f"lane {lane.number} {lane.death()} ({self.n_delivered} delivered)")
            outputs = tuple(lane.outputs[port.key][slot].copy() for port in self.plan.outputs)
            self.latencies.append(time.monotonic_ns() - begun)
            self.room.put(lane)
            with self.change:
                self.ready[number] = outputs
                self.change.notify_all()

    def _deliver(self) -> None:
        while True:
            with self.change:
                while self.n_delivered not in self.ready:
                    if self.fed_all and self.n_delivered >= self.n_fed:
                        return
                    self.change.wait()
                outputs = self.ready.pop(self.n_delivered)
            self.sink(self.n_delivered, outputs)
            self.last_ns = time.monotonic_ns()
            self.first_ns = self.first_ns or self.last_ns
            self.n_delivered += 1
            self.under_way.release()


def check_frame(plan: Plan, frame: Frame, number: int) -> None:
    """Refuse a frame that does not fit the model's inputs."""
    if len(frame) != len(plan.inputs):
        raise BadInputError(f"frame {number} has {len(frame)} arrays, the model {len(plan.inputs)} inputs")
    for port, values in zip(plan.inputs, frame):
        if getattr(values, "dtype", None) != port.dtype or values.shape != port.shape:
            got = f"{getattr(values, 'dtype', type(values).__name__)}{getattr(values, 'shape', '')}"
            raise BadInputError(f"frame {number}: expected {port.dtype}{port.shape}, got {got}")


def load_arrays(path: Path, ports: list[Port], side: str) -> list[Array]:
    """Open the .npy files of all ports and check them; returns one array per port."""
    files = [path] if path.suffix == ".npy" else [path / f"{side}_{n}.npy" for n in range(len(ports))]
    if len(files) != len(ports):
        wanted = f"a folder with {side}_0.npy, {side}_1.npy, ..."
        raise BadInputError(f"{path}: the model has {len(ports)} {side}s: give {wanted}")
    arrays: list[Array] = []
    for file, port in zip(files, ports):
        try:
            found = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadInputError(f"{file}: not a readable .npy file: {error}") from None
        if found.dtype != port.dtype or found.shape[1:] != port.shape or not found.ndim:
            wanted = f"{port.dtype}{port.shape} along a first axis ({side} {port.name!r})"
            raise BadInputError(f"{file}: holds {found.dtype}{found.shape}, expected frames of {wanted}")
        arrays.append(found)
    if len({len(array) for array in arrays}) > 1:
        raise BadInputError(f"{path}: the files hold different numbers of frames")
    return arrays


def stdin_frames(plan: Plan) -> Iterator[Frame]:
    """Read raw frames: the inputs of each, one after another."""
    size = sum(port.n_bytes for port in plan.inputs)
    raw = b""
    while piece := os.read(0, size - len(raw)):
        raw += piece
        if len(raw) < size:
            continue
        frame, at = [], 0
        for port in plan.inputs:
            frame.append(np.ndarray(port.shape, port.dtype, raw, at))
            at += port.n_bytes
        yield tuple(frame)
        raw = b""
    if raw:
        raise BadInputError(f"standard input ended inside a frame: {len(raw)} of {size} bytes")


def find_callable(text: str) -> Any:
    """Find ``module:function``; modules beside the bundle and in the current folder are found."""
    module, _, name = text.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInputError(f"{text!r}: expected MODULE:FUNCTION: {error}") from None


class FileSink:
    """Writes ``output_N.npy`` files; their headers are finished by ``close``."""

    def __init__(self, folder: Path, ports: list[Port]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ports, self.n = ports, 0
        self.streams: list[BinaryIO] = [(folder / f"output_{n}.npy").open("wb") for n in range(len(ports))]
        self._headers()

    def __call__(self, number: int, outputs: tuple[Array, ...]) -> None:
        """Write a frame's outputs."""
        for stream, values in zip(self.streams, outputs):
            stream.write(values.tobytes())
        self.n += 1

    def close(self) -> None:
        """Write the number of frames."""
        self._headers()
        for stream in self.streams:
            stream.close()

    def _headers(self) -> None:
        for stream, port in zip(self.streams, self.ports):
            form = {"descr": np.lib.format.dtype_to_descr(port.dtype), "fortran_order": False}
            text = repr({**form, "shape": (self.n, *port.shape)}).encode()
            stream.seek(0)
            stream.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 246) + text.ljust(245) + b"\n")


def raw_sink(number: int, outputs: tuple[Array, ...]) -> None:
    """Write outputs one after another to standard output."""
    for values in outputs:
        sys.stdout.buffer.write(values.tobytes())
    sys.stdout.buffer.flush()


def make_source(plan: Plan, kind: str, text: str) -> Iterable[Frame]:
    """Return an iterable of frames."""
    if kind == "source":
        return (tuple(frame) for frame in find_callable(text)())
    if text == "-":
        return stdin_frames(plan)
    return zip(*load_arrays(Path(text), plan.inputs, "input"))


def make_sink(plan: Plan, text: str | None) -> Sink:
    """Return what takes the outputs."""
    if text is None:
        return lambda number, outputs: None
    if text == "-":
        return raw_sink
    if ":" in text and "/" not in text:
        return partial(find_callable(text))
    return FileSink(Path(text), plan.outputs)


def stream(plan: Plan, options: argparse.Namespace, stopping: Callable[[], bool]) -> None:
    """Run frames of the user's through the lanes."""
    n_streams = len(options.sources)
    if n_streams > (len(plan.lanes) if plan.stateful else 1):
        most = f"up to {len(plan.lanes)}, one per lane" if plan.stateful else "one"
        raise BadInputError(f"expected {most}, as the model is{' ' if plan.stateful else ' not '}stateful")
    if options.output and len(options.output) != n_streams:
        raise BadInputError(f"expected one --output per source ({n_streams}), got {len(options.output)}")
    with running(plan, options) as (lanes, _):
        # After the lanes were forked: what the user's modules start belongs to this process alone.
        made = [make_source(plan, kind, text) for kind, text in options.sources]
        sinks = [make_sink(plan, text) for text in options.output or [None] * n_streams]
        for lane in lanes:
            os.write(lane.go[1], GO)
        groups = [[lane] for lane in lanes] if plan.stateful else [lanes]
        streams = [Stream(*parts, stopping) for parts in zip(groups, made, sinks)]
        asked_s = 0.0
        while any(one.alive() for one in streams):
            time.sleep(POLL_S / 10)
            if stopping():
                # A source that waits for its next frame does not notice; what is under way is done soon.
                asked_s = asked_s or time.monotonic()
                idle = all(one.n_delivered == one.n_fed for one in streams)
                if idle and time.monotonic() - asked_s > GRACE_S:
                    break
            if any(one.error for one in streams):
                break
        for sink in sinks:
            if hasattr(sink, "close"):
                sink.close()
        for one in streams:
            if one.error is not None:
                raise one.error
    for number, one in enumerate(streams):
        window = one.last_ns - one.first_ns
        hz = (one.n_delivered - 1) * 1e9 / window if window > 0 else 0.0
        report({"stream": number, "frames": one.n_delivered, "hz": hz, **quantiles(one.latencies)}, options)


def quantiles(latencies: Sequence[int]) -> dict[str, int]:
    """Return median and 99th percentile."""
    median, high = np.percentile(latencies or [0], (50, 99))
    return {"latency_ns": int(median), "latency_p99_ns": int(high)}


def full_speed(plan: Plan, options: argparse.Namespace, stopping: Callable[[], bool]) -> None:
    """Run the reference frames again and again."""
    frames = load_arrays(plan.folder / "reference", plan.inputs, "input")
    with running(plan, options) as (lanes, stop):
        for lane in lanes:
            for port, values in zip(plan.inputs, frames):
                for slot in range(lane.n_slots):
                    lane.inputs[port.key][slot][...] = values[slot % len(values)]
        for lane in lanes:
            os.write(lane.go[1], GO)
        end = time.monotonic() + WARM_UP_S + options.seconds
        while time.monotonic() < end and not stopping():
            time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
            for lane in lanes:
                if os.waitpid(lane.pid, os.WNOHANG)[0]:
                    lane.pid = 0
                    raise FailedError(f"lane {lane.number} died")
        stop()
        found = [lane.answer() for lane in lanes]
    for lane, figures in zip(lanes, found):
        report({"lane": lane.number, **figures}, options)
    totals = {key: sum(figures[key] for figures in found) for key in ("frames", "hz")}
    report({"lanes": len(found), **totals}, options)


def verify(plan: Plan, options: argparse.Namespace, stopping: Callable[[], bool]) -> None:
    """Compare the outputs of every lane with the reference, from a fresh state."""
    frames = list(zip(*load_arrays(plan.folder / "reference", plan.inputs, "input")))
    expected = load_arrays(plan.folder / "reference", plan.outputs, "output")
    n_frames, faults = len(frames), 0
    with running(plan, options) as (lanes, _):
        for lane in lanes:
            os.write(lane.go[1], GO)
        for lane in lanes:
            found: dict[int, tuple[Array, ...]] = {}
            one = Stream([lane], frames, found.__setitem__, stopping)
            while one.alive():
                time.sleep(POLL_S / 10)
            if one.error is not None:
                raise one.error
            if len(found) < n_frames:
                raise FailedError(f"lane {lane.number}: {len(found)} of {n_frames} frames came out")
            for at, (port, tolerance) in enumerate(zip(plan.outputs, plan.tolerances)):
                ours = np.stack([found[number][at] for number in range(n_frames)])
                worst = largest_difference(ours, expected[at])
                fine = worst <= tolerance
                faults += not fine
                word = "equal" if fine else "DIFFERENT"
                what = f"off by up to {worst:.3g} on {n_frames} frames, allowed {tolerance:.3g}"
                say(f"lane {lane.number}, output {port.name!r}: {word}: {what}")
    if faults:
        raise FailedError(f"{faults} outputs differ from the reference by more than their tolerance")
    report({"verified": True, "lanes": len(plan.lanes), "frames": n_frames}, options)


def largest_difference(ours: Array, theirs: Array) -> float:
    """Return the largest absolute difference; not-a-number equals itself only."""
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
    ours, theirs = ours.astype(wide), theirs.astype(wide)
    with np.errstate(invalid="ignore"):
        gaps = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, np.abs(ours - theirs))
    return float(np.where(np.isnan(gaps), np.inf, gaps).max(initial=0.0))


def report(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """Tell figures: a line of JSON on standard output, or words on standard error."""
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    words = []
    for key, value in figures.items():
        if key == "busy_ns":
            words += [f"{name} busy {each / 1e6:.3g} ms" for name, each in value.items()]
        elif key.endswith("_ns"):
            words.append(f"{key[:-3].replace('_', ' ')} {value / 1e6:.3g} ms")
        else:
            words.append(f"{value:.4g} frames/s" if key == "hz" else f"{key} {value}")
    say(", ".join(words))


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--verify", action="store_true", help="check all files, and outputs against the reference")
    add("--frames", action="append", default=[], metavar="PATH", help=".npy, folder, or - for stdin")
    add("--source", action="append", default=[], metavar="MODULE:FUNCTION", help="makes frames")
    add("--output", action="append", metavar="TO", help="folder, - or MODULE:FUNCTION")
    add("--seconds", type=float, default=5.0, help="of full speed, after a warm-up [5]")
    add("--engine", choices=("auto", "compiled", "interpreter"), default="auto")
    add("--json", action="store_true", help="figures as lines of JSON on standard output")
    options = parser.parse_args(argv)
    options.sources = [("frames", text) for text in options.frames]
    options.sources += [("source", text) for text in options.source]
    options.looping = not (options.verify or options.sources)
    stops: list[int] = []

    def stop(number: int, frame: object) -> None:
        if stops:
            os._exit(128 + number)
        stops.append(number)

    for wanted in (signal.SIGINT, signal.SIGTERM):
        signal.signal(wanted, stop)
    try:
        check_sums(HERE, options.verify)
        plan = Plan(HERE)
        if plan.mapping != sha256(HERE / "mapping.yaml"):
            raise BadInputError("plan.txt does not belong to this mapping.yaml: export the bundle again")
        job = verify if options.verify else stream if options.sources else full_speed
        job(plan, options, lambda: bool(stops))
    except (FailedError, OSError) as error:
        say(f"run.py: {error}")
        return 2 if isinstance(error, BadInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
