"""What is gained, and how well it was predicted: ``python -m benchmarks.runs MODEL... [--out NAME]``.

Every model (a .tflite file, or ``zoo:NAME``) goes through the whole product: profile, search,
measure in rounds, learn; then its answer and the baselines are measured once more, as ``dse
validate`` does, against a prediction made with the costs as learned.  Per model a line with

- the answer, its measured rate and the gain over the best plan that needs no search, both of one
  interleaved run; ``never worse`` is judged by the intervals of the repeats;
- the share that it reaches of the bound on all mappings, with the costs as the run measured them;
- the error of the first prediction of all plans, and of the prediction after the loop against the
  fresh measurement.

``--set KEY=VALUE`` as for ``dse run``.  Nothing else should run meanwhile.  Where a plan other than the
answer runs more than 5 % slower or faster while validating than it did in the run, the machine's speed has
drifted: everything is measured again (``--validations`` times at most).  If that does not help, the row
says by how much, and what the error is once that is taken out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dse.conditions import machine
from dse.config import Experiment, experiment_for_model, load_experiment
from dse.elsewhere import elsewhere
from dse.errors import DseError
from dse.explore import run
from dse.files import write_json, write_text
from dse.reports.wording import first_name, shape
from dse.results import PlanResult, RunResult, Speed
from dse.revalidate import Request, validate, validated
from dse.speed import drifted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print a line per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help=".tflite files, or zoo:NAME")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--title", default="", help="of the table: the machine, in words")
    parser.add_argument("--out", type=Path, help="write NAME.json and NAME.md")
    parser.add_argument("--validations", type=int, default=3, help="of a model, at most")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the run folders there")
    options = parser.parse_args(argv)
    settings = [
        f"measure.rounds={options.rounds}",
        f"measure.repeats={options.repeats}",
        f"measure.seconds={options.seconds}",
        *options.settings,
    ]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dse-benchmark-") as work:
        folder = options.keep or Path(work)
        folder.mkdir(parents=True, exist_ok=True)
        for model in options.models:
            try:
                rows.append(one(model, settings, folder, options.validations))
            except DseError as error:
                rows.append({"model": name_of(model), "failed": str(error)})
            print(line(rows[-1]), flush=True)
            if options.out:
                data = {"title": options.title, "machine": machine(), "settings": settings, "rows": rows}
                write_json(options.out.with_suffix(".json"), data)
                write_text(options.out.with_suffix(".md"), table(options.title, rows))
    print(summary(rows))
    return int(any("failed" in row for row in rows))


def one(model: str, settings: Sequence[str], folder: Path, most: int) -> dict[str, Any]:
    """Run a model through the product and validate its answer; return the figures."""
    experiment = replace(experiment_of(model, settings, folder), output=folder, name=name_of(model))
    result = run(experiment)
    assert result.run_dir is not None
    best, baseline = result.best, result.best_baseline
    assert best.measured is not None
    assert baseline is not None
    assert baseline.measured is not None
    again = validate(Request(result.run_dir, tries=most))
    fresh = validated(again)
    errors = [abs(plan.error) for plan in result.plans if plan.error is not None]
    bound = result.rounds[-1].bound_hz
    return {
        "model": result.graph.name,
        "n_layers": len(result.graph.layers),
        "platform": result.platform.name,
        "emulated": result.platform.emulated,
        "answer": first_name(best),
        "shape": shape(best.mapping),
        "kind": kind(best),
        "hz": best.measured.throughput_hz,
        "samples_hz": list(best.measured.throughput_samples_hz),
        "baseline": first_name(baseline),
        "baseline_hz": baseline.measured.throughput_hz,
        "baseline_samples_hz": list(baseline.measured.throughput_samples_hz),
        "never_worse": not_worse(result),
        "bound_hz": bound,
        "of_bound": None if not bound else best.measured.throughput_hz / bound,
        "n_measured": len(errors),
        "first_error_median": statistics.median(errors),
        "first_error_worst": max(errors),
        "learned_error": fresh.error,
        "speed": None if again.speed is None else asdict(again.speed),
        "plans": [figures(plan) for plan in result.plans if plan.measured],
        "unsupported": [str(entry) for entry in elsewhere(result.costs)],
        "disturbed": best.measured.disturbed or bool(fresh.measured and fresh.measured.disturbed),
        "causes": list(best.measured.diagnosis.causes) if best.measured.diagnosis else [],
    }


def figures(plan: PlanResult) -> dict[str, Any]:
    """Return what was predicted and measured of a plan, frames per second."""
    assert plan.measured is not None
    return {
        "plan": plan.name,
        "shape": shape(plan.mapping),
        "round": plan.round,
        "predicted_hz": plan.predicted.throughput_hz,
        "corrected_hz": None if plan.corrected is None else plan.corrected.throughput_hz,
        "samples_hz": list(plan.measured.throughput_samples_hz),
        "empty_latency_ns": plan.measured.empty_latency_ns,
    }


def experiment_of(model: str, settings: Sequence[str], folder: Path) -> Experiment:
    """Return the experiment for a file or an architecture of the zoo."""
    if model.startswith("zoo:"):
        path = folder / f"{model[4:]}.yaml"
        path.write_text(f"model: {{zoo: {model[4:]}}}\n", encoding="utf-8")
        return load_experiment(path, list(settings))
    return experiment_for_model(Path(model), list(settings))


def name_of(model: str) -> str:
    """Return a short name."""
    return model[4:] if model.startswith("zoo:") else Path(model).stem


def kind(plan: PlanResult) -> str:
    """Say what sort of plan it is."""
    lanes = plan.mapping.lanes
    depth = max(len(lane.stages) for lane in lanes)
    if depth == 1:
        return "whole model" if len(lanes) == 1 else "copies"
    return "pipeline" if len(lanes) == 1 else "mix"


def not_worse(result: RunResult) -> bool:
    """Whether no baseline of the same round beats the answer beyond the intervals of the repeats."""
    best = result.best
    assert best.measured is not None
    return all(
        (
            max(best.measured.throughput_samples_hz) >= min(plan.measured.throughput_samples_hz)
            and best.measured.throughput_hz >= plan.measured.throughput_hz * 0.999
        )
        or best is plan
        for plan in result.plans
        if plan.role == "baseline" and plan.measured and plan.feasible and plan.round == best.round
    )


def line(row: dict[str, Any]) -> str:
    """Write a row for a terminal."""
    if "failed" in row:
        return f"{row['model']}: failed: {row['failed']}"
    of_bound = "-" if row["of_bound"] is None else f"{row['of_bound']:.0%}"
    return (
        f"{row['model']}: {row['answer']} ({row['shape']}) {row['hz']:.1f} frames/s, "
        f"{row['hz'] / row['baseline_hz'] - 1:+.1%} against {row['baseline']}, {of_bound} of the bound, "
        f"first predictions off by {row['first_error_median']:.1%} (median), "
        f"{row['first_error_worst']:.1%} (worst), "
        f"after the loop {learned_text(row)}"
        f"{', disturbed' if row['disturbed'] else ''}"
    )


def learned_text(row: dict[str, Any]) -> str:
    """Write the error after the loop; where the machine's speed changed, also without that."""
    error, speed = row["learned_error"], row["speed"]
    if error is None:
        return "-"
    if speed is None or not drifted(Speed(**speed)):
        return f"{error:+.1%}"
    change = speed["change"]
    return f"{error:+.1%} (drifted by {change:+.1%}; without that {(1 + error) * (1 + change) - 1:+.1%})"


def table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """Write the rows as a Markdown table."""
    lines = [f"# {title or 'Measured answers'}", ""]
    lines.append(
        "| model | layers | the answer | frames/s | best without search | gain | of the bound "
        "| first prediction: median, worst | after the loop |"
    )
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['model']} | | failed: {row['failed']} | | | | | | |")
            continue
        of_bound = "-" if row["of_bound"] is None else f"{row['of_bound']:.0%}"
        plan = f"{row['kind']}: {row['shape'].replace('|', '+')}"
        lines.append(
            f"| {row['model']} | {row['n_layers']} | {plan} | {row['hz']:.4g} "
            f"| {row['baseline']}: {row['baseline_hz']:.4g} | {row['hz'] / row['baseline_hz'] - 1:+.1%} "
            f"| {of_bound} | {row['first_error_median']:.1%}, {row['first_error_worst']:.1%} "
            f"| {learned_text(row)} |"
        )
    return "\n".join([*lines, "", summary(rows), ""])


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Say the figures over all models."""
    good = [row for row in rows if "failed" not in row]
    if not good:
        return "nothing was measured"
    learned = [abs(row["learned_error"]) for row in good if row["learned_error"] is not None]
    reached = [row["of_bound"] for row in good if row["of_bound"] is not None]
    kinds = {name: sum(row["kind"] == name for row in good) for name in sorted({row["kind"] for row in good})}
    counted = ", ".join(f"{name} {count}" for name, count in kinds.items())
    return (
        f"{len(good)} models. Winners: {counted}. Never worse than a baseline: "
        f"{sum(row['never_worse'] for row in good)}. "
        f"Share of the bound: lowest {min(reached, default=0):.0%}. "
        f"Prediction after the loop: median {statistics.median(learned):.1%}, worst {max(learned):.1%}."
    )


if __name__ == "__main__":
    sys.exit(main())
