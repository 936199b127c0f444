"""Exact dynamic programme over ideals: every contiguous (convex) plan of a branching graph.

A lane with convex stages is a chain of ideals, each stage the difference of two neighbours (Tarnawski
et al., "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020).  Here the
state also holds the cores used per cluster, loads of all successors of an ideal are computed at
once from sums over ideals, and known periods prune: a stage must be quicker than the best known lane
of the final cores, and the blocks that are left must fit into the cores that are left (by the prices of
the relaxation in ``solvers.bounds``).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from solvers.bounds import bound_costs, charge, relaxation
from solvers.errors import CapError, EvaluationMismatchError
from solvers.ideals import Bits, as_bits, enumerate_ideals, hand_overs, sums_over
from solvers.interval_dp import Resources, resources, useful_slots
from solvers.limits import Limits
from solvers.order_costs import NEVER
from solvers.problem import FloatArray, IntArray
from solvers.topology import Blocks

MOST_IDEALS = 200_000


@dataclass(frozen=True, slots=True)
class _Flow:
    """Hand-over of a flow between blocks: consumers as bits, times per cluster."""

    users: Bits
    receive: IntArray
    send: IntArray
    active: np.ndarray


class IdealTable:
    """Best periods over all chains of ideals, better than what is known already.

    Parameters
    ----------
    blocks
        The graph.
    known_ns
        int64 (cores + 1 per cluster): best known period of a lane with at most so many cores.  Only
        lanes that beat it are found; ``NEVER`` where none is known.
    limits
        Memory.
    most_ideals
        Cap.
    dearest
        Take hand-over times that depend on the producer's cluster as the dearest instead of the
        cheapest one.

    Raises
    ------
    CapError
        Too many ideals, or more memory than the limit.
    """

    def __init__(
        self,
        blocks: Blocks,
        known_ns: IntArray,
        limits: Limits,
        most_ideals: int = MOST_IDEALS,
        dearest: bool = False,
    ) -> None:
        self.blocks = blocks
        self.problem = blocks.problem
        self.slots = useful_slots(blocks)
        self.resources: Resources = resources(self.problem, blocks.n_blocks)
        masks = enumerate_ideals(blocks, most_ideals)
        self._index = {mask: number for number, mask in enumerate(masks)}
        self._masks = masks
        n_states = int(np.prod([size + 1 for size in self.resources.box]))
        words = (blocks.n_blocks + 63) // 64
        need = len(masks) * (n_states * 17 + words * 8 + len(self.problem.flows) + 24 * len(self.slots))
        if need > limits.memory_bytes:
            raise CapError(
                f"ideal_dp needs {need} bytes for {len(masks)} ideals and {n_states} states, the limit is "
                f"{limits.memory_bytes} bytes (Limits.memory_bytes)"
            )
        self._bits = as_bits(masks, blocks.n_blocks)
        self._sum_up(dearest)
        self._thresholds(known_ns)
        self.best: IntArray = np.full((len(masks), n_states), NEVER, np.int64)
        self._parent = np.full((len(masks), n_states), -1, np.int64)
        self._parent_slot = np.full((len(masks), n_states), -1, np.int8)
        self.best[0, 0] = 0
        self._measured = self._measured_sets()
        for number in range(len(masks) - 1):
            limits.check()
            self._expand(number)

    @property
    def n_ideals(self) -> int:
        """Number of ideals."""
        return len(self._masks)

    def _sum_up(self, dearest: bool) -> None:
        problem, blocks = self.problem, self.blocks
        cost = np.zeros((blocks.n_blocks, len(self.slots)), np.int64)
        layer_cost = np.where(problem.supported, problem.cost_ns, 0)[:, list(self.slots)]
        np.add.at(cost, np.array(blocks.of_layer), layer_cost)
        self._compute = np.rint(sums_over(self._bits, cost)).astype(np.int64)
        forbidden = (~blocks.allowed[:, list(self.slots)]).astype(np.int64)
        pinned = np.array([[pin is not None] for pin in blocks.pin], np.int64)
        self._forbidden = np.rint(sums_over(self._bits, forbidden)).astype(np.int32)
        self._pinned = np.rint(sums_over(self._bits, pinned)).astype(np.int32)[:, 0]
        self._flows = self._make_flows(dearest)
        n_clusters = len(problem.cluster_sizes)
        self._leaving = np.zeros((len(self._masks), n_clusters), np.int64)
        for flow in self._flows:
            self._leaving += flow.active[:, None] * flow.send
        bound = bound_costs(blocks)
        _, self._price = relaxation(bound, problem.cores, np.array(problem.cluster_sizes))
        slot_price = problem.cores @ self._price
        weight = charge(bound, slot_price).min(axis=1)
        self._weight: FloatArray = sums_over(self._bits, weight[:, None])[:, 0]
        self._by_weight = np.argsort(self._weight, kind="stable")
        self._sorted_weight = self._weight[self._by_weight]
        self._slot_price = slot_price

    def _make_flows(self, dearest: bool) -> list[_Flow]:
        found = []
        for flow in hand_overs(self.blocks, dearest=dearest):
            bits = as_bits([flow.users], self.blocks.n_blocks)[0]
            made = (self._bits[:, flow.source // 64] >> np.uint64(flow.source % 64)) & np.uint64(1)
            active = made.astype(np.bool_) & ((bits & ~self._bits) != 0).any(axis=1)
            found.append(_Flow(bits, flow.receive_ns, flow.send_ns, active))
        return found

    def _thresholds(self, known_ns: IntArray) -> None:
        """Per state after a stage: what the stage must beat, and the weight that may still follow."""
        box = self.resources.box
        n_clusters = self.resources.n_clusters
        known = known_ns
        for axis in range(known.ndim):
            known = np.minimum.accumulate(known, axis=axis)
        shape = tuple(size + 1 for size in box)
        room = np.zeros(known.shape)
        for use in itertools.product(*(range(size + 1) for size in known.shape)):
            if any(u >= size for u, size in zip(use, known.shape)):
                continue
            tail = known[tuple(slice(u, None) for u in use)].astype(np.float64)
            spare = sum(
                np.arange(tail.shape[axis]).reshape([-1 if a == axis else 1 for a in range(tail.ndim)])
                * float(self._price[axis])
                for axis in range(tail.ndim)
            )
            room[use] = float((tail * spare).max())
        extra = (1,) * (len(box) - n_clusters)
        self._limit = np.broadcast_to(known.reshape(known.shape + extra), shape).reshape(-1).copy()
        self._room = np.broadcast_to(room.reshape(room.shape + extra), shape).reshape(-1).copy()
        self._strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        self._states = np.array(list(itertools.product(*(range(size) for size in shape))), np.int64)

    def _expand(self, number: int) -> None:
        """Try every stage that starts at this ideal."""
        states = np.flatnonzero(self.best[number] < NEVER)
        if not len(states):
            return
        total, here = float(self._sorted_weight[-1]), float(self._weight[number])
        slack = 1e-9 * total + 1e-9
        for r, slot in enumerate(self.slots):
            use = self.resources.use[slot]
            fits = (self._states[states] + use <= np.array(self.resources.box)).all(axis=1)
            if not fits.any():
                continue
            before = states[fits]
            after = before + int(use @ self._strides)
            limit, room = self._limit[after], self._room[after]
            top = here + float(limit.max()) * float(self._slot_price[slot]) + slack
            low = max(here, total - float(room.max())) - slack
            first, last = np.searchsorted(self._sorted_weight, [low, top])
            targets = self._by_weight[first:last]
            targets = targets[targets > number]
            compute = self._compute[targets, r] - (self._compute[number, r] - self.problem.overhead[slot])
            good = (
                (compute < limit.max())
                & (self._forbidden[targets, r] == self._forbidden[number, r])
                & (self._pinned[targets] - self._pinned[number] <= 1)
            )
            targets, compute = targets[good], compute[good]
            mine = self._bits[number]
            good = ((self._bits[targets] & mine) == mine).all(axis=1)
            targets, compute = self._with_measured(number, r, targets[good], compute[good])
            if len(targets):
                busy = self._busy(number, slot, targets, compute)
                self._update(number, r, before, after, targets, busy)

    def _with_measured(
        self, number: int, r: int, targets: IntArray, compute: IntArray
    ) -> tuple[IntArray, IntArray]:
        for mask, time in self._measured.get(self.slots[r], ()):
            target = self._index.get(self._masks[number] | mask)
            if target is None or self._masks[number] & mask:
                continue
            if self._forbidden[target, r] != self._forbidden[number, r]:
                continue
            if self._pinned[target] - self._pinned[number] > 1:
                continue
            others = targets != target
            targets = np.append(targets[others], target)
            compute = np.append(compute[others], time)
        return targets, compute

    def _measured_sets(self) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for mask, slot, time in self.blocks.measured_sets():
            found.setdefault(slot, []).append((mask, time))
        return found

    def _busy(self, number: int, slot: int, targets: IntArray, compute: IntArray) -> IntArray:
        cluster = self.problem.slots[slot].cluster
        moving = self._leaving[targets, cluster].copy()
        outside = ~self._bits[targets]
        fresh = self._bits[targets] & ~self._bits[number]
        for flow in self._flows:
            if flow.active[number]:
                if flow.receive[cluster]:
                    moving += ((flow.users & fresh) != 0).any(axis=1) * flow.receive[cluster]
                if flow.send[cluster]:
                    moving -= ((flow.users & outside) != 0).any(axis=1) * flow.send[cluster]
        busy: IntArray = np.maximum(compute, moving) if self.problem.overlap else compute + moving
        return busy

    def _update(
        self, number: int, r: int, before: IntArray, after: IntArray, targets: IntArray, busy: IntArray
    ) -> None:
        left = float(self._sorted_weight[-1]) - self._weight[targets]
        slack = 1e-9 * float(self._sorted_weight[-1]) + 1e-9
        value = np.maximum(busy, self.best[number, before][:, None])
        better = (
            (value < self._limit[after][:, None])
            & (value < self.best[targets, after[:, None]])
            & (left <= self._room[after][:, None] + slack)
        )
        which, chosen = np.nonzero(better)
        where = (targets[chosen], after[which])
        self.best[where] = value[better]
        self._parent[where] = number * len(self._states) + before[which]
        self._parent_slot[where] = r

    def periods(self) -> IntArray:
        """Return int64 (cores + 1 per cluster): better periods than known, ``NEVER`` elsewhere."""
        shape = tuple(size + 1 for size in self.resources.box)
        last = self.best[-1].reshape(shape)
        found: IntArray = last.min(axis=tuple(range(self.resources.n_clusters, last.ndim)))
        return found

    def lane(self, cores: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Return the stages (ascending layers, slot) of the lane behind ``periods()[cores]``."""
        shape = tuple(size + 1 for size in self.resources.box)
        rest = self.best[-1].reshape(shape)[cores]
        tail = np.unravel_index(int(rest.argmin()), rest.shape) if rest.ndim else ()
        state = int(np.ravel_multi_index((*cores, *(int(t) for t in tail)), shape))
        number = len(self._masks) - 1
        stages = []
        while number:
            if self._parent_slot[number, state] < 0:
                raise EvaluationMismatchError("a state over ideals has no predecessor: a bug")
            slot = self.slots[int(self._parent_slot[number, state])]
            before, old = divmod(int(self._parent[number, state]), len(self._states))
            fresh = self._masks[number] & ~self._masks[before]
            layers = sorted(
                layer
                for block in range(self.blocks.n_blocks)
                if fresh >> block & 1
                for layer in self.blocks.members[block]
            )
            stages.append((tuple(layers), slot))
            number, state = before, old
        return tuple(reversed(stages))
