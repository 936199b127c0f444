"""How good predictions are: ``python -m benchmarks.predictors TABLES --models FOLDER --output FILE``.

TABLES is what ``benchmarks.collect_costs`` wrote.  The learned predictor is validated by leaving out
one model at a time; the analytic one by whether it puts pairs of slots in the right order.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sample_layers import PREFIX
from dse.costs import CostTable
from dse.files import write_json
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.graph import LayerGraph
from dse.platforms import Cluster, Platform
from dse.profiling.analytic import predict
from dse.profiling.learned import examples_of, validate

CLEAR_DIFFERENCE = 1.1


def main(arguments: Sequence[str] | None = None) -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument(
        "--models", type=Path, nargs="+", required=True, help="Folders of the files that were profiled."
    )
    parser.add_argument("--macs-per-s", type=int, default=50_000_000_000, help="Peak of one core.")
    parser.add_argument("--bytes-per-s", type=int, default=10_000_000_000, help="Of one core.")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    pairs = list(load(options.tables, options.models))
    found = {
        "models": [graph.name for graph, _ in pairs],
        "learned": learned(pairs),
        "analytic": analytic(pairs, options.macs_per_s, options.bytes_per_s),
    }
    print(json.dumps(found, indent=1))
    if options.output is not None:
        write_json(options.output, found)


def load(tables: Path, folders: Sequence[Path]) -> list[tuple[LayerGraph, CostTable]]:
    """Read the tables and their models, which are in one of the folders."""
    found = []
    for path in sorted(tables.glob("*.json")):
        model = next((file for one in folders if (file := one / f"{path.stem}.tflite").exists()), None)
        if model is None:
            raise SystemExit(f"{path}: expected {path.stem}.tflite in {', '.join(map(str, folders))}")
        found.append(
            (build_graph(read_model(model)), CostTable.from_json(json.loads(path.read_text()), str(path)))
        )
    return found


def learned(pairs: Sequence[tuple[LayerGraph, CostTable]]) -> dict[str, Any]:
    """Return the validation per slot: variants of a model are left out together.

    Layers drawn by chance are always learned from and never predicted.
    """
    results = {}
    for slot in pairs[0][1].slots:
        examples, helpers = [], []
        for graph, table in pairs:
            taught = examples_of(graph, table, slot, family=graph.name.partition("-")[0])
            (helpers if graph.name.startswith(PREFIX) else examples).extend(taught)
        validation = validate(examples, helpers)
        results[str(slot)] = None if validation is None else dataclasses.asdict(validation)
    return results


def analytic(
    pairs: Sequence[tuple[LayerGraph, CostTable]], macs_per_s: int, bytes_per_s: int
) -> dict[str, Any]:
    """Return how many pairs of slots of a layer, clearly different when measured, are in the right order."""
    n, right = 0, 0
    for graph, table in pairs:
        most = max(slot.threads for slot in table.slots)
        cluster = Cluster(
            table.slots[0].cluster,
            tuple(range(most)),
            threads=tuple(slot.threads for slot in table.slots),
            macs_per_s=macs_per_s,
            bytes_per_s=bytes_per_s,
        )
        predicted = predict(graph, Platform("assumed", (cluster,)))
        for measured_row, predicted_row in zip(table.costs, predicted.costs, strict=True):
            for a, b in itertools.combinations(range(len(table.slots)), 2):
                x, y = measured_row[a].median_ns, measured_row[b].median_ns
                if not x or not y or max(x, y) < CLEAR_DIFFERENCE * min(x, y):
                    continue
                n += 1
                right += (x > y) == ((predicted_row[a].median_ns or 0) > (predicted_row[b].median_ns or 0))
    return {"pairs": n, "right_order": round(right / n, 4) if n else None}


if __name__ == "__main__":
    main()
