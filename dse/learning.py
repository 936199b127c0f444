"""Closing the loop: what was measured goes back into the problem, and the search runs again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dse.pipeline.measure import PlanMeasurement
from dse.placement import PlacedMapping
from dse.planning import Planner
from dse.problems import unplace
from dse.results import PlanResult, Round
from dse.validation import measured_stage_times
from solvers.evaluate import evaluate
from solvers.mapping import Mapping
from solvers.problem import Problem, StageTime

_LEAST, _MOST = 0.5, 4.0
"""Factors beyond these are measuring faults rather than contention."""


def learn(planner: Planner, measured: Sequence[tuple[PlacedMapping, PlanMeasurement]]) -> Planner:
    """Correct a problem by what was measured.

    Measured whole stages replace the sums of their layers; all other costs of a slot are scaled by
    the slot's median ratio of measured to predicted compute time, so that contention reaches plans
    that were not measured too.  Of equal stages in several plans the one in the plan with the most
    cores counts: it saw the load that a good plan makes.

    Parameters
    ----------
    planner
        The problem as it was before any correction.
    measured
        Mappings and their measurements.
    """
    problem = planner.problem
    times: dict[tuple[frozenset[int], int], tuple[int, StageTime]] = {}
    ratios: dict[int, list[tuple[int, float]]] = {}
    for placed, measurement in measured:
        mapping = unplace(placed, planner.platform, planner.slots)
        n_cores = len(placed.cores)
        for time in measured_stage_times(mapping, measurement):
            key = (time.layers, time.slot)
            if key not in times or times[key][0] < n_cores:
                times[key] = (n_cores, time)
        for slot, ratio in _ratios(problem, mapping, measurement):
            ratios.setdefault(slot, []).append((n_cores, ratio))
    factors = {slot: _loaded_median(found) for slot, found in ratios.items()}
    typical = statistics.median(factors.values()) if factors else 1.0
    scale = np.array([factors.get(slot, typical) for slot in range(len(problem.slots))])
    corrected = replace(
        problem,
        cost_ns=np.rint(problem.cost_ns * scale).astype(np.int64),
        stage_times=tuple(time for _, time in times.values()),
    )
    return replace(planner, problem=corrected)


def _ratios(problem: Problem, mapping: Mapping, measurement: PlanMeasurement) -> list[tuple[int, float]]:
    """Measured over predicted compute time of every stage, with its slot."""
    predicted = [stage.compute_ns for lane in evaluate(problem, mapping).lanes for stage in lane.stages]
    slots = [stage.slot for lane in mapping.lanes for stage in lane.stages]
    return [
        (slot, min(_MOST, max(_LEAST, got.compute_ns / expected)))
        for slot, expected, got in zip(slots, predicted, measurement.stages, strict=True)
        if expected > 0
    ]


def _loaded_median(found: Sequence[tuple[int, float]]) -> float:
    """Median over the stages of the plans that used the most cores."""
    most = max(n_cores for n_cores, _ in found)
    return statistics.median(ratio for n_cores, ratio in found if n_cores == most)


def summarise(number: int, plans: Sequence[PlanResult], fresh: Sequence[PlanResult]) -> Round:
    """Say how well the plans that were new in a round had been predicted.

    Parameters
    ----------
    plans
        All plans measured in the round.
    fresh
        Those measured for the first time.
    """
    errors = [abs(plan.error) for plan in fresh if plan.error is not None]
    rates = [plan.measured.throughput_hz for plan in plans if plan.measured and plan.feasible]
    return Round(
        number=number,
        n_measured=len(plans),
        n_new=len(fresh),
        median_error=statistics.median(errors) if errors else None,
        worst_error=max(errors, default=None),
        best_hz=max(rates, default=None),
    )
