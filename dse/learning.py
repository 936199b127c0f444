"""Closing the loop: what was measured goes back into the problem, and the search runs again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dse.corrections import Corrections
from dse.costs import StageCost
from dse.pipeline.measurement import PlanMeasurement
from dse.placement import PlacedMapping
from dse.planning import Planner, predict
from dse.problems import unplace
from dse.results import PlanResult, Round
from dse.validation import measured_stage_times
from solvers.evaluate import evaluate
from solvers.mapping import Mapping
from solvers.problem import FloatArray, Problem, StageTime

_LEAST, _MOST = 0.5, 4.0
"""Factors beyond these are measuring faults rather than contention."""

_LEAST_TRANSFER = 0.01
"""Stages that share memory receive for next to nothing."""


def learn(planner: Planner, measured: Sequence[tuple[PlacedMapping, PlanMeasurement]]) -> Planner:
    """Correct a problem by what was measured.

    Measured whole stages replace the sums of their layers; all other costs of a slot are scaled by
    the slot's median ratio of measured to predicted compute time, so that contention reaches plans
    that were not measured too.  Both are kept apart for stages that worked alone (plans of one set of cores)
    and beside others.  Links into a cluster are scaled by the ratio of measured to predicted times to
    receive there.  Of equal stages in several plans the one in the plan with the most cores counts: it
    saw the load that a good plan makes.

    Parameters
    ----------
    planner
        The problem as it was before any correction.
    measured
        Mappings and their measurements.
    """
    names = [cluster.name for cluster in planner.platform.clusters]
    problem = corrections(planner, measured).apply(planner.problem, planner.slots, names)
    times = tuple(time for time, _, _ in _decisive(planner, measured))
    return replace(planner, problem=replace(problem, stage_times=(*problem.stage_times, *times)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Measured over predicted time of a stage, in a plan of so many cores and so many frames per second."""

    n_cores: int
    rate_hz: float
    ratio: float
    expected_ns: int

    @property
    def weight(self) -> float:
        """How much of the time its cores should have worked on it."""
        return self.rate_hz * self.expected_ns


def corrections(planner: Planner, measured: Sequence[tuple[PlacedMapping, PlanMeasurement]]) -> Corrections:
    """Return the factors on the costs of all layers; see ``learn``."""
    problem = planner.problem
    alone: dict[int, list[_Seen]] = {}
    loaded: dict[int, list[_Seen]] = {}
    transfers: dict[int, list[_Seen]] = {}
    for placed, measurement in measured:
        mapping = unplace(placed, planner.platform, planner.slots)
        plan = len(placed.cores), measurement.throughput_hz
        for slot, ratio, expected in _ratios(planner, mapping, measurement):
            (loaded if mapping.n_units > 1 else alone).setdefault(slot, []).append(
                _Seen(*plan, ratio, expected)
            )
        for cluster, ratio, expected in _transfer_ratios(problem, mapping, measurement):
            transfers.setdefault(cluster, []).append(_Seen(*plan, ratio, expected))
    quiet, busy = _factors(
        {slot: _loaded_median(found) for slot, found in alone.items()},
        {slot: _loaded_median(found) for slot, found in loaded.items()},
        len(problem.slots),
    )
    clusters = planner.platform.clusters
    return Corrections(
        dict(zip(planner.slots, map(float, quiet), strict=True)),
        dict(zip(planner.slots, map(float, busy), strict=True)),
        {clusters[number].name: _loaded_median(found) for number, found in transfers.items()},
    )


def _factors(
    alone: dict[int, float], loaded: dict[int, float], n_slots: int
) -> tuple[FloatArray, FloatArray]:
    """Return for every slot what to scale costs by, alone and under load.

    A slot that was only seen in one condition is taken to slow down under load as the others do; one
    that was not seen at all gets the typical factors.
    """
    known = [loaded[slot] / alone[slot] for slot in loaded.keys() & alone.keys()]
    contention = statistics.median(known) if known else 1.0
    busy = {**{slot: ratio * contention for slot, ratio in alone.items()}, **loaded}
    quiet = {**{slot: ratio / contention for slot, ratio in loaded.items()}, **alone}
    # What most plans are made of: stages under load.
    usual = statistics.median((loaded or busy).values()) if busy else 1.0
    return (
        np.array([quiet.get(slot, usual / contention) for slot in range(n_slots)]),
        np.array([busy.get(slot, usual) for slot in range(n_slots)]),
    )


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
    found = []
    for time, mapping, measurement in _decisive(planner, measured):
        layers = tuple(sorted(time.layers))
        samples = tuple(
            repeat.lanes[lane].stages[at].compute_ns
            for repeat in measurement.counted
            for lane, one in enumerate(mapping.lanes)
            for at, stage in enumerate(one.stages)
            if (tuple(sorted(stage.layers)), stage.slot) == (layers, time.slot)
        )
        slot = planner.slots[time.slot]
        found.append(StageCost(layers, slot, time.compute_ns, samples, under_load=bool(time.loaded)))
    return tuple(found)


def _decisive(
    planner: Planner, measured: Sequence[tuple[PlacedMapping, PlanMeasurement]]
) -> list[tuple[StageTime, Mapping, PlanMeasurement]]:
    """Return every different stage, alone and under load, as the plan with the most cores has it."""
    found: dict[object, tuple[int, StageTime, Mapping, PlanMeasurement]] = {}
    for placed, measurement in measured:
        mapping = unplace(placed, planner.platform, planner.slots)
        n_cores = len(placed.cores)
        for time in measured_stage_times(mapping, measurement):
            key = (time.layers, time.slot, time.loaded)
            if key not in found or found[key][0] < n_cores:
                found[key] = n_cores, time, mapping, measurement
    return [entry[1:] for entry in found.values()]


def _ratios(planner: Planner, mapping: Mapping, measurement: PlanMeasurement) -> list[tuple[int, float, int]]:
    """Slot of every stage, measured over predicted compute time, and what was predicted.

    A stage that waits for the bottleneck is colder than in a tight loop; as the bottleneck it would
    not be, so what waiting adds is taken out.
    """
    problem = planner.problem
    predicted = [stage.compute_ns for lane in evaluate(problem, mapping).lanes for stage in lane.stages]
    slots = [stage.slot for lane in mapping.lanes for stage in lane.stages]

    def slowdown(slot: int, tightness: float) -> float:
        if planner.costs is None or planner.slots[slot] not in planner.costs.slots:
            return 1.0
        column = planner.costs.slots.index(planner.slots[slot])
        return planner.costs.slowdown_by_waiting(column, tightness)

    # Without what its plan loses between frames: stages of other plans do not lose that.
    return [
        (slot, min(_MOST, max(_LEAST, rate.work_ns / slowdown(slot, got.tightness) / expected)), expected)
        for slot, expected, rate, got in zip(
            slots, predicted, measurement.rates, measurement.stages, strict=True
        )
        if expected > 0
    ]


def _transfer_ratios(
    problem: Problem, mapping: Mapping, measurement: PlanMeasurement
) -> list[tuple[int, float, int]]:
    """Cluster of every stage that receives, measured over predicted time to do so, and what was predicted."""
    predicted = [stage.receive_ns for lane in evaluate(problem, mapping).lanes for stage in lane.stages]
    slots = [stage.slot for lane in mapping.lanes for stage in lane.stages]
    return [
        (problem.slots[slot].cluster, min(_MOST, max(_LEAST_TRANSFER, got.receive_ns / expected)), expected)
        for slot, expected, got in zip(slots, predicted, measurement.stages, strict=True)
        if expected > 0
    ]


def _loaded_median(found: Sequence[_Seen]) -> float:
    """Median over the stages of the plans that used the most cores, by how long they work.

    Small stages, and those of plans that ran badly, say little of what cores reach: a plan of many pieces
    would outvote all others.
    """
    most = max(one.n_cores for one in found)
    ranked = sorted((one.ratio, one.weight) for one in found if one.n_cores == most)
    half = sum(weight for _, weight in ranked) / 2
    below = 0.0
    for (ratio, weight), (larger, _) in pairwise([*ranked, ranked[-1]]):
        below += weight
        if math.isclose(below, half):
            return (ratio + larger) / 2
        if below > half:
            return ratio
    return ranked[-1][0]


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
