"""The best lanes for all core counts after one layer got cheaper, without searching them again.

Every lane has exactly one stage that holds the layer.  With the best periods before and after every node
(``solvers.stage_steps``) for all core counts, the best lane with a given stage is the largest of three
numbers.  And few stages matter: a lane that is better than the best one was before has a stage that
was too slow before and is quick enough now.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from solvers.errors import EvaluationMismatchError
from solvers.limits import Limits
from solvers.order_costs import NEVER
from solvers.problem import BoolArray, IntArray, StageTable
from solvers.stage_steps import Steps

CHUNK = 256
"""Stages looked at together, most promising first."""

Cores = tuple[int, ...]
Stages = list[tuple[tuple[int, ...], int]]
"""(Layers, slot) of the stages of a lane."""


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A stage that holds the cheaper layer: (slot of the steps, source, from, to), cores before and after."""

    step: tuple[int, int, int, int]
    before: int
    after: int


class LaneTable:
    """The best lanes along some steps, for at most so many cores of each cluster.

    Parameters
    ----------
    steps
        Stages.
    limits
        Looked at while the tables are filled.
    """

    def __init__(self, steps: Steps, limits: Limits) -> None:
        self.steps = steps
        self._use = steps.resources.use
        self._box = steps.resources.box
        self._n_clusters = steps.resources.n_clusters
        self._shape = tuple(size + 1 for size in self._box)
        self._strides = np.array([int(np.prod(self._shape[axis + 1 :])) for axis in range(len(self._box))])
        self._before = self._flat(self._fill_before(limits))
        self._after = self._flat(self._fill_after(limits))
        self._lanes: dict[Cores, Stages] = {}

    @cached_property
    def periods_ns(self) -> IntArray:
        """int64 (cores + 1 per cluster): best period on at most so many, ``NEVER`` where there is none."""
        full = self._before[-1].min(axis=0).reshape(self._shape)
        extra = len(self._box) - self._n_clusters
        found: IntArray = full[(..., *(-1 for _ in range(extra)))]
        return found

    def _flat(self, state: IntArray) -> IntArray:
        """Make states those of *at most* so much of everything: (nodes, sources, states)."""
        for axis in range(len(self._box)):
            np.minimum.accumulate(state, axis=axis, out=state)
        flat = state.reshape(-1, *state.shape[-2:])
        return np.ascontiguousarray(flat.transpose(2, 1, 0))

    def _fill_before(self, limits: Limits) -> IntArray:
        """Smallest period of the stages up to a node, by the cluster of the last one."""
        steps, (_, n_sources, n_nodes, _) = self.steps, self.steps.busy_ns.shape
        state = np.full((*self._shape, n_sources, n_nodes), NEVER, np.int64)
        state[_at(*(0 for _ in self._box), slice(None), 0)] = 0
        by_end = np.ascontiguousarray(steps.busy_ns.transpose(0, 3, 1, 2))
        windows = _windows(by_end)
        for end in range(1, n_nodes):
            limits.check()
            for column, source in enumerate(steps.source_of_slot):
                use = self._use[steps.slots[column]]
                first, last = windows[column][end]
                if first >= last or any(u > size for u, size in zip(use, self._box)):
                    continue
                earlier = state[_at(*_smaller(use, self._box), slice(None), slice(first, last))]
                reached = np.maximum(earlier, by_end[column, end, :, first:last]).min(axis=(-1, -2))
                now = state[_at(*_larger(use), source, end)]
                np.minimum(now, reached, out=now)
        return state

    def _fill_after(self, limits: Limits) -> IntArray:
        """Smallest period of the stages from a node on, by the cluster of the stage before it."""
        steps, (_, n_sources, n_nodes, _) = self.steps, self.steps.busy_ns.shape
        state = np.full((*self._shape, n_sources, n_nodes), NEVER, np.int64)
        state[_at(*(0 for _ in self._box), slice(None), n_nodes - 1)] = 0
        by_start = np.ascontiguousarray(steps.busy_ns.transpose(0, 2, 1, 3))
        windows = _windows(by_start)
        for start in range(n_nodes - 2, -1, -1):
            limits.check()
            for column, source in enumerate(steps.source_of_slot):
                use = self._use[steps.slots[column]]
                first, last = windows[column][start]
                if first >= last or any(u > size for u, size in zip(use, self._box)):
                    continue
                later = state[_at(*_smaller(use, self._box), source, slice(first, last))]
                for before in range(n_sources):
                    reached = np.maximum(later, by_start[column, start, before, first:last]).min(axis=-1)
                    now = state[_at(*_larger(use), before, start)]
                    np.minimum(now, reached, out=now)
        return state

    def with_cheaper(self, layer: int, saved_ns: IntArray, measured_ns: StageTable) -> CheaperLane:
        """Return the table with a layer that takes less.

        Parameters
        ----------
        saved_ns
            int64 (slots of the problem,): how much less.
        measured_ns
            Of the changed problem: measured stages take no more than before, and at most so much less.
        """
        return CheaperLane(self, self.steps.blocks.of_layer[layer], saved_ns, measured_ns)

    def state_of(self, cores: Cores) -> int:
        """Index of the state of at most so many cores, and as many stages as there may be."""
        full = (*cores, *self._box[self._n_clusters :])
        return int(np.dot(full, self._strides))

    def parts(self, column: int, state: int) -> tuple[IntArray, IntArray] | None:
        """Return the states before and after a stage on a slot that make up a state; None without any."""
        use = tuple(int(u) for u in self._use[self.steps.slots[column]])
        total = np.unravel_index(state, self._shape)
        left = tuple(int(t) - u for t, u in zip(total, use))
        if min(left) < 0:
            return None
        return _splits(left, tuple(int(s) for s in self._strides))

    def best_before(self, nodes: IntArray, sources: IntArray, states: IntArray | int) -> IntArray:
        """Look up (nodes,) or (nodes, states) periods before nodes."""
        found: IntArray = (
            self._before[nodes, sources, states]
            if isinstance(states, int)
            else self._before[nodes[:, None], sources[:, None], states[None, :]]
        )
        return found

    def best_after(self, nodes: IntArray, column: int, states: IntArray | int) -> IntArray:
        """Look up (nodes,) or (nodes, states) periods after nodes that a stage on a slot leads to."""
        source = self.steps.source_of_slot[column]
        found: IntArray = (
            self._after[nodes, source, states]
            if isinstance(states, int)
            else self._after[nodes[:, None], source, states[None, :]]
        )
        return found

    def lane(self, cores: Cores) -> Stages:
        """Return the stages (layers, slot) of a best lane on at most so many cores."""
        if cores not in self._lanes:
            last = self.steps.busy_ns.shape[2] - 1
            state = self.state_of(cores)
            self._lanes[cores] = self._path_to(last, int(self._before[last, :, state].argmin()), state)
        return self._lanes[cores]

    def lane_through(self, choice: StageChoice) -> Stages:
        """Return the stages of a best lane with a given stage."""
        column, source, start, end = choice.step
        middle = (self.steps.layers(start, end), self.steps.slots[column])
        head = self._path_to(start, source, choice.before)
        tail = self._path_from(end, self.steps.source_of_slot[column], choice.after)
        return [*head, middle, *tail]

    def _path_to(self, node: int, source: int, state: int) -> Stages:
        stages: Stages = []
        while node:
            wanted = self._before[node, source, state]
            for column in range(len(self.steps.slots)):
                left = self._less(state, column)
                if left is None or self.steps.source_of_slot[column] != source:
                    continue
                busy = self.steps.busy_ns[column, :, :node, node]
                hits = np.argwhere(np.maximum(busy, self._before[:node, :, left].T) <= wanted)
                if len(hits):
                    before, start = (int(index) for index in hits[0])
                    stages.append((self.steps.layers(start, node), self.steps.slots[column]))
                    node, source, state = start, before, left
                    break
            else:
                raise EvaluationMismatchError("a state before a node has no predecessor: a bug")
        return stages[::-1]

    def _path_from(self, node: int, source: int, state: int) -> Stages:
        stages: Stages = []
        last = self.steps.busy_ns.shape[2] - 1
        while node < last:
            wanted = self._after[node, source, state]
            for column, here in enumerate(self.steps.source_of_slot):
                left = self._less(state, column)
                if left is None:
                    continue
                busy = self.steps.busy_ns[column, source, node, node + 1 :]
                hits = np.flatnonzero(np.maximum(busy, self._after[node + 1 :, here, left]) <= wanted)
                if len(hits):
                    end = node + 1 + int(hits[0])
                    stages.append((self.steps.layers(node, end), self.steps.slots[column]))
                    node, source, state = end, here, left
                    break
            else:
                raise EvaluationMismatchError("a state after a node has no successor: a bug")
        return stages

    def _less(self, state: int, column: int) -> int | None:
        use = self._use[self.steps.slots[column]]
        if any(int(t) < u for t, u in zip(np.unravel_index(state, self._shape), use)):
            return None
        return state - int(np.dot(use, self._strides))


class CheaperLane:
    """What a cheaper layer does to the periods of a table.

    Parameters
    ----------
    table
        Before.
    block
        Of the steps' blocks: it holds the layer.
    saved_ns, measured_ns
        See ``LaneTable.with_cheaper``.
    """

    def __init__(self, table: LaneTable, block: int, saved_ns: IntArray, measured_ns: StageTable) -> None:
        self._table = table
        self._measured_ns = measured_ns
        steps = table.steps
        done = steps.done[:, block]
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


@lru_cache(maxsize=4096)
def _splits(left: Cores, strides: Cores) -> tuple[IntArray, IntArray]:
    """All ways to give what is left to the stages before and after, as states."""
    before = np.array(list(itertools.product(*(range(n + 1) for n in left))), np.int64)
    after = np.array(left) - before
    return before @ np.array(strides), after @ np.array(strides)


def _windows(busy: IntArray) -> list[list[tuple[int, int]]]:
    """Per slot and node: the range of nodes with a stage to or from it."""
    some: BoolArray = np.asarray((busy < NEVER).any(axis=2))  # (slots, nodes, nodes)
    first = some.argmax(axis=-1)
    last = some.shape[-1] - some[..., ::-1].argmax(axis=-1)
    last = np.where(some.any(axis=-1), last, first)
    return [[(int(a), int(b)) for a, b in zip(*row)] for row in zip(first, last)]


def _smaller(use: IntArray, box: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(0, size + 1 - int(u)) for u, size in zip(use, box))


def _larger(use: IntArray) -> tuple[slice, ...]:
    return tuple(slice(int(u), None) for u in use)


def _at(*index: Any) -> Any:
    """Build an index tuple (its mixed type is beyond the stubs of numpy)."""
    return index
