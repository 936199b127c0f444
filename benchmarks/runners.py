"""The runners of bundles against the pipeline they were measured with: ``python -m benchmarks.runners``.

    python -m benchmarks.runners MODEL.tflite ... [--rounds 5] [--seconds 1] [--out FILE]

For every model: the whole model on one core, copies on four, and pipelines of two and four stages
(cut so that the parts have equal shares of the arithmetic), each as a Linux bundle.  In every round the
runner in Python, the runner in C and the product's own pipeline take turns in random order; ratios are
medians over the rounds.  Nothing else should run on the machine; needs cmake and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ai_edge_litert

from dse.deploy.bundle import write_bundle
from dse.deploy.linux.target import Linux
from dse.deploy.native import write_sources
from dse.deploy.target import Deployment, Order
from dse.files import write_json
from dse.flatbuffer.cut import possible_cuts, stages_at
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.graph import LayerGraph
from dse.pipeline.supervise import Pipeline
from dse.placement import PlacedLane, PlacedMapping, PlacedStage
from dse.platforms import Cluster, Platform

LIBRARY = Path(ai_edge_litert.__file__ or "").parent / "libLiteRt.so"
WARM_UP_S = 0.5
SHAPES = {"whole": (1, 1), "4 copies": (4, 1), "2 stages": (1, 2), "4 stages": (1, 4)}
"""Number of lanes, and of stages in each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print a line per model and shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dse-benchmark-") as name:
        folder = Path(name)
        program = build_native(folder)
        for path in options.models:
            for shape in SHAPES:
                deployment = deploy(path, shape, folder)
                if deployment is None:
                    continue
                rows.append({"model": path.stem, "shape": shape, **measure(deployment, program, options)})
                print(" ".join(f"{key}={_text(value)}" for key, value in rows[-1].items()), flush=True)
                if options.out:
                    write_json(options.out, rows)
    return 0


def build_native(folder: Path) -> Path:
    """Build the runner in C."""
    write_sources(folder / "native")
    build = folder / "build"
    for command in (["cmake", "-S", folder / "native", "-B", build], ["cmake", "--build", build]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return build / "run"


def deploy(path: Path, shape: str, folder: Path) -> Deployment | None:
    """Make the bundle; None where the machine or the model is too small for the shape."""
    n_lanes, n_stages = SHAPES[shape]
    cores = tuple(sorted(os.sched_getaffinity(0)))
    file = read_model(path)
    graph = build_graph(file)
    places = cut_evenly(graph, n_stages)
    if n_lanes * n_stages > len(cores) or len(places) != n_stages - 1:
        return None
    lanes = []
    for lane in range(n_lanes):
        stages = [
            PlacedStage(f"lane{lane}.stage{at}", layers, "cpu", 1, (cores[lane * n_stages + at],))
            for at, layers in enumerate(stages_at(graph, places))
        ]
        lanes.append(PlacedLane(tuple(stages)))
    platform = Platform("here", (Cluster("cpu", cores),))
    order = Order(path.stem, file, graph, platform, PlacedMapping(tuple(lanes)))
    return write_bundle(Linux(), order, folder / f"{path.stem}-{shape}")


def cut_evenly(graph: LayerGraph, n_stages: int) -> list[int]:
    """Choose cuts after about equal shares of the arithmetic."""
    work = [1 + (layer.macs or 0) + (layer.element_ops or 0) for layer in graph.layers]
    total, cuts = sum(work), possible_cuts(graph)
    chosen = {
        min(cuts, key=lambda cut: abs(sum(work[:cut]) - total * part / n_stages))
        for part in range(1, n_stages)
        if cuts
    }
    return sorted(chosen)


def measure(deployment: Deployment, program: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Let the three take turns."""
    bundle = str(deployment.folder)
    more = ["--seconds", str(options.seconds), "--json"]
    native = [str(program), "--bundle", bundle, "--library", str(LIBRARY), *more]
    contestants = {
        "python_hz": lambda: run([sys.executable, f"{bundle}/run.py", *more]),
        "native_hz": lambda: run(native),
        "pipeline_hz": lambda: run_pipeline(deployment, options.seconds),
    }
    found: dict[str, list[float]] = {name: [] for name in contestants}
    shuffle = random.Random(0)
    for _ in range(options.rounds):
        for name in shuffle.sample(sorted(contestants), len(contestants)):
            found[name].append(contestants[name]())

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))

    return {
        **{name: statistics.median(values) for name, values in found.items()},
        "native_to_python": ratio("native_hz", "python_hz"),
        "python_to_pipeline": ratio("python_hz", "pipeline_hz"),
        "native_to_pipeline": ratio("native_hz", "pipeline_hz"),
        "samples": found,
    }


def run(command: Sequence[str]) -> float:
    """Run a runner at full speed and return its frames per second."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["hz"])


def run_pipeline(deployment: Deployment, seconds: float) -> float:
    """Run the product's own pipeline, as ``dse validate`` does."""
    with Pipeline(deployment.plan, deployment.reference.frames) as pipeline:
        runs = pipeline.run(seconds=WARM_UP_S + seconds)
        begin = min(int(one.stamps[0, :, 0].min()) for one in runs)
        window = (begin + int(WARM_UP_S * 1e9), begin + int((WARM_UP_S + seconds) * 1e9))
        return sum(lane.throughput_hz for lane in pipeline.times(runs, window))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "..." if isinstance(value, dict) else str(value)


if __name__ == "__main__":
    sys.exit(main())
