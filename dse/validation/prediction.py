"""Whether predictions were right, where they were not and why, and what to learn from it.

The causes are told apart by what was measured besides: the same stage alone in an empty lane
(contention), its receive and send times (transfer), and the time between two frames of a lane
against its busiest cores (overhead of waking and handing over).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass

from dse.errors import MismatchError
from dse.pipeline.measurement import PlanMeasurement
from dse.platforms import Slot
from dse.results import PlanResult
from dse.units import format_ns
from solvers.mapping import Mapping
from solvers.problem import StageTime

NOTICEABLE = 0.05
"""Causes that explain less than this share of a stage's busy time are not named."""


@dataclass(frozen=True, slots=True)
class StageError:
    """A stage, predicted and measured, per frame.

    Parameters
    ----------
    lane, name
        Which stage.
    predicted_busy_ns, measured_busy_ns
        Time that its cores are taken.
    predicted_compute_ns, measured_compute_ns, empty_compute_ns
        Time in the runtime: predicted, in the full pipeline, and with one frame in an empty lane.
    predicted_transfer_ns, measured_transfer_ns
        Time to receive and send.
    in_company
        Whether other cores work for the plan meanwhile.
    """

    lane: int
    name: str
    predicted_busy_ns: int
    measured_busy_ns: int
    predicted_compute_ns: int
    measured_compute_ns: int
    empty_compute_ns: int
    predicted_transfer_ns: int
    measured_transfer_ns: int
    in_company: bool

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_busy_ns / max(1, self.measured_busy_ns) - 1

    @property
    def contention(self) -> float:
        """How many times slower the stage computes while the others work (below 1: it waits less)."""
        return self.measured_compute_ns / max(1, self.empty_compute_ns)

    @property
    def causes(self) -> tuple[str, ...]:
        """What explains the difference, largest first."""
        # Without company, a stream of frames is what was predicted; single frames may be colder.
        alone_ns = self.empty_compute_ns if self.in_company else self.measured_compute_ns
        model = alone_ns - self.predicted_compute_ns
        load = self.measured_compute_ns - alone_ns
        transfer = self.measured_transfer_ns - self.predicted_transfer_ns
        named = [
            (
                model,
                f"alone it computes for {format_ns(alone_ns)}, "
                f"predicted {format_ns(self.predicted_compute_ns)}",
            ),
            (
                load,
                f"{'contention' if load > 0 else 'warmer caches'}: {self.contention:.2f} times "
                f"its time alone while everything works",
            ),
            (
                transfer,
                f"transfers take {format_ns(self.measured_transfer_ns)}, "
                f"predicted {format_ns(self.predicted_transfer_ns)}",
            ),
        ]
        limit = NOTICEABLE * max(1, self.measured_busy_ns)
        return tuple(text for size, text in sorted(named, key=lambda n: -abs(n[0])) if abs(size) >= limit)


@dataclass(frozen=True, slots=True)
class PredictionError:
    """A plan, predicted and measured; errors are (predicted - measured) / measured.

    Parameters
    ----------
    plan
        Its name.
    throughput, latency
        Errors of the whole.
    throughput_interval
        Error against the fastest and the slowest repeat that counts.
    overhead_ns
        Per lane: time between two frames beyond what its busiest cores need for one on average.
    uneven_ns
        Per stage: how much longer it computes on average than at the median, because single frames are
        interrupted.
    speeds
        Per stage: how fast its cores were against when the layers were measured; None where unknown.
    stages
        One by one.
    disturbances
        What else the machine did while it was measured.
    """

    plan: str
    throughput: float
    throughput_interval: tuple[float, float]
    latency: float
    overhead_ns: tuple[int, ...]
    uneven_ns: tuple[int, ...]
    speeds: tuple[float | None, ...]
    stages: tuple[StageError, ...]
    disturbances: tuple[str, ...]

    @property
    def causes(self) -> tuple[str, ...]:
        """What explains the error of the throughput: the bottlenecks first, then the lanes."""
        found: dict[str, list[tuple[int, str]]] = {}
        between = []
        for lane, overhead in enumerate(self.overhead_ns):
            stages = [(n, stage) for n, stage in enumerate(self.stages) if stage.lane == lane]
            number, bottleneck = max(stages, key=lambda pair: pair[1].measured_busy_ns)
            causes = list(bottleneck.causes)
            speed = self.speeds[number] or 1.0
            slower = bottleneck.error < 0
            if abs(bottleneck.error) > NOTICEABLE and (1 - speed if slower else speed - 1) > NOTICEABLE:
                causes.append(f"clock: its cores work at {speed:.0%} of their speed at the profile")
            if self.uneven_ns[number] > NOTICEABLE * bottleneck.measured_busy_ns:
                causes.append(
                    f"single frames are interrupted: "
                    f"{format_ns(self.uneven_ns[number])} more on average than at the median"
                )
            for cause in causes:
                found.setdefault(cause, []).append((lane, bottleneck.name))
            if overhead > NOTICEABLE * bottleneck.measured_busy_ns:
                between.append(
                    f"lane {lane}: {format_ns(overhead)} between two frames for handing over and waking"
                )
        return (
            *(f"{_bottlenecks(places)}: {cause}" for cause, places in found.items()),
            *between,
            *self.disturbances,
        )


def _bottlenecks(places: Sequence[tuple[int, str]]) -> str:
    """Name stages by lane; equal lanes have equal causes."""
    names = ", ".join(name for _, name in places)
    lanes = ", ".join(str(lane) for lane, _ in places)
    return f"{names} (bottleneck{'s' * (len(places) > 1)} of lane{'s' * (len(places) > 1)} {lanes})"


def prediction_error(
    plan: PlanResult, measured: PlanMeasurement, yardstick_ns: MappingOf[str, int] | None = None
) -> PredictionError:
    """Compare a plan's prediction with its measurement, stage by stage.

    Parameters
    ----------
    plan
        With its predicted stages; what it says of measurements is not looked at.
    measured
        Of the plan: same lanes and stages, in the same order.
    yardstick_ns
        By slot: how long a fixed piece of arithmetic took when the layers were measured.

    Raises
    ------
    MismatchError
        The two do not have the same lanes and stages.
    """
    if len(plan.stages) != len(measured.stages):
        raise MismatchError(
            f"plan {measured.plan!r}: {len(plan.stages)} stages were predicted, "
            f"{len(measured.stages)} measured"
        )
    alone = [stage for lane in measured.empty for stage in lane.stages]
    stages = tuple(
        StageError(
            lane=got.lane,
            name=got.name,
            predicted_busy_ns=stage.predicted_busy_ns,
            measured_busy_ns=got.busy_ns,
            predicted_compute_ns=stage.predicted_compute_ns,
            measured_compute_ns=got.compute_ns,
            empty_compute_ns=empty.compute_ns,
            predicted_transfer_ns=stage.predicted_receive_ns + stage.predicted_send_ns,
            measured_transfer_ns=got.receive_ns + got.send_ns,
            in_company=sum(len(lane.units) for lane in measured.layout.lanes) > 1,
        )
        for stage, got, empty in zip(plan.stages, measured.stages, alone, strict=True)
    )
    low, high = measured.spread_hz
    expected_hz = plan.predicted.throughput_hz
    return PredictionError(
        plan=measured.plan,
        throughput=expected_hz / measured.throughput_hz - 1,
        throughput_interval=(expected_hz / high - 1, expected_hz / low - 1),
        latency=plan.predicted.latency_ns / max(1, measured.empty_latency_ns.median) - 1,
        overhead_ns=_overheads(measured),
        uneven_ns=tuple(
            max(0, round(rate.compute_ns) - stage.compute_ns)
            for stage, rate in zip(measured.stages, measured.rates, strict=True)
        ),
        speeds=_speeds(measured, yardstick_ns or {}),
        stages=stages,
        disturbances=measured.notes if measured.disturbed else (),
    )


def measured_stage_times(mapping: Mapping, measured: PlanMeasurement) -> tuple[StageTime, ...]:
    """Turn a measurement into whole-stage times for the next search.

    Parameters
    ----------
    mapping
        That the plan was made from: same lanes and stages, in the same order.
    measured
        Of the plan: where it has several sets of cores, contention is part of the times.

    Returns
    -------
    tuple of StageTime
        One per different (layers, slot), over the lanes that have it: what it takes of the time between
        two frames beyond hand-overs between stages, so that the mapping is predicted as it was measured; with
        the condition in which the plan ran it.

    Raises
    ------
    MismatchError
        The two do not have the same lanes and stages.
    """
    stages = [stage for lane in mapping.lanes for stage in lane.stages]
    if len(stages) != len(measured.stages):
        raise MismatchError(
            f"plan {measured.plan!r}: the mapping has {len(stages)} stages, "
            f"{len(measured.stages)} were measured"
        )
    loaded = mapping.n_units > 1
    found: dict[tuple[frozenset[int], int], list[float]] = {}
    for rates in measured.rates_by_repeat:
        same: dict[tuple[frozenset[int], int], list[float]] = {}
        for stage, rate in zip(stages, rates, strict=True):
            same.setdefault((frozenset(stage.layers), stage.slot), []).append(max(1.0, rate.own_ns))
        for kind, times in same.items():
            # Rates of lanes add up, so of their times the harmonic mean counts; in every repeat, as for the
            # throughput, because other lanes may be slow each time (neighbours on the same physical core).
            found.setdefault(kind, []).append(statistics.harmonic_mean(times))
    return tuple(
        StageTime(layers, slot, round(statistics.median(times)), loaded)
        for (layers, slot), times in found.items()
    )


def _speeds(measured: PlanMeasurement, before_ns: MappingOf[str, int]) -> tuple[float | None, ...]:
    """Return how fast the cores of every stage were, by the shortest yardstick of the repeats."""
    found: list[float | None] = []
    for number, lane in enumerate(measured.layout.lanes):
        unit_of = {member: unit for unit, members in enumerate(lane.units) for member in members}
        told = [one.runs[number].yardstick_ns for one in measured.counted if number < len(one.runs)]
        for place, stage in enumerate(lane.stages):
            before = before_ns.get(str(Slot(stage.cluster, stage.threads, stage.kernels)))
            now = [times[unit_of[place]] for times in told if times]
            found.append(before / min(now) if before and now else None)
    return tuple(found)


def _overheads(measured: PlanMeasurement) -> tuple[int, ...]:
    found = [0.0] * len(measured.empty)
    for rate in measured.rates:
        found[rate.lane] += rate.excess_ns
    return tuple(map(round, found))
