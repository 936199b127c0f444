"""Ideals level by level, with the ways in which a stage grows over them block by block.

A lane is a chain of ideals, a stage the difference of two neighbours (see ``solvers.ideal_dp``).  A stage
grows from an ideal one block at a time.  What it pays for hand-over depends on where a tensor was made,
which the ideal reached does not tell; but some of it is sure: what the cheapest first block receives, what
the cheapest last block sends, and at the next *neck* (a size of which there is one ideal only, so that the
stage holds all that is missing in it) all that was received until there.
``solvers.reach`` decides with these levels what a lane can reach within a period.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.errors import CapError
from solvers.ideals import WORD, Bits, as_bits, as_mask, hand_overs
from solvers.interval_dp import Resources, resources, useful_slots
from solvers.limits import Limits
from solvers.order_costs import NEVER
from solvers.problem import BoolArray, IntArray
from solvers.topology import Blocks

MOST_IDEALS = 500_000
BYTES_PER_IDEAL, BYTES_PER_BLOCK = 400, 4
"""About what an ideal with its edges takes, and besides for every block of the graph."""


@dataclass(frozen=True, slots=True)
class Entries:
    """One way into each of the first ideals of a level.

    Parameters
    ----------
    source
        Ideals of the level before.
    block
        What is added.
    """

    source: IntArray
    block: IntArray


@dataclass(frozen=True, slots=True)
class Level:
    """The ideals of one size, those with most ways in first.

    Parameters
    ----------
    bits
        uint64 (ideals, words).
    entries
        The first way into every ideal, the second, and so on.
    work_ns
        int64 (ideals, slots): compute times of all blocks.
    sent_ns
        int64 (ideals, clusters): what a stage that ends here sends at least.
    """

    bits: Bits
    entries: tuple[Entries, ...]
    work_ns: IntArray
    sent_ns: IntArray


@dataclass(frozen=True, slots=True)
class SureHandOver:
    """What stages pay for sure, per level int64 (ideals, clusters).

    Parameters
    ----------
    first_block_ns
        What a stage receives that starts here: with the cheapest first block.
    to_neck_ns
        What it has received at the next neck.
    made_since_ns
        What a stage sends that ends here and started at the last neck below, or before.
    """

    first_block_ns: tuple[IntArray, ...]
    to_neck_ns: tuple[IntArray, ...]
    made_since_ns: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True)
class Ideals:
    """All ideals by size.

    Parameters
    ----------
    bits
        uint64 (ideals, words).
    first
        How many are smaller than each size.
    work_ns
        int64 (ideals, slots).
    """

    bits: Bits
    first: tuple[int, ...]
    work_ns: IntArray


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """A stage whose time does not follow from its layers.

    Parameters
    ----------
    start, end
        Numbers of ideals.
    column
        Place of the slot in ``Growth.slots``.
    busy_ns
        With hand-over; ``NEVER`` where slot or pins forbid it.
    """

    start: int
    end: int
    column: int
    busy_ns: int


class Growth:
    """Levels of ideals of a graph of blocks.

    Parameters
    ----------
    blocks
        The graph.  Receiving times that depend on the producer's cluster count as the cheapest.
    limits
        Memory, and when to stop.
    most_ideals
        Cap.

    Raises
    ------
    CapError
        Too many ideals, or more memory than the limit.
    """

    def __init__(self, blocks: Blocks, limits: Limits, most_ideals: int = MOST_IDEALS) -> None:
        problem = blocks.problem
        self.blocks = blocks
        self.slots = useful_slots(blocks)
        self.resources: Resources = resources(problem, blocks.n_blocks)
        self.allowed: BoolArray = blocks.allowed[:, list(self.slots)]
        self.has_forbidden = not self.allowed.all()
        self.cluster_of_slot: IntArray = np.array([problem.slots[slot].cluster for slot in self.slots])
        self._flows = hand_overs(blocks)
        self._cost: IntArray = np.zeros((blocks.n_blocks, len(self.slots)), np.int64)
        layer_cost = np.where(problem.supported, problem.cost_ns, 0)[:, list(self.slots)]
        np.add.at(self._cost, np.array(blocks.of_layer), layer_cost)
        shape = blocks.n_blocks, len(problem.cluster_sizes)
        self._received: IntArray = np.zeros(shape, np.int64)
        self._sent: IntArray = np.zeros(shape, np.int64)
        self.is_free = problem.overlap or not self._flows
        """Whether no hand-over is sure to count."""
        for flow in () if self.is_free else self._flows:
            self._received[list(_members(flow.users))] += flow.receive_ns
            self._sent[flow.source] += flow.send_ns
        fit = limits.memory_bytes // (BYTES_PER_IDEAL + BYTES_PER_BLOCK * blocks.n_blocks)
        cap = "cap on ideals" if most_ideals <= fit else f"{limits.memory_bytes} bytes of memory"
        self.levels = tuple(self._build(limits, min(most_ideals, fit), cap))

    @property
    def n_ideals(self) -> int:
        """Number of ideals."""
        return len(self.ideals.bits)

    @cached_property
    def ideals(self) -> Ideals:
        """All ideals by size."""
        first = (0, *itertools.accumulate(len(level.bits) for level in self.levels))
        bits = np.concatenate([level.bits for level in self.levels])
        return Ideals(bits, first, np.concatenate([level.work_ns for level in self.levels]))

    @cached_property
    def sure(self) -> SureHandOver:
        """What stages pay for hand-over for sure."""
        ideals, first = self.ideals, self.ideals.first
        first_block = np.full((len(ideals.bits), self._received.shape[1]), NEVER)
        first_block[-1] = 0
        for size, level in enumerate(self.levels[1:]):
            for entry in level.entries:
                np.minimum.at(first_block, first[size] + entry.source, self._received[entry.block])
        to_neck, made_since = np.zeros_like(first_block), np.zeros_like(first_block)
        necks = [size for size, level in enumerate(self.levels) if len(level.bits) == 1]
        for start, end in itertools.pairwise(necks):
            below, above = slice(first[start], first[end]), slice(first[start + 1], first[end + 1])
            inside, neck = as_mask(self.levels[start].bits[0]), as_mask(self.levels[end].bits[0])
            for flow in self._flows:
                if not neck >> flow.source & 1:
                    continue
                if flow.users & neck & ~inside:
                    wanted = self._as_bits(flow.users & neck) & ~ideals.bits[below]
                    enters = _holds(ideals.bits[below], flow.source) & wanted.any(axis=1)
                    to_neck[below] += enters[:, None] * flow.receive_ns
                if not inside >> flow.source & 1:
                    wanted = self._as_bits(flow.users) & ~ideals.bits[above]
                    leaves = _holds(ideals.bits[above], flow.source) & wanted.any(axis=1)
                    made_since[above] += leaves[:, None] * flow.send_ns
        return SureHandOver(*(tuple(np.split(x, first[1:-1])) for x in (first_block, to_neck, made_since)))

    @cached_property
    def _received_in_the_end(self) -> IntArray:
        """int64 (ideals, clusters): what a stage from there to the last ideal receives."""
        bits, first = self.ideals.bits, self.ideals.first
        total = np.zeros((len(bits), self._received.shape[1]), np.int64)
        necks = [size for size, level in enumerate(self.levels) if len(level.bits) == 1]
        for start, end in itertools.pairwise(necks):
            here = slice(first[start], first[end])
            inside, neck = as_mask(self.levels[start].bits[0]), as_mask(self.levels[end].bits[0])
            for flow in self._flows:
                if neck >> flow.source & 1 and flow.users & ~inside:
                    enters = (self._as_bits(flow.users) & ~bits[here]).any(axis=1)
                    total[here] += (enters & _holds(bits[here], flow.source))[:, None] * flow.receive_ns
        return total

    def _as_bits(self, mask: int) -> Bits:
        found: Bits = as_bits([mask], self.blocks.n_blocks)[0]
        return found

    def busy_ns(self, starts: IntArray, ideal: int, column: int, compute_ns: IntArray) -> IntArray:
        """Return the busy times of stages on a slot; ``NEVER`` where slot or pins forbid one.

        Parameters
        ----------
        starts
            Numbers of ideals below the end.
        ideal
            Number of the ideal where they end.
        column
            Place of the slot in ``slots``.
        compute_ns
            Compute times of the stages.
        """
        cluster = int(self.cluster_of_slot[column])
        before, end = self.ideals.bits[starts], as_mask(self.ideals.bits[ideal])
        fresh = self.ideals.bits[ideal] & ~before
        moving = self._received_in_the_end[starts, cluster]
        for flow in self._flows:
            if not end >> flow.source & 1 or not flow.users & ~end:
                continue
            made_before = _holds(before, flow.source)
            not_used = ~(self._as_bits(flow.users) & fresh).any(axis=1)
            moving -= (made_before & not_used) * int(flow.receive_ns[cluster])
            moving += ~made_before * int(flow.send_ns[cluster])
        busy: IntArray = (
            np.maximum(compute_ns, moving) if self.blocks.problem.overlap else compute_ns + moving
        )
        pins = np.zeros(len(starts), np.int64)
        for block in self._restricted:
            if end >> block & 1:
                inside = ~_holds(before, block)
                pins += inside & (self.blocks.pin[block] is not None)
                if not self.allowed[block, column]:
                    busy[inside] = NEVER
        busy[pins > 1] = NEVER
        return busy

    @cached_property
    def measured(self) -> dict[int, tuple[MeasuredStage, ...]]:
        """Measured whole stages by the size of the ideal where they end."""
        sets = list(self.blocks.measured_sets())
        if not sets:
            return {}
        bits = self.ideals.bits
        number = {words.tobytes(): ideal for ideal, words in enumerate(bits)}
        sizes = np.searchsorted(self.ideals.first, np.arange(len(bits)), side="right") - 1
        found: dict[int, list[MeasuredStage]] = {}
        for mask, slot, time in sets:
            if slot not in self.slots:
                continue
            column, held = self.slots.index(slot), self._as_bits(mask)
            for start in np.flatnonzero(~(bits & held).any(axis=1)):
                end = number.get((bits[start] | held).tobytes())
                if end is not None:
                    busy = self.busy_ns(np.array([start]), end, column, np.array([time]))
                    stage = MeasuredStage(int(start), end, column, int(busy[0]))
                    found.setdefault(int(sizes[end]), []).append(stage)
        return {size: tuple(stages) for size, stages in found.items()}

    @cached_property
    def _restricted(self) -> tuple[int, ...]:
        pinned = np.array([pin is not None for pin in self.blocks.pin])
        return tuple(map(int, np.flatnonzero(pinned | ~self.allowed.all(axis=1))))

    def _build(self, limits: Limits, most_ideals: int, cap: str) -> Iterator[Level]:
        blocks, n = self.blocks, self.blocks.n_blocks
        weight = np.random.default_rng(0).integers(1, 1 << 63, n, dtype=np.uint64)
        single = as_bits([1 << block for block in range(n)], n)
        follows = np.zeros((n, n), np.int16)
        for number, others in enumerate(blocks.successors):
            follows[number, list(others)] = 1
        lacking = follows.sum(axis=0, dtype=np.int16)[None]  # blocks still missing below; -1 inside the ideal
        bits, key = np.zeros((1, single.shape[1]), np.uint64), np.zeros(1, np.uint64)
        nothing = np.zeros((1, self._sent.shape[1]), np.int64)
        level = Level(bits, (), np.zeros((1, len(self.slots)), np.int64), nothing)
        total = 1
        yield level
        for size in range(1, n + 1):
            limits.check()
            source, block = np.nonzero(lacking == 0)
            key, bits = key[source] + weight[block], bits[source] | single[block]
            first, ideal = _distinct(key, bits)
            total += len(first)
            if total > most_ideals:
                raise CapError(
                    f"ideal_dp: more than {most_ideals} ideals after sets of {size} of {n} blocks ({cap}); "
                    "'lanes' searches single orders instead"
                )
            ways = np.bincount(ideal)
            by_ways = np.argsort(-ways, kind="stable")
            place = np.empty(len(first), np.int64)
            place[by_ways] = np.arange(len(first))
            first, ideal = first[by_ways], place[ideal]
            key, bits = key[first], bits[first]
            lacking = lacking[source[first]] - follows[block[first]]
            lacking[np.arange(len(first)), block[first]] = -1
            level = self._level(level, bits, source, block, ideal)
            yield level

    def _level(self, before: Level, bits: Bits, source: IntArray, block: IntArray, ideal: IntArray) -> Level:
        """Put a level together from its ideals and the edges to them."""
        by_ideal = np.argsort(ideal, kind="stable")
        source, block, ideal = source[by_ideal], block[by_ideal], ideal[by_ideal]
        way = np.arange(len(ideal)) - np.searchsorted(ideal, ideal)
        entries = tuple(Entries(source[way == k], block[way == k]) for k in range(int(way.max()) + 1))
        work = before.work_ns[entries[0].source] + self._cost[entries[0].block]
        sent = self._sent[entries[0].block]
        for entry in entries[1:]:
            sent[: len(entry.block)] = np.minimum(sent[: len(entry.block)], self._sent[entry.block])
        return Level(bits, entries, work, sent)


def _distinct(key: Bits, bits: Bits) -> tuple[IntArray, IntArray]:
    """Return where each distinct set is first, and which one each is; sets of one key are mostly equal."""
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    if (bits[first][which] != bits).any():
        _, first, which = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def _members(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def _holds(bits: Bits, block: int) -> BoolArray:
    """Whether each set (last axis: words) holds a block."""
    held: BoolArray = (bits[..., block // WORD] >> np.uint64(block % WORD) & np.uint64(1)).astype(np.bool_)
    return held
