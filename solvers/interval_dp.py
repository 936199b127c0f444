"""Exact dynamic programme over contiguous cuts of one topological order.

State: (blocks placed, cores used per cluster), and the cluster of the last stage where hand-over
costs depend on it; a cap on the stages of a lane is one more resource.  One pass gives the best
period of one lane for *every* vector of core counts.  For each end, slot and start the update is one
vectorised maximum over all core counts: O(n^2 * slots * core counts) element operations.

The recurrence is the bottleneck form of Bellman's for chain partitioning (Pinar & Aykanat, "Fast
optimal load balancing algorithms for 1D partitioning", JPDC 64, 2004), with cores per cluster as
the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.errors import CapError, EvaluationMismatchError
from solvers.limits import Limits
from solvers.order_costs import NEVER, OrderCosts
from solvers.problem import IntArray, Problem
from solvers.topology import Blocks

Span = tuple[int, int, int]
"""(start, end, slot): the blocks at places start..end-1 of an order as one stage."""


@dataclass(frozen=True)
class Resources:
    """What stages use up: cores per cluster, and stages where their number is capped.

    Parameters
    ----------
    box
        Most units of each resource.
    use
        int64 array (slots, resources).
    n_clusters
        The first so many resources are cores.
    """

    box: tuple[int, ...]
    use: IntArray
    n_clusters: int


def resources(problem: Problem, n_blocks: int) -> Resources:
    """Return the resources of one lane of the problem."""
    box = problem.cluster_sizes
    use = problem.cores
    most = min(n_blocks, sum(box))
    if problem.max_stages is not None and problem.max_stages < most:
        box = (*box, problem.max_stages)
        use = np.concatenate([use, np.ones((len(use), 1), np.int64)], axis=1)
    return Resources(tuple(box), use, len(problem.cluster_sizes))


def useful_slots(blocks: Blocks) -> tuple[int, ...]:
    """Return the slots that are not dominated by another one.

    A slot is dominated when another one of the same cluster needs no more cores anywhere, runs
    every block it runs, and is at least as fast on all of them.  Slots with measured whole stages
    are kept, and dominate none (a measured stage may be slower than its sum).  Dropping the others
    changes neither the best period nor the fewest cores for it.
    """
    problem = blocks.problem
    measured = {slot for _, slot in problem.measured_ns}
    cost = np.where(blocks.allowed, _block_costs(blocks), NEVER)
    kept: list[int] = []
    order = sorted(range(len(problem.slots)), key=lambda r: (int(problem.cores[r].sum()), r))
    for slot in order:
        if not blocks.allowed[:, slot].any():
            continue
        dominated = slot not in measured and any(
            other not in measured
            and problem.slots[other].cluster == problem.slots[slot].cluster
            and (problem.cores[other] <= problem.cores[slot]).all()
            and problem.overhead[other] <= problem.overhead[slot]
            and (cost[:, other] <= cost[:, slot]).all()
            for other in kept
        )
        if not dominated:
            kept.append(slot)
    return tuple(sorted(kept))


def _block_costs(blocks: Blocks) -> IntArray:
    problem = blocks.problem
    cost = np.zeros((blocks.n_blocks, len(problem.slots)), np.int64)
    np.add.at(cost, np.array(blocks.of_layer), np.where(problem.supported, problem.cost_ns, 0))
    return cost


@dataclass(frozen=True, slots=True)
class Quickest:
    """Lanes of smallest latency within some period.

    Parameters
    ----------
    latency_ns
        int64 (cores + 1 per cluster): on exactly so many cores; ``NEVER`` where there is none.
    lane
        Returns the lane on some cores.
    """

    latency_ns: IntArray
    lane: Callable[[tuple[int, ...]], tuple[Span, ...]]


class IntervalTable:
    """Busy times of one order kept in memory, and the dynamic programmes over them.

    Parameters
    ----------
    costs
        One order.
    slots
        The slots to use, from ``useful_slots``.
    limits
        ``memory_bytes`` caps the table.

    Raises
    ------
    CapError
        The busy times and states would not fit the memory limit.
    """

    def __init__(self, costs: OrderCosts, slots: tuple[int, ...], limits: Limits) -> None:
        self.costs = costs
        self._limits = limits
        self.slots = slots
        self.resources = resources(costs.blocks.problem, costs.n)
        n_states = (costs.n + 1) * int(np.prod([size + 1 for size in self.resources.box])) * costs.n_sources
        need = 4 * costs.n**2 * len(slots) * costs.n_sources + 24 * n_states
        if need > limits.memory_bytes:
            raise CapError(
                f"interval_dp needs {need} bytes for {costs.n} blocks, {len(slots)} slots and "
                f"{n_states} states; the limit is {limits.memory_bytes} bytes (Limits.memory_bytes)"
            )
        self._columns = [
            np.ascontiguousarray(busy[:, :, list(slots)].transpose(2, 1, 0)) for _, busy in costs.columns()
        ]  # (slots, sources, starts): starts last, so that the inner loops of numpy are long
        self._first = [[_first_possible(row) for row in column] for column in self._columns]

    def periods(self) -> IntArray:
        """Return the best period of a lane that uses exactly so many cores of each cluster.

        Returns
        -------
        int64 array of shape ``cluster_sizes + 1``
            ``NEVER`` where no lane uses exactly that.
        """
        best = self._fill(self.resources.box, None)[..., -1]
        found: IntArray = best.min(axis=tuple(range(self.resources.n_clusters, best.ndim)))
        return found

    def lane(self, cores: tuple[int, ...], period_ns: int) -> tuple[Span, ...]:
        """Return a lane on exactly these cores that keeps every stage within ``period_ns``.

        Among those the one with the smallest sum of busy times (on a chain: latency), then with
        the fewest stages.
        """
        total = self._fill((*cores, *self.resources.box[self.resources.n_clusters :]), period_ns)
        return self._read(total, cores, period_ns)

    def quickest(self, period_ns: int) -> Quickest:
        """Return, for all core counts at once, the lanes of smallest latency within a period.

        Every stage keeps within ``period_ns``; latency is the sum of busy times.
        """
        total = self._fill(self.resources.box, period_ns)
        best = total[..., -1]
        least: IntArray = best.min(axis=tuple(range(self.resources.n_clusters, best.ndim)))
        latency = np.where(least < NEVER, least // (self.costs.n + 1), NEVER)
        return Quickest(latency, lambda cores: self._read(total, cores, period_ns))

    def _read(self, total: IntArray, cores: tuple[int, ...], period_ns: int) -> tuple[Span, ...]:
        """Read the lane on exactly these cores out of filled states."""
        place = self.costs.n
        ends = total[_at(*cores, ..., place)]
        *rest, source = (int(index) for index in np.unravel_index(int(ends.argmin()), ends.shape))
        left = (*cores, *rest)
        spans: list[Span] = []
        while place:
            start, r, source = self._step_back(total, place, left, source, period_ns)
            slot = self.slots[r]
            spans.append((start, place, slot))
            left = tuple(int(a - b) for a, b in zip(left, self.resources.use[slot]))
            place = start
        return tuple(reversed(spans))

    def _fill(self, box: tuple[int, ...], period_ns: int | None) -> IntArray:
        """Fill the states: smallest period, or with a period given the smallest weighted sum of busy."""
        n, n_sources = self.costs.n, self.costs.n_sources
        state = np.full((*(size + 1 for size in box), n_sources, n + 1), NEVER, np.int64)
        state[_at(*(0 for _ in box), slice(None), 0)] = 0
        for i in range(1, n + 1):
            self._limits.check()
            for r, slot in enumerate(self.slots):
                use = self.resources.use[slot]
                first = self._first[i - 1][r]
                if first is None or any(u > size for u, size in zip(use, box)):
                    continue
                busy = self._columns[i - 1][r, :, first:]
                if period_ns is not None:  # longer stages can not be: most starts, where periods are short
                    within = (busy <= period_ns).any(axis=0)
                    if not within.any():
                        continue
                    longest = int(within.argmax())
                    first, busy = first + longest, busy[:, longest:]
                before = state[
                    _at(*(slice(0, size + 1 - u) for u, size in zip(use, box)), ..., slice(first, i))
                ]
                if period_ns is None:
                    reached = np.maximum(before, busy).min(axis=-1)
                else:
                    reached = (before + self._weights(busy, period_ns)).min(axis=-1)
                target = int(self.costs.cluster_of_slot[slot]) if n_sources > 1 else 0
                after = state[_at(*(slice(u, None) for u in use), target, i)]
                np.minimum(after, reached.min(axis=-1), out=after)
        return state

    def _weights(self, busy: IntArray, period_ns: int) -> IntArray:
        """Busy times so scaled that one stage more counts less than one nanosecond more."""
        scaled: IntArray = np.where(busy <= period_ns, busy * (self.costs.n + 1) + 1, NEVER)
        return scaled

    def _step_back(
        self, total: IntArray, place: int, left: tuple[int, ...], source: int, period_ns: int
    ) -> tuple[int, int, int]:
        wanted = total[_at(*left, source, place)]
        for r, slot in enumerate(self.slots):
            use = self.resources.use[slot]
            if any(u > size for u, size in zip(use, left)):
                continue
            if self.costs.n_sources > 1 and self.costs.cluster_of_slot[slot] != source:
                continue
            weight = self._weights(self._columns[place - 1][r], period_ns)
            before = total[_at(*(int(size - u) for u, size in zip(use, left)), ..., slice(0, place))]
            hits = np.argwhere((weight < NEVER) & (before < NEVER) & (before + weight == wanted))
            if len(hits):
                return int(hits[0][1]), r, int(hits[0][0])
        raise EvaluationMismatchError("a state of the dynamic programme has no predecessor: a bug")


def _first_possible(busy: IntArray) -> int | None:
    possible = (busy < NEVER).any(axis=0)
    return int(possible.argmax()) if possible.any() else None


def _at(*index: Any) -> Any:
    """Build an index tuple (its mixed type is beyond the stubs of numpy)."""
    return index
