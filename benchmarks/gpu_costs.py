"""CPU and GPU side by side: ``python -m benchmarks.gpu_costs MODEL... --output FILE``.

Every layer and the whole model on some CPU slots, and on the GPU of the runtime's compiled-model
interface (outputs read back).  Needs a GPU, its Vulkan loader, and the runtime's folder on
LD_LIBRARY_PATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.profiling import platform, timed_profile
from dse import conditions
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, read_model
from dse.graph import LayerGraph
from dse.platforms import Slot
from dse.profiling.cache import Journal
from dse.profiling.campaign import Campaign, Subject
from dse.profiling.layer_models import layer_subjects, subject_of
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker
from dse.profiling.stats import median
from dse.profiling.tiny import tiny_model
from dse.progress import SilentProgress

GPU = Slot("gpu", 1)
WHOLE, EMPTY = "whole", "empty"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=(1, 4))
    parser.add_argument("--budget-s", type=float, default=10.0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    here = platform(options.threads)
    results: dict[str, Any] = {"machine": conditions.machine(), "models": []}
    for path in options.models:
        file = read_model(path)
        graph = build_graph(file)
        table, _ = timed_profile(file, graph, here, options.budget_s, "auto")
        gpu = gpu_costs(file, graph, min(here.clusters[0].core_ids), options.budget_s)
        study = {
            "model": file.name,
            "layers": [f"{layer.op} {layer.name}" for layer in graph.layers],
            "slots": [str(slot) for slot in table.slots],
            "whole_ns": [whole and whole.median_ns for whole in table.whole],
            "layers_ns": [[cost.median_ns for cost in row] for row in table.costs],
            **gpu,
        }
        results["models"].append(study)
        known = [value for value in gpu["gpu_layers_ns"] if value is not None]
        print(
            file.name, "CPU", study["whole_ns"], "GPU", gpu["gpu_whole_ns"], "empty", gpu["gpu_empty_ns"],
            f"{len(known)} of {len(graph.layers)} layers, sum {sum(known)}", set(gpu["refused"].values()),
            flush=True,
        )  # fmt: skip
    if options.output is not None:
        options.output.write_text(json.dumps(results) + "\n")


def gpu_costs(file: ModelFile, graph: LayerGraph, core: int, budget_s: float) -> dict[str, Any]:
    """Return times on the GPU: the whole model, an empty one, and each layer less the empty one."""
    options = ProfileOptions(budget_s=budget_s, kernels="gpu", min_rounds=4)
    journal = Journal()
    always = (Subject(WHOLE, file.n_bytes, path=file.path), Subject(EMPTY, 0, build=tiny_model))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        worker = stack.enter_context(SlotWorker(GPU, [core], folder / "log", options))
        with SilentProgress().task("gpu", 1) as task:
            Campaign({GPU: worker}, journal, options, folder, task, 1 << 24).run(
                layer_subjects(file, graph), always
            )
        fallback = fallback_told(
            (folder / "log").read_text(errors="replace")
        )  # of the whole model: it is loaded first
    empty = _median(journal, EMPTY)
    layers = [_median(journal, subject_of(graph, layer)) for layer in graph.layers]
    refused = {
        layer.op: journal.record(str(GPU), subject_of(graph, layer)).refused[:200]
        for layer in graph.layers
        if journal.record(str(GPU), subject_of(graph, layer)).refused
    }
    return {
        "gpu_whole_ns": _median(journal, WHOLE),
        "gpu_whole_refused": journal.record(str(GPU), WHOLE).refused[:300],
        "gpu_empty_ns": empty,
        "gpu_layers_ns": [None if value is None else max(0, value - (empty or 0)) for value in layers],
        "refused": refused,
        "gpu_whole_fallback": fallback,
        "options": dataclasses.asdict(options),
    }


def fallback_told(log: str) -> list[str]:
    """Return what the runtime says about operators that it leaves to the CPU, for the first model."""
    told: list[str] = []
    listing = False
    for line in log.splitlines():
        if "operations are not supported by GPU delegate" in line:
            listing = True
        elif "operations will run on the GPU" in line:
            return [*told, line.strip()]
        elif listing:
            told.append(line.strip())
    return told


def _median(journal: Journal, name: str) -> int | None:
    samples = journal.record(str(GPU), name).samples_ns
    return median(samples) if samples else None


if __name__ == "__main__":
    main()
