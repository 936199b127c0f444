"""What ``dse validate`` tells besides the table: the mapping stage by stage, and what a frame of it costs."""

from __future__ import annotations

import textwrap

from dse.graph import LayerGraph, label_of
from dse.reports.console import printable, shorten
from dse.reports.diagnosis import cores_busy, machine_facts
from dse.reports.wording import format_share
from dse.results import Gap, Measured, PlanResult, RunResult, StageNumbers
from dse.units import format_hz, format_ns

WIDTH = 80
MAX_STAGES = 16
MAX_GAPS = 5
LEAST_GAP = 0.01
"""Gaps that take less of the time are not told."""

_HEADS = ("stage", "pred.", "meas.", "error", "between %", "moving", "waiting")


def validation_lines(result: RunResult, plan: PlanResult) -> list[str]:
    """Return lines of at most 80 columns about a measured plan; none when it was not measured.

    Parameters
    ----------
    result
        What it was measured in.
    plan
        One of its plans.
    """
    real = plan.measured
    if real is None:
        return []
    lines = ["", shorten(f"Stage by stage: {plan.name}", WIDTH), *_stage_table(plan)]
    lines += ["", *_figures(plan, real)]
    gaps = [gap for gap in real.gaps if gap.share >= LEAST_GAP]
    if gaps:
        lines += ["", "Where cores wait"]
        lines += [f"  {_gap_text(result.graph, plan, gap)}" for gap in gaps[:MAX_GAPS]]
        if len(gaps) > MAX_GAPS:
            lines.append(f"  ... and {len(gaps) - MAX_GAPS} more in validation.json")
    lines += ["", "A frame costs"]
    lines += [f"  {name}: {text}" for name, text in machine_facts(plan)]
    return [part for line in lines for part in _wrapped(printable(line))]


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _stage_table(plan: PlanResult) -> list[str]:
    slots = {stage.name: stage.slot for stage in plan.mapping.stages}
    rows = [_stage_row(stage, slots[stage.name]) for stage in plan.stages[:MAX_STAGES]]
    widths = [max(len(row[n]) for row in (_HEADS, *rows)) for n in range(len(_HEADS))]
    lines = [
        "  "
        + row[0].ljust(widths[0])
        + "".join(f" {cell:>{width}}" for cell, width in zip(row[1:], widths[1:]))
        for row in (_HEADS, *rows)
    ]
    if len(plan.stages) > MAX_STAGES:
        lines.append(f"  ... and {len(plan.stages) - MAX_STAGES} more in validation.json")
    return lines


def _stage_row(stage: StageNumbers, slot: str) -> tuple[str, ...]:
    busy_ns = stage.measured_busy_ns or 0
    low, high = stage.measured_interval_ns or (busy_ns, busy_ns)
    moving_ns = (stage.measured_receive_ns or 0) + (stage.measured_send_ns or 0)
    return (
        shorten(f"{stage.name}, {slot}", 22),
        format_ns(stage.predicted_busy_ns),
        format_ns(busy_ns),
        format_share(_error(stage.predicted_busy_ns, busy_ns)),
        f"{_share(stage.predicted_busy_ns, high)}..{_share(stage.predicted_busy_ns, low)}",
        format_ns(moving_ns),
        format_ns(stage.measured_wait_ns or 0),
    )


def _error(predicted: float, measured: float) -> float:
    return predicted / measured - 1 if measured else 0.0


def _share(predicted: float, measured: float) -> str:
    return f"{_error(predicted, measured) * 100:+.0f}"


def _figures(plan: PlanResult, real: Measured) -> list[str]:
    told = real.diagnosis
    lines = [
        f"Latency in the full pipeline: {format_ns(real.latency_ns)}, 90 % within "
        f"{format_ns(real.latency_p90_ns)}, 99 % within {format_ns(real.latency_p99_ns)}",
        f"Latency of a frame alone: {format_ns(real.empty_latency_ns)}, "
        f"predicted {format_ns(plan.predicted.latency_ns)}",
    ]
    samples = real.throughput_samples_hz
    some = told is not None and told.n_counted < len(samples)
    calm = f", of which the {told.n_counted} calm ones count" if told is not None and some else ""
    rate = (
        f"Throughput, sustained: {format_hz(real.throughput_hz)} frames/s "
        f"({format_hz(min(samples))} to {format_hz(max(samples))} in {len(samples)} repeats{calm})"
    )
    if told is None:
        return [rate, *lines]
    low, high = sorted(told.error_interval)
    error = (
        f"Prediction: {format_hz(plan.predicted.throughput_hz)} frames/s, off by {format_share(plan.error)}; "
        f"by {format_share(low)} to {format_share(high)} at {told.confidence:.0%} confidence"
    )
    return [rate, error, *lines, f"Cores busy: {cores_busy(told)}"]


def _gap_text(graph: LayerGraph, plan: PlanResult, gap: Gap) -> str:
    """Tell one kind of gap; of a workload between which networks."""
    stages = {stage.name: stage for stage in plan.mapping.stages}
    cores = ",".join(map(str, stages[gap.before].cores))
    names = [label_of(name, graph.networks_of(stages[name].layers)) for name in (gap.after, gap.before)]
    where = (
        f"after {names[0]}, before {names[1]}" if names[0] != names[1] else f"between frames of {names[0]}"
    )
    return f"core {cores}: {gap.share:.0%} of the time, median {format_ns(gap.median_ns)}, {where}"
