"""Which lanes to run side by side: an exact knapsack over core counts.

Lane types are vectors of cores with a rate.  V_k[x], the best total rate of at most k lanes on the
cores x, follows from V_{k-1} by trying every type as the last lane; each step is vectorised over x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.problem import FloatArray, IntArray

TIE = 1e-13
"""Total rates that differ relatively by less count as ties; the secondary cost decides those."""


@dataclass(frozen=True, slots=True)
class LaneType:
    """A lane that may be used any number of times.

    Parameters
    ----------
    use
        Cores per cluster.
    rate
        Frames per nanosecond, or any unit.
    secondary
        Additive cost that decides ties, smaller is better.
    """

    use: tuple[int, ...]
    rate: float
    secondary: int


class Knapsack:
    """Best total rates for every vector of core counts and every number of lanes.

    Parameters
    ----------
    sizes
        Cores per cluster.
    types
        Lane types; those that do not fit are never used.
    max_lanes
        Most lanes, or None for as many as the cores allow.
    """

    def __init__(self, sizes: tuple[int, ...], types: Sequence[LaneType], max_lanes: int | None) -> None:
        self.sizes = sizes
        self.types = tuple(types)
        shape = tuple(size + 1 for size in sizes)
        most = sum(sizes) if max_lanes is None else min(max_lanes, sum(sizes))
        self.rates: list[FloatArray] = [np.zeros(shape)]
        self._secondary: list[IntArray] = [np.zeros(shape, np.int64)]
        self._choices: list[IntArray] = []
        scale = max((lane.rate for lane in types), default=0.0)
        self._active = self._undominated() if most == sum(sizes) else self._fitting()
        self._saturated = False
        for _ in range(most):
            if not self._add_lane(TIE * scale):
                self._saturated = True
                break

    def _fitting(self) -> list[int]:
        return [number for number, lane in enumerate(self.types) if _fits(lane.use, self.sizes)]

    def _undominated(self) -> list[int]:
        """Types that no mix of types with fewer cores in all equals on the same cores (ties stay)."""
        best = np.zeros(tuple(size + 1 for size in self.sizes))
        kept = []
        for number in sorted(self._fitting(), key=lambda n: (sum(self.types[n].use), n)):
            lane = self.types[number]
            if lane.rate < float(best[lane.use]) * (1 - 10 * TIE):
                continue
            kept.append(number)
            after = tuple(slice(u, None) for u in lane.use)
            before = tuple(slice(0, size + 1 - u) for u, size in zip(lane.use, self.sizes))
            while True:
                longer = best[before] + lane.rate
                if not (longer > best[after]).any():
                    break
                best[after] = np.maximum(best[after], longer)
        return sorted(kept)

    def _add_lane(self, tie: float) -> bool:
        rate, secondary = self.rates[-1].copy(), self._secondary[-1].copy()
        choice = np.full(rate.shape, -1, np.int64)
        for number in self._active:
            lane = self.types[number]
            after = tuple(slice(u, None) for u in lane.use)
            before = tuple(slice(0, size + 1 - u) for u, size in zip(lane.use, self.sizes))
            new_rate = self.rates[-1][before] + lane.rate
            new_secondary = self._secondary[-1][before] + lane.secondary
            more = new_rate - rate[after]
            better = (more > tie) | ((more >= -tie) & (new_secondary < secondary[after]))
            rate[after][better] = new_rate[better]
            secondary[after][better] = new_secondary[better]
            choice[after][better] = number
        if (choice < 0).all():
            return False
        self.rates.append(rate)
        self._secondary.append(secondary)
        self._choices.append(choice)
        return True

    @property
    def best_rate(self) -> float:
        """Total rate on all cores."""
        return float(self.rates[-1][self.sizes])

    @property
    def best_secondary(self) -> int:
        """Smallest secondary cost that goes with ``best_rate``."""
        return int(self._secondary[-1][self.sizes])

    def lanes(self) -> tuple[int, ...]:
        """Return the indices of the types of the best mix, a type as often as it is used."""
        left = self.sizes
        found = []
        for choice in reversed(self._choices):
            number = int(choice[left])
            if number >= 0:
                found.append(number)
                left = tuple(a - b for a, b in zip(left, self.types[number].use))
        return tuple(reversed(found))

    def in_some_best(self) -> tuple[int, ...]:
        """Return the indices of the types that some best mix (ties in rate only) may contain."""
        if len(self.rates) < 2:
            return ()
        rest = self.rates[-1] if self._saturated else self.rates[-2]
        best = self.best_rate
        found = []
        for number in self._active:
            lane = self.types[number]
            left = tuple(size - u for size, u in zip(self.sizes, lane.use))
            if min(left) >= 0 and float(rest[left]) + lane.rate >= best * (1 - 10 * TIE):
                found.append(number)
        return tuple(found)


def _fits(use: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    return all(u <= size for u, size in zip(use, sizes)) and any(use)
