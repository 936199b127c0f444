"""Closing the loop: what was measured goes back into the problem, and the search runs again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dse.costs import StageCost
from dse.pipeline.measure import PlanMeasurement
from dse.placement import PlacedMapping
from dse.planning import Planner, predict
from dse.problems import unplace
from dse.results import PlanResult, Round
from dse.validation import effective_compute_ns, measured_stage_times
from solvers.evaluate import evaluate
from solvers.mapping import Mapping
from solvers.problem import Problem, StageTime

_LEAST, _MOST = 0.5, 4.0
"""Factors beyond these are measuring faults rather than contention."""

_LEAST_TRANSFER = 0.01
"""Stages that share memory receive for next to nothing."""


def learn(planner: Planner, measured: Sequence[tuple[PlacedMapping, PlanMeasurement]]) -> Planner:
    """Correct a problem by what was measured.

    Measured whole stages replace the sums of their layers; all other costs of a slot are scaled by
    the slot's median ratio of measured to predicted compute time, so that contention reaches plans
    that were not measured too.  Links into a cluster are scaled by the ratio of measured to
    predicted times to receive there.  Of equal stages in several plans the one in the plan with the most
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
    transfers: dict[int, list[tuple[int, float]]] = {}
    for placed, measurement in measured:
        mapping = unplace(placed, planner.platform, planner.slots)
        n_cores = len(placed.cores)
        for time in measured_stage_times(mapping, measurement):
            key = (time.layers, time.slot)
            if key not in times or times[key][0] < n_cores:
                times[key] = (n_cores, time)
        for slot, ratio in _ratios(planner, mapping, measurement):
            ratios.setdefault(slot, []).append((n_cores, ratio))
        for cluster, ratio in _transfer_ratios(problem, mapping, measurement):
            transfers.setdefault(cluster, []).append((n_cores, ratio))
    factors = {slot: _loaded_median(found) for slot, found in ratios.items()}
    into = np.array(
        [
            _loaded_median(transfers[cluster]) if cluster in transfers else 1.0
            for cluster in range(len(problem.cluster_sizes))
        ]
    )
    typical = statistics.median(factors.values()) if factors else 1.0
    scale = np.array([factors.get(slot, typical) for slot in range(len(problem.slots))])
    corrected = replace(
        problem,
        cost_ns=np.rint(problem.cost_ns * scale).astype(np.int64),
        loaded_cost_ns=None
        if problem.loaded_cost_ns is None
        else np.rint(problem.loaded_cost_ns * scale).astype(np.int64),
        setup_ns=np.rint(problem.setup * into).astype(np.int64),
        bandwidth_bytes_per_s=problem.bandwidth / into,
        stage_times=tuple(time for _, time in times.values()),
    )
    return replace(planner, problem=corrected)


def corrected(learned: Planner, plans: Sequence[PlanResult]) -> tuple[PlanResult, ...]:
    """Add to every measured plan what the corrected problem predicts for it.

    Parameters
    ----------
    learned
        From ``learn``.
    """

    def again(plan: PlanResult) -> PlanResult:
        if plan.measured is None:
            return plan
        mapping = unplace(plan.mapping, learned.platform, learned.slots)
        told = predict(learned.problem, plan.name, plan.role, mapping, plan.mapping)
        return replace(plan, corrected=told.predicted)

    return tuple(map(again, plans))


def stage_costs(
    planner: Planner, measured: Sequence[tuple[PlacedMapping, PlanMeasurement]]
) -> tuple[StageCost, ...]:
    """Return the measured stages for the cost table: as ``learn`` uses them, with their samples."""
    found: dict[tuple[tuple[int, ...], int], tuple[int, StageCost]] = {}
    for placed, measurement in measured:
        mapping = unplace(placed, planner.platform, planner.slots)
        n_cores = len(placed.cores)
        for time in measured_stage_times(mapping, measurement):
            key = (tuple(sorted(time.layers)), time.slot)
            if key in found and found[key][0] >= n_cores:
                continue
            names = [
                (lane, at)
                for lane, one in enumerate(mapping.lanes)
                for at, stage in enumerate(one.stages)
                if (tuple(sorted(stage.layers)), stage.slot) == key
            ]
            samples = tuple(
                repeat.lanes[lane].stages[at].compute_ns
                for repeat in measurement.counted
                for lane, at in names
            )
            cost = StageCost(key[0], planner.slots[time.slot], time.compute_ns, samples, under_load=True)
            found[key] = (n_cores, cost)
    return tuple(cost for _, cost in found.values())


def _ratios(planner: Planner, mapping: Mapping, measurement: PlanMeasurement) -> list[tuple[int, float]]:
    """Measured over predicted compute time of every stage, with its slot.

    A stage that waits for the bottleneck is colder than in a tight loop; as the bottleneck it would
    not be, so what waiting adds is taken out.
    """
    problem = planner.problem
    predicted = [stage.compute_ns for lane in evaluate(problem, mapping).lanes for stage in lane.stages]
    slots = [stage.slot for lane in mapping.lanes for stage in lane.stages]

    def slowdown(slot: int, utilisation: float) -> float:
        if planner.costs is None or planner.slots[slot] not in planner.costs.slots:
            return 1.0
        column = planner.costs.slots.index(planner.slots[slot])
        return planner.costs.slowdown_by_waiting(column, utilisation)

    times = effective_compute_ns(measurement)
    return [
        (slot, min(_MOST, max(_LEAST, time / slowdown(slot, got.utilisation) / expected)))
        for slot, expected, time, got in zip(slots, predicted, times, measurement.stages, strict=True)
        if expected > 0
    ]


def _transfer_ratios(
    problem: Problem, mapping: Mapping, measurement: PlanMeasurement
) -> list[tuple[int, float]]:
    """Measured over predicted time to receive of every stage that receives, with its cluster."""
    predicted = [stage.receive_ns for lane in evaluate(problem, mapping).lanes for stage in lane.stages]
    slots = [stage.slot for lane in mapping.lanes for stage in lane.stages]
    return [
        (problem.slots[slot].cluster, min(_MOST, max(_LEAST_TRANSFER, got.receive_ns / expected)))
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
