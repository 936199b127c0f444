"""Contiguous pieces of a *rotated* order: one unit may hold the end and the start of the model.

When units may hold several pieces, any order of the elements, topological or not, cut into intervals
is a plan.  Rotations of a topological order let the first and the last layers share a unit, which saves
the hand-over of tensors that skip over the whole model (embedding tables that the output layer uses
again).  The programme of ``solvers.interval_dp`` is exact for each rotation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solvers.interval_dp import IntervalTable
from solvers.limits import Limits
from solvers.loads import Elements, allowed_on
from solvers.order_costs import NEVER, Links, OrderCosts
from solvers.problem import IntArray
from solvers.topology import Blocks, contract


class AnyOrderCosts(OrderCosts):
    """Busy times of intervals of elements in any order; hand-over is charged per interval.

    Parameters
    ----------
    parts
        From ``loads.elements``.
    blocks
        For the problem; its blocks are not used.
    order
        Every element once.
    """

    def __init__(self, parts: Elements, blocks: Blocks, order: tuple[int, ...]) -> None:
        problem = parts.problem
        self.blocks = blocks
        self.order = order
        self.links = Links.CHEAPEST
        self.n_sources = 1
        self.cluster_of_slot = np.array([slot.cluster for slot in problem.slots])
        cost = np.where(problem.supported, problem.cost_ns, 0)
        rows = np.array([cost[list(parts.members[e])].sum(axis=0) for e in order], np.int64)
        self._prefix = np.concatenate([np.zeros((1, rows.shape[1]), np.int64), np.cumsum(rows, axis=0)])
        slots = range(len(problem.slots))
        possible = np.array([[allowed_on(problem, parts.members[e], slot) for slot in slots] for e in order])
        self._barrier = np.zeros((len(order) + 1, rows.shape[1]), np.int64)
        for i in range(1, len(order) + 1):
            self._barrier[i] = np.where(possible[i - 1], self._barrier[i - 1], i)
        place = {element: number for number, element in enumerate(order)}
        clusters = range(len(problem.cluster_sizes))
        sizes = [problem.flows[index].n_bytes for _, _, index in parts.flows]
        self._producer = np.array([place[source] for source, _, _ in parts.flows], np.int64)
        self._users = [sorted(place[user] for user in users) for _, users, _ in parts.flows]
        self._send_row = np.array(
            [[problem.send_ns(c, size) for c in clusters] for size in sizes], np.int64
        ).reshape(len(sizes), len(problem.cluster_sizes))
        self._receive_row = np.array(
            [[min(problem.transfer_ns(a, b, size) for a in clusters) for b in clusters] for size in sizes],
            np.int64,
        ).reshape(len(sizes), len(problem.cluster_sizes))

    def columns(self) -> Iterator[tuple[int, IntArray]]:
        """Yield (i, busy) for i = 1..n as ``OrderCosts`` does."""
        problem = self.blocks.problem
        latest = np.full(len(self._users), -1, np.int64)  # last consumer before i
        first = np.array([users[0] for users in self._users], np.int64)
        last = np.array([users[-1] for users in self._users], np.int64)
        at: list[list[int]] = [[] for _ in range(self.n)]
        for number, users in enumerate(self._users):
            for user in users:
                at[user].append(number)
        for i in range(1, self.n + 1):
            latest[at[i - 1]] = i - 1
            change = np.zeros((self.n + 2, len(problem.cluster_sizes)), np.int64)
            inside = self._producer < i
            # receive: some consumer inside, the producer outside
            low = np.where(inside, self._producer + 1, 0)
            self._add(change, low, latest, self._receive_row)
            # send: the producer inside, some consumer outside
            low = np.where(last >= i, 0, first + 1)
            self._add(change, low, np.where(inside, self._producer, -1), self._send_row)
            moving = np.cumsum(change, axis=0)[:i][:, self.cluster_of_slot]
            compute = self._prefix[i] - self._prefix[:i] + problem.overhead
            busy = np.maximum(compute, moving) if problem.overlap else compute + moving
            busy[np.arange(i)[:, None] < self._barrier[i]] = NEVER
            yield i, busy[:, None, :]

    @staticmethod
    def _add(change: IntArray, low: IntArray, high: IntArray, rows: IntArray) -> None:
        """Add rows to all starts low..high."""
        some = low <= high
        np.add.at(change, low[some], rows[some])
        np.add.at(change, high[some] + 1, -rows[some])


def best_rotation(
    parts: Elements, limits: Limits, n_rotations: int
) -> tuple[tuple[int, ...], list[int], int] | None:
    """Return the best plan over rotations of the problem's own order, for one lane on all cores.

    Parameters
    ----------
    parts
        From ``loads.elements``.
    limits
        Memory.
    n_rotations
        Evenly spaced; half of them are spent around the best.

    Returns
    -------
    tuple of int, list of int, int
        Slot of every unit, unit of every element, and the period (ns); None without a plan.
    """
    problem = parts.problem
    blocks = contract(problem)
    order = sorted(range(len(parts.members)), key=lambda e: (blocks.of_layer[parts.members[e][0]], e))
    slots = tuple(range(len(problem.slots)))
    best: tuple[int, int] | None = None  # period, shift
    tried: set[int] = set()
    n = len(order)

    def attempt(shift: int) -> None:
        nonlocal best
        if shift in tried:
            return
        tried.add(shift)
        costs = AnyOrderCosts(parts, blocks, (*order[shift:], *order[:shift]))
        period = int(IntervalTable(costs, slots, limits).periods().min())
        if period < NEVER and (best is None or period < best[0]):
            best = (period, shift)

    step = max(1, 2 * n // n_rotations)
    for shift in range(0, n, step):
        attempt(shift)
    while step > 1 and best is not None:
        step = max(1, step // 2)
        for shift in (best[1] - step, best[1] + step):
            attempt(shift % n)
    if best is None:
        return None
    period, shift = best
    rotated = (*order[shift:], *order[:shift])
    table = IntervalTable(AnyOrderCosts(parts, blocks, rotated), slots, limits)
    periods = table.periods()
    cores = min(
        (tuple(map(int, use)) for use in np.argwhere(periods == period)), key=lambda use: (sum(use), use)
    )
    unit_of = [0] * n
    slot_of_unit = []
    for unit, (start, end, slot) in enumerate(table.lane(cores, period)):
        slot_of_unit.append(slot)
        for element in rotated[start:end]:
            unit_of[element] = unit
    return tuple(slot_of_unit), unit_of, period
