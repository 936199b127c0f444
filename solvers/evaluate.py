"""The one definition of every predicted quantity: compute, busy, period, latency, memory, energy."""
from __future__ import annotations

from dataclasses import dataclass

from solvers.mapping import Mapping
from solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class StageEvaluation:
    """Predicted quantities of one stage."""

    compute_ns: int
    receive_ns: int
    busy_ns: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LaneEvaluation:
    """Predicted quantities of one lane."""

    stages: tuple[StageEvaluation, ...]
    period_ns: int
    latency_ns: int
    bottleneck: int

    @property
    def throughput_hz(self) -> float:
        """Frames per second of the lane."""
        return 1e9 / self.period_ns if self.period_ns else float("inf")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken constraint: name, what it demands, what the limit is, and the unit."""

    constraint: str
    demand: float
    limit: float
    unit: str
    detail: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Predicted quantities of a mapping.

    ``energy_nj`` is per frame, None where no power is known.
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
    def latency_ns(self) -> int:
        """Of the worst lane."""
        return max(lane.latency_ns for lane in self.lanes)

    @property
    def mean_latency_ns(self) -> float:
        """Weighted by the rates of the lanes."""
        total = self.throughput_hz
        return sum(lane.latency_ns * lane.throughput_hz for lane in self.lanes) / total


def evaluate(problem: Problem, mapping: Mapping) -> Evaluation:
    """Score a mapping and list every constraint that it breaks (written with issue's solver part)."""
    raise NotImplementedError
