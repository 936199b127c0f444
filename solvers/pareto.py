"""Pareto fronts: the mappings that no other one beats in everything that counts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from fractions import Fraction

from solvers.errors import ProblemError
from solvers.evaluate import Evaluation

Number = int | float | Fraction
Point = tuple[Number, ...]


class Axis(Enum):
    """What counts.  As coordinates all are such that smaller is better."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    ENERGY = "energy"
    MEMORY = "memory"
    CORES = "cores"


def coordinates(evaluation: Evaluation, axes: Sequence[Axis]) -> Point:
    """Return exact coordinates of an evaluation, smaller is better.

    Throughput is minus the frames per nanosecond (lanes that need no time count first), latency
    that of the worst lane in ns, energy per frame in nJ, memory in bytes and cores over all
    clusters.

    Raises
    ------
    ProblemError
        Energy of a platform whose power is not known.
    """
    found: list[Number] = []
    for axis in axes:
        if axis is Axis.THROUGHPUT:
            instant = any(not lane.period_ns for lane in evaluation.lanes)
            found.append(float("-inf") if instant else -evaluation.frames_per_ns)
        elif axis is Axis.LATENCY:
            found.append(evaluation.latency_ns)
        elif axis is Axis.ENERGY:
            if evaluation.energy_nj is None:
                raise ProblemError("a front with energy needs active_power_mw for every slot")
            found.append(evaluation.energy_nj)
        elif axis is Axis.MEMORY:
            found.append(sum(evaluation.memory_bytes))
        else:
            found.append(evaluation.n_cores)
    return tuple(found)


def dominates(first: Point, second: Point) -> bool:
    """Whether ``first`` is nowhere worse and somewhere better; smaller is better."""
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


def pareto_front(points: Sequence[Point]) -> tuple[int, ...]:
    """Return the indices of the points that none dominates, ascending; of equal points the first.

    A sorted sweep: a point can only be dominated by one that sorts before it, and then also by one
    of the front so far.  Cost: n log n plus n times the size of the front.

    Parameters
    ----------
    points
        All of one length; smaller is better.
    """
    front: list[int] = []
    for number in sorted(range(len(points)), key=lambda n: (points[n], n)):
        point = points[number]
        if not any(all(a <= b for a, b in zip(points[other], point, strict=True)) for other in front):
            front.append(number)
    return tuple(sorted(front))


def front_of(evaluations: Sequence[Evaluation], axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the indices of the feasible evaluations on the front of these axes."""
    feasible = [number for number, evaluation in enumerate(evaluations) if evaluation.feasible]
    points = [coordinates(evaluations[number], axes) for number in feasible]
    return tuple(feasible[number] for number in pareto_front(points))
