"""Whether profiles repeat: ``python -m benchmarks.agreement MODEL... --minutes 10 --output FILE``.

Profiles every model, waits until that time is over, profiles them again, and counts the layers whose
stated intervals overlap.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.profiling import agreement, platform, timed_profile
from dse import conditions
from dse.costs import CostTable
from dse.files import write_json
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per model and the share over all layers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0, help="Between the two profiles of a model.")
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=())
    parser.add_argument("--budget-s", type=float, default=8.0)
    parser.add_argument("--method", choices=["auto", "in_situ", "extracted"], default="auto")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    here = platform(options.threads)
    files = [(file, build_graph(file)) for file in map(read_model, options.models)]
    start = time.monotonic()
    first = [timed_profile(file, graph, here, options.budget_s, options.method)[0] for file, graph in files]
    wait_s = start + 60 * options.minutes - time.monotonic()
    print(f"waiting for {max(0.0, wait_s):.0f} s", flush=True)
    time.sleep(max(0.0, wait_s))
    models: dict[str, Any] = {}
    for (file, graph), before in zip(files, first, strict=True):
        after, _ = timed_profile(file, graph, here, options.budget_s, options.method)
        models[file.name] = {**agreement(before, after), "session": [_session(before), _session(after)]}
        print(file.name, models[file.name], flush=True)
    counts = [(found["agree"] or 0) * found["n_layers_and_slots"] for found in models.values()]
    total = sum(found["n_layers_and_slots"] for found in models.values())
    result = {
        "machine": conditions.machine(),
        "minutes": options.minutes,
        "agree": round(sum(counts) / max(1, total), 4),
        "n_layers_and_slots": total,
        "models": models,
    }
    print(f"{result['agree']:.1%} of {total} layers and slots agree within the stated intervals")
    if options.output is not None:
        write_json(options.output, result)


def _session(table: CostTable) -> dict[str, Any]:
    told = table.conditions
    return {name: told.get(name) for name in ("yardstick_ns", "n_visits", "n_disturbed_visits")}


if __name__ == "__main__":
    main()
