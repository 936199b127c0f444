"""What the best lanes on all core counts become when one layer gets cheaper, without searching them again.

Every lane has exactly one stage that holds the layer.  With the best periods before and after every node
(``solvers.lane_tables``), the best lane with a given stage is the largest of three numbers.  And few stages
matter: a lane that is better than the best one was before has a stage that was too slow before and is
quick enough now.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.lane_tables import Cores, LaneTable, StageChoice
from solvers.order_costs import NEVER
from solvers.problem import IntArray, StageTable

CHUNK = 256
"""Stages looked at together, most promising first."""


class CheaperLane:
    """What a cheaper layer does to the periods of a table.

    Parameters
    ----------
    table
        Before.
    layer
        Which.
    saved_ns
        int64 (slots of the problem,): how much less it takes.
    measured_ns
        Of the changed problem: measured stages take no more than before, and at most so much less.
    """

    def __init__(self, table: LaneTable, layer: int, saved_ns: IntArray, measured_ns: StageTable) -> None:
        self._table = table
        self._measured_ns = measured_ns
        steps = table.steps
        done = steps.done[:, steps.blocks.of_layer[layer]]
        self._starts, self._ends = np.flatnonzero(~done), np.flatnonzero(done)
        self._stages: list[tuple[int, IntArray, IntArray]] = []
        for column, slot in enumerate(steps.slots):
            saved = int(saved_ns[slot])
            if saved > 0:
                self._stages.append((column, *self._changed(column, saved)))

    def _changed(self, column: int, saved: int) -> tuple[IntArray, IntArray]:
        """Busy times of all stages with the layer on a slot, before and after."""
        steps = self._table.steps
        part = np.ix_(np.arange(steps.busy_ns.shape[1]), self._starts, self._ends)
        old = steps.busy_ns[column][part]
        if steps.moving_ns is None:
            new = old - saved
        else:
            new = np.maximum(self._compute(column) - saved, steps.moving_ns[column][part])
        for place, before, after in self._measured(column):
            at = (slice(None), *place)
            moving = None if steps.moving_ns is None else steps.moving_ns[column][part][at]
            new[at] = old[at] - (before - after) if moving is None else np.maximum(after, moving)
        new[old >= NEVER] = NEVER
        return old, new

    def _measured(self, column: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Yield the places of measured stages with the layer, and what they took and take."""
        steps = self._table.steps
        for slot, start, end, time in steps.measured_ns:
            place = np.searchsorted(self._starts, start), np.searchsorted(self._ends, end)
            if slot == column and start in self._starts and end in self._ends:
                key = frozenset(steps.layers(start, end)), steps.slots[column]
                yield (int(place[0]), int(place[1])), time, self._measured_ns[key]

    def _compute(self, column: int) -> IntArray:
        """Return what the same stages compute by the sums of their layers (sources do not matter)."""
        steps = self._table.steps
        problem = steps.blocks.problem
        slot = steps.slots[column]
        cost = np.zeros(steps.blocks.n_blocks, np.int64)
        layer_cost = np.where(problem.supported[:, slot], problem.cost_ns[:, slot], 0)
        np.add.at(cost, np.array(steps.blocks.of_layer), layer_cost)
        total = steps.done @ cost
        compute: IntArray = total[self._ends][None, :] - total[self._starts][:, None] + problem.overhead[slot]
        return compute

    def period(self, cores: Cores, below_ns: int) -> tuple[int, StageChoice] | None:
        """Return the best period below some on at most so many cores, and the stage with the layer.

        Parameters
        ----------
        below_ns
            At most the period of the table.
        """
        state = self._table.state_of(cores)
        least = int(self._table.periods_ns[cores])
        best: tuple[int, StageChoice] | None = None
        for column, old, new in self._stages:
            parts = self._table.parts(column, state)
            if parts is None:
                continue
            found = self._best_stage(column, old, new, parts, (least, below_ns))
            if found is not None:
                below_ns, best = found[0], found
        return best

    def _best_stage(
        self,
        column: int,
        old: IntArray,
        new: IntArray,
        parts: tuple[IntArray, IntArray],
        band: tuple[int, int],
    ) -> tuple[int, StageChoice] | None:
        """Return the best period through a stage on one slot; the band holds (too slow before, below)."""
        least, below = band
        sources, starts, ends = np.nonzero((old >= least) & (new < below))
        if not len(starts):
            return None
        busy = new[sources, starts, ends]
        starts, ends = self._starts[starts], self._ends[ends]
        most = int(parts[0].max())  # all that the stage leaves
        bound = np.maximum(busy, self._table.best_before(starts, sources, most))
        bound = np.maximum(bound, self._table.best_after(ends, column, most))
        order = np.argsort(bound, kind="stable")
        best: tuple[int, StageChoice] | None = None
        for first in range(0, len(order), CHUNK):
            some = order[first : first + CHUNK]
            some = some[bound[some] < below]
            if not len(some):
                break
            value = np.maximum(
                self._table.best_before(starts[some], sources[some], parts[0]),
                self._table.best_after(ends[some], column, parts[1]),
            )
            value = np.maximum(value, busy[some, None])
            at = int(value.argmin())
            which, split = divmod(at, value.shape[1])
            if value[which, split] < below:
                below = int(value[which, split])
                stage = some[which]
                step = (column, int(sources[stage]), int(starts[stage]), int(ends[stage]))
                best = below, StageChoice(step, int(parts[0][split]), int(parts[1][split]))
        return best
