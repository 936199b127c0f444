"""How far profiles can be trusted: ``python -m benchmarks.profiling MODEL... --output FILE``.

For each model and both methods (inside the whole model, and each layer as a model of its own):
how long a profile takes, how far the plain sum of layers is from the measured whole model, whether
a second profile agrees with the first within the stated intervals, and how well stages that are
cut from the model are predicted before and after calibration.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dse import conditions
from dse.costs import CostTable
from dse.detection import detect_platform
from dse.errors import CutError, DseError
from dse.flatbuffer.cut import split
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, read_model
from dse.graph import LayerGraph
from dse.platforms import Platform
from dse.profiling.cache import Journal
from dse.profiling.campaign import Campaign, Subject
from dse.profiling.measured import profile, slot_cores
from dse.profiling.options import ProfileOptions
from dse.profiling.slot_worker import SlotWorker
from dse.profiling.stats import median
from dse.progress import SilentProgress

METHODS = ("in_situ", "extracted")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study and print one line per model and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=())
    parser.add_argument("--budget-s", type=float, default=20.0)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    here = platform(options.threads)
    results: dict[str, Any] = {"machine": conditions.machine(), "platform": here.fingerprint, "models": []}
    tables: dict[tuple[Path, str], CostTable] = {}
    files = {path: read_model(path) for path in options.models}
    for path, file in files.items():
        try:
            study = first_look(file, here, options.budget_s, options.stages)
        except DseError as error:
            print(f"{path.stem}: {error}")
            continue
        tables.update(
            {(path, method): study["tables"][method] for method in METHODS if method in study["tables"]}
        )
        del study["tables"]
        results["models"].append(study)
        print(json.dumps(study), flush=True)
    for (path, method), table in tables.items():
        again, _ = timed_profile(files[path], build_graph(files[path]), here, options.budget_s, method)
        study = next(found for found in results["models"] if found["model"] == path.stem)
        study["methods"][method]["second_profile"] = agreement(table, again)
        print(path.stem, method, study["methods"][method]["second_profile"], flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


def platform(threads: Sequence[int]) -> Platform:
    """Return this machine, with the slots of only these thread counts."""
    here = detect_platform()
    if not threads:
        return here
    clusters = tuple(
        dataclasses.replace(cluster, threads=tuple(t for t in threads if t <= cluster.n_cores))
        for cluster in here.clusters
    )
    return dataclasses.replace(here, clusters=clusters)


def first_look(file: ModelFile, here: Platform, budget_s: float, n_stages: int) -> dict[str, Any]:
    """Profile a model with both methods and predict its stages."""
    graph = build_graph(file)
    found: dict[str, Any] = {"model": file.name, "layers": len(graph.layers), "methods": {}, "tables": {}}
    for method in METHODS:
        try:
            table, took_s = timed_profile(file, graph, here, budget_s, method)
        except DseError as error:
            found["methods"][method] = {"refused": str(error)[:200]}
            continue
        found["tables"][method] = table
        found["methods"][method] = {
            "took_s": round(took_s, 1),
            "sum_over_whole": [round(1 / factor, 3) if factor else None for factor in table.calibration],
            "precision": table.conditions["precision"],
            "disturbed_visits": [table.conditions["n_disturbed_visits"], table.conditions["n_visits"]],
        }
    if not found["tables"]:
        raise DseError(f"{file.name}: no method works")
    base = next(iter(found["tables"].values()))
    stages = equal_stages(base, n_stages)
    try:
        parts = split(file, graph, stages)
    except CutError as error:
        found["stages"] = str(error)
        return found
    found["slots"] = [str(slot) for slot in here.slots]
    found["whole_ns"] = [whole.median_ns if whole else None for whole in base.whole]
    measured = measure_stages([bytes(part.data) for part in parts.stages], here, budget_s / 2)
    found["stages_ns"] = measured
    for method, table in found["tables"].items():
        found["methods"][method]["stage_errors"] = {
            name: errors(predict_stages(table, stages, calibrated=calibrated), measured)
            for name, calibrated in (("plain", False), ("calibrated", True))
        }
    return found


def timed_profile(
    file: ModelFile, graph: LayerGraph, here: Platform, budget_s: float, method: str
) -> tuple[CostTable, float]:
    """Profile without a cache."""
    options = ProfileOptions(budget_s=budget_s, method=method, links=False)  # type: ignore[arg-type]
    start = time.monotonic()
    table = profile(file, graph, here, options)
    return table, time.monotonic() - start


def equal_stages(table: CostTable, n_stages: int) -> list[tuple[int, ...]]:
    """Part the layers, in order, into stages of about equal cost on the first slot."""
    costs = [row[0].median_ns or 0 for row in table.costs]
    share = sum(costs) / n_stages
    stages: list[list[int]] = [[]]
    spent = 0.0
    for layer, cost in enumerate(costs):
        if len(stages) < n_stages and stages[-1] and spent + cost / 2 > share * len(stages):
            stages.append([])
        stages[-1].append(layer)
        spent += cost
    return [tuple(stage) for stage in stages]


def measure_stages(models: Sequence[bytes], here: Platform, budget_s: float) -> list[list[int]]:
    """Return the measured time of each stage on each slot."""
    options = ProfileOptions(budget_s=budget_s)
    journal = Journal()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        workers = {
            slot: stack.enter_context(SlotWorker(slot, slot_cores(here, slot), folder / "log", options))
            for slot in here.slots
        }
        subjects = []
        for number, data in enumerate(models):
            path = folder / f"stage{number}.tflite"
            path.write_bytes(data)
            subjects.append(Subject(f"stage{number}", len(data), path=path))
        with SilentProgress().task("stages", 1) as task:
            Campaign(workers, journal, options, folder, task, 1 << 33).run(subjects)
    return [[median(journal.record(str(slot), s.name).samples_ns) for slot in here.slots] for s in subjects]


def predict_stages(
    table: CostTable, stages: Sequence[Sequence[int]], *, calibrated: bool
) -> list[list[float]]:
    """Return the predicted time of each stage on each slot."""
    factors = table.calibration if calibrated else tuple(1.0 for _ in table.slots)
    return [
        [
            sum((table.costs[layer][slot].median_ns or 0) * factor for layer in stage)
            + table.overhead_ns[slot]
            for slot, factor in enumerate(factors)
        ]
        for stage in stages
    ]


def errors(predicted: Sequence[Sequence[float]], measured: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return median and worst relative error, and all of them by stage and slot."""
    every = [
        [p / m - 1 for p, m in zip(row_p, row_m, strict=True)]
        for row_p, row_m in zip(predicted, measured, strict=True)
    ]
    flat = [abs(value) for row in every for value in row]
    return {
        "median": round(statistics.median(flat), 4),
        "worst": round(max(flat), 4),
        "all": [[round(value, 3) for value in row] for row in every],
    }


def agreement(first: CostTable, second: CostTable) -> dict[str, Any]:
    """Return how many layers have overlapping intervals in two profiles, and the typical change."""
    n, agree, changes = 0, 0, []
    for row_a, row_b in zip(first.costs, second.costs, strict=True):
        for a, b in zip(row_a, row_b, strict=True):
            if not a.median_ns or not b.median_ns or a.interval_ns is None or b.interval_ns is None:
                continue
            n += 1
            agree += a.interval_ns[0] <= b.interval_ns[1] and b.interval_ns[0] <= a.interval_ns[1]
            changes.append(abs(b.median_ns / a.median_ns - 1))
    return {
        "n_layers_and_slots": n,
        "agree": round(agree / n, 4) if n else None,
        "median_change": round(statistics.median(changes), 4) if changes else None,
    }


if __name__ == "__main__":
    main()
