"""Which ideals a lane reaches within a period: a running maximum over the lattice of ideals.

For every node K of ``solvers.growth``, cores used and slot, keep the most work W(I) - hand-over(I, K) of any
start I below K that is itself reached.  The busy time of the best stage that ends at K is then W(K) minus
that number, so whether K is reached needs no look at pairs of ideals: one sweep over the edges of the
lattice decides for all core counts at once.  A stage that takes longer than the period already is dropped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.errors import EvaluationMismatchError
from solvers.growth import Growth, Level
from solvers.ideals import as_bits
from solvers.limits import Limits
from solvers.problem import BoolArray, IntArray

NOT_REACHED = -(1 << 60)
LONGEST_NS = 1 << 59
"""Longer periods allow the same as this one."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """A growing stage: state before it, place of its slot, state after it; sorted by the last."""

    before: IntArray
    slot: IntArray
    after: IntArray
    longest_ns: IntArray


class Reach:
    """What is reached within a period.

    Parameters
    ----------
    growth
        The levels.
    cores
        Most cores per cluster.
    period_ns
        No stage is busy for longer.
    limits
        When to stop.
    """

    def __init__(self, growth: Growth, cores: tuple[int, ...], period_ns: int, limits: Limits) -> None:
        self._growth = growth
        self._period_ns = min(period_ns, LONGEST_NS)
        self._box = (*cores, *growth.resources.box[growth.resources.n_clusters :])
        self._states = list(itertools.product(*(range(size + 1) for size in self._box)))
        self._number = {state: number for number, state in enumerate(self._states)}
        self._columns = self._make_columns()
        first = np.zeros((1, len(self._states)), np.bool_)
        first[0, 0] = True
        self._reached: list[BoolArray] = [first]
        self._sweep(limits)

    def _make_columns(self) -> _Columns:
        growth, found = self._growth, []
        for state, number in self._number.items():
            for column, slot in enumerate(growth.slots):
                after = self._number.get(tuple(map(int, np.add(state, growth.resources.use[slot]))))
                longest = self._period_ns - int(growth.blocks.problem.overhead[slot])
                if after is not None and longest >= 0:
                    found.append((after, number, column, longest))
        table = np.array(sorted(found), np.int64).reshape(-1, 4)
        return _Columns(table[:, 1], table[:, 2], table[:, 0], table[:, 3])

    def _sweep(self, limits: Limits) -> None:
        columns, levels = self._columns, self._growth.levels
        live = np.flatnonzero(columns.before == 0)
        most = np.zeros((1, len(live)), np.int64)
        for number, level in enumerate(levels[1:], 1):
            if number % 32 == 0:
                limits.check()
            most = self._grow(level, live, most)
            reached = self._end_stages(level, live, most)
            self._reached.append(reached)
            going = most > NOT_REACHED
            starts: BoolArray = np.any(reached, axis=0)
            wanted = starts[columns.before]
            wanted[live[going.any(axis=0)]] = True
            next_live = np.flatnonzero(wanted)
            grown = np.full((len(most), len(next_live)), NOT_REACHED)
            kept = wanted[live]
            grown[:, np.searchsorted(next_live, live[kept])] = most[:, kept]
            here = reached[:, columns.before[next_live]]
            work = level.work_ns[level.fresh][:, columns.slot[next_live]]
            grown[level.fresh] = np.where(here, work, grown[level.fresh])
            live, most = next_live, grown

    def _grow(self, level: Level, live: IntArray, before: IntArray) -> IntArray:
        """Add one block in every way; drop what takes too long already."""
        growth, columns = self._growth, self._columns
        slot = columns.slot[live]
        most = np.full((len(level.work_ns), len(live)), NOT_REACHED)
        for entry in level.entries:
            value = before[entry.source]
            if entry.charge.any():
                value -= growth.charges_ns[entry.charge][:, growth.cluster_of_slot[slot]]
            if not growth.allowed.all():
                value[~growth.allowed[entry.block][:, slot]] = NOT_REACHED
            np.maximum(most[: len(value)], value, out=most[: len(value)])
        busy = level.work_ns[:, slot] - most
        most[busy > columns.longest_ns[live]] = NOT_REACHED
        return most

    def _end_stages(self, level: Level, live: IntArray, most: IntArray) -> BoolArray:
        """Return which ideals (rows) are reached in which state."""
        columns, n_ideals = self._columns, len(level.masks)
        reached = np.zeros((n_ideals, len(self._states)), np.bool_)
        if not len(live):
            return reached
        growth = self._growth
        slot = columns.slot[live]
        busy = level.work_ns[:, slot] - most
        if level.leaving.any():
            busy += growth.charges_ns[level.leaving][:, growth.cluster_of_slot[slot]]
        within = busy <= columns.longest_ns[live]
        after, first = np.unique(columns.after[live], return_index=True)
        ends = np.logical_or.reduceat(within, first, axis=1)
        if n_ideals == len(level.ideal):
            reached[np.ix_(level.ideal, after)] = ends
        else:
            by_ideal = np.argsort(level.ideal, kind="stable")
            starts = np.searchsorted(level.ideal[by_ideal], np.arange(n_ideals))
            reached[:, after] = np.logical_or.reduceat(ends[by_ideal], starts, axis=0)
        return reached

    def final(self) -> BoolArray:
        """Return bool (cores + 1 per cluster): whether a lane on exactly so many cores keeps the period."""
        shape = tuple(size + 1 for size in self._box)
        n_clusters = self._growth.resources.n_clusters
        last = self._reached[-1][0].reshape(shape)
        found: BoolArray = last.any(axis=tuple(range(n_clusters, len(shape))))
        return found

    def lane(self, cores: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
        """Return the stages (ascending layers, slot) of a lane behind ``final()[cores]``."""
        n_clusters = self._growth.resources.n_clusters
        state = next(
            state
            for number, state in enumerate(self._states)
            if state[:n_clusters] == cores and self._reached[-1][0, number]
        )
        blocks = self._growth.blocks
        ideal = self._growth.levels[-1].masks[0]
        stages = []
        while ideal:
            before, column, state = self._step_back(ideal, state)
            fresh = ideal & ~before
            held = (block for block in range(blocks.n_blocks) if fresh >> block & 1)
            layers = tuple(sorted(layer for block in held for layer in blocks.members[block]))
            stages.append((layers, self._growth.slots[column]))
            ideal = before
        return tuple(reversed(stages))

    def _step_back(self, ideal: int, state: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        """Return where a stage starts that ends here: the ideal, the place of its slot, and the state."""
        growth = self._growth
        size = ideal.bit_count()
        bits, masks, first = growth.all_bits
        outside = ~as_bits([ideal], growth.blocks.n_blocks)[0]
        below = ~(bits[: first[size]] & outside).any(axis=1)
        for column, slot in enumerate(growth.slots):
            earlier = tuple(int(a - b) for a, b in zip(state, growth.resources.use[slot]))
            if min(earlier) < 0:
                continue
            start = np.flatnonzero(below & self._all_reached[: first[size], self._number[earlier]])
            for number in start[::-1]:  # the largest ideals first: the shortest stages
                busy = growth.busy_ns(masks[number], ideal, column)
                if busy is not None and busy <= self._period_ns:
                    return masks[number], column, earlier
        raise EvaluationMismatchError("an ideal that is reached has no stage that ends there: a bug")

    @cached_property
    def _all_reached(self) -> BoolArray:
        return np.concatenate(self._reached)
