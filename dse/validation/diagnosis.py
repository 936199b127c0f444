"""What a measured plan tells besides its speed: why it differs from the prediction, what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dse.graph import LayerGraph
from dse.pipeline.counters import Counters
from dse.pipeline.measurement import PlanMeasurement
from dse.profiling.analytic import traffic_bytes
from dse.results import Diagnosis, PlanResult
from dse.validation.prediction import prediction_error


def diagnose(
    plan: PlanResult,
    measured: PlanMeasurement,
    graph: LayerGraph,
    yardstick_ns: Mapping[str, int] | None = None,
) -> Diagnosis:
    """Gather what the repeats that count tell.

    Parameters
    ----------
    plan
        With its prediction.
    measured
        Of the plan.
    graph
        The model's layers, for the traffic that they cause.
    yardstick_ns
        See ``prediction_error``.

    Raises
    ------
    MismatchError
        See ``prediction_error``.
    """
    error = prediction_error(plan, measured, yardstick_ns)
    found = [run.counters for repeat in measured.counted for run in repeat.runs]

    def per_frame(value: Callable[[Counters], float]) -> float:
        return sum(map(value, found)) / max(1, sum(one.n_frames for one in found))

    def hardware(name: str) -> int | None:
        if not found or any(getattr(one, name) is None for one in found):
            return None
        return round(per_frame(lambda one: float(getattr(one, name))))

    return Diagnosis(
        error_interval=error.throughput_interval,
        latency_error=error.latency,
        causes=error.causes,
        core_utilisation=core_utilisation(measured),
        traffic_bytes=sum(traffic_bytes(graph, layer) for layer in graph.layers),
        cpu_ns=round(per_frame(lambda one: one.user_ns + one.system_ns)),
        switches=round(per_frame(lambda one: one.voluntary_switches), 3),
        involuntary_switches=round(per_frame(lambda one: one.involuntary_switches), 3),
        page_faults=round(per_frame(lambda one: one.minor_faults + one.major_faults), 3),
        cycles=hardware("cycles"),
        instructions=hardware("instructions"),
        memory_bytes=hardware("memory_bytes"),
        confidence=1 - 2.0 ** (1 - len(measured.counted)),
        n_counted=len(measured.counted),
        counters_note=next((one.unavailable for one in found if one.unavailable), ""),
    )


def core_utilisation(measured: PlanMeasurement) -> tuple[tuple[int, float], ...]:
    """Return for each core of a plan the share of the time in which it worked on it.

    The threads of a stage wait for each other at times; that counts as work here.
    """
    shares: dict[int, float] = {}
    for number, lane in enumerate(measured.layout.lanes):
        for members in lane.units:
            # Sums, not medians: frames that come in bursts wait long once and not at all afterwards.
            times = [repeat.lanes[number].stages[member] for repeat in measured.counted for member in members]
            busy = sum(one.busy_sum_ns for one in times)
            wait = sum(one.wait_sum_ns for one in times)
            for core in lane.stages[members[0]].cores:
                shares[core] = round(busy / max(1, busy + wait), 4)
    return tuple(sorted(shares.items()))
