"""A plan whose stages take turns on sets of cores, where no contiguous plan exists.

An operator that an accelerator refuses parts a model into pieces for the accelerator on both sides:
with one accelerator they can only take turns on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from solvers.cp_sat import polish
from solvers.evaluate import Evaluation, keep_better
from solvers.limits import Limits
from solvers.loads import Elements, Loads, allowed_on, elements, pieces
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.problem import Problem

MOST_UNIT_SETS = 48
N_POLISHED = 2
POLISH_SHARE = 0.2
"""Share of the time limit for each polishing."""


def plan_with_turns(problem: Problem, limits: Limits) -> Solution | None:
    """Look for one lane whose units may hold several pieces; None when none was found.

    Tries units of one slot per cluster (and one per core), elements greedily where they finish
    first, and polishes the best with CP-SAT.  Proves nothing.

    Raises
    ------
    InfeasibleError
        See ``topology.contract``.
    """
    parts = elements(problem)
    best: tuple[Mapping, Evaluation] | None = None
    started: list[tuple[int, Loads]] = []
    for slots in _unit_sets(problem):
        limits.check()
        assignment = _greedy(parts, slots)
        if assignment is not None:
            loads = Loads(parts, slots, assignment)
            best = keep_better(problem, best, _mapping(problem, parts, assignment, slots))
            started.append((max(loads.load), loads))
    started.sort(key=lambda pair: pair[0])
    for _, loads in started[:N_POLISHED]:
        polished = polish(loads, limits.time_s * POLISH_SHARE, limits)
        best = keep_better(problem, best, _mapping(problem, parts, polished.assignment, loads.slots))
    if best is None:
        return None
    limits.found(*best)
    return Solution("", Status.FEASIBLE, Family.ALL, *best, None)


def _unit_sets(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield slots of units that fit side by side: at most one per cluster, then one per core."""
    choices = [
        [None, *(n for n, slot in enumerate(problem.slots) if slot.cluster == cluster)]
        for cluster in range(len(problem.cluster_sizes))
    ]
    sets = [tuple(slot for slot in chosen if slot is not None) for chosen in product(*choices)]
    sets.sort(key=lambda slots: -sum(int(problem.cores[slot].sum()) for slot in slots))
    fitting = [slots for slots in sets if slots and _fits(problem, slots)]
    yield from fitting[:MOST_UNIT_SETS]
    filled: tuple[int, ...] = ()
    for number, slot in enumerate(problem.slots):
        while slot.threads == 1 and _fits(problem, (*filled, number)):
            filled = (*filled, number)
    if len(filled) > 1:
        yield filled


def _fits(problem: Problem, slots: tuple[int, ...]) -> bool:
    used = problem.cores[list(slots)].sum(axis=0)
    return bool((used <= problem.cluster_sizes).all())


def _greedy(parts: Elements, slots: tuple[int, ...]) -> list[int] | None:
    """Put each element, costliest first, on the unit that is then done first; None if one fits nowhere."""
    problem = parts.problem
    load = [0] * len(slots)
    unit_of = [0] * len(parts.members)
    least = problem.cost_ns.max(axis=1)
    for element in sorted(range(len(parts.members)), key=lambda e: -int(least[list(parts.members[e])].sum())):
        layers = parts.members[element]
        able = [unit for unit, slot in enumerate(slots) if allowed_on(problem, layers, slot)]
        if not able:
            return None
        cost = {unit: int(problem.cost_ns[list(layers), slots[unit]].sum()) for unit in able}
        chosen = min(able, key=lambda unit: (load[unit] + cost[unit], unit))
        load[chosen] += cost[chosen]
        unit_of[element] = chosen
    return unit_of


def _mapping(problem: Problem, parts: Elements, assignment: list[int], slots: tuple[int, ...]) -> Mapping:
    unit_of_layer = {layer: unit for layers, unit in zip(parts.members, assignment) for layer in layers}
    return Mapping((pieces(problem, unit_of_layer, slots),))
