#!/usr/bin/env python3
"""Run the pipelines of this bundle on Arm NN; needs pyarmnn, numpy and run.py beside it.

  python3 run_armnn.py --verify                    checksums, and outputs against the reference
  python3 run_armnn.py --frames 200                frames per second and latency on the reference frames
  python3 run_armnn.py --backends GpuAcc,CpuAcc    the first that is there; the choice is told

pyarmnn does not let other threads run while a network runs, so every stage is a process.  It pins
itself before it loads Arm NN, so that all threads of the backend inherit the mask, and hands frames
to the next stage through a pipe; a full pipe holds the stage before it back.  Stages that plan_armnn.json
says are not for Arm NN run in ai-edge-litert.  Exit codes: 0 done, 1 failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
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
            raise FailedError(f"none of the backends {', '.join(backends)} is there; there are: {', '.join(there)}")
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
            raise FailedError(f"{self._stage.path.name}: Arm NN sees {what} of {sizes} values, plan.txt others")
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
    if stage.path.name in on_litert():
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
    masks = {tuple(sorted(os.sched_getaffinity(int(task.name)))) for task in Path("/proc/self/task").iterdir()}
    told.write(json.dumps({"busy_ns": busy_ns, "masks": sorted(masks)}) + "\n")


def on_litert() -> set[str]:
    """Return the files of the stages that run in ai-edge-litert."""
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
        write_frame(self.feed, crossing(self.plan, self.stages, 0), frame)

    def receive(self) -> list[Array]:
        """Take the outputs of the oldest frame."""
        values = read_frame(self.drain, self.outputs)
        if values is None:
            dead = [s.name for s, p in zip(self.stages, self.processes) if p.poll() not in (None, 0)]
            raise FailedError(f"lane {self.number} ended early: {', '.join(dead) or 'no stage'} failed")
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

    def kill(self) -> None:
        """End everything."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def run_lanes(
    plan: Plan, options: argparse.Namespace, n_frames: int, each: bool
) -> tuple[list[list[list[Array]]], float, list[int], list[list[dict[str, Any]]]]:
    """Run the reference frames, dealt to the lanes or all of them through each.

    Returns
    -------
    tuple
        Outputs per lane and frame, seconds between the first and the last frame, latencies in
        nanoseconds, and what the stages measured.
    """
    inputs = load_arrays(plan.folder / "reference", plan.inputs, "input")
    n_reference = len(inputs[0]) if inputs else 1
    lanes: list[Lane] = []
    errors: list[BaseException] = []
    outputs: list[list[list[Array]]] = [[] for _ in plan.lanes]
    latencies: list[int] = []
    finished: list[int] = []
    left = [n_frames] * len(plan.lanes) if each else [n_frames]
    guard = threading.Lock()

    def take(lane: Lane) -> int | None:
        at = lane.number if each else 0
        with guard:
            if not left[at] or errors:
                return None
            left[at] -= 1
            return n_frames - left[at] - 1

    def feed(lane: Lane, begun: list[int]) -> None:
        while (frame := take(lane)) is not None:
            values = {port.key: array[frame % n_reference] for port, array in zip(plan.inputs, inputs)}
            begun.append(time.monotonic_ns())
            lane.send(values)
        begun.append(-1)

    def collect(lane: Lane, begun: list[int], fed: threading.Thread) -> None:
        n = 0
        while fed.is_alive() or n < len(begun) - 1:
            if n >= len(begun) or begun[n] < 0:
                time.sleep(0.001)
                continue
            arrays = lane.receive()
            now = time.monotonic_ns()
            with guard:
                latencies.append(now - begun[n])
                finished.append(now)
                if each:
                    outputs[lane.number].append([array.copy() for array in arrays])
            n += 1

    def guarded(job: Any, *arguments: Any) -> None:
        try:
            job(*arguments)
        except BaseException as error:
            errors.append(error)
            for lane in lanes:
                lane.kill()

    try:
        for number in range(len(plan.lanes)):
            lanes.append(Lane(plan, number, options))
        for lane in lanes:
            lane.ready()
        threads = []
        for lane in lanes:
            begun: list[int] = []
            fed = threading.Thread(target=guarded, args=(feed, lane, begun), daemon=True)
            threads += [fed, threading.Thread(target=guarded, args=(collect, lane, begun, fed), daemon=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        figures = [lane.finish() for lane in lanes]
    finally:
        for lane in lanes:
            lane.kill()
    return outputs, (finished[-1] - finished[0]) / 1e9 if finished else 0.0, latencies, figures


def verify(plan: Plan, options: argparse.Namespace) -> None:
    """Compare the outputs of every lane with the reference."""
    expected = load_arrays(plan.folder / "reference", plan.outputs, "output")
    found, _, _, _ = run_lanes(plan, options, len(expected[0]), each=True)
    faults = 0
    for number, frames in enumerate(found):
        for at, (port, tolerance) in enumerate(zip(plan.outputs, plan.tolerances)):
            worst = largest_difference(np.stack([outputs[at] for outputs in frames]), expected[at])
            faults += not worst <= tolerance
            say(
                f"lane {number}, output {port.name!r}: {'equal' if worst <= tolerance else 'DIFFERENT'}: off by "
                f"up to {worst:.3g} on {len(frames)} frames, allowed {tolerance:.3g}"
            )
    if faults:
        raise FailedError(f"{faults} outputs differ from the reference by more than their tolerance")


def measure(plan: Plan, options: argparse.Namespace) -> None:
    """Tell frames per second, latency and the time of each stage."""
    _, seconds, latencies, figures = run_lanes(plan, options, options.frames, each=False)
    hz = (len(latencies) - 1) / seconds if seconds > 0 else 0.0
    say(f"{len(latencies)} frames, {hz:.4g} frames/s, latency {np.median(latencies) / 1e6:.3g} ms (median)")
    for stages, lane in zip(figures, plan.lanes):
        for stage, told in zip(lane, stages):
            busy_ms = np.median(told["busy_ns"] or [0]) / 1e6
            masks = " | ".join(",".join(map(str, mask)) for mask in told["masks"])
            say(f"{stage.name}: {len(told['busy_ns'])} frames, busy {busy_ms:.3g} ms (median), threads on {masks}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", action="store_true", help="check all files, and outputs against the reference")
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
    except BadInputError as error:
        say(f"run_armnn.py: {error}")
        return 2
    except (FailedError, OSError, ImportError) as error:
        say(f"run_armnn.py: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
