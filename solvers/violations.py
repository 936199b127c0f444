"""Every constraint that a mapping can break; part of the evaluator (``solvers.evaluate``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from solvers.evaluation import Evaluation, Violation
from solvers.mapping import Lane, Mapping, Stage
from solvers.problem import Problem

NS_PER_S = 1_000_000_000
OF_THE_MIX = frozenset({"memory", "total memory", "power", "latency", "throughput"})
"""Limits that a lane may break alone and keep beside others, or the other way round."""


def home_of(lane: Lane) -> dict[int, int]:
    """Return the stage number by layer (the last one for a layer that is in several)."""
    return {layer: number for number, stage in enumerate(lane.stages) for layer in stage.layers}


def violations(
    problem: Problem, mapping: Mapping, evaluation: Evaluation, energy_pj: Fraction | None
) -> Iterator[Violation]:
    """Yield every broken constraint; ``energy_pj`` is per frame and exact, None where unknown."""
    for number, lane in enumerate(mapping.lanes):
        yield from _lane_violations(problem, lane, f"lane {number}")
    yield from _unit_violations(problem, mapping)
    yield from _limit_violations(problem, evaluation)
    yield from _power_violations(problem, evaluation, energy_pj)


def _lane_violations(problem: Problem, lane: Lane, where: str) -> Iterator[Violation]:
    for stage in lane.stages:
        for layer in np.array(stage.layers)[~problem.supported[list(stage.layers), stage.slot]].tolist():
            names = problem.names
            what = f"{where}: {names.some_slots((stage.slot,))} can not run {names.layer(layer)}"
            yield Violation("unsupported", 1, 0, "layers", what)
    home = home_of(lane)
    if len(home) < problem.n_layers or sum(len(stage.layers) for stage in lane.stages) > len(home):
        times = Counter(layer for stage in lane.stages for layer in stage.layers)
        for layer in (layer for layer in range(problem.n_layers) if times[layer] != 1):
            yield Violation(
                "coverage", times[layer], 1, "stages", f"{where}: layer {layer} is in {times[layer]} stages"
            )
    backward = _backward(problem, lane)
    if backward:
        a, b = backward[0]
        yield Violation(
            "stage order",
            len(backward),
            0,
            "edges",
            f"{where}: layer {b} needs layer {a}, which sits in a later stage (stages must be convex "
            "and listed in topological order)",
        )
    for group in problem.groups:
        n_homes = len({home.get(layer) for layer in group})
        if n_homes > 1:
            yield Violation("group", n_homes, 1, "stages", f"{where}: layers {group} share state")
    for together in problem.colocated:
        units = {lane.stages[home[layer]].unit for layer in together if layer in home}
        if len(units) > 1:
            yield Violation("colocated", len(units), 1, "units", f"{where}: layers {together}")
    yield from _pin_violations(problem, lane, home, where)
    if problem.max_stages is not None and len(lane.stages) > problem.max_stages:
        yield Violation("max_stages", len(lane.stages), problem.max_stages, "stages", where)


def _backward(problem: Problem, lane: Lane) -> list[tuple[int, int]]:
    """Return the edges that lead to an earlier stage."""
    if len(lane.stages) < 2 or not problem.edges:
        return []
    edges = problem.edge_array
    home = np.full(problem.n_layers, -1)
    for number, stage in enumerate(lane.stages):
        home[list(stage.layers)] = number
    before, after = home[edges[:, 0]], home[edges[:, 1]]
    return [problem.edges[number] for number in np.flatnonzero((before > after) & (after >= 0))]


def _pin_violations(problem: Problem, lane: Lane, home: dict[int, int], where: str) -> Iterator[Violation]:
    owner: dict[int, int] = {}  # unit -> pin
    for number, pin in enumerate(problem.pins):
        homes = {home[layer] for layer in pin.layers if layer in home}
        if len(homes) > 1:
            yield Violation(
                "pin",
                len(homes),
                1,
                "stages",
                f"{where}: pin {number} splits over {len(homes)} stages",
            )
        for stage in (lane.stages[n] for n in sorted(homes)):
            if stage.slot not in pin.slots:
                yield Violation(
                    "pin", 1, 0, "stages", f"{where}: pin {number} does not allow slot {stage.slot}"
                )
            if owner.setdefault(stage.unit, number) != number:
                yield Violation(
                    "pin",
                    2,
                    1,
                    "pins",
                    f"{where}: pins {owner[stage.unit]} and {number} share the cores of unit {stage.unit}",
                )


def _unit_violations(problem: Problem, mapping: Mapping) -> Iterator[Violation]:
    seen: dict[int, tuple[int, Stage]] = {}
    for number, lane in enumerate(mapping.lanes):
        for stage in lane.stages:
            first_lane, first = seen.setdefault(stage.unit, (number, stage))
            if first.slot != stage.slot:
                yield Violation(
                    "unit", 2, 1, "slots", f"unit {stage.unit} is used as slot {first.slot} and {stage.slot}"
                )
            if first_lane != number:
                yield Violation(
                    "unit", 2, 1, "lanes", f"lanes {first_lane} and {number} share unit {stage.unit}"
                )


def _limit_violations(problem: Problem, evaluation: Evaluation) -> Iterator[Violation]:
    for cluster, (used, size) in enumerate(zip(evaluation.cores_used, problem.cluster_sizes)):
        if used > size:
            yield Violation("cores", used, size, "cores", problem.names.cluster(cluster))
    n_lanes = len(evaluation.lanes)
    if problem.stateful and n_lanes > problem.n_streams:
        yield Violation("streams", n_lanes, problem.n_streams, "lanes", "state between frames")
    if problem.max_lanes is not None and n_lanes > problem.max_lanes:
        yield Violation("max_lanes", n_lanes, problem.max_lanes, "lanes", "")
    if problem.memory_limits_bytes is not None:
        for cluster, (used, limit) in enumerate(zip(evaluation.memory_bytes, problem.memory_limits_bytes)):
            if limit is not None and used > limit:
                yield Violation("memory", used, limit, "bytes", problem.names.cluster(cluster))
    total = sum(evaluation.memory_bytes)
    if problem.total_memory_limit_bytes is not None and total > problem.total_memory_limit_bytes:
        yield Violation("total memory", total, problem.total_memory_limit_bytes, "bytes", "all clusters")
    latency = problem.objective.max_latency_ns
    if latency is not None and evaluation.latency_ns > latency:
        yield Violation("latency", evaluation.latency_ns, latency, "ns", "worst lane")
    floor = problem.objective.min_throughput_hz
    instant = any(not lane.period_ns for lane in evaluation.lanes)
    if floor is not None and not instant and evaluation.frames_per_ns * NS_PER_S < Fraction(floor):
        yield Violation("throughput", floor, evaluation.throughput_hz, "frames/s", "floor not reached")


def _power_violations(
    problem: Problem, evaluation: Evaluation, energy_pj: Fraction | None
) -> Iterator[Violation]:
    """Mean power is energy per frame times frames per time."""
    if problem.max_power_mw is None or energy_pj is None:
        return
    if all(lane.period_ns for lane in evaluation.lanes):
        power = energy_pj * evaluation.frames_per_ns
        if power > problem.max_power_mw:
            yield Violation("power", float(power), problem.max_power_mw, "mW", "mean over all clusters")
