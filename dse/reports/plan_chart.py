"""The table of plans: predicted against measured on one axis."""

from __future__ import annotations

from dataclasses import dataclass

from dse.placement import PlacedMapping
from dse.reports.drawing import Tick, nice_ticks
from dse.reports.wording import (
    cores_text,
    first_name,
    format_energy,
    format_share,
    gain,
    latency_ns,
    refusal,
    says_shape,
    shape,
)
from dse.results import RunResult
from dse.units import format_bytes, format_hz, format_ns


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A plan in the table; ``dots`` are the repeats, ``low`` and ``high`` their ends.

    ``also`` are further names of the same plan.
    """

    name: str
    also: str
    shape: str
    winner: bool
    baseline: bool
    best_baseline: bool
    refused: str
    lanes: str
    cores: str
    predicted: str
    measured: str
    latency: str
    energy: str
    memory: str
    error: str
    gain: str
    predicted_at: float
    measured_at: float | None
    low: float
    high: float
    dots: tuple[float, ...]
    disturbed: bool


@dataclass(frozen=True, slots=True)
class PlanChart:
    """All plans on one axis of frames per second; ``bound_at`` is where no prediction can pass."""

    rows: tuple[PlanRow, ...]
    ticks: tuple[Tick, ...]
    bound_at: float | None

    @property
    def energy(self) -> bool:
        """Whether the energy of any plan is known."""
        return any(row.energy for row in self.rows)

    @property
    def measured(self) -> bool:
        """Whether any plan was measured."""
        return any(row.measured for row in self.rows)


def plan_chart(result: RunResult) -> PlanChart:
    """Place all plans on one axis."""
    values = [plan.predicted.throughput_hz for plan in result.plans]
    values += [
        value for plan in result.plans if plan.measured for value in plan.measured.throughput_samples_hz
    ]
    bound = result.proof.bound_hz
    if bound is not None and bound <= 2 * max(values):
        values.append(bound)
    ticks = nice_ticks(max(values))
    end = ticks[-1] or 1.0

    def at(value: float) -> float:
        return round(100 * value / end, 3)

    rows = []
    for number, plan in enumerate(result.plans):
        real, energy_nj = plan.measured, plan.predicted.energy_nj
        samples = real.throughput_samples_hz if real else ()
        rows.append(
            PlanRow(
                name=first_name(plan),
                also=plan.name.partition(" = ")[2].replace(" = ", ", "),
                shape="" if says_shape(plan) else shape(plan.mapping, result.graph),
                winner=number == result.winner,
                baseline=plan.role == "baseline",
                best_baseline=plan is result.best_baseline,
                refused=refusal(plan),
                lanes=_lanes_text(plan.mapping),
                cores=cores_text(plan.mapping),
                predicted=format_hz(plan.predicted.throughput_hz),
                measured=format_hz(real.throughput_hz) if real else "",
                latency=format_ns(latency_ns(plan)),
                energy="" if energy_nj is None else format_energy(energy_nj),
                memory=format_bytes(
                    real.memory_bytes if real and real.memory_bytes else plan.predicted.memory_bytes
                ),
                error=format_share(plan.error) if real else "",
                gain=format_share(gain(plan, result)),
                predicted_at=at(plan.predicted.throughput_hz),
                measured_at=at(real.throughput_hz) if real else None,
                low=at(min(samples)) if samples else 0.0,
                high=at(max(samples)) if samples else 0.0,
                dots=tuple(at(sample) for sample in samples),
                disturbed=bool(real and real.disturbed),
            )
        )
    return PlanChart(
        tuple(rows),
        tuple(Tick(at(tick), format_hz(tick) if tick else "0") for tick in ticks),
        at(bound) if bound is not None and bound <= end else None,
    )


def _lanes_text(mapping: PlacedMapping) -> str:
    depth = max(len(lane.stages) for lane in mapping.lanes)
    return str(depth) if len(mapping.lanes) == 1 else f"{len(mapping.lanes)} x {depth}"
