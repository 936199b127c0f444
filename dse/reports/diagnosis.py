"""Predicted against measured, and why; what a plan cost the machine: for both reports."""

from __future__ import annotations

from dataclasses import dataclass

from dse.reports.wording import first_name, format_share
from dse.results import Diagnosis, PlanResult, RunResult
from dse.units import format_bytes, format_count, format_ns

MAX_CAUSES = 3
_WORTH_TELLING = 0.05


@dataclass(frozen=True, slots=True)
class DiagnosisRow:
    """A measured plan in the report: texts only."""

    name: str
    error: str
    interval: str
    latency_error: str
    cores: str
    causes: tuple[str, ...]


def diagnosis_rows(result: RunResult) -> tuple[DiagnosisRow, ...]:
    """Return a row for every plan with a diagnosis, in the order of the plans."""
    rows = []
    for plan in result.plans:
        told = plan.measured.diagnosis if plan.measured else None
        if told is not None:
            low, high = sorted(told.error_interval)
            rows.append(
                DiagnosisRow(
                    first_name(plan),
                    format_share(plan.error),
                    f"{format_share(low)} to {format_share(high)}",
                    format_share(told.latency_error),
                    cores_busy(told),
                    told.causes[:MAX_CAUSES],
                )
            )
    return tuple(rows)


def cores_busy(told: Diagnosis) -> str:
    """Write how busy each core was, equal neighbours together: ``0-3: 98 %, 4: 71 %``."""
    groups: list[tuple[int, int, str]] = []
    for core, share in told.core_utilisation:
        text = f"{share * 100:.0f} %"
        if groups and groups[-1][1] == core - 1 and groups[-1][2] == text:
            groups[-1] = (groups[-1][0], core, text)
        else:
            groups.append((core, core, text))
    return ", ".join(f"{a if a == b else f'{a}-{b}'}: {text}" for a, b, text in groups)


def machine_facts(plan: PlanResult) -> tuple[tuple[str, str], ...]:
    """Return pairs of name and text: what a frame of this plan costs the machine besides time."""
    told = plan.measured.diagnosis if plan.measured else None
    if told is None or plan.measured is None:
        return ()
    rate = plan.measured.throughput_hz
    facts = [
        ("CPU time of a frame", format_ns(told.cpu_ns)),
        (
            "weights and activations touched by a frame",
            f"{format_bytes(told.traffic_bytes)}, {format_bytes(told.traffic_bytes * rate)}/s",
        ),
        (
            "threads of a frame that waited; lost their core",
            f"{told.switches:.3g}; {told.involuntary_switches:.2g}",
        ),
        ("page faults of a frame", f"{told.page_faults:.2g}"),
    ]
    if told.memory_bytes is not None:
        facts.append(
            (
                "traffic to memory of a frame (last-level misses)",
                f"{format_bytes(told.memory_bytes)}, {format_bytes(told.memory_bytes * rate)}/s",
            )
        )
    if told.cycles and told.instructions is not None:
        facts.append(
            (
                "cycles; instructions of a frame",
                f"{format_count(told.cycles)}; {format_count(told.instructions)} "
                f"({told.instructions / told.cycles:.2f} per cycle)",
            )
        )
    if told.counters_note:
        facts.append(("cycles, instructions, cache misses", f"not counted: {told.counters_note}"))
    return tuple(facts)


def diagnosis_lines(result: RunResult) -> list[str]:
    """Return sentences for a terminal: how busy the cores were, and why the prediction was off."""
    measured, error = result.best.measured, result.best.error
    if measured is None or measured.diagnosis is None or error is None:
        return []
    told = measured.diagnosis
    lines = [f"Cores busy: {cores_busy(told)}."]
    if told.causes and abs(error) >= _WORTH_TELLING:
        lines.append(f"Prediction off by {format_share(error)}: {'; '.join(told.causes[:MAX_CAUSES])}.")
    return lines
