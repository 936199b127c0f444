"""The throughput bound of ``solvers.bounds`` for many problems that differ in the cost of one layer.

Every price of the relaxation bounds every problem, so the prices that are best for one problem, and
some around them, bound those with a cheaper layer too; only the block with that layer is priced anew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.bounds import (
    MOST_STATES,
    SAFETY,
    bound_costs,
    charge,
    least_overhead_ns,
    most_lanes,
    relaxation,
)
from solvers.mixes import Mixes
from solvers.overhead_bound import overhead_bound_hz, whole_model_ns
from solvers.problem import FloatArray, IntArray, Problem
from solvers.topology import Blocks

N_SHIFTS = 40
"""Prices towards each cluster, from 1e-6 of the way to all of it."""
ROUNDING = 1e-13
"""Relative amount of a sum that is given away when a part of it is taken off."""


class RateBounds:
    """Frames per second that no mapping exceeds, however costs change in one block.

    Parameters
    ----------
    problem
        Before the change.
    blocks
        The problem's without ``colocated``.
    """

    def __init__(self, problem: Problem, blocks: Blocks) -> None:
        self._blocks = blocks
        loaded = problem.under_load
        self._problem = loaded
        self._cost = bound_costs(replace(self._blocks, problem=loaded))
        self._alone_ns: FloatArray | None = None
        if problem.load_matters:
            alone = replace(self._blocks, problem=problem.isolated)
            self._alone_ns = whole_model_ns(alone.problem, alone)
        # Where invocations cost much.  No price of a core makes a slot dearer than one corner of the prices.
        self._with_overhead_ns = 1e9 / overhead_bound_hz(loaded, replace(blocks, problem=loaded))
        self._dearest = (loaded.cores / np.maximum(1, loaded.cluster_sizes)).max(axis=1)
        sizes = np.array(loaded.cluster_sizes)
        self._overhead = least_overhead_ns(loaded)
        _, best = relaxation(self._cost, loaded.cores, sizes)
        slot_prices = [loaded.cores @ _around(best, sizes).T]
        room = (loaded.max_power_mw or 0) - (loaded.idle_power_mw or 0)
        if loaded.active_power_mw is not None and room > 0:  # power is one more resource
            use = np.column_stack([loaded.cores, loaded.active_power_mw])
            _, with_power = relaxation(self._cost, use, np.append(sizes, room))
            slot_prices.append(use @ _around(with_power, np.append(sizes, room)).T)
        self._slot_prices = np.concatenate(slot_prices, axis=1)  # (slots, prices)
        self._priced = charge(self._cost[:, :, None], self._slot_prices[None]).min(axis=1)
        self._value: FloatArray = self._priced.sum(axis=0)
        self._most_lanes = most_lanes(loaded)
        self._largest = (self._cost + self._overhead).min(axis=1)
        self._by_lanes: _LaneBounds | None = None
        if np.prod(sizes + 1) <= MOST_STATES:
            self._by_lanes = _LaneBounds(loaded, self._cost, best, self._most_lanes)

    def with_less(self, layer: int, saved_ns: IntArray, alone_saved_ns: IntArray) -> float | None:
        """Return the bound with a layer that takes less.

        Parameters
        ----------
        saved_ns, alone_saved_ns
            int64 (slots,): of its cost under load (of its only one without), and of its isolated one.

        Returns
        -------
        float or None
            Frames per second; None where the layer is part of a stage that was measured as a whole,
            which changes the bound of other layers too.
        """
        if any(layer in layers for layers, _ in self._problem.measured_ns):
            return None
        block = self._blocks.of_layer[layer]
        rate = self._rate(block, np.maximum(self._cost[block] - saved_ns, 0))
        with_overhead = self._with_overhead_ns - float((saved_ns * self._dearest).max())
        if with_overhead > 0:
            rate = min(rate, 1 / (with_overhead * (1 - SAFETY)))
        if self._alone_ns is not None:
            saved = np.where(self._blocks.allowed[block], alone_saved_ns, 0)
            least = float((self._alone_ns - saved).min()) * (1 - SAFETY)
            rate = max(rate, 1 / least if least > 0 else float("inf"))
        return rate * 1e9

    def _rate(self, block: int, cost: FloatArray) -> float:
        relaxed = self._value * (1 - ROUNDING) - self._priced[block]
        relaxed += charge(cost[:, None], self._slot_prices).min(axis=0)
        others = np.delete(self._largest, block)
        largest = max(float((cost + self._overhead).min()), float(others.max(initial=0.0)))
        period = max(float(relaxed.max()), largest / self._most_lanes) * (1 - SAFETY)
        if period <= 0:
            return float("inf")
        by_lanes = float("inf") if self._by_lanes is None else self._by_lanes.rate(block, cost)
        return min(1 / period, by_lanes)


class _LaneBounds:
    """The knapsack of lanes whose periods are bounded one by one (``bounds``)."""

    def __init__(self, problem: Problem, cost: FloatArray, prices: FloatArray, n_lanes: int) -> None:
        self._mixes = Mixes(problem.cluster_sizes, n_lanes)
        use = np.array(self._mixes.cores)
        self._fits = np.asarray((problem.cores[None] <= use[:, None]).all(axis=2))  # (vectors, slots)
        prices_of = np.stack([np.broadcast_to(prices, use.shape), 1 / np.maximum(use, 1)], axis=1)
        paid = (prices_of * use[:, None, :]).sum(axis=2)
        charge = prices_of @ problem.cores.T  # (vectors, 2, slots)
        missing = np.any((charge <= 0) & self._fits[:, None, :], axis=2)  # free slots: no bound
        usable = np.where(missing, False, paid > 0)
        self._paid = np.where(usable, paid, np.inf)  # what can not be used bounds nothing
        self._charge = np.where(self._fits[:, None, :], np.where(usable[:, :, None], charge, 0), np.inf)
        n = len(cost)
        self._least = np.empty((n, len(use)))
        self._row = np.empty((n, len(use), 2))
        for block in range(n):
            self._least[block], self._row[block] = self._of(cost[block])
        self._sum = np.where(np.isinf(self._row), 0, self._row).sum(axis=0)
        self._nowhere = np.isinf(self._least).sum(axis=0)
        if n > 1:
            self._second, self._first = np.partition(self._least, n - 2, axis=0)[-2:]
        else:
            self._first, self._second = self._least[0], np.zeros(len(use))

    def _of(self, cost: FloatArray) -> tuple[FloatArray, FloatArray]:
        """A block by core vector: its time on the quickest slot, and its two prices."""
        quickest = np.where(self._fits, cost, np.inf).min(axis=1)
        return quickest, charge(cost, self._charge).min(axis=2)

    def rate(self, block: int, cost: FloatArray) -> float:
        """Bound the rate (frames per ns) with other costs of one block."""
        quickest, row = self._of(cost)
        finite = np.where(np.isinf(row), 0, row)
        old = self._row[block]
        total = self._sum * (1 - ROUNDING) - np.where(np.isinf(old), 0, old) + finite
        others = np.where(self._least[block] >= self._first, self._second, self._first)
        least = np.maximum(np.maximum(others, quickest), (total / self._paid).max(axis=1)) * (1 - SAFETY)
        never = (self._nowhere - np.isinf(self._least[block]) + np.isinf(quickest)) > 0
        if (least[~never] <= 0).any():
            return float("inf")
        rates = np.where(never, 0, 1 / np.where(never, 1, least))
        return self._mixes.best(rates)[0] * (1 + SAFETY)


def _around(best: FloatArray, sizes: IntArray) -> FloatArray:
    """Prices between the best ones and those of a single cluster, best first: (prices, clusters)."""
    found = [best]
    for cluster in np.flatnonzero(sizes > 0):
        corner = np.zeros(len(sizes))
        corner[cluster] = 1 / sizes[cluster]
        found += [(1 - t) * best + t * corner for t in np.geomspace(1e-6, 1, N_SHIFTS)]
    return np.array(found)
