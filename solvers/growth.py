"""Ideals level by level, with what is open in a stage that grows over them block by block.

A lane is a chain of ideals, a stage the difference of two neighbours (see ``solvers.ideal_dp``).  A stage
grows from an ideal one block at a time, and what it has to pay for hand-over depends on where a tensor was
made.  So a *node* is an ideal with what is open in the growing stage: tensors from before the stage that it
may still receive, tensors of its own that it would have to send, and whether it holds a pinned block (cf.
``solvers.frontier``).  Where hand-over is free and there are not several pins, nodes are ideals.
``solvers.reach`` decides with these levels what a lane can reach within a period.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solvers.errors import CapError, UnsupportedProblemError
from solvers.ideals import Bits, as_bits, hand_overs
from solvers.interval_dp import Resources, resources, useful_slots
from solvers.limits import Limits
from solvers.problem import BoolArray, IntArray
from solvers.topology import Blocks

MOST_NODES = 500_000
BYTES_PER_NODE = 500
"""About what a node with its edges takes."""


@dataclass(frozen=True, slots=True)
class Entries:
    """One way into each of the first nodes of a level.

    Parameters
    ----------
    source
        Nodes of the level before.
    block
        What is added.
    charge
        Row of ``Growth.charges_ns``: what is received with it.
    """

    source: IntArray
    block: IntArray
    charge: IntArray


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes whose ideals have one size, those with most ways in first.

    Parameters
    ----------
    entries
        The first way into every node that has one, the second, and so on.
    ideal
        Number of the ideal of each node.
    fresh
        Per ideal the node at which a stage starts.
    leaving
        Row of ``Growth.charges_ns`` per node: what is sent if the stage ends here.
    work_ns
        int64 (nodes, slots): compute times of all blocks of the ideal.
    masks
        The ideals as bits.
    """

    entries: tuple[Entries, ...]
    ideal: IntArray
    fresh: IntArray
    leaving: IntArray
    work_ns: IntArray
    masks: tuple[int, ...]


class Growth:
    """Levels of nodes of a graph of blocks.

    Parameters
    ----------
    blocks
        The graph.  Receiving times that depend on the producer's cluster count as the cheapest.
    limits
        Memory, and when to stop.
    most_nodes
        Cap.

    Raises
    ------
    CapError
        Too many nodes, or more memory than the limit.
    UnsupportedProblemError
        Whole stages were measured, or hand-over that is not free overlaps with computing.
    """

    def __init__(self, blocks: Blocks, limits: Limits, most_nodes: int = MOST_NODES) -> None:
        problem = blocks.problem
        self.blocks = blocks
        self.slots = useful_slots(blocks)
        self.resources: Resources = resources(problem, blocks.n_blocks)
        self.allowed: BoolArray = blocks.allowed[:, list(self.slots)]
        self.cluster_of_slot: IntArray = np.array([problem.slots[slot].cluster for slot in self.slots])
        self._open = _Open(blocks)
        if problem.stage_times:
            raise UnsupportedProblemError("growth of stages: measured whole stages are not sums of layers")
        if problem.overlap and self._open.is_costly:
            raise UnsupportedProblemError("growth of stages: hand-over overlaps with computing")
        self._cost: IntArray = np.zeros((blocks.n_blocks, len(self.slots)), np.int64)
        layer_cost = np.where(problem.supported, problem.cost_ns, 0)[:, list(self.slots)]
        np.add.at(self._cost, np.array(blocks.of_layer), layer_cost)
        fit = limits.memory_bytes // BYTES_PER_NODE
        cap = f"cap of {most_nodes}" if most_nodes <= fit else f"{limits.memory_bytes} bytes of memory"
        self.levels = tuple(self._build(limits, min(most_nodes, fit), cap))
        self.charges_ns: IntArray = np.array(self._open.charges, np.int64)

    @property
    def n_ideals(self) -> int:
        """Number of ideals."""
        return sum(len(level.masks) for level in self.levels)

    @cached_property
    def all_bits(self) -> tuple[Bits, tuple[int, ...], tuple[int, ...]]:
        """All ideals by size, as bits and as masks, and how many are smaller than each size."""
        masks = tuple(mask for level in self.levels for mask in level.masks)
        first = (0, *itertools.accumulate(len(level.masks) for level in self.levels))
        return as_bits(list(masks), self.blocks.n_blocks), masks, first

    def busy_ns(self, before: int, after: int, column: int) -> int | None:
        """Return the busy time of the stage between two ideals on a slot; None where it may not be.

        Parameters
        ----------
        before, after
            Ideals as bits.
        column
            Place of the slot in ``slots``.
        """
        fresh = after & ~before
        members = [block for block in range(self.blocks.n_blocks) if fresh >> block & 1]
        if not self.allowed[members, column].all():
            return None
        if sum(self.blocks.pin[block] is not None for block in members) > 1:
            return None
        compute = int(self._cost[members, column].sum() + self.blocks.problem.overhead[self.slots[column]])
        return compute + self._open.moving_ns(before, after, int(self.cluster_of_slot[column]))

    def _build(self, limits: Limits, most_nodes: int, cap: str) -> Iterator[Level]:
        """Yield the levels; a key is an ideal, with what is open in the bits above."""
        blocks, n = self.blocks, self.blocks.n_blocks
        needs = [sum(1 << other for other in before) for before in blocks.predecessors]
        full, total = (1 << n) - 1, 0
        ready = {0: sum(1 << block for block, mask in enumerate(needs) if not mask)}
        open_at = {0: 0}
        nodes: dict[int, int] = {0: 0}
        edges: list[tuple[int, int, int, int]] = []
        work: IntArray = np.zeros((1, len(self.slots)), np.int64)
        size = 0
        while True:
            limits.check()
            total += len(nodes)
            if total > most_nodes:
                raise CapError(
                    f"ideal_dp: more than {most_nodes} ideals with what is open in a stage, after sets of "
                    f"{size} of {n} blocks ({cap}); 'lanes' searches single orders instead"
                )
            level, place = self._level(nodes, open_at, edges, work)
            yield level
            if full in ready:
                return
            following: dict[int, int] = {}
            ready_next: dict[int, int] = {}
            open_next: dict[int, int] = {}
            edges, rows = [], []
            for key, node in nodes.items():
                mask, source = key & full, int(place[node])
                candidates = rest = ready[mask]
                while rest:
                    bit = rest & -rest
                    rest ^= bit
                    block, larger = bit.bit_length() - 1, mask | bit
                    if larger not in ready_next:
                        more = candidates ^ bit
                        for other in blocks.successors[block]:
                            if needs[other] & ~larger == 0:
                                more |= 1 << other
                        ready_next[larger] = more
                        rows.append((source, block))
                        open_next[larger] = self._open.at_start(open_at[mask], block, larger)
                        following.setdefault(larger | open_next[larger] << n, len(following))
                    grown = self._open.grow(key >> n, block, larger)
                    if grown is not None:
                        target = following.setdefault(larger | grown[0] << n, len(following))
                        edges.append((source, target, block, grown[1]))
            nodes, ready, open_at = following, ready_next, open_next
            via = np.array(rows, np.int64)
            work = level.work_ns[via[:, 0]] + self._cost[via[:, 1]]
            size += 1

    def _level(
        self,
        nodes: dict[int, int],
        open_at: dict[int, int],
        edges: list[tuple[int, int, int, int]],
        work: IntArray,
    ) -> tuple[Level, IntArray]:
        """Put a level together, and say where each node is in it.

        ``open_at`` has the ideals in the order of ``work``, with what is open in a stage that starts there.
        """
        n = self.blocks.n_blocks
        full = (1 << n) - 1
        table = np.array(edges, np.int64).reshape(-1, 4)
        ways = np.bincount(table[:, 1], minlength=len(nodes))
        by_ways = np.argsort(-ways, kind="stable")
        place = np.empty(len(nodes), np.int64)
        place[by_ways] = np.arange(len(nodes))
        table[:, 1] = place[table[:, 1]]
        table = table[np.argsort(table[:, 1], kind="stable")]
        way = np.arange(len(table)) - np.searchsorted(table[:, 1], table[:, 1])
        entries = []
        for number in range(int(ways.max(initial=0))):
            chosen = table[way == number]
            entries.append(Entries(chosen[:, 0].copy(), chosen[:, 2].copy(), chosen[:, 3].copy()))
        number_of = {mask: number for number, mask in enumerate(open_at)}
        ideal = np.array([number_of[key & full] for key in nodes], np.int64)[by_ways]
        fresh = place[[nodes[mask | state << n] for mask, state in open_at.items()]]
        leaving = np.array([self._open.leaving(key >> n) for key in nodes], np.int64)[by_ways]
        return Level(tuple(entries), ideal, fresh, leaving, work[ideal], tuple(open_at)), place


class _Open:
    """What is open in a growing stage, as bits: per flow may-receive, per flow would-send, and a pin."""

    def __init__(self, blocks: Blocks) -> None:
        self._flows = hand_overs(blocks)
        self.is_costly = bool(self._flows)
        n_flows = len(self._flows)
        self._into = [0] * blocks.n_blocks
        self._out = [0] * blocks.n_blocks
        for number, flow in enumerate(self._flows):
            self._out[flow.source] |= 1 << number
            for block in range(blocks.n_blocks):
                if flow.users >> block & 1:
                    self._into[block] |= 1 << number
        self._shift = n_flows
        self._receives = sum(1 << k for k, flow in enumerate(self._flows) if flow.receive_ns.any())
        self._sends = sum(1 << k for k, flow in enumerate(self._flows) if flow.send_ns.any())
        pinned = [pin is not None for pin in blocks.pin]
        self._pinned = pinned if sum(pinned) > 1 else [False] * blocks.n_blocks
        self._pin_bit = 1 << 2 * n_flows
        n_clusters = len(blocks.problem.cluster_sizes)
        self.charges: list[IntArray] = [np.zeros(n_clusters, np.int64)]
        self._row_of: dict[tuple[bool, int], int] = {(True, 0): 0, (False, 0): 0}

    def at_start(self, before: int, block: int, ideal: int) -> int:
        """Return what is open in a stage that starts at an ideal, given that of the ideal without a block."""
        return (before | self._out[block] & self._receives) & ~self._used_up(block, ideal)

    def grow(self, before: int, block: int, ideal: int) -> tuple[int, int] | None:
        """Return what is open after a block was added to make an ideal, and the row of what it receives.

        None where the stage holds a pinned block already.
        """
        after = before
        if self._pinned[block]:
            if before & self._pin_bit:
                return None
            after |= self._pin_bit
        if not self._flows:
            return after, 0
        received = before & self._into[block]
        after &= ~(received | self._used_up(block, ideal) << self._shift)
        after |= (self._out[block] & self._sends) << self._shift
        return after, self._row(received, sending=False)

    def _used_up(self, block: int, ideal: int) -> int:
        """Return the flows into a block that nobody outside an ideal uses."""
        into, found = self._into[block], 0
        while into:
            flow = into & -into
            into ^= flow
            if not self._flows[flow.bit_length() - 1].users & ~ideal:
                found |= flow
        return found

    def leaving(self, state: int) -> int:
        """Return the row of what a stage sends that ends with so much open."""
        return self._row(state >> self._shift & ((1 << self._shift) - 1), sending=True)

    def _row(self, flows: int, *, sending: bool) -> int:
        key = sending, flows
        if key not in self._row_of:
            rest = [flow for number, flow in enumerate(self._flows) if flows >> number & 1]
            self._row_of[key] = len(self.charges)
            self.charges.append(
                np.sum([flow.send_ns if sending else flow.receive_ns for flow in rest], axis=0)
            )
        return self._row_of[key]

    def moving_ns(self, before: int, after: int, cluster: int) -> int:
        """Return what the stage between two ideals pays for hand-over."""
        total = 0
        for flow in self._flows:
            if before >> flow.source & 1:
                total += int(flow.receive_ns[cluster]) if flow.users & after & ~before else 0
            elif after >> flow.source & 1:
                total += int(flow.send_ns[cluster]) if flow.users & ~after else 0
        return total
