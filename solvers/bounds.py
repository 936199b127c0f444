"""Upper bounds on the throughput of any mapping whatsoever, lanes included.

Two bounds, of which the smaller counts: a relaxation in which blocks may be split over slots, and a
knapsack of lanes whose periods are bounded one by one.

In a running mapping let x[b, r] be the share of the frames whose block b runs on slot r.  Cores can
not be busy more than all the time, so with P the mean time between frames

    sum over b, r of cores[r, c] * cost[b, r] * x[b, r] <= P * n_c   for every cluster c,
    sum over r of x[b, r] = 1   for every block b.

The smallest such P is a linear programme.  Its dual has one price beta_c >= 0 per cluster with
sum of beta_c * n_c = 1 and the value

    f(beta) = sum over b of min over r of (sum over c of beta_c * cores[r, c]) * cost[b, r],

and *every* such beta gives a valid bound (weak duality), so rounding in the search for the best
beta can not make the answer wrong.  f is concave and cheap: one cluster has one beta, two are a line
search, more are Kelley's cutting planes (J. SIAM 8, 1960), whose small master programmes GLOP of
OR-Tools solves; it is loaded only then.  A limit on power is one more resource: the energy of the
frames per P is at most the power that the limit leaves to busy slots.  A limit on memory limits lanes.
"""

from __future__ import annotations

import numpy as np

from solvers.evaluate import stage_memory_bytes
from solvers.knapsack import Knapsack, LaneType
from solvers.problem import FloatArray, Problem
from solvers.topology import Blocks, contract

MOST_STATES = 150
"""Core vectors up to which the bound looks at lanes one by one."""

SAFETY = 1e-12
"""Relative amount given away for rounding in the last sum."""


def bound_costs(blocks: Blocks, besides_ns: FloatArray | None = None) -> FloatArray:
    """Return float64 (blocks, slots): what each block costs at least as part of any stage.

    Where a whole stage was measured faster than the sum of its layers, the costs of its layers on
    that slot are scaled down by the same factor, so that no stage is faster than the sum of these
    costs.  ``inf`` where the slot is not allowed.

    Parameters
    ----------
    besides_ns
        Float64 (slots,): what a stage is charged besides its blocks; of what was measured that much is
        not theirs.  At most the overhead of the slot, and at most any of its measured stages.
    """
    cost = np.zeros((blocks.n_blocks, len(blocks.problem.slots)))
    np.add.at(cost, np.array(blocks.of_layer), _layer_costs(blocks.problem, besides_ns))
    cost[~blocks.allowed] = np.inf
    return cost


def _layer_costs(problem: Problem, besides_ns: FloatArray | None) -> FloatArray:
    layer = np.where(problem.supported, problem.cost_ns, 0).astype(np.float64)
    factor = np.ones_like(layer)
    for (layers, slot), time in problem.measured_ns.items():
        members = [number for number in sorted(layers) if 0 <= number < problem.n_layers]
        total = float(layer[members, slot].sum())
        theirs = time if besides_ns is None else time - float(besides_ns[slot])
        if total > theirs:
            factor[members, slot] = np.minimum(factor[members, slot], theirs / total)
    scaled: FloatArray = layer * factor
    return scaled


def least_overhead_ns(problem: Problem) -> FloatArray:
    """Return float64 (slots,): what a stage pays at least besides its layers (a measured one may hide it)."""
    overhead = problem.overhead.astype(np.float64)
    overhead[[slot for _, slot in problem.measured_ns]] = 0
    return overhead


def memory_room_bytes(problem: Problem) -> int | None:
    """Return what all stages together may hold: the smaller of the limits, or None for no limit."""
    rooms = [] if problem.total_memory_limit_bytes is None else [problem.total_memory_limit_bytes]
    limits = [limit for limit in problem.memory_limits_bytes or () if limit is not None]
    if limits and len(limits) == len(problem.cluster_sizes):
        rooms.append(sum(limits))
    return min(rooms, default=None)


def most_lanes(problem: Problem) -> int:
    """Return how many lanes the cores, the caps, state and memory allow, at least 1.

    The stages of a lane hold together at least what the whole model would: each weight, and what is
    alive at the peak.
    """
    caps = [sum(problem.cluster_sizes)]
    if problem.lane_limit is not None:
        caps.append(problem.lane_limit)
    room = memory_room_bytes(problem)
    whole = 0 if room is None else stage_memory_bytes(problem, range(problem.n_layers))
    if room is not None and whole:
        caps.append(room // whole)
    return max(1, min(caps))


def period_bound_ns(blocks: Blocks) -> float:
    """Return a lower bound on the mean time between frames of any mapping (ns)."""
    problem = blocks.problem
    cost = bound_costs(blocks)
    use, there_is = problem.cores, np.array(problem.cluster_sizes)
    relaxed, _ = relaxation(cost, use, there_is)
    if problem.max_power_mw is not None and problem.active_power_mw is not None:
        room = problem.max_power_mw - (problem.idle_power_mw or 0)
        if room > 0:
            use = np.column_stack([use, problem.active_power_mw])
            relaxed = max(relaxed, relaxation(cost, use, np.append(there_is, room))[0])
    largest = float((cost + least_overhead_ns(problem)).min(axis=1).max())
    return max(relaxed, largest / most_lanes(problem)) * (1 - SAFETY)


def throughput_bound_hz(problem: Problem, blocks: Blocks | None = None) -> float:
    """Return frames per second that no mapping of the problem exceeds (inf when nothing costs time).

    Raises
    ------
    InfeasibleError
        See ``topology.contract``.
    """
    blocks = blocks or contract(problem)
    period = period_bound_ns(blocks)
    if period <= 0:
        return float("inf")
    return 1e9 * min(1 / period, _rate_by_lanes(blocks))


def _rate_by_lanes(blocks: Blocks) -> float:
    """Bound the rate (frames per ns) by a knapsack over what lanes on given cores reach at best.

    Stronger than the relaxation when a few blocks are large or lanes are few.
    """
    sizes = blocks.problem.cluster_sizes
    if np.prod([size + 1 for size in sizes]) > MOST_STATES:
        return float("inf")
    least = lane_bounds_ns(blocks)
    if (least <= 0).any():
        return float("inf")
    lanes = [
        LaneType(tuple(map(int, use)), 1 / float(least[tuple(use)]), 0)
        for use in np.argwhere(np.isfinite(least))
    ]
    return Knapsack(sizes, lanes, most_lanes(blocks.problem)).best_rate * (1 + SAFETY)


def lane_bounds_ns(blocks: Blocks) -> FloatArray:
    """Return float64 (cores + 1 per cluster): what the period of a lane on so many cores is at least.

    That is the relaxation on these cores, and the largest block on the slots that fit; ``inf`` where
    there is no lane.
    """
    problem = blocks.problem
    cost = bound_costs(blocks)
    _, prices = relaxation(cost, problem.cores, np.array(problem.cluster_sizes))
    bounds = np.full([size + 1 for size in problem.cluster_sizes], np.inf)
    for use in np.argwhere(np.isinf(bounds)):
        fits = (problem.cores <= use).all(axis=1)
        if not fits.any():
            continue
        here = cost[:, fits]
        least = float(here.min(axis=1).max())
        if np.isinf(least):
            continue
        for beta in (prices, 1 / np.maximum(use, 1)):
            price = problem.cores[fits] @ beta
            paid = float(beta @ use)
            if paid > 0 and (price > 0).all():
                least = max(least, float((here * price).min(axis=1).sum()) / paid)
        bounds[tuple(use)] = least * (1 - SAFETY)
    return bounds


def relaxation(cost: FloatArray, cores: np.ndarray, sizes: np.ndarray) -> tuple[float, FloatArray]:
    """Return (nearly) the best value of the relaxation, always a valid lower bound, and its prices.

    Parameters
    ----------
    cost
        float64 (blocks, slots), ``inf`` where not allowed.
    cores
        int64 (slots, clusters).
    sizes
        int64 (clusters,): cores there are.

    Returns
    -------
    float, float64 (clusters,)
        Mean time between frames, and the price of a core of each cluster.
    """
    all_sizes, live = sizes, sizes > 0
    cores, sizes = cores[:, live], sizes[live].astype(np.float64)
    n_clusters = len(sizes)
    best = np.full(n_clusters, 1 / (n_clusters * sizes))
    value = _dual(best, cost, cores)
    if n_clusters == 2:
        for corner in np.diag(1 / sizes):
            best, value = _line_search(best, value, corner, cost, cores)
    elif n_clusters > 2:
        best, value = _cutting_planes(cost, cores, sizes, best)
    prices = np.zeros(len(all_sizes))
    prices[live] = best
    return value, prices


def charge(cost: FloatArray, price: FloatArray) -> FloatArray:
    """Return cost times price; what is not allowed (``inf`` in either) stays so though the other is 0."""
    with np.errstate(invalid="ignore"):
        charged: FloatArray = np.where(np.isinf(cost) | np.isinf(price), np.inf, cost * price)
    return charged


def _dual(beta: FloatArray, cost: FloatArray, cores: np.ndarray) -> float:
    return (
        float((cost * (cores @ beta)).min(axis=1).sum())
        if (cores @ beta > 0).all()
        else _with_free(beta, cost, cores)
    )


def _with_free(beta: FloatArray, cost: FloatArray, cores: np.ndarray) -> float:
    """Value where some slot is free of charge (0 * inf must not count as allowed)."""
    return float(charge(cost, cores @ beta).min(axis=1).sum())


def _line_search(
    start: FloatArray, value: float, end: FloatArray, cost: FloatArray, cores: np.ndarray
) -> tuple[FloatArray, float]:
    """Maximise the concave dual between two prices by golden section, keeping the better end."""
    ratio = (5**0.5 - 1) / 2
    low, high = 0.0, 1.0
    points = {}

    def at(t: float) -> float:
        if t not in points:
            points[t] = _dual((1 - t) * start + t * end, cost, cores)
        return points[t]

    left, right = high - ratio, low + ratio
    for _ in range(60):
        if at(left) < at(right):
            low, left = left, right
            right = low + ratio * (high - low)
        else:
            high, right = right, left
            left = high - ratio * (high - low)
        if high - low < 1e-13:
            break
    t = max(points, key=lambda point: points[point])
    if points[t] > value:
        return (1 - t) * start + t * end, points[t]
    return start, value


def _cutting_planes(
    cost: FloatArray, cores: np.ndarray, sizes: FloatArray, start: FloatArray
) -> tuple[FloatArray, float]:
    """Maximise the dual for three and more clusters; returns the best prices met and their value."""
    from ortools.linear_solver import pywraplp

    master = pywraplp.Solver.CreateSolver("GLOP")
    prices = [master.NumVar(0, 1 / float(size), "") for size in sizes]
    top = master.NumVar(0, master.infinity(), "")
    master.Add(sum(float(size) * price for size, price in zip(sizes, prices)) == 1)
    master.Maximize(top)
    beta, best, best_beta = start, 0.0, start
    scale = _with_free(start, cost, cores) or 1.0  # the master works with numbers near one
    for _ in range(200):
        charged = charge(cost, cores @ beta)
        chosen = charged.argmin(axis=1)
        value = float(charged[np.arange(len(cost)), chosen].sum())
        if value > best:
            best, best_beta = value, beta
        loads = (cost[np.arange(len(cost)), chosen][:, None] * cores[chosen]).sum(axis=0)
        master.Add(top <= sum(float(load) / scale * price for load, price in zip(loads, prices)))
        if master.Solve() != pywraplp.Solver.OPTIMAL or top.solution_value() * scale <= best * (1 + 1e-9):
            break
        beta = np.maximum([price.solution_value() for price in prices], 0)
        beta = beta / float(beta @ sizes)
    return best_beta, best
