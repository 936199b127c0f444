"""How near running pipelines come to their stages: ``python -m benchmarks.pipelines MODEL... [--out FILE]``.

For every model: copies of the whole model on 1, 2, 4, ... cores (rate per lane against one lane
alone) and pipelines of 2 and 4 stages (``bottleneck_busy``: the share of time that the busiest
cores work, the rest is waking and handing over); and what a hand-over costs for tensors of several
sizes.  Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dse.files import write_bytes, write_json
from dse.flatbuffer.cut import possible_cuts, split, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.inputs import Frame, make_frames
from dse.pipeline.plan import LanePlan, PipelinePlan, StagePlan, stage_ports, whole_model_plan
from dse.pipeline.supervise import Pipeline
from dse.profiling.links import hop_plan
from dse.profiling.tiny import doubling_model

ENGINES = ("compiled", "interpreter")
SIZES = (1_000, 37_500, 250_000)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print a line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dse-benchmark-") as folder:
        for plan, frames, engine, what in plans(options.models, cores, Path(folder)):
            ways = [(loop, spin_us) for loop in ("native", "python") for spin_us in (0, 300)]
            if engine == "interpreter":
                ways = [("python", 0)]
            elif what["what"] == "copies":
                ways = [("auto", 0)]
            for loop, spin_us in ways:
                found = measure(plan, frames, engine, options.seconds, spin_us, loop)
                rows.append({**what, "engine": engine, "spin_us": spin_us, **found})
                print(" ".join(f"{key}={_text(value)}" for key, value in rows[-1].items()), flush=True)
    if options.out:
        write_json(options.out, rows)
    return 0


def plans(
    models: Sequence[Path], cores: Sequence[int], folder: Path
) -> Iterator[tuple[PipelinePlan, Sequence[Frame], str, dict[str, Any]]]:
    """All that is measured, with a description of each."""
    for engine in ENGINES:
        for size in SIZES if len(cores) > 1 else ():
            path = folder / f"double-{size}.tflite"
            write_bytes(path, doubling_model(size))
            plan = hop_plan(path, size, (cores[0], cores[1]))
            yield plan, [(np.ones((1, size), np.float32),)], engine, {"what": "hop", "n_bytes": 4 * size}
    for path in models:
        file = read_model(path)
        graph = build_graph(file)
        frames = make_frames(graph, 4, 0)
        n_lanes = 1
        while n_lanes <= len(cores):
            plan = whole_model_plan("copies", graph, path, "cpu", [(core,) for core in cores[:n_lanes]])
            yield plan, frames, "auto", {"what": "copies", "model": path.stem, "lanes": n_lanes}
            n_lanes *= 2
        positions = possible_cuts(graph)
        for n_stages in (2, 4):
            if n_stages > len(cores) or len(positions) < n_stages:
                continue
            chosen = [positions[len(positions) * k // n_stages] for k in range(1, n_stages)]
            stages = []
            for number, part in enumerate(split(file, graph, stages_at(graph, chosen)).stages):
                target = folder / f"{path.stem}-{n_stages}-{number}.tflite"
                target.write_bytes(part.data)
                stages.append(
                    StagePlan(f"stage {number}", target, "cpu", (cores[number],), 1, *stage_ports(part))
                )
            whole = whole_model_plan("whole", graph, path, "cpu", [(cores[0],)])
            plan = PipelinePlan("stages", (LanePlan(tuple(stages)),), whole.inputs, whole.outputs)
            for engine in ENGINES:
                yield plan, frames, engine, {"what": "stages", "model": path.stem, "stages": n_stages}


def measure(
    plan: PipelinePlan,
    frames: Sequence[Frame],
    engine: str,
    seconds: float,
    spin_us: int,
    loop: str,
) -> dict[str, Any]:
    """Run a plan; return rates, the busiest stage and what is lost beyond it."""
    with Pipeline(plan, frames, engine=engine, spin_us=spin_us, loop=loop) as pipeline:
        loops = sorted(set(pipeline.loops))
        warmup = 0.5
        runs = pipeline.run(seconds=warmup + seconds)
        begin = min(int(run.stamps[0, :, 0].min()) for run in runs)
        window = (begin + int(warmup * 1e9), begin + int((warmup + seconds) * 1e9))
        lanes = pipeline.times(runs, window)
    busy = max(stage.busy_ns for lane in lanes for stage in lane.stages)
    period = sorted(1e9 / lane.throughput_hz for lane in lanes)[len(lanes) // 2]
    stages = lanes[0].stages
    return {
        "loop": ",".join(loops),
        "hz": sum(lane.throughput_hz for lane in lanes),
        "hz_per_lane": [lane.throughput_hz for lane in lanes],
        "period_us": period / 1e3,
        "busiest_us": busy / 1e3,
        "bottleneck_busy": max(stage.utilisation for lane in lanes for stage in lane.stages),
        "receive_us": [stage.receive_ns / 1e3 for stage in stages],
        "compute_us": [stage.compute_ns / 1e3 for stage in stages],
        "send_us": [stage.send_ns / 1e3 for stage in stages],
        "wait_us": [stage.wait_ns / 1e3 for stage in stages],
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ",".join(_text(one) for one in value) + "]"
    return str(value)


if __name__ == "__main__":
    sys.exit(main())
