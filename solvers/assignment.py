"""Non-contiguous plans: a unit may hold several pieces of the model and work on frames in turn.

Starts from the best contiguous plan or, for a single lane, the best contiguous pieces of a rotated order;
keeps the units and reassigns layers: simulated annealing on a smooth measure of the loads, then (for a
single lane) the bound of ``solvers.unit_bound``, then CP-SAT with the rest of the time.  A plan is taken
only when the evaluator finds it better.  Loads know no limits and no other goal: for these, and where a
limit refuses what they lead to, ``solvers.pieces`` takes the time.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from solvers.cp_sat import polish
from solvers.errors import CapError
from solvers.evaluate import Evaluation, evaluate, score_key
from solvers.limits import Limits
from solvers.loads import Elements, Loads, elements, pieces
from solvers.mapping import Family, Lane, Mapping, Solution, Stage, Status
from solvers.mix import solve_interval_dp, solve_lanes
from solvers.pieces import improve_pieces
from solvers.problem import Goal, Problem
from solvers.rotations import best_rotation
from solvers.rounding import POWER, round_prices
from solvers.unit_bound import unit_bound_ns

N_ROTATIONS = 24
MOST_POLISHED = 3000
"""Layers up to which annealing and CP-SAT are tried."""
BOUND_SHARE = 0.5
"""Share of the time that the bound on single lanes may take before CP-SAT; half of it where a limit refuses
what annealing found."""
SECONDS_PER_CHOICE = 1e-4
"""Per element and unit, what CP-SAT needs to begin with."""
MOST_ROTATED = 1500
"""Elements up to which rotations of the order are tried."""


def solve_assignment(problem: Problem, limits: Limits) -> Solution:
    """Improve the best contiguous plan by moving layers between its units, pieces allowed.

    Family ALL, but units are those of the contiguous plan: FEASIBLE unless a bound meets it (that of
    the registry, or of CP-SAT where one unit per core is the only shape of a mapping).  Uses the
    whole time limit of ``limits`` in CP-SAT when the gap stays open.

    Raises
    ------
    InfeasibleError, CapError
    """
    solver = solve_interval_dp if problem.lane_limit == 1 else solve_lanes
    start = time.monotonic()
    rounded = solve_by_prices(problem, limits)
    first = solver(problem, replace(limits, time_s=limits.time_s / 3))
    left = limits.time_s - (time.monotonic() - start)
    return improve(
        problem, better_of(problem, first, rounded), replace(limits, time_s=max(left, limits.time_s / 10))
    )


def solve_by_prices(problem: Problem, limits: Limits) -> Solution | None:
    """Return the lane of ``solvers.rounding`` where it is feasible, for the goal throughput."""
    if problem.objective.goal is not Goal.THROUGHPUT:
        return None
    lane = round_prices(problem, limits)
    if lane is None:
        return None
    mapping = Mapping((lane,))
    evaluation = evaluate(problem, mapping)
    if not evaluation.feasible:
        return None
    limits.found(mapping, evaluation)
    return Solution("assignment", Status.FEASIBLE, Family.ALL, mapping, evaluation, None)


def better_of(problem: Problem, first: Solution, other: Solution | None) -> Solution:
    """Return the better one of two solutions, the first one where they are equal."""
    if other is None or other.evaluation is None:
        return first
    if first.evaluation is None:
        return other
    better = score_key(problem, other.evaluation) < score_key(problem, first.evaluation)
    return other if better else first


def improve(problem: Problem, first: Solution, limits: Limits) -> Solution:
    """Improve a solution as ``solve_assignment`` does."""
    start = time.monotonic()
    if first.mapping is None or first.evaluation is None:
        return replace(first, solver="assignment")
    if problem.objective.goal is not Goal.THROUGHPUT:
        return replace(improve_pieces(problem, first, limits), solver="assignment")
    best, evaluation = first.mapping, first.evaluation
    bound_hz: float | None = None
    refused = False
    for number in range(len(best.lanes) if problem.n_layers <= MOST_POLISHED else 0):
        if limits.close_enough:
            break
        left = 0.95 * limits.time_s - (time.monotonic() - start)
        share = left / (len(best.lanes) - number)
        place = _Place(best, number, limits)
        found, bound_ns = _better_lanes(problem, best.lanes[number], share, place, limits)
        if bound_ns and _units_are_all_there_is(problem):
            bound_hz = 1e9 / bound_ns
            limits.bounded(bound_hz)
        for lane in found:
            refused |= place.refuses(problem, lane)
            best, evaluation = _better(problem, best, evaluation, place.mapping(lane))
        limits.found(best, evaluation)
    status = first.status if best == first.mapping and first.family is Family.ALL else Status.FEASIBLE
    solution = Solution("assignment", status, Family.ALL, best, evaluation, bound_hz)
    left = limits.time_s - (time.monotonic() - start)
    if not refused or left <= 0 or limits.close_enough:
        return solution
    return improve_pieces(problem, solution, replace(limits, time_s=left))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a mapping a lane is improved."""

    around: Mapping
    number: int
    limits: Limits

    def mapping(self, lane: Lane) -> Mapping:
        """Return the mapping with another lane there."""
        lanes = self.around.lanes
        return Mapping((*lanes[: self.number], lane, *lanes[self.number + 1 :]))

    def refuses(self, problem: Problem, lane: Lane) -> bool:
        """Whether a limit or a wish does not let the lane be there."""
        return not evaluate(problem, self.mapping(lane)).feasible

    def tell(self, lane: Lane) -> None:
        """Tell that mapping."""
        self.limits.found(self.mapping(lane))


def _units_are_all_there_is(problem: Problem) -> bool:
    """Whether one lane on one unit per core is the only shape of a mapping, so that a bound is general."""
    return (
        problem.lane_limit == 1
        and not problem.stage_times
        and not problem.overlap
        and all(slot.threads == 1 and slot.host_cluster is None for slot in problem.slots)
        and len({slot.cluster for slot in problem.slots}) == len(problem.slots)
    )


def _better(
    problem: Problem, best: Mapping, evaluation: Evaluation, other: Mapping
) -> tuple[Mapping, Evaluation]:
    scored = evaluate(problem, other)
    if score_key(problem, scored) < score_key(problem, evaluation):
        return other, scored
    return best, evaluation


def _better_lanes(
    problem: Problem, lane: Lane, time_s: float, place: _Place, limits: Limits
) -> tuple[list[Lane], float | None]:
    """Return lanes on the same units that may be better, and a bound for these units (ns)."""
    units = sorted({stage.unit for stage in lane.stages})
    slots = tuple(next(s.slot for s in lane.stages if s.unit == unit) for unit in units)
    unit_of_layer = {layer: units.index(s.unit) for s in lane.stages for layer in s.layers}
    parts = elements(problem)
    unit_of = [unit_of_layer[layers[0]] for layers in parts.members]
    start = time.monotonic()
    found = []
    if problem.lane_limit == 1:
        rotated = _rotated(parts, limits)
        if rotated is not None:
            found.append(_lane(problem, parts, rotated[1], rotated[0], units))
            place.tell(found[-1])
            if rotated[2] < max(Loads(parts, slots, unit_of).load):
                slots, unit_of = rotated[:2]
        slots += _spare_slots(problem, slots)
    if len(slots) < 2:
        return found, None
    annealed = anneal(Loads(parts, slots, unit_of), min(time_s * 0.2, 15.0), limits.seed, 40_000)
    found.append(_lane(problem, parts, annealed, slots, units))
    place.tell(found[-1])
    limits.check()
    if limits.close_enough:
        return found, None
    left = time_s - (time.monotonic() - start)
    if left <= 0:
        return found, None
    known_ns = evaluate(problem, Mapping((found[-1],))).lanes[0].period_ns
    refused = place.refuses(problem, found[-1])
    share = BOUND_SHARE / 2 if refused else BOUND_SHARE
    shown_ns = unit_bound_ns(problem, known_ns, replace(limits, time_s=left * share))
    if shown_ns > 0:
        limits.bounded(1e9 / shown_ns)
        if limits.close_enough:
            return found, None
        left = time_s - (time.monotonic() - start)

    if left < SECONDS_PER_CHOICE * len(parts.members) * len(slots) or refused:
        return found, None

    def tell(assignment: list[int]) -> None:
        place.tell(_lane(problem, parts, assignment, slots, units))

    polished = polish(Loads(parts, slots, annealed), left, limits, tell)
    found.append(_lane(problem, parts, polished.assignment, slots, units))
    return found, polished.bound_ns


def _rotated(parts: Elements, limits: Limits) -> tuple[tuple[int, ...], list[int], int] | None:
    try:
        return best_rotation(parts, limits, N_ROTATIONS) if len(parts.members) <= MOST_ROTATED else None
    except CapError:
        return None


def _spare_slots(problem: Problem, slots: tuple[int, ...]) -> tuple[int, ...]:
    """One-core slots on the cores that a single lane leaves idle."""
    left = [int(size) for size in problem.cluster_sizes]
    for slot in slots:
        left = [free - int(n) for free, n in zip(left, problem.cores[slot])]
    spare = []
    for slot, shape in enumerate(problem.slots):
        while shape.threads == 1 and all(int(n) <= free for n, free in zip(problem.cores[slot], left)):
            left = [free - int(n) for free, n in zip(left, problem.cores[slot])]
            spare.append(slot)
    return tuple(spare)


def _lane(
    problem: Problem, parts: Elements, assignment: list[int], slots: tuple[int, ...], units: list[int]
) -> Lane:
    unit_of_layer = {layer: unit for layers, unit in zip(parts.members, assignment) for layer in layers}
    lane = pieces(problem, unit_of_layer, slots)
    names = [*units, *(max(units) + 1 + extra for extra in range(max(0, len(slots) - len(units))))]
    return Lane(tuple(Stage(s.layers, s.slot, names[s.unit]) for s in lane.stages))


def anneal(
    loads: Loads,
    time_s: float,
    seed: int,
    steps: int,
    clock: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Return the best assignment of a simulated annealing run.

    Parameters
    ----------
    loads
        Start; it is changed.
    time_s
        A ceiling only: ``steps`` decides otherwise, so that the same seed gives the same answer.
    seed
        Of the random moves.
    steps
        Moves that are tried.
    clock
        For tests.
    """
    rng = random.Random(seed)  # noqa: S311 - reproducible search, not cryptography
    n_units = len(loads.slots)
    best = list(loads.unit_of)
    best_load = max(loads.load)
    scale = best_load or 1
    deadline = clock() + time_s
    n_elements = len(loads.unit_of)
    for step in range(steps):
        if step % 1000 == 0 and clock() > deadline:
            break
        heat = 0.3 * (1 - step / steps) ** 2 + 1e-4
        element = rng.randrange(n_elements)
        if rng.random() < 0.5 and loads.parts.touching[element]:
            source, users, _ = loads.parts.flows[rng.choice(loads.parts.touching[element])]
            target = loads.unit_of[rng.choice((source, *users))]
        else:
            target = rng.randrange(n_units)
        if target == loads.unit_of[element] or not loads.allowed[element][target]:
            continue
        change = loads.change(element, target)
        delta = sum(
            ((loads.load[unit] + d) / scale) ** POWER - (loads.load[unit] / scale) ** POWER
            for unit, d in change.items()
        )
        if delta <= 0 or rng.random() < math.exp(-delta / heat):
            loads.move(element, target, change)
            top = max(loads.load)
            if top < best_load:
                best, best_load = list(loads.unit_of), top
    return best
