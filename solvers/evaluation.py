"""What the evaluator says about a mapping: numbers per stage, lane and mapping, and violations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class StageEvaluation:
    """Predicted quantities of one stage."""

    compute_ns: int
    receive_ns: int
    busy_ns: int
    memory_bytes: int
    send_ns: int = 0


@dataclass(frozen=True, slots=True)
class LaneEvaluation:
    """Predicted quantities of one lane; ``bottleneck`` is the index of the stage that sets the period."""

    stages: tuple[StageEvaluation, ...]
    period_ns: int
    latency_ns: int
    bottleneck: int

    @property
    def throughput_hz(self) -> float:
        """Frames per second of the lane."""
        return 1e9 / self.period_ns if self.period_ns else float("inf")


def amount(value: float, unit: str) -> str:
    """Write an amount for people: whole numbers exactly, others with six digits."""
    return f"{int(value)} {unit}" if float(value).is_integer() else f"{value:g} {unit}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken constraint: name, what it demands, what the limit is, and the unit."""

    constraint: str
    demand: float
    limit: float
    unit: str
    detail: str

    def __str__(self) -> str:
        """Return for example ``memory: cluster big (demand 900 bytes, limit 800 bytes)``."""
        what = f"{self.constraint}: {self.detail}" if self.detail else self.constraint
        return f"{what} (demand {amount(self.demand, self.unit)}, limit {amount(self.limit, self.unit)})"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Predicted quantities of a mapping.

    ``memory_bytes`` and ``cores_used`` are per cluster.  ``energy_nj`` is per frame, None where
    no power is known.
    """

    lanes: tuple[LaneEvaluation, ...]
    memory_bytes: tuple[int, ...]
    cores_used: tuple[int, ...]
    energy_nj: int | None
    violations: tuple[Violation, ...]

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds."""
        return not self.violations

    @property
    def throughput_hz(self) -> float:
        """Frames per second: sum over lanes."""
        return sum(lane.throughput_hz for lane in self.lanes)

    @property
    def frames_per_ns(self) -> Fraction:
        """Exact throughput over the lanes that have a period above zero."""
        return sum((Fraction(1, lane.period_ns) for lane in self.lanes if lane.period_ns), Fraction(0))

    @property
    def latency_ns(self) -> int:
        """Of the worst lane."""
        return max(lane.latency_ns for lane in self.lanes)

    @property
    def mean_latency_ns(self) -> float:
        """Weighted by the rates of the lanes."""
        return float(sum(w * lane.latency_ns for w, lane in zip(rate_shares(self.lanes), self.lanes)))

    @property
    def n_stages(self) -> int:
        """Stages of all lanes."""
        return sum(len(lane.stages) for lane in self.lanes)

    @property
    def n_cores(self) -> int:
        """Cores of all clusters."""
        return sum(self.cores_used)


def rate_shares(lanes: Sequence[LaneEvaluation]) -> list[Fraction]:
    """Return the share of the frames that each lane gets: in proportion to the rates."""
    instant = sum(1 for lane in lanes if not lane.period_ns)
    if instant:
        return [Fraction(0 if lane.period_ns else 1, instant) for lane in lanes]
    rates = [Fraction(1, lane.period_ns) for lane in lanes]
    total = sum(rates, Fraction(0))
    return [rate / total for rate in rates]
