"""``dse run`` on a machine with a GPU: ``python -m benchmarks.gpu_run MODEL... --output FILE.json``.

Every model is profiled, searched and measured with all cores and the GPU; the file holds every plan
with prediction and measurement, what the GPU refuses, and the hand-over costs.  A table in Markdown
is printed.  Needs a GPU that ``dse doctor`` finds usable.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dse import conditions, explore
from dse.config import experiment_for_model
from dse.elsewhere import elsewhere
from dse.errors import DseError
from dse.machine import this_machine
from dse.record import results_json
from dse.results import RunResult


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--accelerators", choices=("auto", "any"), default="auto")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    platform = this_machine(accelerators=options.accelerators)
    if not platform.accelerators:
        raise SystemExit("no usable GPU here: see dse doctor")
    gpu = platform.accelerators[0].device
    print(f"GPU: {gpu}; {len(platform.cpu_cores)} cores of {conditions.cpu_model()}\n", flush=True)
    data: dict[str, Any] = {"gpu": gpu, "machine": conditions.machine(), "settings": options.settings}
    data["runs"] = []
    for path in options.models:
        settings = [f"variants.accelerators={options.accelerators}", *options.settings]
        try:
            data["runs"].append(study(path, settings))
        except DseError as error:
            print(f"{path.stem}: {error}", flush=True)
            data["runs"].append({"model": path.stem, "error": str(error)})
        if options.output is not None:  # after each, so that nothing measured is lost
            options.output.write_text(json.dumps(data, indent=1) + "\n")


def study(path: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Run one model; return its figures."""
    with tempfile.TemporaryDirectory(prefix="dse-gpu-run-") as folder:
        result = explore.run(experiment_for_model(path, [*settings, f"output={folder}"]))
    print(table(result), flush=True)
    costs = result.costs
    return {
        **results_json(result),
        "costs": {
            str(slot): {
                "whole_ns": None if whole is None else whole.median_ns,
                "overhead_ns": overhead,
                "layers_ns": sum(row[n].median_ns or 0 for row in costs.costs),
                "calibration": costs.calibration[n],
            }
            for n, (slot, whole, overhead) in enumerate(zip(costs.slots, costs.whole, costs.overhead_ns))
        },
        "links": costs.conditions.get("links"),
        "elsewhere": [str(entry) for entry in elsewhere(costs)],
    }


def table(result: RunResult) -> str:
    """Write the plans of a run as a table in Markdown, best measured first."""
    lines = [
        f"### {result.graph.name}",
        "",
        "| plan | predicted frames/s | measured frames/s | error | one frame, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    measured = [plan for plan in result.plans if plan.measured]
    for plan in sorted(measured, key=lambda plan: -(plan.measured.throughput_hz if plan.measured else 0)):
        figures = plan.measured
        if figures is None or plan.error is None:
            continue
        shape = " \\| ".join(
            " > ".join(f"{stage.slot} ({stage.span})" for stage in lane.stages) for lane in plan.mapping.lanes
        )
        name = plan.name if len(plan.mapping.lanes) > 3 else f"{plan.name}: {shape}"
        mark = "**" if plan is result.best else ""
        lines.append(
            f"| {mark}{name}{mark} | {plan.predicted.throughput_hz:.0f} | {figures.throughput_hz:.0f} | "
            f"{plan.error:+.0%} | {figures.empty_latency_ns / 1e6:.2f} |"
        )
    bound = result.proof.bound_hz
    lines += ["", f"Bound: {bound:.0f} frames/s." if bound else "", f"Outputs: {result.output_check}."]
    lines += [f"- {entry}" for entry in elsewhere(result.costs)]
    lines += [f"- {warning}" for warning in result.warnings]
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    main()
