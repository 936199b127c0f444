"""What a solver answers: stages on slots, gathered in lanes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from solvers.limits import throughput_gap

if TYPE_CHECKING:
    from solvers.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers run by one interpreter.

    Parameters
    ----------
    layers
        Ascending layer indices.
    slot
        Index of a slot of the problem.
    unit
        Number of the set of cores that runs it: stages with one unit share cores and slot (their
        times add up), stages with different units have disjoint cores.
    """

    layers: tuple[int, ...]
    slot: int
    unit: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A complete copy of the workload; stages in a topological order of the stage graph."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """One or more lanes on disjoint cores."""

    lanes: tuple[Lane, ...]

    @classmethod
    def of_chains(cls, lanes: Iterable[Iterable[tuple[tuple[int, ...], int]]]) -> Mapping:
        """Give every stage, told as (layers, slot), a set of cores of its own."""
        units = itertools.count()
        return cls(
            tuple(Lane(tuple(Stage(layers, slot, next(units)) for layers, slot in lane)) for lane in lanes)
        )

    @property
    def n_stages(self) -> int:
        """Stages of all lanes."""
        return sum(len(lane.stages) for lane in self.lanes)

    @property
    def n_units(self) -> int:
        """Sets of cores; where there are several, other cores work while a stage does."""
        return len({stage.unit for lane in self.lanes for stage in lane.stages})


class Status(Enum):
    """Four different outcomes.

    OPTIMAL means proved best within the solution's ``family``; INFEASIBLE is proved;
    UNKNOWN means that nothing was found in time.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class Family(Enum):
    """Which mappings a statement of optimality is about."""

    WHOLE = "whole model on one slot per lane"
    ORDER = "lanes of contiguous cuts of the given orders"
    CONTIGUOUS = "lanes of convex stages, one per set of cores"
    ALL = "all mappings"


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer of a solver, re-scored by ``solvers.evaluate``.

    Parameters
    ----------
    solver
        Name in the registry.
    status
        See ``Status``.
    family
        What ``status`` and the search cover.
    mapping, evaluation
        The best found, or None.
    bound_hz
        No mapping whatsoever has a higher throughput (``solvers.bounds``), or None.
    reason
        Why it is infeasible or unknown: binding constraint, demand, limit, unit.
    wall_ns
        Time spent.
    interrupted
        Somebody ended the search (``Limits.stop``, Ctrl-C): with more time it may find more.
    bound_latency_ns, bound_energy_nj
        For these goals: no mapping has a lower latency, or takes less energy per frame
        (``solvers.goal_bounds``); else None.
    """

    solver: str
    status: Status
    family: Family
    mapping: Mapping | None
    evaluation: Evaluation | None
    bound_hz: float | None
    reason: str = ""
    wall_ns: int = 0
    interrupted: bool = False
    bound_latency_ns: int | None = None
    bound_energy_nj: int | None = None

    @property
    def gap(self) -> float | None:
        """How much better than found the goal may be at most: 0 means proved best of all mappings.

        (bound - found) / found in throughput, (found - bound) / found in latency and energy.
        """
        if self.evaluation is None:
            return None
        for found, bound in (
            (self.evaluation.latency_ns, self.bound_latency_ns),
            (self.evaluation.energy_nj, self.bound_energy_nj),
        ):
            if found is not None and bound is not None:
                return max(0.0, (found - bound) / found) if found else 0.0
        return throughput_gap(self.evaluation, self.bound_hz)
