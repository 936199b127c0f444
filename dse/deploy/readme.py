"""The README of a bundle: what runs where, what to expect, how that was found out, and how to use it."""

from __future__ import annotations

import dse
from dse.deploy.target import Deployment, Manual, Order
from dse.placement import PlacedMapping
from dse.results import PlanResult
from dse.units import format_bytes, format_hz, format_ns


def readme_text(deployment: Deployment, target: str, manual: Manual) -> str:
    """Return the text."""
    order = deployment.order
    parts = [
        f"# {order.name} for {target}",
        f"The model `{order.graph.name}` (sha256 `{order.file.sha256}`, {len(order.graph.layers)} layers) as "
        f"{_lanes(order.mapping)} on `{order.platform.name}`, made by tflite-dse {dse.__version__}. "
        f"tflite-dse itself is not needed to run it.",
        "## What runs where",
        _stages(deployment),
        *_notes(order),
        "## What to expect",
        _figures(order),
        "## Inputs and outputs",
        _ports(deployment),
        manual.usage.strip(),
        "## Files",
        _files(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lanes(mapping: PlacedMapping) -> str:
    counts = [len(lane.stages) for lane in mapping.lanes]
    if len(counts) == 1:
        return f"a pipeline of {counts[0]} stages" if counts[0] > 1 else "one stage"
    return f"{len(counts)} lanes of {' and '.join(str(count) for count in counts)} stages"


def _stages(deployment: Deployment) -> str:
    lines = ["| lane | stage | layers | cores | slot | file |", "|---|---|---|---|---|---|"]
    for number, lane in enumerate(deployment.content.mapping.lanes):
        for stage in lane.stages:
            cores = ", ".join(str(core) for core in stage.cpu_cores)
            file = deployment.content.files[stage.name]
            lines.append(f"| {number} | {stage.name} | {stage.span} | {cores} | {stage.slot} | `{file}` |")
    return "\n".join(lines)


def _notes(order: Order) -> list[str]:
    found = []
    if len(order.mapping.lanes) > 1:
        found.append("Lanes are complete copies of the model; each frame goes through one of them.")
    if order.graph.stateful:
        found.append(
            "The model keeps state between frames: a stream of frames stays in one lane, from its first "
            "frame on, and every lane starts from a fresh state."
        )
    return found


def _figures(order: Order) -> str:
    plan = order.figures
    if plan is None:
        return "Nothing was measured or predicted for this mapping."
    real, said = plan.measured, plan.predicted
    rates = format_hz(said.throughput_hz), real and format_hz(real.throughput_hz)
    alone = format_ns(said.latency_ns), real and format_ns(real.empty_latency_ns)
    memory = format_bytes(said.memory_bytes), real and format_bytes(real.memory_bytes)
    rows = ["| | predicted | measured |", "|---|---|---|"]
    rows += [
        _row("frames per second", *rates),
        _row("latency of one frame in an empty pipeline", *alone),
        _row("latency at full speed, median", None, real and format_ns(real.latency_ns)),
        _row("latency at full speed, 99 of 100 frames", None, real and format_ns(real.latency_p99_ns)),
        _row("memory", *memory),
    ]
    text = "\n".join(rows)
    return "\n\n".join(part for part in (text, _stage_times(plan), order.measured_on) if part)


def _stage_times(plan: PlanResult) -> str:
    rows = ["| stage | predicted busy per frame | measured |", "|---|---|---|"]
    for stage in plan.stages:
        busy = stage.measured_busy_ns
        rows.append(
            _row(stage.name, format_ns(stage.predicted_busy_ns), None if busy is None else format_ns(busy))
        )
    return "\n".join(rows) if plan.stages else ""


def _row(name: str, *values: object) -> str:
    return f"| {name} | " + " | ".join(str(value or "-") for value in values) + " |"


def _ports(deployment: Deployment) -> str:
    lines = []
    for side, ports in (("input", deployment.plan.inputs), ("output", deployment.plan.outputs)):
        for number, port in enumerate(ports):
            shape = "x".join(str(size) for size in port.shape) or "one value"
            lines.append(f"- {side} {number}: `{port.name}`, {port.dtype}, {shape}, {port.n_bytes} bytes")
    lines.append("")
    reference = deployment.reference
    lines.append(
        f"`reference/` holds {reference.n_frames} frames and the outputs of the uncut model for them, in "
        "order. Outputs on the target may differ by at most the tolerances in `plan.txt`: 0.1 % of the "
        "output's range for floating-point values, 2 quantisation steps for 8 and 16 bits, nothing for "
        "other types."
        + ("" if reference.moved else " The frames do not move the outputs, so agreement says little.")
    )
    return "\n".join(lines)


def _files() -> str:
    return "\n".join(
        (
            "- `mapping.yaml`: what runs where, `mapping.schema.json`: its form. To change it, edit a copy",
            "  and give it to `dse validate --mapping` and `dse export --mapping` where the model is.",
            "- `plan.txt`: the same with all hand-overs, for the runners; it carries the hash of",
            "  `mapping.yaml`.",
            "- `stages/`: the model files. `signatures.json`: how the uncut model is called.",
            "- `reference/`: inputs and outputs to check with.",
            "- `SHA256SUMS`: of every other file; `sha256sum -c SHA256SUMS` checks them.",
        )
    )
