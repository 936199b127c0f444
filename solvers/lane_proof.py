"""The best mix of lanes proved by decisions: which core counts are worth a sweep over all ideals.

The mix is a knapsack over the best period P(u) of one lane on the cores u.  Nobody needs every P(u): lower
bounds do, as long as the knapsack over them does not beat the best mix known.  So take the best mix
over the lower bounds, decide for one of its lanes whether there is one within some period
(``solvers.reach``), and either the bound rises or a better lane is known; until both knapsacks agree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solvers.bounds import lane_bounds_ns
from solvers.errors import CapError
from solvers.growth import Growth
from solvers.knapsack import Knapsack, LaneType
from solvers.limits import Limits
from solvers.order_costs import NEVER
from solvers.problem import IntArray
from solvers.reach import Reach, Stages, sweep_bytes

AGREE = 1e-12
"""Total rates that differ relatively by less are equal."""
MOST_STEPS, FEW_STEPS = 20_000, 200
"""Steps that all backward searches of lanes may take together, and what every one may take."""
COARSE = 1e-4
"""Relative distance from what nobody could tell at which a lower bound is close enough."""
ROUNDING = 1e-9
"""Relative amount by which lower bounds computed in floating point are lowered."""


class LaneProof:
    """Bounds on the period of one lane on exactly so many cores, from both sides.

    Parameters
    ----------
    growth
        All ideals.
    known_ns
        int64 (cores + 1 per cluster): periods of known lanes, ``NEVER`` where there is none.
    max_lanes
        Most lanes, or None.
    limits
        Time, memory, and the gap within which a mix is good enough.

    Raises
    ------
    CapError
        A sweep would need more memory than the limit.
    """

    def __init__(self, growth: Growth, known_ns: IntArray, max_lanes: int | None, limits: Limits) -> None:
        need = sweep_bytes(growth)
        if need > limits.memory_bytes:
            raise CapError(
                f"ideal_dp: a sweep over {growth.n_ideals} ideals needs {need} bytes, the limit is "
                f"{limits.memory_bytes} bytes (Limits.memory_bytes)"
            )
        self._growth = growth
        self._max_lanes = max_lanes
        self._limits = limits
        self._sizes = growth.blocks.problem.cluster_sizes
        least = lane_bounds_ns(growth.blocks)
        possible = np.isfinite(least)
        self.known_ns = known_ns.copy()
        self.lower_ns: IntArray = np.full(least.shape, NEVER, np.int64)
        self.lower_ns[possible] = np.ceil(least[possible] * (1 - ROUNDING)).astype(np.int64)
        self.lower_ns = np.minimum(self.lower_ns, self.known_ns)
        # Below what is known where nobody could tell, or hand-over was taken as the cheapest.
        self._ceiling_ns = self.known_ns.copy()
        self._steps_left = MOST_STEPS
        self._halve: set[tuple[int, ...]] = set()
        self.is_decided = True
        """Whether every question was answered."""
        self.is_complete = False
        """Whether no mix beats the best one known (by more than the gap)."""

    def run(self, offer: Callable[[tuple[int, ...], Stages], int]) -> None:
        """Raise ``lower_ns`` until no mix beats the best one known.

        Parameters
        ----------
        offer
            Told better lanes (cores, stages); returns their period.

        Raises
        ------
        StoppedError
            See ``Limits.check``.
        """
        while True:
            self._limits.check()
            question = self._question()
            if question is None:
                return
            use, period = question
            reach = Reach(self._growth, use, period, self._limits)
            possible = reach.final()
            inside = tuple(slice(0, n + 1) for n in use)
            lower = self.lower_ns[inside]
            lower[~possible] = np.maximum(lower[~possible], period + 1)
            if not possible[use]:
                self._halve.discard(use)
                continue
            self._halve.add(use)
            try:
                lane = reach.lane(use, max(self._steps_left, FEW_STEPS))
            except CapError:
                self.is_decided = False
                low = int(self.lower_ns[use])
                self._ceiling_ns[use] = period if period - low > COARSE * period else low
                continue
            finally:
                self._steps_left -= reach.n_steps
            if lane is None:
                self.lower_ns[use] = max(int(self.lower_ns[use]), period + 1)
                self._halve.discard(use)
                continue
            beyond = tuple(slice(n, None) for n in use)
            self.known_ns[beyond] = np.minimum(self.known_ns[beyond], offer(use, lane))
            self._ceiling_ns = np.minimum(self._ceiling_ns, self.known_ns)
            self._ceiling_ns[use] = min(int(self._ceiling_ns[use]), period)

    def _question(self) -> tuple[tuple[int, ...], int] | None:
        """Return for which cores to ask whether there is a lane within which period; None at the end."""
        known = self._knapsack(self.known_ns)
        hoped = self._knapsack(self.lower_ns)
        enough = known.best_rate * (1 + max(self._limits.gap, AGREE))
        same = self._limits.gap == 0 and hoped.best_rate >= known.best_rate * (1 - AGREE)
        self.is_complete = hoped.best_rate <= enough
        if self.is_complete and not (same and hoped.best_secondary < known.best_secondary):
            return None
        lanes = [hoped.types[number] for number in hoped.lanes()]
        open_lanes = [lane for lane in lanes if self.lower_ns[lane.use] < self._ceiling_ns[lane.use]]
        if not open_lanes:
            return None
        lane = max(open_lanes, key=lambda lane: float(self._ceiling_ns[lane.use]) * lane.rate)
        rest = sum(other.rate for other in lanes if other.use != lane.use)
        needed = known.best_rate * (1 + self._limits.gap) - rest
        count = sum(other.use == lane.use for other in lanes)
        top = int(self._ceiling_ns[lane.use]) - 1
        if needed > 0:  # a longer period is of no use
            top = min(top, int(count / needed))
        low = int(self.lower_ns[lane.use])
        top = max(top, low)
        return lane.use, (low + top) // 2 if lane.use in self._halve else top

    def _knapsack(self, periods_ns: IntArray) -> Knapsack:
        types = [
            LaneType(tuple(map(int, use)), 1 / max(int(periods_ns[tuple(use)]), 1e-6), int(use.sum()))
            for use in np.argwhere(periods_ns < NEVER)
        ]
        return Knapsack(self._sizes, types, self._max_lanes)
