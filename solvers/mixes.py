"""Many knapsacks over the same cores: which lanes to run side by side, for one table of rates after another.

``solvers.knapsack`` picks among lane types and decides ties; here every vector of cores is a type, its
rate is that of a lane on at most so many cores, and a knapsack takes a few small matrix operations.
"""

from __future__ import annotations

import itertools

import numpy as np

from solvers.problem import BoolArray, FloatArray, IntArray

MOST_STATES = 800
"""Core vectors; the matrices hold a number for every pair of them."""
SAME = 1e-15
"""Relative gains up to this end the search for more lanes."""

Cores = tuple[int, ...]


class Mixes:
    """Best mixes of lanes on some cores.

    Parameters
    ----------
    sizes
        Cores per cluster.
    max_lanes
        Most lanes, or None.
    """

    def __init__(self, sizes: Cores, max_lanes: int | None) -> None:
        self.cores: list[Cores] = list(itertools.product(*(range(size + 1) for size in sizes)))
        total = sum(sizes)
        self._most = total if max_lanes is None else min(max_lanes, total)
        vectors = np.array(self.cores, np.int64).reshape(len(self.cores), len(sizes))
        rest = vectors[:, None, :] - vectors[None, :, :]
        strides = np.array([int(np.prod([s + 1 for s in sizes[axis + 1 :]])) for axis in range(len(sizes))])
        # What is left of a vector without another one; the last number stands for "does not fit".
        self._rest: IntArray = np.where((rest >= 0).all(axis=2), rest @ strides, len(self.cores))

    def part_of(self, lane: int) -> BoolArray:
        """Which core vectors are part of one of them (by index)."""
        fits: BoolArray = self._rest[lane] < len(self.cores)
        return fits

    def best(self, rates: FloatArray) -> tuple[float, list[int]]:
        """Return the best total rate, and the core vectors (by index) of its lanes.

        Parameters
        ----------
        rates
            float64 (core vectors,), of a lane on at most so many cores; 0 where there is none.
        """
        table = np.append(rates, -np.inf)[self._rest]  # [cores, cores of the others]
        totals = [rates]
        for _ in range(self._most - 1):
            more = (table + totals[-1]).max(axis=1)
            if (
                float(more[-1]) <= float(totals[-1][-1]) * (1 + SAME)
                and (more <= totals[-1] * (1 + SAME)).all()
            ):
                break
            totals.append(more)
        lanes = []
        left = len(self.cores) - 1
        for earlier in reversed(totals[:-1]):
            others = int((table[left] + earlier).argmax())
            lane = int(self._rest[left, others])
            if rates[lane] > 0:
                lanes.append(lane)
            left = others
        if rates[left] > 0:
            lanes.append(left)
        return float(totals[-1][-1]), lanes
