"""What no mapping undercuts in the latency of a frame, and in its energy.

A path through the layer graph visits each stage at most once, so a frame takes at least the costs of the
path's layers on the slots they are given, and hand-over and overhead wherever the slot changes.

Where frames come at a rate, slots are shared out as in the linear programme of ``solvers.bounds``.  With
x[b, r] the share of the frames whose block b runs on slot r, P the mean time between frames, and a weight
w[b, r] of each choice,

    minimise   sum over b, r of w[b, r] * x[b, r]  +  idle * P
    such that  sum over b, r of cores[r, c] * cost[b, r] * x[b, r] <= P * n_c   for every cluster c,

where P lies between the bound on throughput and the floor.  Cost times power as weights bounds the energy
of a frame; the costs along one path bound its mean latency, and so that of the worst lane.  Only the
prices of cores are taken from the programme: *any* prices give a bound, so rounding can not make it wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.bounds import bound_costs, charge, least_overhead_ns
from solvers.problem import BoolArray, FloatArray
from solvers.topology import Blocks

SAFETY = 1e-9
"""Relative amount given away for rounding."""
MOST_SHARES = 100_000
"""Shares in the linear programme; with more blocks cores count as free."""
N_PATHS = 3
"""Paths tried for the mean latency: the longest by the least costs, then by those that the prices choose."""


def latency_bound_ns(blocks: Blocks, bound_hz: float) -> int:
    """Return nanoseconds that a frame takes, at least, in the worst lane of any mapping that keeps the floor.

    Parameters
    ----------
    bound_hz
        No mapping has a higher throughput.
    """
    cost = bound_costs(blocks)
    best = _path_with_hand_over_ns(blocks, cost)
    if blocks.problem.objective.min_throughput_hz is not None:
        sharing = _Sharing(blocks, cost, 0.0, bound_hz)
        chosen = cost.min(axis=1)
        for _ in range(N_PATHS):
            on_path = _longest_path(blocks, chosen)
            value, slots = sharing.least(np.where(on_path[:, None], cost, np.where(np.isinf(cost), cost, 0)))
            best = max(best, value)
            chosen = cost[np.arange(len(cost)), slots]
    return int(np.ceil(best * (1 - SAFETY)))


def energy_bound_nj(blocks: Blocks, bound_hz: float) -> int:
    """Return nanojoules that a frame needs in any mapping that keeps the floor, at least; 0 without power.

    Parameters
    ----------
    bound_hz
        No mapping has a higher throughput.
    """
    problem = blocks.problem
    if problem.active_power_mw is None:
        return 0
    cost = bound_costs(blocks)
    power = np.array(problem.active_power_mw, np.float64)
    overhead = float((least_overhead_ns(problem) * power).min())
    busy, _ = _Sharing(blocks, cost, float(problem.idle_power_mw or 0), bound_hz).least(charge(cost, power))
    return int(np.round((busy + overhead) * (1 - SAFETY) / 1000))


def _path_with_hand_over_ns(blocks: Blocks, cost: FloatArray) -> float:
    """The longest path, each block on the slot that is best for the paths so far."""
    overhead = least_overhead_ns(blocks.problem)
    finish = np.empty_like(cost)
    moving = _hand_over_ns(blocks)
    longest = 0.0
    for block, before in enumerate(blocks.predecessors):
        start = overhead
        for other in before:
            # The slot stays, and with it perhaps the stage, or another stage begins.
            moved = (finish[other][:, None] + moving.get((other, block), 0.0)).min(axis=0) + overhead
            start = np.maximum(start, np.minimum(finish[other], moved))
        finish[block] = start + cost[block]
        longest = max(longest, float(finish[block].min()))
    return longest


def _hand_over_ns(blocks: Blocks) -> dict[tuple[int, int], FloatArray]:
    """Return float64 (slots before, slots after) per pair of blocks that hand over something."""
    problem = blocks.problem
    if problem.overlap:
        return {}
    clusters = range(len(problem.cluster_sizes))
    of_slot = [slot.cluster for slot in problem.slots]
    found: dict[tuple[int, int], FloatArray] = {}
    for flow in problem.flows:
        if flow.producer is None or not flow.consumers:
            continue
        table = np.array(
            [
                [problem.send_ns(a, flow.n_bytes) + problem.transfer_ns(a, b, flow.n_bytes) for b in clusters]
                for a in clusters
            ],
            np.float64,
        )
        if not table.any():
            continue
        source = blocks.of_layer[flow.producer]
        for target in {blocks.of_layer[user] for user in flow.consumers} - {source}:
            found[source, target] = found.get((source, target), 0.0) + table[of_slot][:, of_slot]
    return found


def _longest_path(blocks: Blocks, cost: FloatArray) -> BoolArray:
    """Mark the blocks on the path with the largest sum: bool (blocks,)."""
    finish = np.zeros(len(cost))
    origin = np.full(len(cost), -1)
    for block, before in enumerate(blocks.predecessors):
        if before:
            origin[block] = max(before, key=lambda other: finish[other])
            finish[block] = finish[origin[block]]
        finish[block] += cost[block]
    on_path = np.zeros(len(cost), np.bool_)
    block = int(finish.argmax())
    while block >= 0:
        on_path[block] = True
        block = int(origin[block])
    return on_path


@dataclass(frozen=True)
class _Sharing:
    """The linear programme of this module, but for its weights.

    Parameters
    ----------
    cost
        float64 (blocks, slots), ``inf`` where not allowed.
    idle
        Weight of the time between frames.
    bound_hz
        The highest throughput; the floor is that of the objective.
    """

    blocks: Blocks
    cost: FloatArray
    idle: float
    bound_hz: float

    def least(self, weight: FloatArray) -> tuple[float, FloatArray]:
        """Return a bound on the weighted sum, and the slot that each block takes there.

        Parameters
        ----------
        weight
            float64 (blocks, slots), ``inf`` where not allowed.
        """
        problem = self.blocks.problem
        sizes = np.array(problem.cluster_sizes)
        shortest, longest = self._periods()
        known = np.where(np.isinf(self.cost), 0.0, self.cost)
        best, slots = -np.inf, weight.argmin(axis=1)
        for prices in (np.zeros(len(sizes)), self._prices(weight)):
            charged = weight + known * (problem.cores @ prices)
            rest = self.idle - float(prices @ sizes)
            value = float(charged.min(axis=1).sum()) + rest * (shortest if rest >= 0 else longest)
            if value > best:
                best, slots = value, charged.argmin(axis=1)
        return best, slots

    def _periods(self) -> tuple[float, float]:
        floor = self.blocks.problem.objective.min_throughput_hz
        shortest = 1e9 / self.bound_hz if np.isfinite(self.bound_hz) else 0.0
        return shortest, max(shortest, 1e9 / floor) if floor else np.inf

    def _prices(self, weight: FloatArray) -> FloatArray:
        """Price of a core of each cluster, from the dual."""
        problem = self.blocks.problem
        none = np.zeros(len(problem.cluster_sizes))
        if weight.size > MOST_SHARES:
            return none
        from ortools.linear_solver import pywraplp

        time_scale = float(self.cost.min(axis=1).sum()) or 1.0  # the programme works with numbers near one
        scale = float(weight.min(axis=1).sum()) or 1.0
        solver = pywraplp.Solver.CreateSolver("GLOP")
        infinity = solver.infinity()
        shortest, longest = self._periods()
        upper = infinity if np.isinf(longest) else longest / time_scale
        period = solver.NumVar(shortest / time_scale, upper, "")
        objective = solver.Objective()
        objective.SetMinimization()
        objective.SetCoefficient(period, self.idle * time_scale / scale)
        loads = [solver.Constraint(-infinity, 0.0) for _ in problem.cluster_sizes]
        for load, size in zip(loads, problem.cluster_sizes):
            load.SetCoefficient(period, -float(size))
        for row, times in zip(weight, self.cost):
            whole = solver.Constraint(1.0, 1.0)
            for slot in np.flatnonzero(np.isfinite(row)):
                share = solver.NumVar(0.0, infinity, "")
                whole.SetCoefficient(share, 1.0)
                objective.SetCoefficient(share, float(row[slot]) / scale)
                for cluster in np.flatnonzero(problem.cores[slot]):
                    busy = float(times[slot]) / time_scale * float(problem.cores[slot, cluster])
                    loads[cluster].SetCoefficient(share, busy)
        if solver.Solve() != pywraplp.Solver.OPTIMAL:
            return none
        prices = np.maximum([-load.dual_value() for load in loads], 0.0) * scale / time_scale
        paid = float(prices @ np.array(problem.cluster_sizes))
        if np.isinf(longest) and paid > self.idle:  # frames may be as far apart as they like
            prices = prices * (self.idle / paid)
        found: FloatArray = prices
        return found
