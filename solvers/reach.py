"""Which core counts a lane keeps a period on: a running maximum over the lattice of ideals.

For every ideal K, cores used and slot, keep the most work W(I) - hand-over that is sure (``solvers.growth``)
of any start I below K that is itself reached; starts before the last neck apart, as more is sure of them.
The best stage that ends at K is then busy for at least W(K) minus that number, so whether K is reached
needs no look at pairs of ideals: one sweep over the edges of the lattice decides for all core counts at
once.  A stage that takes longer than the period already is dropped.  What is not reached can not be,
whatever counts besides.  What is reached is searched backwards with the exact busy times, among the few
ideals that are reached.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.errors import CapError
from solvers.growth import Growth, Level
from solvers.ideals import as_mask
from solvers.limits import Limits
from solvers.problem import BoolArray, IntArray

NOT_REACHED = -(1 << 60)
_OVER_NECK, _SINCE_NECK, _TO_NECK = 0, 1, 2
"""Starts at the last neck and before; after it; the same with what they have received at the next neck."""
LONGEST_NS = 1 << 59
"""Longer periods allow the same as this one."""

Stages = tuple[tuple[tuple[int, ...], int], ...]
"""(ascending layers, slot) of each stage of a lane."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """A growing stage: state before it, place of its slot, state after it; sorted by the last."""

    before: IntArray
    slot: IntArray
    after: IntArray
    longest_ns: IntArray


def sweep_bytes(growth: Growth) -> int:
    """Return about how much memory a sweep on all cores takes at most (bytes)."""
    n_states = int(np.prod([size + 1 for size in growth.resources.box]))
    widest = max(len(level.bits) for level in growth.levels)
    arrays = 4 if growth.is_free else 8
    return 2 * growth.n_ideals * n_states + 8 * arrays * widest * n_states * len(growth.slots)


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
        self._limits = limits
        self.n_steps = 0
        """Ideals that the last search of a lane looked at, with the cores used there."""
        self._box = (*cores, *growth.resources.box[growth.resources.n_clusters :])
        self._states = list(itertools.product(*(range(size + 1) for size in self._box)))
        self._number = {state: number for number, state in enumerate(self._states)}
        self._after = self._next_states()
        self._columns = self._make_columns()
        self._reached: list[BoolArray] = []
        for reached in self._sweep():
            self._reached.append(reached)

    def _make_columns(self) -> _Columns:
        growth, found = self._growth, []
        for column, slot in enumerate(growth.slots):
            longest = self._period_ns - int(growth.blocks.problem.overhead[slot])
            for before, after in enumerate(self._after[column].tolist()):
                if after >= 0 and longest >= 0:
                    found.append((after, before, column, longest))
        table = np.array(sorted(found), np.int64).reshape(-1, 4)
        return _Columns(table[:, 1], table[:, 2], table[:, 0], table[:, 3])

    def _next_states(self) -> IntArray:
        """int64 (slots, states): the state after a stage more, -1 where it does not fit."""
        found = np.full((len(self._growth.slots), len(self._states)), -1)
        for column, slot in enumerate(self._growth.slots):
            use = self._growth.resources.use[slot]
            for number, state in enumerate(self._states):
                found[column, number] = self._number.get(tuple(map(int, np.add(state, use))), -1)
        return found

    def _sweep(self) -> Iterator[BoolArray]:
        """Yield bool (ideals, states) per level."""
        growth, columns = self._growth, self._columns
        live = np.flatnonzero(columns.before == 0)
        most = [np.zeros((1, len(live)), np.int64)] * (1 if growth.is_free else 3)
        first = np.zeros((1, len(self._states)), np.bool_)
        first[0, 0] = True
        yield first
        for size, level in enumerate(growth.levels[1:], 1):
            if size % 32 == 0:
                self._limits.check()
            most = [self._grow(level, live, before) for before in most]
            if len(level.bits) == 1 and len(most) > 1:
                most[_SINCE_NECK] = most[_TO_NECK]
            reached = self._end_stages(size, live, most)
            yield reached
            if len(level.bits) == 1 and len(most) > 1:
                longer = np.maximum(most[_OVER_NECK], most[_TO_NECK])
                most = [longer, np.full_like(longer, NOT_REACHED), np.full_like(longer, NOT_REACHED)]
            starts: BoolArray = np.any(reached, axis=0)
            wanted = starts[columns.before]
            for before in most:
                wanted[live[(before > NOT_REACHED).any(axis=0)]] = True
            kept, next_live = wanted[live], np.flatnonzero(wanted)
            where = np.searchsorted(next_live, live[kept])
            for number, before in enumerate(most):
                grown = np.full((len(level.bits), len(next_live)), NOT_REACHED)
                grown[:, where] = before[:, kept]
                most[number] = self._start(size, number, next_live, reached, grown)
            live = next_live

    def _start(self, size: int, number: int, live: IntArray, reached: BoolArray, grown: IntArray) -> IntArray:
        """Let stages start at the ideals of a level that are reached."""
        growth = self._growth
        slot, before = self._columns.slot[live], self._columns.before[live]
        work = growth.levels[size].work_ns[:, slot]
        if not growth.is_free:
            if number == (_SINCE_NECK if len(work) == 1 else _OVER_NECK):
                return grown
            sure = growth.sure
            paid = (sure.to_neck_ns if number == _TO_NECK else sure.first_block_ns)[size]
            work = work - paid[:, growth.cluster_of_slot[slot]]
        return np.maximum(grown, np.where(reached[:, before], work, NOT_REACHED))

    def _grow(self, level: Level, live: IntArray, before: IntArray) -> IntArray:
        """Add one block in every way; drop what takes too long already."""
        growth, columns = self._growth, self._columns
        slot = columns.slot[live]
        most = np.full((len(level.bits), len(live)), NOT_REACHED)
        for entry in level.entries:
            value = before[entry.source]
            if growth.has_forbidden:
                value[~growth.allowed[entry.block][:, slot]] = NOT_REACHED
            np.maximum(most[: len(value)], value, out=most[: len(value)])
        busy = level.work_ns[:, slot] - most
        most[busy > columns.longest_ns[live]] = NOT_REACHED
        return most

    def _end_stages(self, size: int, live: IntArray, most: list[IntArray]) -> BoolArray:
        """Return which ideals (rows) are reached in which state."""
        columns, growth = self._columns, self._growth
        level = growth.levels[size]
        reached = np.zeros((len(level.bits), len(self._states)), np.bool_)
        self._end_measured(size, reached)
        if not len(live):
            return reached
        slot, longest = columns.slot[live], columns.longest_ns[live]
        work = level.work_ns[:, slot]
        if growth.is_free:
            within = work - most[0] <= longest
        else:
            cluster = growth.cluster_of_slot[slot]
            within = work + growth.sure.made_since_ns[size][:, cluster] - most[_OVER_NECK] <= longest
            within |= work + level.sent_ns[:, cluster] - most[_SINCE_NECK] <= longest
        after, first = np.unique(columns.after[live], return_index=True)
        reached[:, after] |= np.logical_or.reduceat(within, first, axis=1)
        return reached

    def _end_measured(self, size: int, reached: BoolArray) -> None:
        """Mark what measured stages reach on a level, which may be quicker than the sum of their layers."""
        for stage in self._growth.measured.get(size, ()):
            if stage.busy_ns <= self._period_ns:
                first = self._growth.ideals.first
                below = int(np.searchsorted(first, stage.start, side="right")) - 1
                before = np.flatnonzero(self._reached[below][stage.start - first[below]])
                after = self._after[stage.column, before]
                reached[stage.end - first[size], after[after >= 0]] = True

    def final(self) -> BoolArray:
        """Return bool (cores + 1 per cluster): false where no lane on exactly so many is within the period.

        True only says that the hand-over that is sure does not rule it out; ``lane`` tells.
        """
        shape = tuple(size + 1 for size in self._box[: self._growth.resources.n_clusters])
        found: BoolArray = self._reached[-1][0].reshape(*shape, -1).any(axis=-1)
        return found

    def lane(self, cores: tuple[int, ...], most_steps: int) -> Stages | None:
        """Return a lane on exactly these cores within the period; None where there is none.

        Raises
        ------
        CapError
            ``most_steps`` ideals searched backwards, with the cores used there, did not tell.
        """
        n_clusters = self._growth.resources.n_clusters
        last = self._growth.n_ideals - 1
        seen: set[tuple[int, int]] = set()
        for number, state in enumerate(self._states):
            if state[:n_clusters] == cores and self._reached[-1][0, number]:
                path = self._search(last, number, seen, most_steps)
                if path is not None:
                    return self._stages(path)
        return None

    def _search(
        self, ideal: int, state: int, seen: set[tuple[int, int]], most_steps: int
    ) -> list[tuple[int, int]] | None:
        """Return (start, place of the slot) of the stages to an ideal, the last one first."""
        path: list[tuple[int, int]] = []
        waiting = [iter(self._stages_to(ideal, state))]
        while waiting:
            step = next(waiting[-1], None)
            if step is None:
                waiting.pop()
                path = path[:-1]
                continue
            start, column, earlier = step
            if not start:
                return [*path, (start, column)]
            if (start, earlier) in seen:
                continue
            seen.add((start, earlier))
            self.n_steps = len(seen)
            if self.n_steps > most_steps:
                raise CapError(f"ideal_dp: {most_steps} ideals do not tell whether a lane is within a period")
            path.append((start, column))
            waiting.append(iter(self._stages_to(start, earlier)))
        return None

    def _stages_to(self, ideal: int, state: int) -> list[tuple[int, int, int]]:
        """Return the stages that end at an ideal, shortest first: (start, place of the slot, state there)."""
        self._limits.check()
        growth, ideals = self._growth, self._growth.ideals
        size = int(np.searchsorted(ideals.first, ideal, side="right")) - 1
        n_below = ideals.first[size]
        outside = ~ideals.bits[ideal]
        longest = self._period_ns
        measured = {
            (stage.start, stage.column): stage.busy_ns
            for stage in growth.measured.get(size, ())
            if stage.end == ideal
        }
        found = []
        for column, slot in enumerate(growth.slots):
            for earlier in np.flatnonzero(self._after[column] == state):
                starts = np.flatnonzero(self._by_state[earlier, :n_below])
                compute = ideals.work_ns[ideal, column] - ideals.work_ns[starts, column]
                compute += growth.blocks.problem.overhead[slot]
                starts, compute = starts[compute <= longest], compute[compute <= longest]
                below = ~(ideals.bits[starts] & outside).any(axis=1)
                starts, compute = starts[below], compute[below]
                if len(starts):
                    busy = growth.busy_ns(starts, ideal, column, compute)
                    within = starts[busy <= longest].tolist()
                    found += [(n, column, int(earlier)) for n in within if (n, column) not in measured]
                for (start, on), time in measured.items():
                    if on == column and time <= longest and self._by_state[earlier, start]:
                        found.append((start, column, int(earlier)))
        return sorted(found, key=lambda stage: (-stage[0], stage[1]))

    @cached_property
    def _by_state(self) -> BoolArray:
        return np.ascontiguousarray(np.concatenate(self._reached).T)

    def _stages(self, path: list[tuple[int, int]]) -> Stages:
        blocks, ideals = self._growth.blocks, self._growth.ideals
        stages = []
        end = as_mask(ideals.bits[-1])
        for start, column in path:
            before = as_mask(ideals.bits[start])
            fresh = end & ~before
            held = (block for block in range(blocks.n_blocks) if fresh >> block & 1)
            layers = tuple(sorted(layer for block in held for layer in blocks.members[block]))
            stages.append((layers, self._growth.slots[column]))
            end = before
        return tuple(reversed(stages))
