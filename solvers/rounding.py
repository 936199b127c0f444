"""A lane from the prices of the relaxation: layers where they are cheapest, units evenly filled.

Near the bound on models of many layers when hand-over is cheap, and linear in their number but for the
evening out.
"""

from __future__ import annotations

import numpy as np

from solvers.bounds import charge, relaxation
from solvers.limits import Limits
from solvers.loads import Loads, allowed_on, elements, pieces
from solvers.mapping import Lane
from solvers.problem import FloatArray, IntArray, Problem

POWER = 12
"""Exponent of the smooth measure of loads: sum of (load / largest)^POWER."""
MOST_EVENED = 3000
"""Elements up to which single moves even out the units: beyond that one element matters little."""
MOST_MOVES = 500
N_TRIED = 8
"""Moves out of the fullest unit that look best without hand-over: so many are looked at with it."""


def round_prices(problem: Problem, limits: Limits) -> Lane | None:
    """Return a lane with one unit per core that follows the prices of the relaxation.

    Every element goes to the cluster where it is cheapest at those prices; the elements of a cluster
    are cut in topological order into as many parts as it has cores, the longest as short as can be.
    Then single elements leave the fullest unit as long as that helps.

    Returns
    -------
    Lane or None
        None when some element runs on no slot of one core, or is pinned to other slots.
    """
    parts = elements(problem)
    shapes = [
        slot for slot, shape in enumerate(problem.slots) if shape.threads == 1 and not shape.host_threads
    ]
    shape_of = {problem.slots[slot].cluster: slot for slot in shapes}
    if not shapes:
        return None
    of_layer = np.zeros(problem.n_layers, np.int64)
    for number, layers in enumerate(parts.members):
        of_layer[list(layers)] = number
    slots = [shape_of[cluster] for cluster in sorted(shape_of)]
    sizes = np.array([problem.cluster_sizes[problem.slots[slot].cluster] for slot in slots])
    cost = np.zeros((len(parts.members), len(slots)))
    layer_cost = np.where(problem.supported, problem.cost_ns.astype(np.float64), np.inf)[:, slots]
    np.add.at(cost, of_layer, layer_cost)
    if problem.pins:
        allowed = [[allowed_on(problem, layers, slot) for slot in slots] for layers in parts.members]
        cost[~np.array(allowed)] = np.inf
    if not np.isfinite(cost).any(axis=1).all():
        return None
    _, prices = relaxation(cost, np.eye(len(slots), dtype=np.int64), sizes)
    chosen = charge(cost, prices).argmin(axis=1)
    unit_of = np.zeros(len(parts.members), np.int64)
    slot_of_unit: list[int] = []
    for column, (slot, size) in enumerate(zip(slots, sizes)):
        mine = np.flatnonzero(chosen == column)
        unit_of[mine] = len(slot_of_unit) + _cut(cost[mine, column], int(size))
        slot_of_unit += [slot] * int(size)
    if len(parts.members) <= MOST_EVENED:
        loads = Loads(parts, tuple(slot_of_unit), [int(unit) for unit in unit_of])
        even_out(loads, limits)
        unit_of = np.array(loads.unit_of, np.int64)
    unit_of_layer = {layer: int(unit_of[of_layer[layer]]) for layer in range(problem.n_layers)}
    return pieces(problem, unit_of_layer, tuple(slot_of_unit))


def _cut(cost: FloatArray, n_parts: int) -> IntArray:
    """Return the part of each item: a sequence cut such that the largest sum of a part is smallest."""
    running = np.concatenate([[0.0], np.cumsum(cost)])

    def ends(most: float) -> list[int]:
        """Greedy parts within ``most``."""
        found = [0]
        for _ in range(n_parts):
            found.append(int(np.searchsorted(running, running[found[-1]] + most, side="right")) - 1)
        return found

    low, high = running[-1] / n_parts, float(running[-1])
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if ends(middle)[-1] >= len(cost) else (middle, high)
    inner = ends(high * (1 + 1e-12))[1:-1]
    part: IntArray = np.searchsorted(np.array(inner, np.int64), np.arange(len(cost)), side="right")
    return part


def even_out(loads: Loads, limits: Limits) -> int:
    """Move single elements out of the fullest unit, those first that lessen the smooth measure most.

    Returns
    -------
    int
        How many were moved.
    """
    slots, n_moved = loads.slots, 0
    cost = np.where(np.array(loads.allowed), np.array(loads.cost, np.float64), np.inf)
    for _ in range(MOST_MOVES):
        if limits.ends_early:
            break
        load = np.array(loads.load, np.float64)
        top = int(load.argmax())
        mine = np.flatnonzero(np.array(loads.unit_of) == top)
        measure = (load / load[top]) ** POWER
        without = ((load[top] - cost[mine, top]) / load[top]) ** POWER - measure[top]
        gain = ((load + cost[mine]) / load[top]) ** POWER - measure + without[:, None]
        gain[:, top] = np.inf
        best = np.argsort(gain, axis=None, kind="stable")[:N_TRIED]
        if not any(_moved(loads, int(mine[at // len(slots)]), int(at % len(slots))) for at in best):
            break
        n_moved += 1
    return n_moved


def _moved(loads: Loads, element: int, target: int) -> bool:
    """Make a move if it lessens the smooth measure."""
    if not loads.allowed[element][target]:
        return False
    largest = max(loads.load)
    change = loads.change(element, target)
    delta = sum(
        ((loads.load[unit] + d) / largest) ** POWER - (loads.load[unit] / largest) ** POWER
        for unit, d in change.items()
    )
    if delta >= -1e-12:
        return False
    loads.move(element, target, change)
    return True
