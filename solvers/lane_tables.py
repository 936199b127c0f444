"""The best lanes along some steps, up to every node and from every node on, for all core counts.

The tables before and after are those of ``solvers.interval_dp``, from either end; with both, the best lane
through any given stage is the largest of three numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from solvers.errors import EvaluationMismatchError
from solvers.limits import Limits
from solvers.order_costs import NEVER
from solvers.problem import BoolArray, IntArray
from solvers.stage_steps import Steps

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
