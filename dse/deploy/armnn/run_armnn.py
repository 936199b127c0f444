#!/usr/bin/env python3
"""Run the pipelines of this bundle on Arm NN; needs pyarmnn, numpy and run.py beside it.

  python3 run_armnn.py --verify                    checksums, and outputs against the reference
  python3 run_armnn.py --frames 200                frames per second and latency on the reference frames
  python3 run_armnn.py --backends GpuAcc,CpuAcc    the first that is there; the choice is told

pyarmnn does not let other threads run while a network runs, so every stage is a process.  It pins
itself before it loads Arm NN, so that all threads of the backend inherit the mask, and hands frames
to the next stage through a pipe; a full pipe holds the stage before it back.  Stages that litert_stages.txt
names are not for Arm NN: they run in ai-edge-litert.  Exit codes: 0 done, 1 failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
from run import (  # noqa: E402
    BadInputError,
    FailedError,
    Plan,
    Port,
    Stage,
    build,
    check_sums,
    largest_difference,
    load_arrays,
    say,
    sha256,
)

BACKENDS = "CpuAcc,CpuRef"
GRACE_S = 0.5
Array = Any  # numpy.ndarray
ON_LITERT = "litert_stages.txt"


# ---------------------------------------------------------------- inside a stage's process


class Network:
    """A stage in Arm NN."""

    def __init__(self, stage: Stage, backends: Sequence[str]) -> None:
        import pyarmnn as ann

        self._ann, self._stage = ann, stage
        parser = ann.ITfLiteParser()
        self._runtime = ann.IRuntime(ann.CreationOptions())
        spec = self._runtime.GetDeviceSpec()
        there = sorted(str(backend) for backend in spec.GetSupportedBackends())
        self.chosen = [name for name in backends if name in there]
        if not self.chosen:
            raise FailedError(
                f"none of the backends {', '.join(backends)} is there; there are: {', '.join(there)}"
            )
        try:
            network = parser.CreateNetworkFromBinaryFile(str(stage.path))
            wanted = [ann.BackendId(name) for name in self.chosen]
            optimised, _ = ann.Optimize(network, wanted, spec, ann.OptimizerOptions())
            self._id, _ = self._runtime.LoadNetwork(optimised)
        except RuntimeError as error:
            raise FailedError(f"Arm NN refused {stage.path.name}: {error}") from None
        ins = [parser.GetNetworkInputBindingInfo(0, n) for n in parser.GetSubgraphInputTensorNames(0)]
        outs = [parser.GetNetworkOutputBindingInfo(0, n) for n in parser.GetSubgraphOutputTensorNames(0)]
        self._ins = self._fitting(ins, stage.takes, "inputs")
        self._outs = ann.make_output_tensors(self._fitting(outs, stage.gives, "outputs"))

    def _fitting(self, bindings: list[Any], ports: list[Port], what: str) -> list[Any]:
        sizes = [int(info.GetNumElements()) for _, info in bindings]
        if sizes != [int(np.prod(port.shape, dtype=np.int64)) for port in ports]:
            raise FailedError(
                f"{self._stage.path.name}: Arm NN sees {what} of {sizes} values, plan.txt others"
            )
        return bindings

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the stage; what it returns is overwritten by the next run."""
        tensors = self._ann.make_input_tensors(self._ins, [np.ascontiguousarray(v) for v in inputs])
        self._runtime.EnqueueWorkload(self._id, tensors, self._outs)
        return [tensor.get_memory_area() for _, tensor in self._outs]


class OnLiteRt:
    """A stage that Arm NN does not take."""

    chosen = ("LiteRT",)

    def __init__(self, stage: Stage) -> None:
        self._engine = build(stage, "interpreter")
        self._outs = [np.zeros(port.shape, port.dtype) for port in stage.gives]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the stage."""
        self._engine.run(0, inputs, self._outs)
        return self._outs


def crossing(plan: Plan, lane: Sequence[Stage], at: int) -> list[Port]:
    """Return what goes over the pipe in front of stage ``at``: made before it and needed from it on."""
    known = [*plan.inputs, *(port for stage in lane[:at] for port in stage.gives)]
    needed = {port.key for stage in lane[at:] for port in stage.takes} | {port.key for port in plan.outputs}
    found: dict[int, Port] = {}
    for port in known:
        if port.key in needed:
            found.setdefault(port.key, port)
    return list(found.values())


def read_frame(stream: BinaryIO, ports: Iterable[Port]) -> dict[int, Array] | None:
    """Read the values of some tensors; None when the stream has ended."""
    values: dict[int, Array] = {}
    for port in ports:
        raw = stream.read(port.n_bytes)
        if not raw and not values and port.n_bytes:
            return None
        if len(raw) < port.n_bytes:
            raise FailedError(f"the pipe ended inside tensor {port.name!r}")
        values[port.key] = np.frombuffer(raw, port.dtype).reshape(port.shape)
    return values


def write_frame(stream: BinaryIO, ports: Iterable[Port], values: dict[int, Array]) -> None:
    """Write the values of some tensors."""
    for port in ports:
        stream.write(np.ascontiguousarray(values[port.key], port.dtype).tobytes())
    stream.flush()


def work(plan: Plan, options: argparse.Namespace) -> None:
    """Be one stage: frames come on standard input and leave on the pipe that is given."""
    lane = plan.lanes[options.lane]
    at, stage = options.stage, lane[options.stage]
    told = os.fdopen(options.tell, "w", buffering=1)
    if not options.no_pin:
        try:
            os.sched_setaffinity(0, stage.cores)
        except OSError as error:
            raise FailedError(f"the kernel refuses cores {sorted(stage.cores)}: {error.strerror}") from None
    engine: Network | OnLiteRt
    if f"lane{options.lane}.stage{at}" in on_litert():
        engine = OnLiteRt(stage)
    else:
        engine = Network(stage, options.backends.split(","))
    coming, leaving = crossing(plan, lane, at), crossing(plan, lane, at + 1)
    told.write(json.dumps({"backends": list(engine.chosen), "cores": sorted(os.sched_getaffinity(0))}) + "\n")
    busy_ns: list[int] = []
    with os.fdopen(0, "rb") as source, os.fdopen(options.give, "wb") as target:
        while (values := read_frame(source, coming)) is not None:
            begun = time.monotonic_ns()
            outputs = engine.run([values[port.key] for port in stage.takes])
            busy_ns.append(time.monotonic_ns() - begun)
            for port, array in zip(stage.gives, outputs):
                values[port.key] = np.asarray(array).reshape(port.shape)
            write_frame(target, leaving, values)
    masks = {
        tuple(sorted(os.sched_getaffinity(int(task.name)))) for task in Path("/proc/self/task").iterdir()
    }
    told.write(json.dumps({"busy_ns": busy_ns, "masks": sorted(masks)}) + "\n")


def on_litert() -> set[str]:
    """Return which stages run in ai-edge-litert, as lane and number."""
    path = HERE / ON_LITERT
    return set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()


# ---------------------------------------------------------------- the parent


class Lane:
    """The processes of a lane, joined by pipes."""

    def __init__(self, plan: Plan, number: int, options: argparse.Namespace) -> None:
        self.plan, self.number, self.stages = plan, number, plan.lanes[number]
        self.outputs = crossing(plan, self.stages, len(self.stages))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.told: list[Any] = []
        source, feed = os.pipe()
        self.feed = os.fdopen(feed, "wb")
        try:
            for at in range(len(self.stages)):
                next_source, give = os.pipe()
                told, tell = os.pipe()
                self.told.append(os.fdopen(told, encoding="utf-8"))
                words = ["--lane", str(number), "--stage", str(at), "--give", str(give), "--tell", str(tell)]
                words += ["--backends", options.backends, *(["--no-pin"] if options.no_pin else [])]
                command = [sys.executable, str(Path(__file__).resolve()), *words]
                self.processes.append(
                    subprocess.Popen(command, stdin=source, stdout=sys.stderr, pass_fds=(give, tell))
                )
                for end in (source, give, tell):
                    os.close(end)
                source = next_source
        finally:
            self.drain = os.fdopen(source, "rb")
        # Frames that may be under way; small ones would all fit into the pipes.
        self.room = threading.Semaphore((plan.queue + 1) * len(self.stages))
        self.begun: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def ready(self) -> None:
        """Wait until every stage is built, and tell where it runs."""
        for stage, stream, process in zip(self.stages, self.told, self.processes):
            line = stream.readline()
            if not line:
                raise FailedError(f"{stage.name} ended with exit code {process.wait()} before it was ready")
            found = json.loads(line)
            cores = ", ".join(map(str, found["cores"]))
            say(f"lane {self.number}: {stage.name} on {', '.join(found['backends'])}, cores {cores}")

    def send(self, frame: dict[int, Array]) -> None:
        """Put a frame in, when there is room."""
        self.room.acquire()
        self.begun.put(time.monotonic_ns())
        try:
            write_frame(self.feed, crossing(self.plan, self.stages, 0), frame)
        except BrokenPipeError:
            raise FailedError(self.death()) from None

    def receive(self) -> list[Array]:
        """Take the outputs of the oldest frame."""
        values = read_frame(self.drain, self.outputs)
        if values is None:
            raise FailedError(self.death())
        self.room.release()
        return [values[port.key] for port in self.plan.outputs]

    def finish(self) -> list[dict[str, Any]]:
        """Let the stages end, and return what each of them measured."""
        self.feed.close()
        figures = [json.loads(stream.readline() or "{}") for stream in self.told]
        for stage, process in zip(self.stages, self.processes):
            if process.wait() != 0:
                raise FailedError(f"{stage.name} ended with exit code {process.returncode}")
        return figures

    def death(self) -> str:
        """Say which stages are gone; their neighbours lose a pipe and follow them."""
        time.sleep(GRACE_S)
        words = []
        for stage, process in zip(self.stages, self.processes):
            code = process.poll()
            if code is not None and code < 0:
                words.append(f"{stage.name} was killed by signal {-code} ({signal.Signals(-code).name})")
            elif code:
                words.append(f"{stage.name} ended with exit code {code}")
        return f"lane {self.number} ended early: {', '.join(words) or 'a pipe was closed'}"

    def kill(self) -> None:
        """End everything."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


class Run:
    """Reference frames through all lanes: dealt to them, or all of them through each.

    Parameters
    ----------
    n_frames
        How many, of all lanes together or (``each``) of every lane.
    """

    def __init__(self, plan: Plan, options: argparse.Namespace, n_frames: int, *, each: bool) -> None:
        self.plan, self.options, self.n_frames, self.each = plan, options, n_frames, each
        self.inputs = load_arrays(plan.folder / "reference", plan.inputs, "input")
        self.lanes: list[Lane] = []
        self.errors: list[BaseException] = []
        self.outputs: list[list[list[Array]]] = [[] for _ in plan.lanes]
        self.latencies_ns: list[int] = []
        self.finished_ns: list[int] = []
        self.figures: list[list[dict[str, Any]]] = []
        self._left = [n_frames] * (len(plan.lanes) if each else 1)
        self._guard = threading.Lock()

    def go(self) -> None:
        """Run to the end.

        Raises
        ------
        FailedError, OSError
            A stage failed; all of them are ended.
        """
        try:
            for number in range(len(self.plan.lanes)):
                self.lanes.append(Lane(self.plan, number, self.options))
            for lane in self.lanes:
                lane.ready()
            threads = [
                threading.Thread(target=self._guarded, args=(job, lane), daemon=True)
                for lane in self.lanes
                for job in (self._feed, self._collect)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.errors:
                raise self.errors[0]
            self.figures = [lane.finish() for lane in self.lanes]
        finally:
            for lane in self.lanes:
                lane.kill()

    def _guarded(self, job: Callable[[Lane], None], lane: Lane) -> None:
        try:
            job(lane)
        except BaseException as error:
            self.errors.append(error)
            for other in self.lanes:
                other.kill()
                other.begun.put(None)
                other.room.release()

    def _take(self, lane: Lane) -> int | None:
        """Return the number of the next frame for a lane."""
        at = lane.number if self.each else 0
        with self._guard:
            if not self._left[at] or self.errors:
                return None
            self._left[at] -= 1
            return self.n_frames - self._left[at] - 1

    def _feed(self, lane: Lane) -> None:
        while (number := self._take(lane)) is not None:
            frame = {
                port.key: array[number % len(array)] for port, array in zip(self.plan.inputs, self.inputs)
            }
            lane.send(frame)
        lane.begun.put(None)

    def _collect(self, lane: Lane) -> None:
        while (begun_ns := lane.begun.get()) is not None:
            arrays = lane.receive()
            now_ns = time.monotonic_ns()
            with self._guard:
                self.latencies_ns.append(now_ns - begun_ns)
                self.finished_ns.append(now_ns)
                if self.each:
                    self.outputs[lane.number].append([array.copy() for array in arrays])


def verify(plan: Plan, options: argparse.Namespace) -> None:
    """Compare the outputs of every lane with the reference."""
    expected = load_arrays(plan.folder / "reference", plan.outputs, "output")
    run = Run(plan, options, len(expected[0]), each=True)
    run.go()
    faults = 0
    for number, frames in enumerate(run.outputs):
        for at, (port, tolerance) in enumerate(zip(plan.outputs, plan.tolerances)):
            worst = largest_difference(np.stack([outputs[at] for outputs in frames]), expected[at])
            faults += not worst <= tolerance
            word = "equal" if worst <= tolerance else "DIFFERENT"
            say(
                f"lane {number}, output {port.name!r}: {word}: off by up to {worst:.3g} on {len(frames)} "
                f"frames, allowed {tolerance:.3g}"
            )
    if faults:
        raise FailedError(f"{faults} outputs differ from the reference by more than their tolerance")


def measure(plan: Plan, options: argparse.Namespace) -> None:
    """Tell frames per second, latency and the time of each stage."""
    run = Run(plan, options, options.frames, each=False)
    run.go()
    seconds = (run.finished_ns[-1] - run.finished_ns[0]) / 1e9
    hz = (options.frames - 1) / seconds if seconds > 0 else 0.0
    latency_ms = np.median(run.latencies_ns) / 1e6
    say(f"{options.frames} frames, {hz:.4g} frames/s, latency {latency_ms:.3g} ms (median)")
    for stages, lane in zip(run.figures, plan.lanes):
        for stage, told in zip(lane, stages):
            busy_ms = np.median(told["busy_ns"] or [0]) / 1e6
            masks = " | ".join(",".join(map(str, mask)) for mask in told["masks"])
            n_frames = len(told["busy_ns"])
            say(f"{stage.name}: {n_frames} frames, busy {busy_ms:.3g} ms (median), threads on {masks}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--verify", action="store_true", help="check all files, and outputs against the reference"
    )
    parser.add_argument("--frames", type=int, default=50, help="frames to measure with [50]")
    parser.add_argument("--backends", default=BACKENDS, help=f"in order of preference [{BACKENDS}]")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of cores to the system")
    for name in ("lane", "stage", "give", "tell"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        if options.frames < 1:
            raise BadInputError(f"--frames {options.frames}: expected at least 1")
        plan = Plan(HERE)
        if options.stage is not None:
            work(plan, options)
            return 0
        check_sums(HERE, True)
        if plan.mapping != sha256(HERE / "mapping.yaml"):
            raise BadInputError("plan.txt does not belong to this mapping.yaml: export the bundle again")
        if plan.stateful:
            raise BadInputError("the model keeps state between frames, which Arm NN does not")
        (verify if options.verify else measure)(plan, options)
    except BrokenPipeError:
        return 1  # the next stage is gone, which its own exit code tells
    except BadInputError as error:
        say(f"run_armnn.py: {error}")
        return 2
    except (FailedError, OSError, ImportError) as error:
        say(f"run_armnn.py: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
